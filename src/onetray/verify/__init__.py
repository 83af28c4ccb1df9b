"""Check a database against the rules that always hold.

    findings = verify(store)
    for violation in findings.violations: ...

Reads everything in one snapshot and changes nothing, so it can run at any time, on a live or a damaged database. The
queries are in the .sql files of this package. It repairs nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from onetray.store.base import Snapshot, Store
from onetray.store.sql_template import SQLITE
from onetray.verify.checks import COUNTS, EVENTS, Check, Pass, passes
from onetray.verify.folded import FOLDED, broken_folds

RULES = {
    1: "a task has at most one live lease, and has an owner and a lease exactly while it is assigned or running",
    2: "the fence rises and never resets",
    3: "an entity has as many transition events as its version, without a gap",
    4: "each event starts from the state that the one before reached, by a declared transition and an allowed actor",
    5: "no event leaves a terminal state; a terminal task has one terminal event",
    6: "a stage that has ended has no waiting tasks; counters are the real counts; stages open in order",
    7: "a flow's state is the roll-up of its stages, its pause and its cancel",
    8: "created_at, started_at and finished_at are in this order; finished_at is set exactly in terminal states",
    9: "no claim before run_at, after a cancel, or between pause and resume",
    10: "an idempotency key has one job and one body hash",
    11: "a dead-lettered task, and no other, has one dead letter with all its fields",
    12: "every row refers to rows that exist",
    13: "the feed keeps the order of each job's events, and every event belongs to its job",
    15: "nothing is stuck: every waiting task is claimable, or a timer will act on it",
    16: "the rows agree with the event log",
    17: "the file of the database is intact (SQLite only)",
    18: "statistics have counted each event once",
    19: "each fire time of a schedule has at most one job, and none is forgotten",
    20: "limits hold, every slot belongs to a held task, and nothing waits for a slot that is free",
}
"""The rules by number. Rule 14, at-least-once execution, cannot be checked by a query."""
FILE_RULE_NUMBER, FILE_CHECK = 17, "file_integrity"
FILE_RULE = f"{FILE_RULE_NUMBER} {FILE_CHECK}"
FILE_CHECK_MEANS = "SQLite's integrity check finds nothing"
FULL_CHECK_BYTES = 1_000_000_000
"""Indexes of a larger file are not compared with their tables."""
FILE_CHECK_S = 120.0


@dataclass(frozen=True, slots=True)
class Violation:
    """A check that failed: its rule, what should hold, and some of the rows that break it."""

    rule: int
    name: str
    message: str
    rows: list[dict[str, Any]]
    total: int


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of a verification."""

    violations: list[Violation] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    """The numbers of tasks, events and other rows that were checked."""
    rules: list[str] = field(default_factory=list)
    """The checks that ran, as `rule name`."""
    notes: list[str] = field(default_factory=list)
    """What was not checked, and why."""

    @property
    def ok(self) -> bool:
        return not self.violations

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def verify(store: Store, sample: int = 20) -> Findings:
    """Check every rule. A violation has at most `sample` rows, and the total number of them.

    If SQLite finds its file damaged, only that is reported: what stands in its rows says nothing then.
    """
    store.check_version()
    notes: list[str] = []
    if store.dialect == SQLITE:
        damage = check_file(store)
        if damage is None:
            notes.append(f"the check of the file was stopped after {FILE_CHECK_S:.0f} s: it is large")
        elif damage:
            return Findings([_damaged(damage)], rules=[FILE_RULE], notes=notes)
    with store.snapshot() as snapshot:
        findings = look(snapshot, store.dialect, sample)
    if store.dialect == SQLITE and not notes:
        findings.rules.append(FILE_RULE)
    findings.notes.extend(notes)
    return findings


def check_file(store: Store) -> list[str] | None:
    """What SQLite finds wrong with its file; None if it takes too long. A large file is checked without its indexes."""
    from onetray.store.server_facts import file_bytes

    return store.integrity(full=(file_bytes(store) or 0) <= FULL_CHECK_BYTES, limit_s=FILE_CHECK_S)


def _damaged(lines: list[str]) -> Violation:
    message = "SQLite finds the file damaged: stop all processes that use it, and restore a backup"
    return Violation(FILE_RULE_NUMBER, FILE_CHECK, message, [{"problem": line} for line in lines[:20]], len(lines))


def look(snapshot: Snapshot, dialect: str, sample: int = 20) -> Findings:
    """The same as `verify`, on an open snapshot."""
    findings = Findings()
    snapshot.decode_events(EVENTS)
    for pass_ in passes(dialect):
        if pass_.name == COUNTS:
            findings.checked.update(snapshot.select(pass_.sql)[0])
        else:
            if not pass_.where or any(findings.checked[table] for table in pass_.where):
                findings.violations.extend(_violations(snapshot, pass_, sample))
            findings.rules.extend(f"{check.rule} {check.name}" for check in pass_.checks)
    folds = broken_folds(snapshot, dialect)
    if folds:
        findings.violations.append(Violation(FOLDED.rule, FOLDED.name, FOLDED.message, folds[:sample], len(folds)))
    findings.rules.append(f"{FOLDED.rule} {FOLDED.name}")
    findings.violations.sort(key=lambda v: v.rule)
    return findings


def _violations(snapshot: Snapshot, pass_: Pass, sample: int) -> list[Violation]:
    if not snapshot.select(pass_.first_broken()):
        return []
    rows = snapshot.select(pass_.broken_rows(sample))
    by_check = ((check, [r for r in rows if r["broken"] == check.name]) for check in pass_.checks)
    return [_violation(pass_, check, broken) for check, broken in by_check if broken]


def _violation(pass_: Pass, check: Check, rows: list[dict[str, Any]]) -> Violation:
    # The columns of the pass itself are not facts about the row.
    flags = {"broken", "total", *(c.name for c in pass_.checks)}
    facts = [{name: value for name, value in row.items() if name not in flags} for row in rows]
    return Violation(check.rule, check.name, check.message, facts, rows[0]["total"])


__all__ = ["RULES", "Findings", "Violation", "look", "verify"]
