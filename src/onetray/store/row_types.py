"""The type of a statement's rows: declared by a line in its .sql file, compared with its columns when it is loaded.

Owns the comparison, and creates the rows. A statement with more than two columns must declare a type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import partial
from itertools import starmap
from typing import Any

from onetray.store import copied_rows, event_rows, explain_rows, limit_rows, overview_rows, rows, shown_rows

RowMaker = Callable[[Iterable[tuple[Any, ...]]], Iterable[Any]]
ROW_TYPES: dict[str, Any] = {
    type_.__name__: type_
    for module in (rows, event_rows, copied_rows, explain_rows, limit_rows, overview_rows, shown_rows)
    for type_ in vars(module).values()
    if isinstance(type_, type) and (hasattr(type_, "_fields") or type_ in shown_rows.VALUES)
}
"""Every type that a .sql file can declare: named tuples, and dataclasses of `domain/`."""
_TOKEN = re.compile(r"[(),]|\b(?:SELECT|FROM|RETURNING|UNION)\b")
_NAME = re.compile(r"(\w+|\*)$")


class WrongRowType(Exception):
    """The columns of a statement are not the fields of the row type that it declares."""


def row_maker(name: str, sql: str, declared: str | None) -> RowMaker | None:
    """A function that turns the driver's rows into rows of the declared type; None if they stay tuples."""
    columns = tuple(column_names(sql))
    if declared is None:
        if len(columns) > 2:
            raise WrongRowType(f"{name} has {len(columns)} columns: declare the type of its rows with `-- row: …`")
        return None
    if declared not in ROW_TYPES:
        raise WrongRowType(f"{name} declares the row type {declared}, which no module of rows has")
    type_ = ROW_TYPES[declared]
    expected = field_names(type_)
    if columns != expected:
        raise WrongRowType(f"{name} has the columns {', '.join(columns)}; {declared} has {', '.join(expected)}")
    # A named tuple needs no call of Python code for each row.
    return partial(map, partial(tuple.__new__, type_)) if hasattr(type_, "_fields") else partial(starmap, type_)


def field_names(type_: Any) -> tuple[str, ...]:
    return tuple(getattr(type_, "_fields", None) or (field.name for field in fields(type_)))


def column_names(sql: str) -> Iterator[str]:
    """The names of the columns that a statement returns, from its first SELECT list or its RETURNING list."""
    depth, start = 0, -1
    list_begins = "SELECT" if sql.startswith(("SELECT", "WITH")) else "RETURNING"
    for token in _TOKEN.finditer(sql):
        word = token.group()
        if word == "(":
            depth += 1
        elif word == ")":
            depth -= 1
        elif depth == 0 and word == list_begins:
            start = token.end()
        elif depth == 0 and start >= 0:
            yield from _column(sql[start : token.start()], sql)
            if word != ",":
                return
            start = token.end()
    if start >= 0:
        yield from _column(sql[start:], sql)


def _column(text: str, sql: str) -> Iterator[str]:
    match = _NAME.search(text.strip())
    if match is None:
        yield "?"
    elif match.group() == "*":
        # All columns of the subquery in FROM.
        yield from column_names(sql.partition("FROM (")[2].lstrip())
    else:
        yield match.group()
