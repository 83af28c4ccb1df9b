"""The SQL: one text, no state and no clock in it, and every statement is good on both databases."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import psycopg

import onetray
from onetray.domain.lifecycle import MACHINES
from onetray.store import open_store
from onetray.store.sql_template import POSTGRES, SQLITE, Statement
from onetray.store.sqlite import SqliteStore
from onetray.store.statements import statements_for
from tests.support.cases import each_case

SOURCE = Path(onetray.__file__).parent
STATES = sorted({s for m in MACHINES.values() for s in m.states})
STATE = re.compile(rf"'({'|'.join(STATES)})'")
CLOCK = re.compile(r"\b(now\s*\(|current_timestamp|clock_timestamp|strftime|datetime\s*\(|unixepoch|julianday)", re.I)
SQL_WORDS = re.compile(r"\b(SELECT\b.+\bFROM|INSERT\s+INTO|UPDATE\b.+\bSET|DELETE\s+FROM|WHERE)\b", re.S)


def statements(path: Path) -> str:
    return "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("--"))


SQL_FILES = sorted((SOURCE / "store" / "sql").glob("*.sql"))
MIGRATIONS = sorted((SOURCE / "store" / "migrations").glob("*.sql"))


def test_the_sql_files_are_found() -> None:
    assert len(SQL_FILES) >= 6
    assert MIGRATIONS


@each_case("path", SQL_FILES, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_no_sql_file_names_a_state(path: Path) -> None:
    assert STATE.findall(statements(path)) == []


@each_case("path", [*SQL_FILES, *MIGRATIONS], ids=lambda p: f"{p.parent.name}-{p.name}")
def test_no_sql_file_reads_a_clock(path: Path) -> None:
    assert CLOCK.findall(statements(path)) == []


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Every string in a module, f-strings with their holes as `{}`; docstrings left out."""
    tree = ast.parse(path.read_text())
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


@each_case("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_sql_in_python_names_a_state(path: Path) -> None:
    found = [(line, text) for line, text in strings(path) if SQL_WORDS.search(text) and STATE.search(text)]
    assert found == []


def everything(dialect: str) -> list[Statement]:
    all_ = statements_for(dialect)
    return [*all_.by_name.values(), *all_.moves.values()]


def test_both_databases_have_the_same_statements() -> None:
    lite, pg = statements_for(SQLITE), statements_for(POSTGRES)
    assert set(lite.by_name) == set(pg.by_name)
    assert set(lite.moves) == set(pg.moves)


def test_no_word_is_left_unfilled() -> None:
    left = [s.name for d in (SQLITE, POSTGRES) for s in everything(d) if re.search(r"\{[a-z_:]+\}", s.sql)]
    assert left == []


def test_every_statement_prepares_on_sqlite(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    assert isinstance(store, SqliteStore)
    store.close()
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    # EXPLAIN compiles the statement and runs nothing of it.
    for statement in everything(SQLITE):
        count = len(set(re.findall(r":[a-z_]+", statement.sql))) or len(statement.columns)
        names = re.findall(r"(?<![:\w]):([a-z_]+)", statement.sql)
        bindings = dict.fromkeys(names) if names else (None,) * count
        connection.execute("EXPLAIN " + statement.sql, bindings).fetchall()
    connection.close()


def test_every_statement_prepares_on_postgres(migrated_url: str) -> None:
    with psycopg.connect(migrated_url) as connection:
        for number, statement in enumerate(everything(POSTGRES)):
            names: list[str] = []

            def place(found: re.Match[str], names: list[str] = names) -> str:
                if found.group(1) not in names:
                    names.append(found.group(1))
                return f"${names.index(found.group(1)) + 1}"

            text = re.sub(r"%\((\w+)\)s", place, statement.sql)
            connection.execute(f"PREPARE s{number} AS {text}".encode())
