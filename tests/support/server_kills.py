"""Clients and a worker that use a server, while it is killed and their connections are cut; and what is left then.

Used by the tests of the remote client and at full size by `./go soak remote`.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from onetray import Onetray
from onetray.domain.errors import OnetrayError
from onetray.domain.task import Task
from onetray.engine import Engine
from onetray.remote.engine import RemoteEngine
from onetray.store import open_store
from onetray.verify import verify
from tests.support.audit import audit
from tests.support.fleet import wait_until
from tests.support.servers import ServerProcess
from tests.support.wire import Wire


@dataclass
class ServerKills:
    """What was done, and what was wrong with the outcome."""

    kills: int = 0
    acknowledged: dict[str, str] = field(default_factory=dict)
    """The job that each submit was told of, by what the submit was for."""
    unanswered: int = 0
    fates: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        met = ", ".join(f"{times} {fate}" for fate, times in sorted(self.fates.items()))
        return (
            f"{len(self.acknowledged)} submits acknowledged, {self.unanswered} not; "
            f"{self.kills} servers killed{'; requests: ' + met if met else ''}"
        )


class Client(threading.Thread):
    """Submits without a pause: every second one under a key of its own, the others as most callers do."""

    def __init__(self, url: str, name: str, submits: int, seen: ServerKills) -> None:
        super().__init__(daemon=True)
        self._url, self._name, self._submits, self._seen = url, name, submits, seen

    def run(self) -> None:
        with RemoteEngine(self._url) as engine:
            for n in range(self._submits):
                what = f"{self._name}-{n}"
                try:
                    told = engine.submit("note", {"what": what}, idempotency_key=what if n % 2 else None)
                except OnetrayError:
                    self._seen.unanswered += 1
                else:
                    self._seen.acknowledged[what] = str(told.id)


def attack(
    database: str,
    *,
    clients: int,
    submits: int,
    kills: int = 0,
    every_s: float = 1.0,
    lose: float = 0.0,
    seed: int = 1,
    limit_s: float = 120.0,
    say: Callable[[str], None] = lambda _: None,
) -> ServerKills:
    """Let clients submit and a worker work, kill the server so often, and lose that share of requests or answers."""
    store = open_store(database)
    store.migrate()
    store.close()
    seen = ServerKills()
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(database))
        wire = stack.enter_context(Wire(server.url))
        wire.chance(seed, lose)
        app = stack.enter_context(Onetray(wire.url))

        @app.task(kind="note", lease_s=15.0, retries=20)
        async def note(what: str) -> str:
            return what

        stack.enter_context(app.worker(concurrency=20))
        crowd = [Client(wire.url, f"c{n}", submits, seen) for n in range(clients)]
        for client in crowd:
            client.start()
        _kill(server, crowd, seen, kills, every_s, limit_s, say)
        with Engine.open(database) as own:
            wait_until(lambda: not _open(own), limit_s)
            seen.fates = wire.fates
            seen.faults += _faults(own, seen, clients * submits)
    return seen


def _kill(
    server: ServerProcess, crowd: list[Client], seen: ServerKills, kills: int, every_s: float, limit_s: float,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    until = time.monotonic() + limit_s
    while seen.kills < kills and any(client.is_alive() for client in crowd):
        # While they are at it: a server that nobody uses is no loss.
        enough = len(seen.acknowledged) + len(crowd) // 2
        wait_until(lambda: len(seen.acknowledged) > enough or not any(c.is_alive() for c in crowd), limit_s)  # noqa: B023
        server.kill()
        seen.kills += 1
        server.start()
        say(f"{len(seen.acknowledged)} submits acknowledged, {seen.kills} servers killed")
        crowd[0].join(every_s)
    for client in crowd:
        client.join(max(0.0, until - time.monotonic()))
    if any(client.is_alive() for client in crowd):
        seen.faults.append(f"clients were not done after {limit_s:g} s")


def _open(engine: Engine) -> int:
    return int(engine.store.read_sql("SELECT count(*) FROM onetray.task WHERE finished_at IS NULL")[0][0])


def _faults(engine: Engine, seen: ServerKills, expected: int) -> list[str]:
    """Each submit that was acknowledged is there once, and so is the outcome of each job."""
    faults = list(audit(engine.store).faults) + [str(v) for v in verify(engine.store).violations]
    jobs: dict[str, list[Task]] = defaultdict(list)
    before = 2**62
    while page := engine.tasks(limit=1000, before=before):
        before = page[-1].key
        for task in page:
            jobs[task.payload["what"]].append(task)
    for what, made in jobs.items():
        if len(made) > 1:
            faults.append(f"{what} was submitted {len(made)} times")
        outcomes = sum(
            e.type in ("task.succeeded", "task.failed", "task.dead_lettered") for e in engine.events(made[0].id)
        )
        if (made[0].state, made[0].result, outcomes) != ("succeeded", what, 1):
            faults.append(f"{what} is {made[0].state} with {outcomes} outcomes")
    for what, id_ in seen.acknowledged.items():
        if id_ not in [task.id for task in jobs.get(what, [])]:
            faults.append(f"{what} was acknowledged as {id_} and is not there")
    if len(seen.acknowledged) + seen.unanswered != expected:
        faults.append(f"{expected} submits were made, {len(seen.acknowledged)} acknowledged, {seen.unanswered} not")
    return faults
