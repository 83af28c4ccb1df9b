"""Read the .sql files, and turn each text into a statement of one database.

A file holds sections, each with a header and comments:

    -- name: x       a statement                      -- row: X    the type of its rows (see row_types.py)
    -- move: x       the UPDATE of a transition (see move_sql.py)
    -- word: x       a text that others include as {x}

The text is the same for both databases. `fill` puts in what differs, and what stands in several statements:

    {x} {x:argument} a word: of a section, of WORDS, of the lists of states ({task.terminal}), or of the verifier
    {b.x_columns}    the columns that the word lists, each as a column of the batch
    onetray.x        the table x: in its schema on PostgreSQL, by its bare name on SQLite
    :x               a parameter
    b.x              column x of the batch: a joined unnest() on PostgreSQL, a joined json_each() on SQLite. Where the
                     whole batch has one value for it, it is a parameter instead
    {in:x:type}      membership in a list that is passed as one parameter
    {from_batch} {using_batch} {join_batch}    where the batch is brought in. The second is for DELETE: PostgreSQL looks
                     each row up by its key, on SQLite the statement is run once for each

The lifecycle alone names states: no statement does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from onetray.domain.lifecycle import HELD, MACHINES, OPEN, PAUSED
from onetray.domain.machine import BadLifecycle
from onetray.store.row_types import RowMaker, row_maker

SQLITE, POSTGRES = "sqlite", "postgres"
Word = str | Callable[[str], str]

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
}
"""The lists of states that a statement may name."""

WORDS = {
    SQLITE: {
        "greatest": "max",
        "clock": ":now",
        "json_object": "json_group_object",
        "for_update": "",
        "for_no_key_update": "",
        "lease_tasks": "json_each(l.tasks) AS j",
        "letter_text": "({letter_error} ->> 'class' || ': ' || ({letter_error} ->> 'message'))",
        # What a dead letter says of its error, as JSON.
        "letter_error": "d.last_error",
        # The tasks t of a stage: all, after a key, between two.
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
_IN: dict[str, Word] = {
    SQLITE: lambda list_: f"IN (SELECT value FROM json_each(:{list_.partition(':')[0]}))",
    POSTGRES: lambda list_: "= ANY(:{}::{}[])".format(*list_.split(":")),
}

_SECTION = re.compile(r"^-- (name|move|word|pass): (.+)$", re.MULTILINE)
_ROW = re.compile(r"^-- row: (\w+)$", re.MULTILINE)
_WORD = re.compile(r"\{([\w.]+)(?::([\w.:]+))?\}")
_LIST = re.compile(r"\{in:(\w+):\w+\}")
BATCH_COLUMN = re.compile(r"\bb\.(\w+)")
PARAM = re.compile(r"(?<![:\w]):([a-z_]+)")
_NUMBERS = re.compile(r":([a-z_]+)::(?:bigint|integer)\[\]")
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
    maker: RowMaker | None = None
    """Turns what a driver has read into rows of the declared type."""

    def rows(self, fetched: list[Any]) -> list[Any]:
        return fetched if self.maker is None else list(self.maker(fetched))


class Section(NamedTuple):
    """A part of a .sql file."""

    kind: str
    name: str
    comment: str
    text: str


def sections(folder: Traversable) -> Iterator[Section]:
    """All sections of the .sql files of a folder, in the order of the files' names."""
    for path in sorted((p for p in folder.iterdir() if p.name.endswith(".sql")), key=lambda p: p.name):
        parts = _SECTION.split(path.read_text())
        for kind, name, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            lines = body.splitlines()
            comment = [line for line in lines if line.lstrip().startswith("--")]
            text = [line for line in lines if not line.lstrip().startswith("--")]
            yield Section(kind, name.strip(), "\n".join(comment), "\n".join(text).strip())


@cache
def sections_of(kind: str) -> dict[str, Section]:
    """The sections of one kind, by their names."""
    found: dict[str, Section] = {}
    for section in sections(files("onetray.store").joinpath("sql")):
        if section.kind == kind and found.setdefault(section.name, section) is not section:
            raise BadLifecycle(f"there are two texts for {kind} {section.name!r} in store/sql: rename one of them")
    return found


def fill(text: str, words: Mapping[str, Word]) -> str:
    """Replace each word by what it stands for, and the words in that. Words that are not known stay."""

    def meaning(found: re.Match[str]) -> str:
        word = words.get(found[1])
        if word is None:
            return found[0]
        return fill(word if isinstance(word, str) else word(found[2] or ""), words)

    return _WORD.sub(meaning, text)


@cache
def words_of(dialect: str) -> dict[str, Word]:
    """Every word that a statement of store/sql may use."""
    included = {name: section.text for name, section in sections_of("word").items()}
    of_batch = {
        f"b.{name}": re.sub(r"\w+", r"b.\g<0>", columns)
        for name, columns in included.items()
        if name.endswith("_columns")
    }
    return {**WORDS[dialect], **STATES, **included, **of_batch}


@cache
def statement_of(name: str, dialect: str, once: frozenset[str] = frozenset()) -> Statement:
    """A statement by its name, for batches in which these columns have one value for all rows."""
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
    """Make a parameter of each column that has one value for the whole batch."""

    def parameter(found: re.Match[str]) -> str:
        column = found.group(1)
        if column not in once:
            return found.group()
        return f":{column}" if dialect == SQLITE else f":{column}::{_type(name, column)}"

    return BATCH_COLUMN.sub(parameter, fill(text, words_of(dialect)))


def render(name: str, text: str, dialect: str, columns: tuple[str, ...] | None = None) -> Statement:
    """The statement that a text stands for, with its batch brought in."""
    if columns is None:
        columns = tuple(dict.fromkeys(BATCH_COLUMN.findall(text)))
    lists = tuple(dict.fromkeys(_LIST.findall(text)))
    returns = text.upper().startswith(("SELECT", "WITH")) or "RETURNING" in text.upper()
    body = fill(text, words_of(dialect) | {"in": _IN[dialect]})
    if dialect == SQLITE and "{using_batch}" in body:
        return _by_row(Statement(name, body, columns, returns, lists, by_row=True))
    batch = _json_each(columns) if dialect == SQLITE else _unnest(name, columns)
    # A single row needs no batch: all its columns are parameters.
    brought_in = {"from_batch": f"FROM {batch}" if columns else "", "join_batch": f"JOIN {batch} ON"}
    body = fill(_DELETE.sub(_BY_PLACE, body), brought_in)
    if dialect == SQLITE:
        return Statement(name, body.replace("onetray.", ""), columns, returns, lists)
    numbers = tuple(dict.fromkeys(_NUMBERS.findall(body)))
    return Statement(name, PARAM.sub(r"%(\1)s", body), columns, returns, lists, numbers=numbers)


def _by_row(statement: Statement) -> Statement:
    """A statement of SQLite's whose columns and parameters are given by their places, row by row."""
    body = statement.sql.replace("{using_batch}", "WHERE").replace("onetray.", "")
    columns = tuple(dict.fromkeys((*statement.columns, *PARAM.findall(body))))
    place = {c: f"?{i}" for i, c in enumerate(columns, 1)}
    body = PARAM.sub(lambda m: place[m.group(1)], BATCH_COLUMN.sub(lambda m: place[m.group(1)], body))
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
