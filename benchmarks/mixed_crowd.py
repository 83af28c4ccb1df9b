"""A database as an operator knows it: jobs of several kinds, queues and states, submitted over half a day.

Owns the mix. Most jobs are copies (see crowd.py); flows, running tasks and workers are made by the engine, because
copies of them would not verify.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import NamedTuple

from benchmarks.core import must_pass, open_engine
from benchmarks.crowd import FAR_S, add
from benchmarks.host import settle
from benchmarks.limit import WORKER
from onetray.domain.clock import SECOND, SystemClock, VirtualClock
from onetray.domain.commands import Submit
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.lifecycle import WAITING_INPUT
from onetray.domain.task import Assignment
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine

KINDS = (
    "email.send", "report.render", "image.resize", "invoice.create", "payment.capture", "order.sync", "video.encode",
    "webhook.deliver",
)  # fmt: skip
QUEUES = ("default", "mail", "media", "billing")
HOURS = 12
FLOWS, RUNNING, WORKERS = 240, 200, 5
FLOW_QUEUE = "flows"
LEASE_S = 86_400.0
Make = Callable[[Engine, str, str], None]


class Sort(NamedTuple):
    """Jobs that ended in the same way: their share of all, and how one of them is made."""

    share: float
    make: Make


def succeeded(engine: Engine, kind: str, queue: str) -> None:
    engine.succeed(_claimed(engine, kind, queue), {"ok": True})


def dead(engine: Engine, kind: str, queue: str) -> None:
    engine.fail(_claimed(engine, kind, queue), "the other side answers 502", error_class="BadGateway", retryable=True)


def failed(engine: Engine, kind: str, queue: str) -> None:
    engine.fail(_claimed(engine, kind, queue), "no such customer", error_class="NotFound", retryable=False)


def cancelled(engine: Engine, kind: str, queue: str) -> None:
    engine.cancel(_submitted(engine, kind, queue), cause="no longer wanted")


def waits(engine: Engine, kind: str, queue: str) -> None:
    engine.pause(_claimed(engine, kind, queue), state=WAITING_INPUT, owner="finance", reason="the amount is unusual")


def delayed(engine: Engine, kind: str, queue: str) -> None:
    must_pass(engine, [Submit(kind=kind, queue=queue, payload={"customer": 1}, delay_s=FAR_S)])


def queued(engine: Engine, kind: str, queue: str) -> None:
    must_pass(engine, [Submit(kind=kind, queue=queue, payload={"customer": 1}, labels={"region": "eu"})])


HOURLY = (
    Sort(0.45, succeeded), Sort(0.2, succeeded), Sort(0.08, dead), Sort(0.05, failed), Sort(0.03, cancelled),
    Sort(0.002, waits),
)  # fmt: skip
"""What became of the jobs of each hour."""
OPEN = (Sort(0.06, delayed), Sort(0.128, queued))
"""The rest is open. Queued ones come last: an earlier claim would take them."""


def fill_mixed(store: str, url: str, count: int, say: Callable[[str], None]) -> None:
    """Put so many single jobs into an empty database, and flows, workers and running tasks beside them."""
    now, kinds, queues = SystemClock().now(), cycle(KINDS), cycle(QUEUES)
    for age_s, share, make in _parts():
        clock = VirtualClock(now - int(age_s * SECOND))
        original = partial(make, kind=next(kinds), queue=next(queues))
        add(store, url, original, max(1, int(count * share)), lambda _: None, clock)
        say(f"{store}: the {make.__name__} jobs of {age_s / 3600:.0f} hours ago")
    with open_engine(url) as engine:
        _live(engine)
    settle(store, url)


def _parts() -> Iterator[tuple[float, float, Make]]:
    """Age, share and sort of the jobs that are alike, the oldest first."""
    for hours in range(HOURS, 0, -1):
        for sort in HOURLY:
            yield hours * 3600.0, sort.share / HOURS, sort.make
    for nth, sort in enumerate(OPEN):
        for kind in range(len(KINDS)):
            yield 1800.0 - 60 * (nth * len(KINDS) + kind), sort.share / len(KINDS), sort.make


def _live(engine: Engine) -> None:
    """What is not copied: flows in several states, workers, and running tasks."""
    engine.start_bulk("cancel", {"kind": "no.such"}, reason="a customer has left")
    for number in range(FLOWS):
        _flow(engine, number)
    for number in range(WORKERS):
        name, each = f"worker-{number + 1}", RUNNING // WORKERS
        beat = WorkerBeat(
            name=name, host="host", pid=number + 1, version="1.0", queues=QUEUES, concurrency=each, running=each,
            claimed=each, ttl_s=LEASE_S,
        )  # fmt: skip
        engine.worker_beat(beat)
        tasks = engine.claim(QUEUES[number % len(QUEUES)], worker=name, limit=each, lease_s=LEASE_S)
        for task in tasks:
            engine.start(task)


def _flow(engine: Engine, number: int) -> None:
    """A flow that has succeeded, failed, runs, or waits for approval, in turns."""
    approval = Approval(owner="finance", reason="a large order") if number % 4 == 3 else None
    stages = [
        StageSpec("check", [TaskSpec("order.sync", {"order": number}, queue=FLOW_QUEUE) for _ in range(3)]),
        StageSpec("pay", [TaskSpec("payment.capture", queue=FLOW_QUEUE)], approval=approval),
        StageSpec("tell", [TaskSpec("email.send", queue=FLOW_QUEUE) for _ in range(2)]),
    ]
    engine.submit_flow("order", stages, labels={"customer": f"customer-{number % 50}"})
    for stage in range((3, 2, 1, 3)[number % 4]):
        for task in engine.claim(FLOW_QUEUE, worker=WORKER, limit=10, lease_s=LEASE_S):
            if number % 4 == 1 and stage == 1:
                engine.fail(task, "the card was declined", error_class="Declined", retryable=False)
            else:
                engine.succeed(task)
    if number % 4 == 2:
        # The next flow would finish it.
        engine.claim(FLOW_QUEUE, worker=WORKER, limit=10, lease_s=LEASE_S)


def _submitted(engine: Engine, kind: str, queue: str) -> str:
    return engine.submit(kind, {"customer": 1}, queue=queue, max_attempts=1).id


def _claimed(engine: Engine, kind: str, queue: str) -> Assignment:
    _submitted(engine, kind, queue)
    (task,) = engine.claim(queue, worker=WORKER)
    engine.start(task)
    return task
