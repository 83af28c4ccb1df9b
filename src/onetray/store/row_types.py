"""The type of a statement's rows: declared by a line in its .sql file, compared with its columns when it is loaded.

Owns the comparison, and how rows are made. A statement with more than two columns has to declare a type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import partial
from itertools import starmap
from typing import Any

from onetray.store import rows, shown_rows

RowMaker = Callable[[Iterable[tuple[Any, ...]]], Iterable[Any]]
ROW_TYPES: dict[str, Any] = {
    type_.__name__: type_
    for module in (rows, shown_rows)
    for type_ in vars(module).values()
    if isinstance(type_, type) and (hasattr(type_, "_fields") or type_ in shown_rows.VALUES)
}
"""Every type that a .sql file may name: named tuples, and values of the domain that are dataclasses."""
_TOKEN = re.compile(r"[(),]|\b(?:SELECT|FROM|RETURNING|UNION)\b")
_NAME = re.compile(r"(\w+|\*)$")


class WrongRowType(Exception):
    """The columns of a statement are not the fields of the row type that it declares."""


def row_maker(name: str, sql: str, declared: str | None) -> RowMaker | None:
    """Turns what a driver has read into rows of the declared type; None where rows stay plain tuples."""
    columns = tuple(column_names(sql))
    if declared is None:
        if len(columns) > 2:
            raise WrongRowType(f"{name} has {len(columns)} columns: declare the type of its rows by `-- row: …`")
        return None
    if declared not in ROW_TYPES:
        raise WrongRowType(f"{name} declares the row type {declared}, which is in no module of rows")
    type_ = ROW_TYPES[declared]
    wanted = field_names(type_)
    if columns != wanted:
        raise WrongRowType(f"{name} has the columns {', '.join(columns)}; {declared} has {', '.join(wanted)}")
    # Without a call of Python code for each row, where it is a named tuple.
    return partial(map, partial(tuple.__new__, type_)) if hasattr(type_, "_fields") else partial(starmap, type_)


def field_names(type_: Any) -> tuple[str, ...]:
    return tuple(getattr(type_, "_fields", None) or (field.name for field in fields(type_)))


def column_names(sql: str) -> Iterator[str]:
    """The names of the columns that a statement gives, by its first SELECT list or its RETURNING list."""
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
    found = _NAME.search(text.strip())
    if found is None:
        yield "?"
    elif found.group() == "*":
        # All columns of the subquery that is read from.
        yield from column_names(sql.partition("FROM (")[2].lstrip())
    else:
        yield found.group()
