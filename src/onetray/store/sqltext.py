"""Read the .sql files, and turn each statement into the words of one database.

The files hold one text for both. What differs is filled in here:

    onetray.x        the table x: in its schema on PostgreSQL, by its bare name on SQLite
    :x               a parameter
    b.x              column x of the batch: a joined unnest() on PostgreSQL; on SQLite a move joins json_each(), and
                     any other statement is run once for each row of the batch and b.x is a parameter
    {in:x:type}      membership in a list that is passed as one parameter
    {from_batch} {using_batch} {join_batch}    where the batch is brought in
    {clock} {greatest} {for_update…} {skip_locked…}

States are named by the lifecycle alone: no statement holds one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from onetray.lifecycle import HELD, MACHINES, TASK
from onetray.machine import BadLifecycle, Machine, Transition

SQLITE, POSTGRES = "sqlite", "postgres"

TYPES = {
    "bigint": "key job lease created_at updated_at run_at at began retry_of ts entity expires_at length successor "
    "last_lease_expires_at",
    "integer": "ns queue kind policy version fence priority attempts max_attempts spared given_back rank part cursor "
    "attempt",
    "uuid": "id",
}
"""The types of batch columns on PostgreSQL; whatever is not named is text."""
TYPE_OF = {column: type_ for type_, columns in TYPES.items() for column in columns.split()}
# One name, two meanings: an idempotency key is text, every other key a number.
TEXT_KEYS = {"take_key", "keys_taken"}

WORDS = {
    SQLITE: {
        "greatest": "max",
        "clock": ":now",
        "for_update": "",
        "for_update_of_task": "",
        "skip_locked": "",
        "skip_locked_t": "",
        "skip_locked_due": "",
    },
    POSTGRES: {
        "greatest": "greatest",
        "clock": "coalesce(:now::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)",
        "for_update": "FOR UPDATE",
        "for_update_of_task": "FOR NO KEY UPDATE OF task",
        "skip_locked": "FOR UPDATE OF r, t SKIP LOCKED",
        "skip_locked_t": "FOR UPDATE OF t SKIP LOCKED",
        "skip_locked_due": "FOR UPDATE SKIP LOCKED",
    },
}

EVENT_COLUMNS = (
    "entity, job, ts, ns, version, fence, attempts, type, was, state, actor, correlation_id, cause, trace, payload"
)

_SECTION = re.compile(r"^-- (name|move|word): (.+)$", re.MULTILINE)
_BATCH = re.compile(r"\bb\.(\w+)")
PARAM = re.compile(r"(?<![:\w]):([a-z_]+)")
_IN = re.compile(r"\{in:(\w+):(\w+)\}")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, ready to run. `columns` names the batch's columns in the order they are passed."""

    name: str
    sql: str
    columns: tuple[str, ...] = ()
    returns: bool = True
    lists: tuple[str, ...] = ()
    """The parameters that carry a whole list."""


@dataclass(frozen=True, slots=True)
class Move:
    """A transition's statement. SQLite needs a second one to write the events."""

    name: str
    update: Statement
    events: Statement | None = None


@dataclass(frozen=True, slots=True)
class Book:
    """All statements of one database."""

    dialect: str
    statements: dict[str, Statement]
    moves: dict[tuple[str, ...], Move]

    def move(self, hops: tuple[Transition, ...], columns: Mapping[str, Any]) -> Move:
        """The statement for a move whose columns are given as these are: a list, or one value for all rows."""
        once = frozenset(c for c, values in columns.items() if not isinstance(values, list))
        return _move(hops, self.dialect, once)


@cache
def book(dialect: str) -> Book:
    sections = list(_sections())
    words = {name: body for kind, name, body in sections if kind == "word"}
    statements = {n: _statement(n, b, words, dialect) for k, n, b in sections if k == "name"}
    moves = {}
    for names in _move_bodies():
        moves[names] = _move(tuple(TASK.by_name[name] for name in names), dialect)
    every_transition_has_a_statement(TASK, moves)
    return Book(dialect, statements, moves)


def every_transition_has_a_statement(machine: Machine, moves: dict[tuple[str, ...], Move]) -> None:
    for t in machine.transitions:
        if not t.creates and (t.name,) not in moves:
            raise BadLifecycle(f"{machine.entity}: {t.name!r} has no statement in store/sql/move.sql")


def _sections() -> Iterator[tuple[str, str, str]]:
    for path in sorted(files("onetray.store").joinpath("sql").iterdir(), key=lambda p: p.name):
        parts = _SECTION.split(path.read_text())
        for kind, name, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            text = "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("--"))
            yield kind, name.strip(), text.strip()


@cache
def _move_bodies() -> dict[tuple[str, ...], str]:
    return {tuple(name.split(", ")): body for kind, name, body in _sections() if kind == "move"}


def _statement(name: str, body: str, words: dict[str, str], dialect: str) -> Statement:
    for word, replacement in words.items():
        body = body.replace("{" + word + "}", replacement)
    lists = tuple(m.group(1) for m in _IN.finditer(body))
    columns = tuple(dict.fromkeys(_BATCH.findall(body)))
    returns = body.upper().startswith("SELECT") or "RETURNING" in body.upper()
    render = _sqlite if dialect == SQLITE else _postgres
    return Statement(name, *render(name, body, columns), returns, lists)


def _words(body: str, dialect: str) -> str:
    for word, replacement in WORDS[dialect].items():
        body = body.replace("{" + word + "}", replacement)
    return body


def _sqlite(name: str, body: str, columns: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    body = _words(body, SQLITE).replace("onetray.", "")
    body = _IN.sub(r"IN (SELECT value FROM json_each(:\1))", body)
    for word, replacement in (("from_batch", ""), ("using_batch", "WHERE"), ("join_batch", "WHERE")):
        body = body.replace("{" + word + "}", replacement)
    if columns:
        # Positional: a tuple per row is bound faster than a dict. Plain parameters follow the batch's columns.
        scalars = tuple(dict.fromkeys(PARAM.findall(body)))
        columns = (*columns, *(s for s in scalars if s not in columns))
        place = {c: f"?{i}" for i, c in enumerate(columns, 1)}
        body = _BATCH.sub(lambda m: place[m.group(1)], body)
        body = PARAM.sub(lambda m: place[m.group(1)], body)
    return body, columns


def _postgres(name: str, body: str, columns: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    body = _words(body, POSTGRES)
    body = _IN.sub(r"= ANY(%(\1)s::\2[])", body)
    batch = _unnest(name, columns)
    for word, text in (("from_batch", "FROM {}"), ("using_batch", "USING {} WHERE"), ("join_batch", "JOIN {} ON")):
        body = body.replace("{" + word + "}", text.format(batch))
    return PARAM.sub(r"%(\1)s", body), columns


def _unnest(name: str, columns: tuple[str, ...]) -> str:
    types = ["text" if c == "key" and name in TEXT_KEYS else TYPE_OF.get(c, "text") for c in columns]
    arrays = ", ".join(f"%({c})s::{t}[]" for c, t in zip(columns, types, strict=True))
    return f"unnest({arrays}) AS b({', '.join(columns)})"


def quoted(states: tuple[str, ...] | frozenset[str]) -> str:
    return ", ".join(f"'{s}'" for s in states)


@cache
def _move(hops: tuple[Transition, ...], dialect: str, once: frozenset[str] = frozenset()) -> Move:
    """Render a move. A column in `once` has one value for all rows: it is a parameter, not carried with every row."""
    name = ", ".join(h.name for h in hops)
    given = {column: _parameter(column, dialect) for column in once}
    update, row = (_BATCH.sub(lambda m: given.get(m.group(1), m.group()), t) for t in (_update(hops), _event_row(hops)))
    columns = tuple(dict.fromkeys(_BATCH.findall(f"{update} {row}")))
    moved = f"WITH moved({EVENT_COLUMNS}, began) AS"
    if dialect == SQLITE:
        rows = f"SELECT {row} {{from_batch}} CROSS JOIN onetray.task ON task.key = b.key"
        return Move(name, *(_from_json(name, t, columns) for t in (update, f"{moved} ({rows}) {_write_events(hops)}")))
    rows = f"{update} RETURNING {row}"
    text = f"{moved} ({rows}), written AS ({_write_events(hops)}) SELECT count(*) FROM moved"
    return Move(name, Statement(name, *_postgres(name, text, columns)))


def _update(hops: tuple[Transition, ...]) -> str:
    """Add to the UPDATE what the table says: the guard, the new state."""
    body = _move_bodies()[tuple(h.name for h in hops)]
    first, last = hops[0], hops[-1]
    guard = f"task.key = b.key AND task.version = b.version AND task.state IN ({quoted(first.sources)})"
    guard += " AND task.state = b.was" if len(first.sources) > 1 else ""
    guard += " AND task.fence = b.fence" if first.fenced else ""
    freed = "owner = NULL, lease = NULL"
    for word, text in (
        ("moved", f"state = '{last.target}', version = task.version + {len(hops)}, updated_at = {{last}}"),
        ("ended", f"finished_at = {{last}}, {freed}"),
        ("reopened", f"fence = task.fence + 1, run_at = b.run_at, {freed}"),
        ("freed", freed),
        ("last", "{greatest}(b.at, task.updated_at)"),
    ):
        body = body.replace("{" + word + "}", text)
    return f"{body} {{from_batch}} WHERE {guard}"


def _event_row(hops: tuple[Transition, ...]) -> str:
    """The columns of the last hop's event, from the task as the move left it, and when it was started."""
    last = hops[-1]
    was = "b.was" if len(last.sources) > 1 else quoted(last.sources)
    return (
        "task.key, task.job, task.updated_at, task.ns, task.version, task.fence, task.attempts, "
        f"'{last.event}', {was}, '{last.target}', b.actor, task.correlation_id, b.cause, "
        "coalesce(b.trace, task.trace), b.detail, task.started_at"
    )


def _parameter(column: str, dialect: str) -> str:
    return f":{column}" if dialect == SQLITE else f":{column}::{TYPE_OF.get(column, 'text')}"


def _from_json(name: str, body: str, columns: tuple[str, ...]) -> Statement:
    """A statement for SQLite that takes its whole batch as one JSON value: a list for each row."""
    fields = ", ".join(f"value ->> {i} AS {c}" for i, c in enumerate(columns))
    batch = f"FROM (SELECT {fields} FROM json_each(:batch)) AS b"
    return Statement(name, _words(body, SQLITE).replace("onetray.", "").replace("{from_batch}", batch), columns)


def _write_events(hops: tuple[Transition, ...]) -> str:
    """Write the events of the tasks that moved, one for each hop."""
    select = f"SELECT {EVENT_COLUMNS} FROM moved"
    if len(hops) == 2:
        a, b = hops
        select = (
            "SELECT entity, job, CASE hop WHEN 1 THEN began ELSE ts END, ns, version - 2 + hop, fence, attempts, "
            "hops.type, hops.was, hops.state, actor, correlation_id, cause, trace, "
            "CASE hop WHEN 2 THEN payload END FROM moved CROSS JOIN ("
            f"SELECT 1 AS hop, '{a.event}' AS type, '{a.sources[0]}' AS was, '{a.target}' AS state "
            f"UNION ALL SELECT 2, '{b.event}', '{b.sources[0]}', '{b.target}') AS hops ORDER BY entity, hop"
        )
    return f"INSERT INTO onetray.event ({EVENT_COLUMNS}) {select}"


def migration(dialect: str, number: int) -> str:
    """A migration's text, with the states of the lifecycle in its CHECK constraints."""
    text = files("onetray.store").joinpath("migrations", dialect, f"{number:04d}.sql").read_text()
    for machine in MACHINES.values():
        first = tuple(t.target for t in machine.transitions if t.creates)
        for word, states in (
            ("states", machine.states),
            ("terminal", tuple(s for s in machine.states if s in machine.terminal)),
            ("held", HELD),
            ("first", first),
        ):
            text = text.replace("{" + f"{machine.entity}.{word}" + "}", quoted(states))
    return text


def migrations(dialect: str) -> list[int]:
    folder = files("onetray.store").joinpath("migrations", dialect)
    return sorted(int(p.name[:4]) for p in folder.iterdir() if p.name.endswith(".sql"))
