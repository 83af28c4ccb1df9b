"""What a server has counted: requests, commits; and what it looks up for whoever asks for metrics.

Owns how often it looks: the queues of a large database take a while to count, so what was found is kept for some
seconds. Also owns who is shown what: the numbers of the process tell how much all name spaces do, so they are for those
who run the server. What is counted for each name space is in event_metrics.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from prometheus_client.core import GaugeMetricFamily

from onetray.domain.commands import Command
from onetray.domain.errors import Unavailable
from onetray.domain.listing import QueueDepth
from onetray.domain.task import Verdict
from onetray.domain.verbs import SubmitMany
from onetray.domain.worker import WorkerInfo
from onetray.engine import Engine
from onetray.http.observe.counters import Counter, Histogram
from onetray.http.observe.event_metrics import OK, EventMetrics

KEPT_S, SHARE = 5.0, 20
"""A look is kept for so long at least, and for so many times as long as it took."""
DEFAULT = "default"
MOST_LISTED = 200
MOST_NAMESPACES = 100
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@dataclass
class DatabaseNumbers:
    """What was found in the database for one name space, and until when that is good enough."""

    until: float = 0.0
    up: bool = False
    queues: list[QueueDepth] = field(default_factory=list)
    workers: list[WorkerInfo] = field(default_factory=list)
    now: int = 0


class Metrics:
    """The numbers of one server."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.tallies = EventMetrics(engine)
        self.open = 0
        """Requests under way, streams among them. Counted on the loop alone."""
        self.streams: Callable[[], int] = lambda: 0
        """How many streams are open: whoever gives them their places knows."""
        self.requests = Counter("onetray_requests", "Requests that were answered.", "method", "route", "status")
        self.durations = Histogram("onetray_request_seconds", "From a request to the end of its answer.", "route")
        self.commits = Histogram("onetray_commit_seconds", "Transactions that commands of this process shared.")
        self._looks: dict[str, DatabaseNumbers] = {}
        self._looking = Lock()
        engine.on_batch(self.committed)

    # What the parts of a server tell.

    def answered(self, method: str, route: str, status: int | None, took_s: float) -> None:
        self.requests.add(method if method in METHODS else "OTHER", route, str(status or "cut off"))
        self.durations.add(route, s=took_s)

    def committed(self, commands: Sequence[Command], verdicts: Sequence[Verdict], took_s: float) -> None:
        """A batch was carried out, in one transaction."""
        self.commits.add(s=took_s)
        counted: dict[tuple[str, str, str], int] = {}
        for command, (_, error) in zip(commands, verdicts, strict=False):
            key = _namespace_of(command), command.verb, OK if error is None else error.code
            counted[key] = counted.get(key, 0) + 1
        for (namespace, verb, outcome), number in counted.items():
            self.tallies.of(namespace).count_commands(verb, outcome, number)

    # What is asked for.

    def look(self, namespace: str) -> DatabaseNumbers:
        """What there is in the database now, or was a moment ago. One look at a time: they are not cheap."""
        with self._looking:
            found = self._looks.get(namespace)
            if found is None or time.monotonic() >= found.until:
                while len(self._looks) >= MOST_NAMESPACES:
                    self._looks.pop(next(iter(self._looks)))
                found = self._looks[namespace] = self._fresh(namespace)
            return found

    def _fresh(self, namespace: str) -> DatabaseNumbers:
        engine, began, look = self._engine, time.monotonic(), DatabaseNumbers()
        try:
            self.tallies.look()
            look.queues = engine.queues(namespace=namespace, limit=MOST_LISTED)
            look.workers = [w for w in engine.workers(namespace=namespace, limit=MOST_LISTED) if w.alive]
            look.now, look.up = engine.store.now(), True
        except Unavailable:
            pass  # Said by onetray_up; what this process has counted is told all the same.
        ended = time.monotonic()
        look.until = ended + max(KEPT_S, SHARE * (ended - began))
        return look

    def families(self, namespace: str, of_process: bool, look: DatabaseNumbers | None = None) -> Iterator[Any]:
        """The numbers of a name space as Prometheus has them, and those of this process for who may see them."""
        look = look or self.look(namespace)
        for number in self.tallies.of(namespace).all:
            yield number.family()
        yield GaugeMetricFamily("onetray_up", "Whether the database answers.", value=int(look.up))
        if of_process:
            yield from self._of_process()
        if look.up:
            yield from _of_queues(look)
            yield from _of_workers(look)

    def _of_process(self) -> Iterator[Any]:
        for number in (self.requests, self.durations, self.commits):
            yield number.family()
        yield GaugeMetricFamily("onetray_requests_open", "Requests under way, this one too.", value=self.open)
        yield GaugeMetricFamily("onetray_streams_open", "Streams that are open at this server.", value=self.streams())
        yield GaugeMetricFamily("onetray_events_behind", "Events not counted yet.", value=self.tallies.behind)


def _namespace_of(command: Command) -> str:
    return str(getattr(command.like if isinstance(command, SubmitMany) else command, "namespace", DEFAULT))


def _of_queues(look: DatabaseNumbers) -> Iterator[Any]:
    depth = GaugeMetricFamily("onetray_queue_depth", "Tasks of a queue.", labels=("queue", "state"))
    age = GaugeMetricFamily("onetray_queue_oldest_seconds", "Since when the oldest can be claimed.", labels=("queue",))
    paused = GaugeMetricFamily("onetray_queue_paused", "Whether a queue is paused.", labels=("queue",))
    for queue in look.queues:
        for state in ("ready", "delayed", "held"):
            depth.add_metric((queue.name, state), getattr(queue, state))
        since = look.now if queue.oldest_ready_at is None else queue.oldest_ready_at
        age.add_metric((queue.name,), max(0, look.now - since) / 1e6)
        paused.add_metric((queue.name,), int(queue.paused_at is not None))
    yield from (depth, age, paused)


def _of_workers(look: DatabaseNumbers) -> Iterator[Any]:
    yield GaugeMetricFamily("onetray_workers_alive", "Workers heard of in time.", value=len(look.workers))
    held = GaugeMetricFamily("onetray_worker_tasks", "Tasks in the hands of a worker.", labels=("worker", "state"))
    for worker in look.workers:
        held.add_metric((worker.name, "running"), worker.running)
        held.add_metric((worker.name, "claimed"), worker.claimed)
    yield held
