"""Read the verifier's .sql files: passes over the database, and the checks of each pass.

    -- pass: name
    -- where: flows
    -- check: rule name: what should hold
    SELECT …

A pass is one SELECT. It has a boolean column for each of its checks, true if the row breaks the check; its other
columns are facts about the row. Many checks share a pass because the log is long. A pass with `where` is skipped if the
database has no such rows: most have no flows. Words in braces are filled in as in the store's statements
(store/sql_template.py); those that only the verifier uses stand here. No statement names a state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from onetray.domain.flow import LAST_KEY
from onetray.domain.lifecycle import FLOW, MACHINES, NO_ENTITY, STAGE, TASK
from onetray.domain.task import DEAD_STAGES, MAX_SPARED, REASON_CODES
from onetray.engine.janitor import KNOWN
from onetray.engine.statistics import QUEUE_TIME, RUN_TIME
from onetray.store.sql_template import POSTGRES, SQLITE, STATES, Section, Word, fill, quoted, sections
from onetray.store.sql_template import WORDS as STORE_WORDS

COUNTS = "counts"
EVENTS = (
    "SELECT e.id, e.entity, e.job, e.ts, e.ns, e.version, e.fence, e.attempts, e.type, e.was, e.state, e.actor, "
    "e.payload, e.batch FROM onetray.event AS e"
)
"""The events as the passes read them, under the name event_rows: decoded once for a pass, on SQLite once for all."""

_WHERE = re.compile(r"^-- where: (\w+)$", re.MULTILINE)
_CHECK = re.compile(r"^-- check: (\d+) (\w+): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Check:
    rule: int
    name: str
    message: str


@dataclass(frozen=True, slots=True)
class Pass:
    """One SELECT and its checks."""

    name: str
    sql: str
    checks: tuple[Check, ...]
    where: tuple[str, ...] = ()
    """Names of counts. The pass is skipped if all of them are 0."""
    events: str = ""
    """On PostgreSQL, the start of a statement that reads events."""

    def first_broken(self) -> str:
        """SQL for one row that breaks any check: far cheaper to plan than `broken_rows`."""
        return f"{self.events}SELECT 1 AS broken FROM ({self.sql}) AS checked WHERE {self._any()} LIMIT 1"

    def broken_rows(self, sample: int) -> str:
        """SQL for some rows that break each check, and their number. The pass itself runs once."""
        each = " UNION ALL ".join(
            f"SELECT * FROM (SELECT '{c.name}' AS broken, count(*) OVER () AS total, found.* FROM found "
            f"WHERE found.{c.name} ORDER BY 3 LIMIT {int(sample)}) AS {c.name}_rows"
            for c in self.checks
        )
        found = f"found AS MATERIALIZED (SELECT * FROM ({self.sql}) AS checked WHERE {self._any()})"
        return f"{self.events[:-1]}, {found} {each}" if self.events else f"WITH {found} {each}"

    def _any(self) -> str:
        return " OR ".join(f"checked.{c.name}" for c in self.checks)


@cache
def passes(dialect: str) -> tuple[Pass, ...]:
    return tuple(_pass(section, dialect) for section in sections(files(__package__)))


def _pass(section: Section, dialect: str) -> Pass:
    checks = tuple(Check(int(rule), check, says) for rule, check, says in _CHECK.findall(section.comment))
    events = (
        f"WITH event_rows AS MATERIALIZED ({EVENTS}) " if dialect == POSTGRES and "event_rows" in section.text else ""
    )
    sql = fill(section.text, WORDS[dialect])
    # This one runs as it is.
    sql = f"{events}{sql}" if section.name == COUNTS else sql
    return Pass(section.name, sql, checks, tuple(_WHERE.findall(section.comment)), events)


def _one_of(values: Iterable[str]) -> Callable[[str], str]:
    known = {v: f"'{v}'" for v in values}
    return known.__getitem__


def _rank(column: str) -> str:
    ranks = " ".join(f"WHEN '{state}' THEN {rank}" for state, rank in TASK.ranks.items())
    return f"CASE {column} {ranks} END"


def _transitions(_: str) -> str:
    """A row for each declared change of state: event type, from, to, allowed actors, and rise of the fence."""
    return ", ".join(
        f"('{t.event}', '{source}', '{t.target}', '{_actors(t.by)}', {int(t.reopens)})"
        for machine in MACHINES.values()
        for t in machine.transitions
        for source in t.sources or ("",)
    )


def _actors(kinds: Iterable[str]) -> str:
    return f",{','.join(f'{kind}:' for kind in sorted(kinds))},"


def _held_back(_: str) -> str:
    """Whether its flow f or its stage s holds the task t back."""
    created, waiting, pending, running, paused = (
        f"'{s}'"
        for s in (STAGE.add.target, STAGE.wait.target, STAGE.open.target, STAGE.start.target, FLOW.pause.target)
    )
    return (
        f"(t.stage IS NOT NULL AND (f.state IN ({created}, {paused}) OR f.ending IS NOT NULL OR s.ending IS NOT NULL "
        f"OR CASE WHEN t.control = 1 THEN s.deciding IS DISTINCT FROM t.key OR s.state NOT IN ({created}, {waiting}) "
        f"ELSE t.unmet > 0 OR s.state NOT IN ({pending}, {running}) OR t.key > coalesce(s.opened_to, 0) END))"
    )


def _event(name: str) -> str:
    """The event type of a transition: `claim` for a task's, `flow.pause` for another entity's."""
    entity, _, bare = name.rpartition(".")
    return f"'{MACHINES[entity or TASK.entity].by_name[bare].event}'"


SHARED: dict[str, Word] = {
    **STATES,
    **{f"{machine.entity}.state": _one_of(machine.states) for machine in MACHINES.values()},
    "ends": quoted(sorted(TASK.terminal | STAGE.terminal | FLOW.terminal)),
    "of_task": lambda type_: f"substr({type_}, 1, 5) = 'task.'",
    "held_back": _held_back,
    "listed_events": "entity AS MATERIALIZED (SELECT t.key, {all_events:t} AS events FROM onetray.task AS t "
    "UNION ALL SELECT s.key, {all_events:s} FROM onetray.stage AS s "
    "UNION ALL SELECT f.key, {all_events:f} FROM onetray.flow AS f), "
    "item AS MATERIALIZED (SELECT l.key, {listed_n} AS n, i.value AS id FROM entity AS l "
    "CROSS JOIN {listed_ids:l.events})",
    "last_member": str(LAST_KEY),
    "rank": _rank,
    "transitions": _transitions,
    "events": quoted(t.event for machine in MACHINES.values() for t in machine.transitions),
    "event": _event,
    "histograms": quoted((QUEUE_TIME, RUN_TIME)),
    "due": _one_of(KNOWN),
    "due_words": quoted(KNOWN),
    "reason_codes": quoted(REASON_CODES),
    "dead_stages": quoted(DEAD_STAGES),
    "max_spared": str(MAX_SPARED),
    "no_entity": str(NO_ENTITY),
}

# Damaged JSON must be reported as a violation, not fail the query: it is checked before it is parsed.
_ID_LIST = r"'^[0-9]{1,18}(,[0-9]{1,18})*$'"
_KEY_LIST = r"'^\[[0-9]{1,18}(,[0-9]{1,18})*\]$'"

WORDS: dict[str, dict[str, Word]] = {
    SQLITE: SHARED
    | {
        "all_events": STORE_WORDS[SQLITE]["all_events"],
        "position": "instr",
        "sha256": lambda text: f"sha256_hex({text})",
        "last_key": "(SELECT c.value FROM onetray.counter AS c WHERE c.name = 'entity_key')",
        "told_run_at": lambda json: f"CASE WHEN json_valid({json}) THEN json_extract({json}, '$.run_at') END",
        "listed_ids": lambda ids: (
            f"json_each(CASE WHEN json_valid('[' || {ids} || ']') THEN '[' || {ids} || ']' ELSE '[]' END) AS i"
        ),
        "listed_n": "i.key + 1",
        "key_list": lambda json: f"(CASE WHEN json_valid({json}) THEN json_type({json}) = 'array' ELSE false END)",
        "slots_in": "json_each(CASE WHEN json_valid('[' || trim(t.slots, ',') || ']') "
        "THEN '[' || trim(t.slots, ',') || ']' ELSE '[]' END) AS j",
        "keys_in": lambda json: f"json_each(CASE WHEN json_valid({json}) THEN {json} ELSE '[]' END) AS j",
    },
    POSTGRES: SHARED
    | {
        "all_events": STORE_WORDS[POSTGRES]["all_events"],
        "position": "strpos",
        "sha256": lambda text: f"encode(sha256(convert_to({text}, 'UTF8')), 'hex')",
        "last_key": "(SELECT c.last_value FROM onetray.entity_key AS c)",
        "told_run_at": lambda json: f"CAST(substring({json} FROM '\"run_at\":([0-9]{{1,18}})') AS bigint)",
        "listed_ids": lambda ids: (
            f"unnest(CASE WHEN {ids} ~ {_ID_LIST} THEN CAST(string_to_array({ids}, ',') AS bigint[]) END) "
            "WITH ORDINALITY AS i(value, n)"
        ),
        "listed_n": "i.n",
        "key_list": lambda json: f"({json} ~ {_KEY_LIST})",
        "slots_in": f"unnest(CASE WHEN trim(t.slots, ',') ~ {_ID_LIST} "
        "THEN CAST(string_to_array(trim(t.slots, ','), ',') AS bigint[]) END) AS j(value)",
        "keys_in": lambda json: (
            f"unnest(CASE WHEN {json} ~ {_KEY_LIST} THEN CAST(string_to_array(btrim({json}, '[]'), ',') AS bigint[]) "
            "END) AS j(value)"
        ),
    },
}
