"""What a process does that is going to be killed: it works, notes what was acknowledged, and dies at a named point."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg

from onetray import failpoints
from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Fail, Start, Submit, Succeed
from onetray.domain.errors import Conflict
from onetray.domain.task import Assignment
from onetray.engine import Engine, bulk_steps
from onetray.engine.statistics import StatisticsCounter
from onetray.store import open_store
from tests.support.fleet import Ledger

Step = Callable[[Engine, Ledger], None]


def die_at(point: str, hits: int = 1) -> None:
    """From now on the process kills itself, without a chance to clean up, at the n-th hit of the point."""
    left = [hits]

    def hook(name: str) -> None:
        if name == point:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    failpoints.hook = hook


def _submit(engine: Engine, ledger: Ledger) -> None:
    for verdict in engine.run([Submit(kind="mail", payload=n) for n in range(3)]):
        ledger.write("submit", verdict.unwrap().id, 1)


def _claim(engine: Engine, ledger: Ledger) -> None:
    for a in engine.claim(worker="victim", limit=3):
        ledger.write("claim", a.id, a.fence)


def _claimed_before(engine: Engine) -> list[Assignment]:
    """What the parent claimed in the victim's name."""
    return engine.claim(worker="victim", limit=3, request_key="held")


def _report(verb: str, command: Callable[[dict[str, Any]], Any]) -> Step:
    def step(engine: Engine, ledger: Ledger) -> None:
        held = _claimed_before(engine)
        _arm()
        tickets = [{"task": a.key, "fence": a.fence, "worker": a.worker} for a in held]
        for a, verdict in zip(held, engine.run([command(t) for t in tickets]), strict=True):
            verdict.unwrap()
            ledger.write(verb, a.id, a.fence)

    return step


def _expire(engine: Engine, ledger: Ledger) -> None:
    ledger.write("expire", engine.expire_leases())


def _prune(engine: Engine, ledger: Ledger) -> None:
    ledger.write("prune", engine.prune(0.001))


def _count(engine: Engine, ledger: Ledger) -> None:
    ledger.write("count", StatisticsCounter(engine.store).count_window())


def _set_limit(engine: Engine, ledger: Ledger) -> None:
    ledger.write("set_limit", engine.set_limit(kind="mail", concurrency=2))


STEPS: dict[str, Step] = {
    "set_limit": _set_limit,
    "submit": _submit,
    "claim": _claim,
    "start": _report("start", lambda t: Start(**t)),
    "succeed": _report("succeed", lambda t: Succeed(result="done", **t)),
    "fail": _report("fail", lambda t: Fail(message="no", retryable=False, **t)),
    "expire": _expire,
    "prune": _prune,
    "count": _count,
}
_armed: list[str] = []


def _arm() -> None:
    for point in _armed:
        die_at(point)


def do_step_and_die(url: str, now: int, step: str, point: str, ledger_path: str) -> None:
    """Do one step and die in it."""
    engine = Engine.open(url, clock=VirtualClock(now))
    engine.store.names.refresh()
    _armed.append(point)
    if step not in ("start", "succeed", "fail"):  # These look up what they hold first.
        _arm()
    STEPS[step](engine, Ledger(ledger_path))
    raise AssertionError(f"{step} never came to {point!r}")


def worker_that_dies(url: str, ledger_path: str, point: str, hits: int) -> None:
    """Submit, claim, start and report on a real clock until the point was hit so often; note every answer.

    The point "acknowledged" is the moment after an answer was noted: between two calls.
    """
    engine, ledger = Engine.open(url), Ledger(ledger_path)
    engine.store.names.refresh()
    die_at(point, hits)

    def note(*facts: Any) -> None:
        ledger.write(*facts)
        failpoints.hit("acknowledged")

    number = 0
    while True:
        note("submit", engine.submit("mail", number).id, 1)
        for a in engine.claim(worker=f"dies-{os.getpid()}", limit=2, lease_s=0.2):
            note("claim", a.id, a.fence)
            with suppress(Conflict):  # It was too slow, and the lease ran out.
                _treat(engine, a, number, note)
        number += 1


def _treat(engine: Engine, a: Assignment, number: int, note: Callable[..., None]) -> None:
    if number % 3:
        engine.start(a)
        note("start", a.id, a.fence)
    if number % 4 == 3:
        engine.fail(a, "no", retryable=False)
        note("fail", a.id, a.fence)
    else:
        engine.succeed(a, number)
        note("succeed", a.id, a.fence)


def submits_and_dies(url: str, ledger_path: str) -> None:
    """Submit inside a transaction of its own, note the answer, and die before the commit."""
    with Engine.open(url) as engine, psycopg.connect(url) as connection:
        receipt = engine.submit("mail", idempotency_key="k", connection=connection)
        Ledger(ledger_path).write("submitted", receipt.id)
        os.kill(os.getpid(), signal.SIGKILL)


def fire_and_die(url: str, began: int, times: int, point: str, hits: int) -> None:
    """Fire schedules once a minute until the point is hit so often."""
    clock = VirtualClock(began)
    engine = Engine(open_store(url, clock), seed=1)
    die_at(point, hits)
    for _ in range(times):
        clock.advance(60)
        engine.fire_schedules()


def do_bulk_steps_and_die(url: str, batch: int, point: str, hits: int) -> None:
    """Carry out steps of bulk operations until the point is hit so often."""
    bulk_steps.BATCH = batch
    engine = Engine(open_store(url), seed=1)
    die_at(point, hits)
    steps = engine.bulk_steps()
    while True:
        steps.step()
