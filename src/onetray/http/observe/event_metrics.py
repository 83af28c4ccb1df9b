"""Task metrics of all processes, counted incrementally from the event log, and from tallies of what leaves no event.

Owns the cursor up to which events are counted. Each namespace has its own counters: a token sees only its namespace's.
"""

from __future__ import annotations

from collections.abc import Mapping

from onetray.domain.lifecycle import TASK
from onetray.engine import Engine
from onetray.engine.tally import CONFLICTS, RENEWALS
from onetray.http.observe.counters import MAX_SERIES, OTHER, Counter, Histogram
from onetray.store.shown_rows import DurationRow, EventCountRow

ROWS_PER_READ, MAX_READS = 1_000, 20
"""Events per read, and reads per update: an update stays short even after a long pause."""
TERMINAL_EVENTS = [t.event for t in TASK.transitions if t.target in TASK.terminal]
DEAD = TASK.dead_letter.event
CLAIMED, RETRIED, EXPIRED = TASK.claim.event, TASK.retry.event, TASK.expire.event
OK = "ok"
"""The outcome of an accepted command. A rejected one has its error code."""
FAILED = (TASK.fail.event, TASK.time_out.event)


class NamespaceCounts:
    """The metrics of one namespace."""

    def __init__(self) -> None:
        self.events = Counter("onetray_events", "Events in the log, by type: transitions and notes.", "type")
        self.claims = Counter("onetray_claims", "Claimed tasks.", "kind")
        self.retries = Counter("onetray_retries", "Failed attempts after which the task was retried.", "kind")
        self.failures = Counter("onetray_failures", "Failed tasks, including deadlines.", "kind")
        self.expiries = Counter("onetray_lease_expiries", "Expired leases, by task.", "kind")
        self.dead = Counter("onetray_dead_letters", "Dead-lettered tasks.", "kind", "reason")
        self.waited = Histogram("onetray_queue_seconds", "From the time a task was due to its last start.", "kind")
        self.ran = Histogram("onetray_run_seconds", "From the last start of a task to its end.", "kind")
        self.commands = Counter("onetray_commands", "Commands of this process.", "verb", "outcome")
        self.renewals = Counter("onetray_lease_renewals", "Accepted heartbeats, of all processes.")
        self.conflicts = Counter(
            "onetray_claim_conflicts", "Rejected reports: the worker does not hold the task. Of all processes."
        )
        self._by_type = {CLAIMED: self.claims, RETRIED: self.retries, EXPIRED: self.expiries} | dict.fromkeys(
            FAILED, self.failures
        )

    @property
    def all(self) -> list[Counter | Histogram]:
        return [
            self.events, self.claims, self.retries, self.failures, self.expiries, self.dead, self.waited, self.ran,
            self.commands, self.renewals, self.conflicts,
        ]  # fmt: skip

    def count(self, type_: str, kind: str | None, reason: str | None, number: int) -> None:
        self.events.add(type_, by=number)
        if type_ == DEAD:
            self.dead.add(kind or OTHER, reason or OTHER, by=number)
        elif type_ in self._by_type:
            self._by_type[type_].add(kind or OTHER, by=number)

    def take_tallies(self, totals: Mapping[str, int]) -> None:
        """Take over what leaves no event, as all processes have counted it."""
        self.renewals.raise_to(totals.get(RENEWALS, 0))
        self.conflicts.raise_to(totals.get(CONFLICTS, 0))


class EventMetrics:
    """The metrics of all namespaces, from one cursor of the log."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cursor: int | None = None
        self._by_namespace: dict[str, NamespaceCounts] = {}
        self.behind = 0
        """Events that the last update left uncounted."""

    def for_namespace(self, namespace: str) -> NamespaceCounts:
        """The metrics of a namespace. Those past the limit are dropped: summing them up would mix tenants."""
        counts = self._by_namespace.get(namespace)
        if counts is None and len(self._by_namespace) < MAX_SERIES:
            counts = self._by_namespace.setdefault(namespace, NamespaceCounts())
        return counts or NamespaceCounts()

    def begin(self) -> None:
        """Start counting at the end of the log."""
        if self._cursor is None:
            self._cursor = self._engine.feed.tail()

    def update(self) -> None:
        """Count the events since the last update."""
        self.begin()
        assert self._cursor is not None
        store = self._engine.store
        barrier = store.upto()
        for _ in range(MAX_READS):
            if self._cursor >= barrier:
                break
            ((last,),) = store.read("end_of_window", after=self._cursor, upto=barrier, scan=ROWS_PER_READ)
            window = {"after": self._cursor, "upto": barrier if last is None else min(int(last), barrier)}
            events = store.read("count_events", **window, dead=DEAD)
            waited, ran = (store.read("times_of_ended", **window, ends=TERMINAL_EVENTS, ran=ran) for ran in (0, 1))
            # Advance the cursor last: a failed update is repeated and counts nothing twice.
            self._cursor = window["upto"]
            self._add(events, waited, ran)
        ((self.behind,),) = store.read("count_events_after", after=self._cursor, upto=barrier)

    def _add(self, events: list[EventCountRow], waited: list[DurationRow], ran: list[DurationRow]) -> None:
        for row in events:
            self.for_namespace(row.namespace).count(row.type, row.kind, row.reason, row.number)
        for rows, name in ((waited, "waited"), (ran, "ran")):
            for row_ in rows:
                histogram = getattr(self.for_namespace(row_.namespace), name)
                histogram.put(row_.bucket, row_.number, int(row_.us) / 1e6, (row_.kind,))
