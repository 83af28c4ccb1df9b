"""Tick off the rows of a specification: each test says which rows it is about, and none is left out.

A test module lists its rows as data, marks its tests with `row`, and compares the two with `ticked_off`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


def row(*names: str) -> Callable[[T], T]:
    """Mark a test as one of this row; one with a case for each of several rows names them all."""

    def mark(test: T) -> T:
        test.__dict__["rows"] = names
        return test

    return mark


def ticked_off(module: Mapping[str, Any]) -> list[str]:
    """The rows that the tests of a module are about, each once, in their order."""
    tests = [test for name, test in module.items() if name.startswith("test_")]
    return list(dict.fromkeys(name for test in tests for name in vars(test).get("rows", ())))
