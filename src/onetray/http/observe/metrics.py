"""A server's metrics: requests, commits, and the state of the database at scrape time.

Owns the cache: counting the queues of a large database takes a while, so the numbers are reused for some seconds. Also
owns who sees what: process metrics reveal the load of all namespaces, so only admins of the server see them.
event_metrics.py counts by namespace.
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
from onetray.domain.lifecycle import RUNNING
from onetray.domain.listing import QueueDepth
from onetray.domain.task import Verdict
from onetray.domain.verbs import SubmitMany
from onetray.engine import Engine
from onetray.http.observe.counters import Counter, Histogram
from onetray.http.observe.event_metrics import OK, EventMetrics
from onetray.store.shown_rows import WorkerTasksRow

CACHE_S, CACHE_FACTOR = 5.0, 20
"""Numbers from the database are cached for CACHE_S, and at least for CACHE_FACTOR times as long as the read took."""
DEFAULT = "default"
MAX_LISTED = 200
MAX_NAMESPACES = 100
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@dataclass
class DatabaseNumbers:
    """What the database holds for one namespace, and until when it is cached."""

    expires_at: float = 0.0
    up: bool = False
    queues: list[QueueDepth] = field(default_factory=list)
    alive: int = 0
    workers: list[WorkerTasksRow] = field(default_factory=list)
    now: int = 0


class Metrics:
    """The numbers of one server."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.event_metrics = EventMetrics(engine)
        self.open = 0
        """Open requests, streams included. Changed only on the event loop."""
        self.streams: Callable[[], int] = lambda: 0
        """Returns the number of open streams."""
        self.requests = Counter("onetray_requests", "Answered requests.", "method", "route", "status")
        self.durations = Histogram("onetray_request_seconds", "From a request to the end of its response.", "route")
        self.commits = Histogram("onetray_commit_seconds", "Transactions of this process's commands.")
        self._cache: dict[str, DatabaseNumbers] = {}
        self._lock = Lock()
        engine.on_batch(self.committed)

    # Recording.

    def count_request(self, method: str, route: str, status: int | None, took_s: float) -> None:
        self.requests.add(method if method in METHODS else "OTHER", route, str(status or "cut off"))
        self.durations.add(route, s=took_s)

    def committed(self, commands: Sequence[Command], verdicts: Sequence[Verdict], took_s: float) -> None:
        """Called after each batch, which was one transaction."""
        self.commits.add(s=took_s)
        counts: dict[tuple[str, str, str], int] = {}
        for command, (_, error) in zip(commands, verdicts, strict=False):
            key = _namespace_of(command), command.verb, OK if error is None else error.code
            counts[key] = counts.get(key, 0) + 1
        for (namespace, verb, outcome), count in counts.items():
            self.event_metrics.for_namespace(namespace).commands.add(verb, outcome, by=count)

    # Reporting.

    def database_numbers(self, namespace: str) -> DatabaseNumbers:
        """The state of the database, possibly cached. Reads are expensive, so only one runs at a time."""
        with self._lock:
            numbers = self._cache.get(namespace)
            if numbers is None or time.monotonic() >= numbers.expires_at:
                while len(self._cache) >= MAX_NAMESPACES:
                    self._cache.pop(next(iter(self._cache)))
                numbers = self._cache[namespace] = self._read(namespace)
            return numbers

    def _read(self, namespace: str) -> DatabaseNumbers:
        engine, began, numbers = self._engine, time.monotonic(), DatabaseNumbers()
        try:
            self.event_metrics.update()
            numbers.queues = engine.queues(namespace=namespace, limit=MAX_LISTED)
            ((numbers.alive,),) = engine.store.read("count_workers", namespace=namespace)
            numbers.workers = engine.store.read(
                "tasks_of_workers", namespace=namespace, running=RUNNING, limit=MAX_LISTED
            )
            engine.tally.write()
            self.event_metrics.for_namespace(namespace).take_tallies(engine.tally.totals(namespace))
            numbers.now, numbers.up = engine.store.now(), True
        except Unavailable:
            pass  # Reported as onetray_up = 0; the counters of this process are still available.
        ended = time.monotonic()
        numbers.expires_at = ended + max(CACHE_S, CACHE_FACTOR * (ended - began))
        return numbers

    def families(self, namespace: str, of_process: bool, numbers: DatabaseNumbers | None = None) -> Iterator[Any]:
        """The metrics of a namespace, and those of the process if the caller may see them."""
        numbers = numbers or self.database_numbers(namespace)
        for metric in self.event_metrics.for_namespace(namespace).all:
            yield metric.family()
        yield GaugeMetricFamily("onetray_up", "Whether the database answers.", value=int(numbers.up))
        if of_process:
            yield from self._process_metrics()
        if numbers.up:
            yield from _queue_metrics(numbers)
            yield from _worker_metrics(numbers)

    def _process_metrics(self) -> Iterator[Any]:
        for metric in (self.requests, self.durations, self.commits):
            yield metric.family()
        yield GaugeMetricFamily("onetray_requests_open", "Open requests, including this one.", value=self.open)
        yield GaugeMetricFamily("onetray_streams_open", "Open streams.", value=self.streams())
        yield GaugeMetricFamily("onetray_events_behind", "Events not counted yet.", value=self.event_metrics.behind)


def _namespace_of(command: Command) -> str:
    return str(getattr(command.like if isinstance(command, SubmitMany) else command, "namespace", DEFAULT))


def _queue_metrics(numbers: DatabaseNumbers) -> Iterator[Any]:
    depth = GaugeMetricFamily("onetray_queue_depth", "Tasks of a queue.", labels=("queue", "state"))
    age = GaugeMetricFamily("onetray_queue_oldest_seconds", "Age of the oldest claimable task.", labels=("queue",))
    limited = GaugeMetricFamily("onetray_queue_limited", "Ready tasks that limits hold back.", labels=("queue",))
    paused = GaugeMetricFamily("onetray_queue_paused", "Whether a queue is paused.", labels=("queue",))
    for queue in numbers.queues:
        for state in ("ready", "delayed", "held"):
            depth.add_metric((queue.name, state), getattr(queue, state))
        since = numbers.now if queue.oldest_ready_at is None else queue.oldest_ready_at
        age.add_metric((queue.name,), max(0, numbers.now - since) / 1e6)
        limited.add_metric((queue.name,), queue.limited)
        paused.add_metric((queue.name,), int(queue.paused_at is not None))
    yield from (depth, age, limited, paused)


def _worker_metrics(numbers: DatabaseNumbers) -> Iterator[Any]:
    yield GaugeMetricFamily("onetray_workers_alive", "Workers with a recent heartbeat.", value=numbers.alive)
    held = GaugeMetricFamily("onetray_worker_tasks", "Tasks held by a worker.", labels=("worker", "state"))
    for worker in numbers.workers:
        held.add_metric((worker.name, "running"), worker.running)
        held.add_metric((worker.name, "claimed"), worker.claimed)
    yield held
