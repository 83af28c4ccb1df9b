"""Format a batch for PostgreSQL's COPY, as text.

Owns the escaping. A column with one value for the whole batch is formatted once, and comes last in each line.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any

from onetray.store.base import Columns

NULL = "\\N"
# COPY also knows \b, \f and \v, but reads these characters unescaped as well.
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_TABLE = str.maketrans(_ESCAPES)


class CopyBuffer:
    """Formats batches for several tables: a list that they share is formatted once."""

    def __init__(self) -> None:
        self._formatted: dict[int, tuple[list[Any], list[str]]] = {}

    def of(self, columns: Columns) -> tuple[list[str], str]:
        """The column names in the order they are written, and the lines. At least one column must be a list."""
        many = {name: values for name, values in columns.items() if isinstance(values, list)}
        once = {name: value for name, value in columns.items() if name not in many and value is not None}
        fields: list[Iterable[str]] = [self._texts(values) for values in many.values()]
        if once:
            size = len(next(iter(many.values())))
            fields.append(repeat("\t".join(map(_text, once.values())), size))
        lines = "\n".join(map("\t".join, zip(*fields, strict=True)))
        return [*many, *once], f"{lines}\n"

    def _texts(self, values: list[Any]) -> list[str]:
        # Keeps a reference to the list, so that no other list can get its address.
        formatted = self._formatted.get(id(values))
        if formatted is None:
            formatted = self._formatted[id(values)] = values, _column(values)
        return formatted[1]


def _column(values: list[Any]) -> list[str]:
    types = set(map(type, values))
    if types == {int}:
        return list(map(str, values))
    if types == {str}:
        # One scan for the whole column: most columns have nothing to escape.
        together = "".join(values)
        return values if not any(c in together for c in _ESCAPES) else [v.translate(_TABLE) for v in values]
    return list(map(_text, values))


def _text(value: object) -> str:
    if value is None:
        return NULL
    return value.translate(_TABLE) if isinstance(value, str) else str(value)
