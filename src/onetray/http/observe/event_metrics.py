"""What has happened to tasks, counted from the event log: what came since the last look, never the whole of it.

Owns the place up to which it was counted, and that each name space has numbers of its own: a token sees no others.
"""

from __future__ import annotations

from onetray.domain.commands import Beat
from onetray.domain.errors import LeaseLost
from onetray.domain.lifecycle import TASK
from onetray.engine import Engine
from onetray.http.observe.counters import MOST, OTHER, Counter, Histogram
from onetray.store.shown_rows import DurationRow, EventCountRow

SCAN, STEPS = 10_000, 20
"""Events in one read, and reads in one look at most: a look stays short, also after a long time without one."""
ENDS = tuple(t.event for t in TASK.transitions if t.target in TASK.terminal)
DEAD = TASK.dead_letter.event
CLAIMED, RETRIED, EXPIRED = TASK.claim.event, TASK.retry.event, TASK.expire.event
OK = "ok"
"""The outcome of a command that was carried out. Otherwise it is the code of the error."""
FAILED = (TASK.fail.event, TASK.time_out.event)


class NamespaceCounts:
    """The numbers of one name space."""

    def __init__(self) -> None:
        self.events = Counter("onetray_events", "Events in the log, by type: transitions and notes.", "type")
        self.claims = Counter("onetray_claims", "Claims.", "kind")
        self.retries = Counter("onetray_retries", "Failed attempts after which the task is tried again.", "kind")
        self.failures = Counter("onetray_failures", "Tasks that ended as failed, also by a deadline.", "kind")
        self.expiries = Counter("onetray_lease_expiries", "Leases that ran out: the task went back.", "kind")
        self.dead = Counter("onetray_dead_letters", "Tasks that were set aside.", "kind", "reason")
        self.waited = Histogram("onetray_queue_seconds", "From when it might run to its last start.", "kind")
        self.ran = Histogram("onetray_run_seconds", "From the last start of a task to its end.", "kind")
        self.commands = Counter("onetray_commands", "Commands of this process.", "verb", "outcome")
        self.renewals = Counter("onetray_lease_renewals", "Heartbeats that this process has written.")
        self.conflicts = Counter("onetray_claim_conflicts", "Refused: the task is not, or no longer, the worker's.")
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

    def count_commands(self, verb: str, outcome: str, number: int) -> None:
        self.commands.add(verb, outcome, by=number)
        if outcome == LeaseLost.code:
            self.conflicts.add(by=number)
        elif verb == Beat.verb and outcome == OK:
            self.renewals.add(by=number)


class EventMetrics:
    """The numbers of all name spaces, from one place in the log on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cursor: int | None = None
        self._of: dict[str, NamespaceCounts] = {}
        self.behind = 0
        """Events that the last look has left for the next one."""

    def of(self, namespace: str) -> NamespaceCounts:
        """The numbers of a name space. Past a limit of them none are kept: together they would tell of each other."""
        found = self._of.get(namespace)
        if found is not None:
            return found
        return self._of.setdefault(namespace, NamespaceCounts()) if len(self._of) < MOST else NamespaceCounts()

    def begin(self) -> None:
        """Count from now on."""
        if self._cursor is None:
            self._cursor = self._engine.feed.tail()

    def look(self) -> None:
        """Count what has come since the last look."""
        self.begin()
        assert self._cursor is not None
        store = self._engine.store
        upto = store.upto()
        for _ in range(STEPS):
            if self._cursor >= upto:
                break
            window = {"after": self._cursor, "upto": upto, "scan": SCAN}
            ((last,),) = store.read("end_of_window", **window)
            events = store.read("count_events", **window, dead=DEAD)
            waited, ran = (store.read("times_of_ended", **window, ends=list(ENDS), ran=ran) for ran in (0, 1))
            # Only now: a look that fails halfway is made again, and counts nothing twice.
            self._cursor = upto if last is None else int(last)
            self._add(events, waited, ran)
        self.behind = max(0, upto - self._cursor)

    def _add(self, events: list[EventCountRow], waited: list[DurationRow], ran: list[DurationRow]) -> None:
        for row in events:
            self.of(row.namespace).count(row.type, row.kind, row.reason, row.number)
        for rows, name in ((waited, "waited"), (ran, "ran")):
            for some in rows:
                getattr(self.of(some.namespace), name).put(some.bucket, some.number, int(some.us) / 1e6, (some.kind,))
