"""What the processes do that share one SQLite file in the tests."""

from __future__ import annotations

import os
import resource
import signal
import time
from contextlib import suppress
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import apsw

from onetray import failpoints
from onetray.config import EngineConfig
from onetray.domain.clock import SECOND, SystemClock
from onetray.domain.commands import Submit
from onetray.domain.errors import LeaseLost, OnetrayError
from onetray.engine import Engine
from onetray.store import open_store
from tests.support.fleet import Ledger

JOBS = 60


def url_of(path: Path | str) -> str:
    return f"sqlite:///{path}"


def submitter(path: str, number: int) -> list[str]:
    with Engine.open(url_of(path)) as engine:
        return [engine.submit("mail", f"{number}.{n}").id or "" for n in range(JOBS)]


def finisher(path: str, number: int, wanted: int) -> dict[str, Any]:
    claims: list[Any] = []
    successes: list[Any] = []
    with Engine.open(url_of(path)) as engine:
        janitor = engine.janitor(every_s=0.05)
        janitor.start()
        while engine.store.read_sql("SELECT count(*) FROM task WHERE finished_at IS NOT NULL")[0][0] < wanted:
            seen = engine.wake.generation
            held = engine.claim(worker=f"w{number}", limit=3, lease_s=5)
            for a in held:
                claims.append((a.key, a.fence))
                engine.succeed(a)
                successes.append((a.key, a.fence, a.worker))
            if not held:
                engine.wake.wait(seen, 0.05)  # The submitters are not done yet.
        janitor.stop()
    return {"claims": claims, "successes": successes}


def role(what: str, *args: Any) -> Any:
    return {"submit": submitter, "finish": finisher}[what](*args)


def opener(path: str, start: Barrier) -> int:
    start.wait(60)
    with Engine.open(url_of(path)) as engine:
        return len(engine.tasks())


def slow_writer(path: str, reached: Any, go_on: Any) -> None:
    engine = Engine.open(url_of(path))

    def hook(point: str) -> None:
        if point == "committing":
            reached.set()
            assert go_on.wait(60)

    engine.store.names.refresh()
    failpoints.hook = hook
    engine.submit("mail", "second")
    engine.close()


def submit_one(path: str, payload: str) -> None:
    with Engine.open(url_of(path)) as engine:
        engine.submit("mail", payload)


def die_while_migrating(path: str, statement: int) -> None:
    """Be killed at the n-th statement of the migration's transaction; 0 is its COMMIT."""
    seen: list[str] = []

    def trace(_: object, sql: str, __: object) -> bool:
        if seen or sql.startswith("BEGIN IMMEDIATE"):
            seen.append(sql)
        if len(seen) == statement or (statement == 0 and seen and sql.startswith("COMMIT")):
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", trace))
    open_store(url_of(path))
    os._exit(3)


def tell_as_nobody(path: str) -> list[str]:
    """Open a file without root's power to write anywhere; answer the error."""
    Engine.open("sqlite://:memory:").close()  # Nobody may not be able to read the modules: read them before.
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    try:
        with Engine.open(url_of(path)) as engine:
            engine.submit("mail")
    except OnetrayError as e:
        return [type(e).__name__, str(e)]
    return ["opened", ""]


def fill_the_disk(path: str, ledger_path: str) -> list[Any]:
    """Submit until no more fits; then make room and go on. Answers the errors."""
    ledger, errors = Ledger(ledger_path), []
    with Engine.open(url_of(path), config=EngineConfig(call_timeout_s=0.1)) as engine:
        ledger.write("submit", engine.submit("mail", "first").id)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        used = max(os.path.getsize(p) for p in (path, f"{path}-wal"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (used + 200_000, hard))
        while not errors:
            for verdict in engine.run([Submit(kind="mail", payload="x" * 5_000) for _ in range(5)]):
                if verdict.error is None:
                    ledger.write("submit", verdict.value.id)
                else:
                    errors.append(type(verdict.error).__name__)
        full = len(engine.tasks(limit=1000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        ledger.write("submit", engine.submit("mail", "last").id)
        return [errors, full]


def open_without_room(path: str) -> list[str]:
    """Open a new file where nothing more fits; answer the error."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    try:
        open_store(url_of(path))
    except OnetrayError as e:
        return [type(e).__name__, str(e)]
    return ["opened", ""]


def submit_until_refused(path: str, ledger_path: str) -> None:
    """Submit, and write down what was acknowledged, until the engine refuses; then write down with which error."""
    ledger = Ledger(ledger_path)
    engine = Engine.open(url_of(path))
    while True:
        try:
            ledger.write("submitted", engine.submit("mail").id)
        except OnetrayError as e:
            ledger.write("refused", type(e).__name__)
            return


class OffClock:
    """The system's clock, wrong by so many seconds."""

    def __init__(self, off_s: float) -> None:
        self._off = int(off_s * SECOND)

    def now(self) -> int:
        return SystemClock().now() + self._off


def submit_and_finish(path: str, off_s: float) -> list[str | None]:
    """Submit tasks, some to run in a moment, and finish tasks until all of three such processes have ended."""
    with Engine.open(url_of(path), clock=OffClock(off_s)) as engine:
        ids = [engine.submit("mail", n, delay_s=0.05 * (n % 3)).id for n in range(20)]
        engine.janitor(every_s=0.02).start()
        until = time.monotonic() + 30
        while engine.store.read_sql("SELECT count(*) FROM task WHERE finished_at IS NOT NULL")[0][0] < 60:
            assert time.monotonic() < until, "some tasks are not to be had"
            for a in engine.claim(worker=f"w{off_s:g}", limit=3):
                with suppress(LeaseLost):  # The first process that is ahead has ended the leases of the others.
                    engine.start(a)
                    engine.succeed(a)
        return ids


def die_with_a_claim(path: str, off_s: float) -> None:
    engine = Engine.open(url_of(path), clock=OffClock(off_s))
    assert engine.claim(worker="dead", lease_s=1.0)
    os._exit(1)
