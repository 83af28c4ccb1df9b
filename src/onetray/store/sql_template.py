"""Read the .sql files, and turn each statement into the words of one database.

The files hold one text for both. What differs is filled in here:

    onetray.x        the table x: in its schema on PostgreSQL, by its bare name on SQLite
    :x               a parameter
    b.x              column x of the batch: a joined unnest() on PostgreSQL, a joined json_each() on SQLite. Where the
                     whole batch has one value for it, it is a parameter instead
    {in:x:type}      membership in a list that is passed as one parameter
    {from_batch} {using_batch} {join_batch}    where the batch is brought in. The second is for DELETE: PostgreSQL looks
                     each row up by its key, on SQLite the statement is run once for each
    {clock} {greatest} {json_object} {for_update…} {skip_locked…} {turn_to_prune}
    {letter_error}   what a dead letter says of its error, as JSON
    {all_in_stage} {after_in_stage} {in_span}    the tasks t of a stage: all, after a key, between two

States are named by the lifecycle alone: no statement holds one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from onetray.domain.lifecycle import HELD, MACHINES, OPEN, PAUSED, TASK
from onetray.domain.machine import BadLifecycle, Machine, Transition

SQLITE, POSTGRES = "sqlite", "postgres"

TYPES = {
    "bigint": "key job lease created_at updated_at run_at at began retry_of ts entity expires_at length successor "
    "last_lease_expires_at stage context spawned_by needs task current deadline_at compensates compensation opened_to "
    "opened_at due_at deciding carried_from parent open_until",
    "integer": "ns queue kind policy version fence priority attempts max_attempts spared given_back rank part cursor "
    "attempt unmet control met ord sealed takes_more gate total open blocked waiting_input succeeded partly failed "
    "dead_lettered cancelled redriven stages stages_open partial skipped ignored chained amends probing",
    "double precision": "done out_of",
    "uuid": "id",
}
"""The types of batch columns on PostgreSQL; whatever is not named is text."""
TYPE_OF = {column: type_ for type_, columns in TYPES.items() for column in columns.split()}
# One name, two meanings: the key that a submit was given is text, every other key a number; a dead letter's stage is
# a word.
TEXT = {
    ("insert_dead_letter", "stage"),
    *((name, "key") for name in ("take_key", "keys_taken", "point_key", "lock_unique", "unique_held", "take_unique")),
}

WORDS = {
    SQLITE: {
        "greatest": "max",
        "clock": ":now",
        "json_object": "json_group_object",
        "for_update": "",
        "for_no_key_update": "",
        "lease_tasks": "json_each(l.tasks) AS j",
        "letter_text": "({letter_error} ->> 'class' || ': ' || ({letter_error} ->> 'message'))",
        "letter_error": "d.last_error",
        "all_in_stage": "t.stage = :stage",
        "after_in_stage": "t.stage = :stage AND t.key > :after",
        "in_span": "t.stage = :stage AND t.key > :after AND t.key <= :upto",
        "for_update_of_task": "",
        "skip_locked": "",
        "skip_locked_t": "",
        "skip_locked_f": "",
        "skip_locked_due": "",
        "skip_locked_keys": "",
        # Whoever may write has its turn.
        "turn_to_prune": "1",
    },
    POSTGRES: {
        "greatest": "greatest",
        "json_object": "json_object_agg",
        # Of doubles, which have room for microseconds: arithmetic on numeric costs as much as the lock of a row.
        "clock": "coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint)",
        "for_update": "FOR UPDATE",
        "for_no_key_update": "FOR NO KEY UPDATE",
        "lease_tasks": "unnest(CAST(string_to_array(btrim(l.tasks, '[]'), ',') AS bigint[])) AS j(value)",
        "letter_text": "({letter_error} ->> 'class' || ': ' || ({letter_error} ->> 'message'))",
        "letter_error": "CAST(d.last_error AS jsonb)",
        # Told that there is one stage, the planner knows that its tasks are in the order of their keys, and may walk
        # through the keys of all tasks there are to find those of the stage.
        "all_in_stage": "t.stage >= :stage AND t.stage <= :stage",
        "after_in_stage": "(t.stage, t.key) > (:stage, :after) AND t.stage <= :stage",
        "in_span": "(t.stage, t.key) > (:stage, :after) AND (t.stage, t.key) <= (:stage, :upto) "
        "AND t.stage IS NOT NULL",
        "for_update_of_task": "FOR NO KEY UPDATE OF task",
        "skip_locked": "FOR UPDATE OF r, t SKIP LOCKED",
        "skip_locked_t": "FOR UPDATE OF t SKIP LOCKED",
        "skip_locked_f": "FOR UPDATE OF f SKIP LOCKED",
        "skip_locked_due": "FOR UPDATE SKIP LOCKED",
        "skip_locked_keys": "FOR UPDATE SKIP LOCKED",
        "turn_to_prune": "pg_try_advisory_xact_lock(7136211506)",
    },
}

EVENT_COLUMNS = (
    "entity, job, ts, ns, version, fence, attempts, type, was, state, actor, correlation_id, cause, trace, payload"
)

_SECTION = re.compile(r"^-- (name|move|word): (.+)$", re.MULTILINE)
_BATCH = re.compile(r"\bb\.(\w+)")
PARAM = re.compile(r"(?<![:\w]):([a-z_]+)")
_NUMBERS = re.compile(r":([a-z_]+)::(?:bigint|integer)\[\]")
_IN = re.compile(r"\{in:(\w+):(\w+)\}")
_DELETE = re.compile(r"DELETE FROM onetray\.(\w+) \{using_batch\} (.*?)(?=\s+RETURNING|$)", re.DOTALL)
_BY_PLACE = (
    r"DELETE FROM onetray.\1 WHERE \1.ctid = ANY(ARRAY(SELECT (SELECT \1.ctid FROM onetray.\1 WHERE \2) {from_batch}))"
)
"""A join with a table that was nearly empty when it was last analyzed would begin with the table, and read all of it:
with every row that was deleted and is kept by an old snapshot. This looks each row up by its key, whatever is known."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, ready to run. `columns` names the batch's columns in the order they are passed."""

    name: str
    sql: str
    columns: tuple[str, ...] = ()
    returns: bool = True
    lists: tuple[str, ...] = ()
    """The parameters that carry a whole list."""
    by_row: bool = False
    """To be run once for each row of its batch."""
    numbers: tuple[str, ...] = ()
    """The parameters that carry a whole list of numbers, on PostgreSQL."""


@dataclass(frozen=True, slots=True)
class Move:
    """A transition's statement. SQLite needs a second one to write the events."""

    name: str
    update: Statement
    events: Statement | None = None


@dataclass(frozen=True, slots=True)
class Statements:
    """All statements of one database."""

    dialect: str
    statements: dict[str, Statement]
    moves: dict[str, Move]

    def statement(self, name: str, columns: Mapping[str, Any]) -> Statement:
        """The statement for a batch whose columns are given as these are: a list, or one value for all rows."""
        return _statement(name, self.dialect, _once(columns))

    def move(self, hops: tuple[Transition, ...], columns: Mapping[str, Any], held: bool = False) -> Move:
        return _move(hops, self.dialect, _once(columns), held)


def _once(columns: Mapping[str, Any]) -> frozenset[str]:
    return frozenset([column for column, values in columns.items() if not isinstance(values, list)])


_STATES = {
    f"{machine.entity}.{word}": states
    for machine in MACHINES.values()
    for word, states in (
        ("states", machine.states),
        ("terminal", tuple(s for s in machine.states if s in machine.terminal)),
        ("unended", machine.open_states),
        ("first", tuple(t.target for t in machine.transitions if t.creates)),
    )
} | {"task.held": HELD, "task.paused": PAUSED, "task.unheld": tuple(s for s in OPEN if s not in HELD)}
"""The lists of states that a statement or a constraint may name, as `{entity.list}`."""


@cache
def statements_for(dialect: str) -> Statements:
    statements = {name: _statement(name, dialect) for name in _bodies("name")}
    moves = {}
    for names in _bodies("move"):
        hops = tuple(_transition(name) for name in names.split(", "))
        moves[names] = _move(hops, dialect)
    for machine in MACHINES.values():
        every_transition_has_a_statement(machine, moves)
    return Statements(dialect, statements, moves)


def every_transition_has_a_statement(machine: Machine, moves: Mapping[str, Move]) -> None:
    for t in machine.transitions:
        if not t.creates and title(t) not in moves:
            raise BadLifecycle(f"{machine.entity}: {t.name!r} has no statement in store/sql/move.sql")


def title(t: Transition) -> str:
    """What a transition's statement is called: a task's by its bare name."""
    return t.name if t.entity == TASK.entity else f"{t.entity}.{t.name}"


def _transition(title: str) -> Transition:
    entity, _, name = title.rpartition(".")
    return MACHINES[entity or TASK.entity].by_name[name]


def _sections() -> Iterator[tuple[str, str, str]]:
    for path in sorted(files("onetray.store").joinpath("sql").iterdir(), key=lambda p: p.name):
        parts = _SECTION.split(path.read_text())
        for kind, name, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            text = "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("--"))
            yield kind, name.strip(), text.strip()


@cache
def _bodies(kind: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for k, name, body in _sections():
        if k == kind and found.setdefault(name, body) is not body:
            raise BadLifecycle(f"there are two texts for {kind} {name!r} in store/sql: give one of them another name")
    return found


@cache
def _statement(name: str, dialect: str, once: frozenset[str] = frozenset()) -> Statement:
    body = _bodies("name")[name]
    for word, text in _bodies("word").items():
        body = body.replace("{" + word + "}", text)
    return _render(name, _with_parameters(name, body, dialect, once), dialect)


def _with_parameters(name: str, body: str, dialect: str, once: frozenset[str]) -> str:
    """Make a parameter of each column that has one value for the whole batch."""

    def parameter(found: re.Match[str]) -> str:
        column = found.group(1)
        if column not in once:
            return found.group()
        return f":{column}" if dialect == SQLITE else f":{column}::{_type(name, column)}"

    return _BATCH.sub(parameter, body)


def _render(name: str, body: str, dialect: str, columns: tuple[str, ...] | None = None) -> Statement:
    if columns is None:
        columns = tuple(dict.fromkeys(_BATCH.findall(body)))
    lists = tuple(dict.fromkeys(m.group(1) for m in _IN.finditer(body)))
    returns = body.upper().startswith("SELECT") or "RETURNING" in body.upper()
    for word, text in WORDS[dialect].items():
        body = body.replace("{" + word + "}", text)
    for word, states in _STATES.items():
        body = body.replace("{" + word + "}", quoted(states))
    if dialect == SQLITE and "{using_batch}" in body:
        return _by_row(Statement(name, body, columns, returns, lists, by_row=True))
    body = _DELETE.sub(_BY_PLACE, body)
    batch = _json_each(columns) if dialect == SQLITE else _unnest(name, columns)
    for word, text in (("from_batch", "FROM {}"), ("join_batch", "JOIN {} ON")):
        body = body.replace("{" + word + "}", text.format(batch))
    if dialect == SQLITE:
        body = _IN.sub(r"IN (SELECT value FROM json_each(:\1))", body).replace("onetray.", "")
        return Statement(name, body, columns, returns, lists)
    body = _IN.sub(r"= ANY(:\1::\2[])", body)
    numbers = tuple(dict.fromkeys(_NUMBERS.findall(body)))
    return Statement(name, PARAM.sub(r"%(\1)s", body), columns, returns, lists, numbers=numbers)


def _by_row(statement: Statement) -> Statement:
    """A statement of SQLite's whose columns and parameters are given by their places, row by row."""
    body = statement.sql.replace("{using_batch}", "WHERE").replace("onetray.", "")
    columns = tuple(dict.fromkeys((*statement.columns, *PARAM.findall(body))))
    place = {c: f"?{i}" for i, c in enumerate(columns, 1)}
    body = PARAM.sub(lambda m: place[m.group(1)], _BATCH.sub(lambda m: place[m.group(1)], body))
    return replace(statement, sql=body, columns=columns)


def _json_each(columns: tuple[str, ...]) -> str:
    """The batch as one JSON value: a list for each row, or the bare values when there is one column."""
    alone = len(columns) == 1
    fields = ", ".join(f"value AS {c}" if alone else f"value ->> {i} AS {c}" for i, c in enumerate(columns))
    return f"(SELECT {fields} FROM json_each(:batch)) AS b"


def _unnest(name: str, columns: tuple[str, ...]) -> str:
    arrays = ", ".join(f":{c}::{_type(name, c)}[]" for c in columns)
    return f"unnest({arrays}) AS b({', '.join(columns)})"


def _type(name: str, column: str) -> str:
    return "text" if (name, column) in TEXT else TYPE_OF.get(column, "text")


def quoted(states: tuple[str, ...] | frozenset[str]) -> str:
    return ", ".join(f"'{s}'" for s in states)


@cache
def _move(hops: tuple[Transition, ...], dialect: str, once: frozenset[str] = frozenset(), held: bool = False) -> Move:
    name = ", ".join(title(h) for h in hops)
    update, row = (_with_parameters(name, text, dialect, once) for text in (_update(hops, held), _event_row(hops)))
    columns = tuple(dict.fromkeys(_BATCH.findall(f"{update} {row}")))
    moved = f"WITH moved({EVENT_COLUMNS}, began) AS"
    if dialect == SQLITE:
        table = hops[0].entity
        rows = f"SELECT {row} {{from_batch}} CROSS JOIN onetray.{table} ON {table}.key = b.key"
        events = f"{moved} ({rows}) {_write_events(hops, '')}"
        return Move(name, _render(name, update, dialect, columns), _render(name, events, dialect, columns))
    order = "ORDER BY entity, hop"
    text = f"{moved} ({update} RETURNING {row}), written AS ({_write_events(hops, order)}) {all_of('moved')}"
    return Move(name, _render(name, text, dialect))


def all_of(cte: str) -> str:
    """The count of what a statement on PostgreSQL has changed. It fails, and its transaction with it, if it is not the
    one that was expected: so a COMMIT may be sent along."""
    return f"SELECT count(*) / CASE count(*) WHEN :expected::bigint THEN 1 ELSE 0 END FROM {cte}"


_HELD = " AND task.owner = b.worker AND task.lease = b.lease AND task.ns = b.ns AND task.stage IS NULL"
"""The further guard of a report that was not looked at before: the reporter holds the task, and it is in no flow."""


def _update(hops: tuple[Transition, ...], held: bool = False) -> str:
    """Add to the UPDATE what the table says: the guard, the new state."""
    body = _bodies("move")[", ".join(title(h) for h in hops)]
    first, last = hops[0], hops[-1]
    t = first.entity
    guard = f"{t}.key = b.key AND {t}.version = b.version AND {t}.state IN ({quoted(first.sources)})"
    guard += f" AND {t}.state = b.was" if len(first.sources) > 1 else ""
    guard += f" AND {t}.fence = b.fence" if first.fenced else ""
    guard += _HELD if held else ""
    freed = "owner = NULL, lease = NULL"
    for word, text in (
        ("moved", f"state = '{last.target}', version = {t}.version + {len(hops)}, updated_at = {{last}}"),
        ("ended", f"finished_at = {{last}}, {freed}" if t == TASK.entity else "finished_at = {last}"),
        ("reopened", f"fence = task.fence + 1, run_at = b.run_at, {freed}"),
        ("freed", freed),
        ("last", f"{{greatest}}(b.at, {t}.updated_at)"),
    ):
        body = body.replace("{" + word + "}", text)
    return f"{body} {{from_batch}} WHERE {guard}"


def _event_row(hops: tuple[Transition, ...]) -> str:
    """The columns of the last hop's event, from the row as the move left it, and when it was started."""
    last = hops[-1]
    t = last.entity
    was = "b.was" if len(last.sources) > 1 else quoted(last.sources)
    tries = "task.fence, task.attempts" if t == TASK.entity else "0, 0"
    return (
        f"{t}.key, {t}.job, {t}.updated_at, {t}.ns, {t}.version, {tries}, "
        f"'{last.event}', {was}, '{last.target}', b.actor, {t}.correlation_id, b.cause, "
        f"coalesce(b.trace, {t}.trace), b.detail, {t}.started_at"
    )


def _write_events(hops: tuple[Transition, ...], order: str) -> str:
    """Write the events of the tasks that moved, one for each hop. SQLite keeps the order of a CROSS JOIN by itself."""
    select = f"SELECT {EVENT_COLUMNS} FROM moved"
    if len(hops) == 2:
        a, b = hops
        select = (
            "SELECT entity, job, CASE hop WHEN 1 THEN began ELSE ts END, ns, version - 2 + hop, fence, attempts, "
            "hops.type, hops.was, hops.state, actor, correlation_id, cause, trace, "
            "CASE hop WHEN 2 THEN payload END FROM moved CROSS JOIN ("
            f"SELECT 1 AS hop, '{a.event}' AS type, '{a.sources[0]}' AS was, '{a.target}' AS state "
            f"UNION ALL SELECT 2, '{b.event}', '{b.sources[0]}', '{b.target}') AS hops {order}"
        )
    return f"INSERT INTO onetray.event ({EVENT_COLUMNS}) {select}"


def migration(dialect: str, number: int) -> str:
    """A migration's text, with the states of the lifecycle in its CHECK constraints."""
    text = files("onetray.store").joinpath("migrations", dialect, f"{number:04d}.sql").read_text()
    for word, states in _STATES.items():
        text = text.replace("{" + word + "}", quoted(states))
    return text


def migrations(dialect: str) -> list[int]:
    folder = files("onetray.store").joinpath("migrations", dialect)
    return sorted(int(p.name[:4]) for p in folder.iterdir() if p.name.endswith(".sql"))
