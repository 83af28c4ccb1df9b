"""Read the .sql files, and render each text as a statement of one database.

A file holds sections, each with a header and comments:

    -- name: x       a statement                      -- row: X    the type of its rows (see row_types.py)
    -- move: x       the UPDATE of a transition (see move_sql.py)
    -- word: x       a text that other sections include as {x}

The text is the same for both databases. `fill` inserts what differs, and what several statements share:

    {x} {x:argument} a word: of a section, of WORDS, of the lists of states ({task.terminal}), or of the verifier
    {b.x_columns}    the columns that the word x_columns lists, each as a column of the batch
    onetray.x        the table x: in its schema on PostgreSQL, by its bare name on SQLite
    :x               a parameter
    b.x              column x of the batch: a joined unnest() on PostgreSQL, a joined json_each() on SQLite; a
                     parameter if all rows of the batch have the same value
    {in:x:type}      membership in a list that is passed as one parameter; {ids:x:type} is that list, as i.value
    {from_batch} {using_batch} {join_batch}    the batch. The second is for DELETE: PostgreSQL looks up each row by its
                     key; SQLite compares the keys with those of the batch
    {event_id}       the id of a new event for each row of the batch; {event_id:2} that of its second one, if a move has
                     two. In the next statement, {new_event} is the first of these ids

No statement names a state: states come from the lifecycle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from onetray.domain.lifecycle import AUDIT_TYPES, HELD, MACHINES, OPEN, PAUSED
from onetray.domain.machine import BadLifecycle
from onetray.store import lock_words
from onetray.store.row_types import RowMaker, row_maker

SQLITE, POSTGRES = "sqlite", "postgres"
Word = str | Callable[[str], str]

TYPES = {
    "bigint": "key job lease created_at updated_at run_at at began retry_of ts entity expires_at length successor "
    "last_lease_expires_at stage context spawned_by needs task current deadline_at compensates compensation opened_to "
    "opened_at until_at due_at deciding carried_from parent open_until seq value number schedule fire_at missed rule "
    "turn next_at blocked_on blocked_at next_fire_at last_fire_at look_at fires",
    "integer": "ns queue kind policy version fence priority attempts max_attempts spared given_back rank part cursor "
    "attempt unmet control met ord sealed takes_more gate total open blocked waiting_input succeeded partly failed "
    "dead_lettered cancelled redriven retrying error_count stages stages_open partial skipped ignored chained amends "
    "probing expiry_counts span bucket manual replaced lane running lane_state failures",
    "double precision": "done out_of",
    "uuid": "id job_id",
}
"""The types of batch columns on PostgreSQL; all others are text."""
TYPE_OF = {column: type_ for type_, columns in TYPES.items() for column in columns.split()}
# Columns with another type in these statements: the idempotency or unique key of a submit, the stage of a dead letter,
# the entity of an alias and the value of a label, which are words.
TEXT = {
    ("insert_dead_letter", "stage"),
    ("insert_aliases", "entity"),
    ("insert_label", "value"),
    *((name, "value") for name in ("add_buckets", "buckets_of_values", "add_lane")),
    *((name, "key") for name in ("take_key", "keys_taken", "link_key", "free_key")),
    *((name, "key") for name in ("lock_unique", "unique_held", "take_unique")),
    *((name, "key") for name in ("reserve_requests", "reserved_requests")),
    *((name, "key") for name in ("lock_windows", "windows_held", "save_window", "drop_window")),
}


def quoted(values: Iterable[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)


STATES = {
    f"{machine.entity}.{word}": quoted(states)
    for machine in MACHINES.values()
    for word, states in (
        ("states", machine.states),
        ("terminal", tuple(s for s in machine.states if s in machine.terminal)),
        ("unended", machine.open_states),
        ("first", tuple(t.target for t in machine.transitions if t.creates)),
    )
} | {
    "task.held": quoted(HELD),
    "task.paused": quoted(PAUSED),
    "task.unheld": quoted(s for s in OPEN if s not in HELD),
    "audit_types": quoted(AUDIT_TYPES),
}
"""The lists of states, and of types of events, that a statement can include."""

WORDS: dict[str, dict[str, Word]] = {
    SQLITE: {
        "greatest": "max",
        "position": "instr",
        "clock": ":now",
        "json_object": "json_group_object",
        "json_pairs": "json_group_array(json_array(f.rank, f.task))",
        "lease_tasks": "json_each(l.tasks) AS j",
        "letter_text": "({letter_error} ->> 'class' || ': ' || ({letter_error} ->> 'message'))",
        # The error in a dead letter, as JSON.
        "letter_error": "d.last_error",
        "new_event": ":event",
        "in_query": lambda word: f"IN ({{{word}}})",
        "batch_of_i": "onetray.event_batch AS eb "
        "ON eb.id = (SELECT max(x.id) FROM onetray.event_batch AS x WHERE x.id <= i.value)",
        "all_events": lambda row: (
            f"(coalesce((SELECT group_concat(p.events, ',' ORDER BY p.version) || ',' FROM onetray.event_page AS p "
            f"WHERE p.entity = {row}.key), '') || {row}.events)"
        ),
        "event_ids": lambda row: f"json_each('[' || {{all_events:{row}}} || ']') AS i",
        "last_event": lambda row: f"json_extract('[' || {row}.events || ']', '$[#-1]')",
        "entry": lambda column: (
            f"coalesce(eb.{column}, json_extract(eb.varied, '$.{column}[' || (i.value - eb.id) || ']'))"
        ),
        "entry_ts": "(eb.ts - coalesce(json_extract(eb.varied, '$.ts[' || (i.value - eb.id) || ']'), 0))",
        "events_and_notes": lambda row: (
            f"json_each('[' || {{all_events:{row}}} || coalesce((SELECT ',' || group_concat(n.id) "
            f"FROM onetray.event_batch AS n WHERE n.entity = {row}.key AND n.state IS NULL), '') || ']') AS i"
        ),
        **lock_words.OF_SQLITE,
        # There is only one writer.
        "turn_to_prune": "1",
    },
    POSTGRES: {
        "greatest": "greatest",
        "position": "strpos",
        "json_object": "json_object_agg",
        "json_pairs": "json_agg(json_build_array(f.rank, f.task))",
        # In doubles, which are exact to the microsecond: arithmetic on numeric costs as much as a row lock.
        "clock": "coalesce(:now::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint)",
        "lease_tasks": "unnest(CAST(string_to_array(btrim(l.tasks, '[]'), ',') AS bigint[])) AS j(value)",
        "letter_text": "({letter_error} ->> 'class' || ': ' || ({letter_error} ->> 'message'))",
        "letter_error": "CAST(d.last_error AS jsonb)",
        # The last number of the sequence in this session: nothing else of the transaction has taken one since.
        "new_event": "coalesce(:event::bigint, currval('onetray.event_id'))",
        # Membership in what a query finds, which is a word. As an array: for IN the planner may read the whole table,
        # and look for each of its rows in the query.
        "in_query": lambda word: f"= ANY(ARRAY({{{word}}}))",
        # The row eb of the log that contains the event i.value. With a limit, so that it cannot be joined the other way
        # round: each row of the log with all events.
        "batch_of_i": "LATERAL (SELECT x.* FROM onetray.event_batch AS x WHERE x.id <= i.value "
        "ORDER BY x.id DESC LIMIT 1) AS eb ON true",
        # The ids of the transitions of a task, a stage or a flow.
        "all_events": lambda row: (
            f"(coalesce((SELECT string_agg(p.events, ',' ORDER BY p.version) || ',' FROM onetray.event_page AS p "
            f"WHERE p.entity = {row}.key), '') || {row}.events)"
        ),
        "event_ids": lambda row: f"unnest(CAST(string_to_array({{all_events:{row}}}, ',') AS bigint[])) AS i(value)",
        "last_event": lambda row: f"CAST(split_part({row}.events, ',', -1) AS bigint)",
        "events_and_notes": lambda row: (
            f"unnest(CAST(string_to_array({{all_events:{row}}}, ',') AS bigint[]) || ARRAY(SELECT n.id "
            f"FROM onetray.event_batch AS n WHERE n.entity = {row}.key AND n.state IS NULL)) AS i(value)"
        ),
        # A column of the event with the id i.value, which is an entry of the row eb of the log; and its time.
        "entry": lambda column: (
            f"coalesce(eb.{column}, CAST(CAST(eb.varied AS json) -> '{column}' ->> CAST(i.value - eb.id AS integer) AS "
            f"{TYPE_OF.get(column, 'text')}))"
        ),
        "entry_ts": "(eb.ts - coalesce(CAST(CAST(eb.varied AS json) -> 'ts' ->> CAST(i.value - eb.id AS integer) "
        "AS bigint), 0))",
        **lock_words.OF_POSTGRES,
        "turn_to_prune": "pg_try_advisory_xact_lock(7136211506)",
    },
}
_LISTS: dict[str, dict[str, Word]] = {
    SQLITE: {
        "in": lambda list_: f"IN (SELECT value FROM json_each(:{list_.partition(':')[0]}))",
        "ids": lambda list_: f"json_each(:{list_.partition(':')[0]}) AS i",
    },
    POSTGRES: {
        "in": lambda list_: "= ANY(:{}::{}[])".format(*list_.split(":")),
        "ids": lambda list_: "unnest(:{}::{}[]) AS i(value)".format(*list_.split(":")),
    },
}

_SECTION = re.compile(r"^-- (name|move|word|pass): (.+)$", re.MULTILINE)
_ROW = re.compile(r"^-- row: (\w+)$", re.MULTILINE)
_WORD = re.compile(r"\{([\w.]+)(?::([\w.:]+))?\}")
_LIST = re.compile(r"\{(?:in|ids):(\w+):\w+\}")
BATCH_COLUMN = re.compile(r"\bb\.(\w+)")
PARAM = re.compile(r"(?<![:\w]):([a-z_]+)")
_NUMBERS = re.compile(r":([a-z_]+)::(?:bigint|integer)\[\]")
_DELETE = re.compile(r"DELETE FROM onetray\.(\w+) \{using_batch\} (.*?)(?=\s+RETURNING|$)", re.DOTALL)
_BY_CTID = (
    r"DELETE FROM onetray.\1 WHERE \1.ctid = ANY(ARRAY(SELECT (SELECT \1.ctid FROM onetray.\1 WHERE \2) {from_batch}))"
)
"""A join with a table that was nearly empty when it was last analyzed would scan all of it, including the deleted rows
that an old snapshot keeps. This looks up each row by its key, whatever the statistics say."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, ready to run. `columns` names the columns of the batch in the order of its values."""

    name: str
    sql: str
    columns: tuple[str, ...] = ()
    returns: bool = True
    lists: tuple[str, ...] = ()
    """The parameters that are lists."""
    numbers: tuple[str, ...] = ()
    """The parameters that are lists of numbers, on PostgreSQL."""
    maker: RowMaker | None = None
    """Turns the driver's rows into rows of the declared type."""
    records: bool = False
    """Whether it takes the ids of new events: at most as many as a row of the log has entries."""

    def rows(self, fetched: list[Any]) -> list[Any]:
        return fetched if self.maker is None else list(self.maker(fetched))


class Section(NamedTuple):
    """A part of a .sql file."""

    kind: str
    name: str
    comment: str
    text: str


def sections(folder: Traversable) -> Iterator[Section]:
    """All sections of the .sql files in a folder, in the order of the file names."""
    for path in sorted((p for p in folder.iterdir() if p.name.endswith(".sql")), key=lambda p: p.name):
        parts = _SECTION.split(path.read_text())
        for kind, name, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            lines = body.splitlines()
            comment = [line for line in lines if line.lstrip().startswith("--")]
            text = [line for line in lines if not line.lstrip().startswith("--")]
            yield Section(kind, name.strip(), "\n".join(comment), "\n".join(text).strip())


@cache
def sections_of(kind: str) -> dict[str, Section]:
    """The sections of one kind, by name."""
    by_name: dict[str, Section] = {}
    for section in sections(files("onetray.store").joinpath("sql")):
        if section.kind == kind and by_name.setdefault(section.name, section) is not section:
            raise BadLifecycle(f"store/sql contains {kind} {section.name!r} twice: rename one of them")
    return by_name


def fill(text: str, words: Mapping[str, Word]) -> str:
    """Replace each word by its text, recursively. Unknown words stay."""

    def expand(match: re.Match[str]) -> str:
        word = words.get(match[1])
        if word is None:
            return match[0]
        return fill(word if isinstance(word, str) else word(match[2] or ""), words)

    return _WORD.sub(expand, text)


@cache
def words_of(dialect: str) -> dict[str, Word]:
    """Every word that a statement in store/sql can use."""
    included = {name: section.text for name, section in sections_of("word").items()}
    of_batch = {
        f"b.{name}": re.sub(r"\w+", r"b.\g<0>", columns)
        for name, columns in included.items()
        if name.endswith("_columns")
    }
    return {**WORDS[dialect], **STATES, **included, **of_batch}


@cache
def statement_of(name: str, dialect: str, once: frozenset[str] = frozenset()) -> Statement:
    """A statement, for batches in which each of the columns `once` has the same value in all rows."""
    section = sections_of("name")[name]
    text = with_parameters(name, section.text, dialect, once)
    statement = render(name, text, dialect)
    declared = _ROW.search(section.comment)
    maker = row_maker(name, text if statement.returns else "", declared[1] if declared else None)
    return replace(statement, maker=maker)


@cache
def single_row(name: str, dialect: str) -> Statement:
    """A statement for a batch of one row: every column is a parameter."""
    text = fill(sections_of("name")[name].text, words_of(dialect))
    return statement_of(name, dialect, frozenset(BATCH_COLUMN.findall(text)))


def with_parameters(name: str, text: str, dialect: str, once: frozenset[str]) -> str:
    """Turn each of the columns `once` into a parameter: it has the same value in all rows of the batch."""

    def parameter(match: re.Match[str]) -> str:
        column = match.group(1)
        if column not in once:
            return match.group()
        return f":{column}" if dialect == SQLITE else f":{column}::{_type(name, column)}"

    return BATCH_COLUMN.sub(parameter, fill(text, words_of(dialect)))


def render(name: str, text: str, dialect: str, columns: tuple[str, ...] | None = None) -> Statement:
    """Render a text as a statement, including its batch."""
    if columns is None:
        columns = tuple(dict.fromkeys(BATCH_COLUMN.findall(text)))
    lists = tuple(dict.fromkeys(_LIST.findall(text)))
    returns = text.upper().startswith(("SELECT", "WITH")) or "RETURNING" in text.upper()
    body = fill(text, words_of(dialect) | _LISTS[dialect])
    if dialect == SQLITE:
        body = _DELETE.sub(_by_key, body)
    records = "{event_id" in body
    batch = _json_each(columns, records) if dialect == SQLITE else _unnest(name, columns, records)
    # A single row needs no batch: all its columns are parameters.
    batch_words: dict[str, Word] = {"from_batch": f"FROM {batch}" if columns else "", "join_batch": f"JOIN {batch} ON"}
    if records:
        body, batch_words = _with_events(body, dialect, batch if columns else None)
    body = fill(_DELETE.sub(_BY_CTID, body), batch_words)
    if dialect == SQLITE:
        return Statement(name, body.replace("onetray.", ""), columns, returns, lists, records=records)
    numbers = tuple(dict.fromkeys(_NUMBERS.findall(body)))
    return Statement(name, PARAM.sub(r"%(\1)s", body), columns, returns, lists, numbers=numbers, records=records)


NEW_EVENTS = "at AS (SELECT nextval('onetray.event_id') AS id)"
"""On PostgreSQL: taken when the statement runs, after the locks, so that the ids of an entity's events rise."""


def _with_events(body: str, dialect: str, batch: str | None) -> tuple[str, dict[str, Word]]:
    """A statement that takes the ids of new events, one or two for each row of its batch."""
    if dialect == SQLITE:
        place = "+ b.place" if batch else ""
        words = {"from_batch": f"FROM {batch}" if batch else ""}
        return body, {**words, "event_id": lambda nth: f"CAST(:event {'+ :size ' if nth else ''}{place} AS text)"}
    place = "+ b.place - 1" if batch else ""
    words = {"from_batch": f"FROM at, {batch}" if batch else "FROM at"}
    if not body.startswith("WITH"):
        body = f"WITH {NEW_EVENTS} {body}"
    return body, {**words, "event_id": lambda nth: f"CAST(at.id {'+ :size::bigint ' if nth else ''}{place} AS text)"}


def _by_key(delete: re.Match[str]) -> str:
    """A DELETE for SQLite, which has no USING: the columns that differ in the batch are compared all at once."""
    table, condition = delete.groups()
    equal = [text.split(" = ") for text in re.split(r"\s+AND\s+", condition)]
    differing = [(column, value) for column, value in equal if value.startswith("b.")]
    conditions = [f"{column} = {value}" for column, value in equal if not value.startswith("b.")]
    if differing:
        columns, values = (", ".join(names) for names in zip(*differing, strict=True))
        conditions.append(f"({columns}) IN (SELECT {values} {{from_batch}})")
    return f"DELETE FROM onetray.{table} WHERE {' AND '.join(conditions)}"


def _json_each(columns: tuple[str, ...], numbered: bool) -> str:
    """The batch as one JSON value: a list for each row, or the bare values of a single column."""
    is_single = len(columns) == 1
    fields = ", ".join(f"value AS {c}" if is_single else f"value ->> {i} AS {c}" for i, c in enumerate(columns))
    return f"(SELECT {fields}{', key AS place' if numbered else ''} FROM json_each(:batch)) AS b"


def _unnest(name: str, columns: tuple[str, ...], numbered: bool) -> str:
    arrays = ", ".join(f":{c}::{_type(name, c)}[]" for c in columns)
    if numbered:
        return f"unnest({arrays}) WITH ORDINALITY AS b({', '.join(columns)}, place)"
    return f"unnest({arrays}) AS b({', '.join(columns)})"


def _type(name: str, column: str) -> str:
    return "text" if (name, column) in TEXT else TYPE_OF.get(column, "text")
