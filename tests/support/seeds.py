"""Tick off the rows of a specification: each test says which row it is about, and none is left out.

A test module lists its rows as data, marks its tests with `row`, and compares the two with `ticked_off`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


def row(name: str) -> Callable[[T], T]:
    """Mark a test as the one, or one of several, of this row."""

    def mark(test: T) -> T:
        test.__dict__["row"] = name
        return test

    return mark


def ticked_off(module: Mapping[str, Any]) -> list[str]:
    """The rows that the tests of a module are about, each once, in their order."""
    rows = (vars(test).get("row") for name, test in module.items() if name.startswith("test_"))
    return list(dict.fromkeys(name for name in rows if name is not None))
