"""Rows have names: what a statement declares is what both databases give, and nobody reads a column by its place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import apsw.ext
import psycopg
import pytest

import onetray
from onetray.domain.flow import Flow, Stage
from onetray.domain.task import Task
from onetray.store import open_store
from onetray.store.row_types import ROW_TYPES, WrongRowType, column_names, field_names, row_maker
from onetray.store.shown_rows import FlowDetails, StageDetails, TaskDetails
from onetray.store.sql_template import POSTGRES, SQLITE, sections_of
from onetray.store.statements import statements_for

SOURCE = Path(onetray.__file__).parent
DECLARED = {
    name: ROW_TYPES[found[1]]
    for name, section in sections_of("name").items()
    if (found := re.search(r"^-- row: (\w+)$", section.comment, re.MULTILINE))
}
READS = {"query", "query_later", "batch", "read", "read_within", "_read", "_fetch", "fetch", "pick", "fetchall"}
MOST_NAMES = 3


def test_sqlite_gives_the_columns_that_are_declared(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    open_store(f"sqlite:///{path}").close()
    connection = apsw.Connection(str(path))
    for name, type_ in DECLARED.items():
        sql = statements_for(SQLITE).by_name[name].sql
        given = dict.fromkeys(re.findall(r"(?<![:\w]):([a-z_]+)", sql))
        described = apsw.ext.query_info(connection, sql, given).description
        assert (name, tuple(column for column, _ in described)) == (name, field_names(type_))
    connection.close()


def test_postgres_gives_the_columns_that_are_declared(migrated_url: str) -> None:
    with psycopg.connect(migrated_url) as connection:
        for name, type_ in DECLARED.items():
            numbers: dict[str, int] = {}
            sql = re.sub(
                r"%\((\w+)\)s",
                lambda m, n=numbers: f"${n.setdefault(m[1], len(n) + 1)}",  # type: ignore[misc]
                statements_for(POSTGRES).by_name[name].sql,
            )
            assert not connection.pgconn.prepare(name.encode(), sql.encode()).error_message
            described = connection.pgconn.describe_prepared(name.encode())
            columns = tuple((described.fname(i) or b"").decode() for i in range(described.nfields))
            assert (name, columns) == (name, field_names(type_))


def test_every_row_type_is_used() -> None:
    assert set(ROW_TYPES.values()) == set(DECLARED.values())


def test_what_is_shown_of_a_job_has_the_fields_of_its_row() -> None:
    assert set(field_names(TaskDetails)) == set(field_names(Task)) - {"actor", "not_now"}
    assert set(field_names(FlowDetails)) == set(field_names(Flow)) - {"actor", "not_now"}
    computed = {"order", "counts", "reported_progress", "actor", "not_now"}
    assert set(field_names(Stage)) - set(field_names(StageDetails)) == computed


def test_a_row_type_that_does_not_fit_is_refused() -> None:
    with pytest.raises(WrongRowType, match="x has the columns key, job"):
        row_maker("x", "SELECT t.key, t.job FROM onetray.task AS t", "QueueRow")
    with pytest.raises(WrongRowType, match="which no module of rows has"):
        row_maker("x", "SELECT t.key FROM onetray.task AS t", "NoSuchRow")
    with pytest.raises(WrongRowType, match="3 columns"):
        row_maker("x", "SELECT t.key, t.job, t.id FROM onetray.task AS t", None)


def test_column_names_are_read_from_the_text() -> None:
    assert list(column_names("SELECT a.b, max(x, y) AS c, (SELECT 1 FROM z) AS d FROM a")) == ["b", "c", "d"]
    assert list(column_names("SELECT l.*, now(1) AS e FROM (\n    SELECT a.b, a.c FROM a WHERE x IN (1, 2)) AS l")) == [
        "b", "c", "e",
    ]  # fmt: skip
    assert list(column_names("INSERT INTO a (b, c) SELECT 1, 2 FROM d RETURNING a.b, c")) == ["b", "c"]
    assert list(column_names("WITH r (a) AS (SELECT 1 UNION SELECT 2) SELECT r.a, 2 AS b FROM r")) == ["a", "b"]
    assert list(column_names("SELECT a FROM b UNION ALL SELECT c, d FROM e")) == ["a"]
    assert list(column_names("DELETE FROM a WHERE b IN (SELECT c FROM d)")) == []


class PlacesRead(ast.NodeVisitor):
    """Where a function reads a row by place: `row[3]`, `rows[0][1]`, or an unpacking of many names."""

    def __init__(self) -> None:
        self.rows: set[str] = set()
        self.row: set[str] = set()
        self.found: list[int] = []

    def is_rows(self, node: ast.expr | None) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self.rows
            case ast.Call(func=ast.Attribute(attr=attr)) if attr in READS:
                return True
            case ast.Call(func=ast.Name(id="sorted" | "list" | "reversed"), args=[first, *_]):
                return self.is_rows(first)
            case ast.IfExp(body=body, orelse=orelse):
                return self.is_rows(body) or self.is_rows(orelse)
            case ast.BinOp(left=left, right=right):
                return self.is_rows(left) or self.is_rows(right)
            case ast.Subscript(value=value, slice=ast.Slice()):
                return self.is_rows(value)
        return False

    def is_row(self, node: ast.expr | None) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self.row
            case ast.Subscript(value=value, slice=ast.Constant() | ast.UnaryOp()):
                return self.is_rows(value)
        return False

    def bind(self, target: ast.expr, many: bool) -> None:
        if isinstance(target, ast.Name):
            (self.rows if many else self.row).add(target.id)
        elif isinstance(target, ast.Tuple):
            if many and len(target.elts) == 1:
                self.bind(target.elts[0], False)
            elif len([e for e in target.elts if not isinstance(e, ast.Starred)]) > MOST_NAMES:
                self.found.append(target.lineno)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if self.is_rows(node.value) or self.is_row(node.value):
                self.bind(target, self.is_rows(node.value))
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        if self.is_rows(node.iter):
            self.bind(node.target, False)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        if self.is_rows(node.iter):
            self.bind(node.target, False)

    def visit_arg(self, node: ast.arg) -> None:
        note = ast.unparse(node.annotation) if node.annotation is not None else ""
        if re.fullmatch(r"Rows|list\[(\w+(Row|Details|Facts|ToCopy)|tuple\[Any, \.\.\.\])\]", note):
            self.rows.add(node.arg)
        elif re.fullmatch(r"\w+(Row|Details|Facts|ToCopy)|tuple\[Any, \.\.\.\]", note):
            self.row.add(node.arg)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        by_place = isinstance(node.slice, ast.Constant | ast.UnaryOp | ast.Slice)
        if by_place and self.is_row(node.value):
            self.found.append(node.lineno)
        self.generic_visit(node)


def reads_by_place(text: str) -> Iterator[int]:
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            seen = PlacesRead()
            # Twice: a comprehension binds its names after its element is seen.
            seen.visit(function)
            seen.found.clear()
            seen.visit(function)
            yield from seen.found


def test_nobody_reads_a_column_by_its_place() -> None:
    paths = sorted(SOURCE.rglob("*.py"))
    found = {(str(path.relative_to(SOURCE)), line) for path in paths for line in reads_by_place(path.read_text())}
    assert found == set()


@pytest.mark.parametrize(
    "line",
    [
        'return tx.query("x")[0][2]',
        'rows = tx.query("x")\n    return rows[0][1]',
        'return [r[1] for r in tx.query("x")]',
        'for r in store.read("x"):\n        print(r[-1])',
        'for a, b, c, d in tx.query("x"):\n        print(a)',
        '((a, b, c, d),) = tx.query("x")',
        'row = tx.query("x")[0]\n    return row[3:5]',
    ],
)
def test_a_read_by_place_is_seen(line: str) -> None:
    assert list(reads_by_place(f"def f(tx, store):\n    {line}\n"))
