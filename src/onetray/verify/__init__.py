"""Check a database against the rules that hold always.

    found = verify(store)
    for violation in found.violations: ...

Reads everything in one snapshot and changes nothing, so it may run on any database at any time, also on one that
a bug or a hand has damaged, and beside writers. The queries are in the .sql files here; a new rule is a new pass
there. Owns no repair.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from onetray.store.base import Snapshot, Store
from onetray.verify.checks import COUNTS, Check, Pass, passes

RULES = {
    1: "at most one live lease per task; owner and lease exactly while it is assigned or running",
    2: "the fence rises and never resets",
    3: "transition events are as many as the version, contiguous",
    4: "each event starts where the one before ended, by a declared transition, by somebody who may",
    5: "no event leaves a terminal state; one terminal event for each terminal task",
    6: "a stage that has ended has nothing waiting in it; counters are the real counts; stages open in their order",
    7: "a flow's state is the roll-up of its stages and its own marks",
    8: "created, started and finished in this order; finished exactly when terminal",
    9: "no claim before run_at, after a cancel, or between pause and resume",
    10: "one job and one body hash for each idempotency key",
    11: "dead-lettered exactly with one dead letter, every field filled",
    12: "nothing that belongs to a task is there without it",
    13: "the feed keeps each job's order, and its events belong to it",
    15: "nothing is stuck: what waits can be claimed, or a timer will move it",
    16: "the rows can be rebuilt from the log",
}
"""The rules by their numbers in the design. 15 and 16 are the engine's own; 14 is a promise, not a query."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken check: which rule, what should hold, and some of the rows for which it does not."""

    rule: int
    name: str
    message: str
    rows: list[dict[str, Any]]
    total: int


@dataclass(frozen=True, slots=True)
class Findings:
    """What a look at the whole database found."""

    violations: list[Violation] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    """How many tasks, events and so on were looked at."""
    rules: list[str] = field(default_factory=list)
    """The checks that were made, as `rule name`."""

    @property
    def ok(self) -> bool:
        return not self.violations

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def verify(store: Store, sample: int = 20) -> Findings:
    """Check every rule. Of each violation at most `sample` rows are given, and how many there are."""
    store.check_version()
    with store.snapshot() as snapshot:
        return look(snapshot, store.dialect, sample)


def look(snapshot: Snapshot, dialect: str, sample: int = 20) -> Findings:
    """As verify, through a snapshot that is open already."""
    found = Findings()
    for one in passes(dialect):
        if one.name == COUNTS:
            found.checked.update(snapshot.select(one.sql)[0])
        else:
            if not one.where or any(found.checked[what] for what in one.where):
                found.violations.extend(_broken(snapshot, one, sample))
            found.rules.extend(f"{check.rule} {check.name}" for check in one.checks)
    found.violations.sort(key=lambda v: v.rule)
    return found


def _broken(snapshot: Snapshot, one: Pass, sample: int) -> list[Violation]:
    if not snapshot.select(one.first_broken()):
        return []
    rows = snapshot.select(one.asking(sample))
    return [
        _violation(one, check, of) for check in one.checks if (of := [r for r in rows if r["broken"] == check.name])
    ]


def _violation(one: Pass, check: Check, rows: list[dict[str, Any]]) -> Violation:
    # The flags of the other checks of the pass say nothing about the row.
    own = {"broken", "total", *(c.name for c in one.checks)}
    facts = [{name: value for name, value in row.items() if name not in own} for row in rows]
    return Violation(check.rule, check.name, check.message, facts, rows[0]["total"])


__all__ = ["RULES", "Findings", "Violation", "look", "verify"]
