"""What is hidden of a job when it is shown to somebody: fields by their paths, and their values wherever they turn up.

    shown({"user": "ann", "card": {"number": "4111111111111111"}}, ("card.number",))
    → {"user": "ann", "card": {"number": "***"}}

Owns the paths and the replacing. Pure: what is shown to whom is decided in engine/veil.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any
from urllib.parse import quote, quote_plus

HIDDEN = "***"
ANY = "*"
SHORTEST = 4
"""Characters of a secret, or digits of a number, below which it is hidden in its place alone: "no" is in every text."""
MOST_PATHS, PATH_CHARS = 100, 200


def shown(value: Any, redact: Iterable[str]) -> Any:
    """The value with what the paths name replaced. The value itself is left as it is."""
    for path in redact:
        value = _hidden(value, path.split("."))
    return value


def secrets_in(value: Any, redact: Iterable[str]) -> set[str]:
    """The texts of what the paths name, as they would turn up elsewhere."""
    found = (leaf for path in redact for hidden in _at(value, path.split(".")) for leaf in _leaves(hidden))
    return {text for leaf in found for text in _texts(leaf)}


class Secrets:
    """Texts that nobody is to see."""

    def __init__(self, texts: Iterable[str] = (), everything: bool = False) -> None:
        self._texts, self.everything = frozenset(texts), everything
        """With `everything`, there were too many to look for: nothing is shown that could hold one."""

    def __bool__(self) -> bool:
        return self.everything or bool(self._texts)

    @cached_property
    def _found(self) -> re.Pattern[str]:
        # The longest first: of two that begin alike, all of the longer one goes.
        return re.compile("|".join(re.escape(t) for t in sorted(self._texts, key=len, reverse=True)))

    def scrub(self, value: Any) -> Any:
        """Text or JSON, without them."""
        if value is None or not self:
            return value
        return HIDDEN if self.everything else self._scrubbed(value)

    def _scrubbed(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._found.sub(HIDDEN, value)
        if isinstance(value, dict):
            return {self._scrubbed(name): self._scrubbed(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._scrubbed(inner) for inner in value]
        return HIDDEN if _is_number(value) and not self._texts.isdisjoint(_texts(value)) else value


def scrub(value: Any, secrets: Iterable[str]) -> Any:
    """Text or JSON with these secrets replaced, wherever they stand in it."""
    return Secrets(secrets).scrub(value)


def why_not_a_path(path: object) -> str | None:
    """What is wrong with a path; None when it is one."""
    if not isinstance(path, str) or not 0 < len(path) <= PATH_CHARS or not path.isprintable():
        return f"printable text of 1 to {PATH_CHARS} characters"
    return None if all(path.split(".")) else "names with single dots in between"


def _hidden(value: Any, path: list[str]) -> Any:
    if not path:
        return HIDDEN
    if isinstance(value, dict):
        name = ".".join(path)
        inner = {k: _hidden(v, path[1:]) if path[0] in (k, ANY) else v for k, v in value.items()}
        return inner | {name: HIDDEN} if name in inner else inner
    if isinstance(value, list):
        return [_hidden(v, rest) if rest is not None else v for v, rest in _items(value, path)]
    return value


def _at(value: Any, path: list[str]) -> Iterator[Any]:
    """What a path names. Where lists are on the way, their items are gone through, said or not."""
    if not path:
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            if path[0] in (name, ANY):
                yield from _at(inner, path[1:])
            elif name == ".".join(path):
                yield inner
    elif isinstance(value, list):
        for inner, rest in _items(value, path):
            if rest is not None:
                yield from _at(inner, rest)


def _items(items: list[Any], path: list[str]) -> Iterator[tuple[Any, list[str] | None]]:
    """Each item with the path that goes on in it; None for one that the path does not mean."""
    for place, item in enumerate(items):
        if path[0] == ANY:
            yield item, path[1:]
        elif path[0].isdecimal():
            yield item, path[1:] if int(path[0]) == place else None
        else:
            yield item, path


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _texts(leaf: Any) -> Iterator[str]:
    """How a secret looks in texts: itself, and as JSON, Python and URLs write it."""
    if isinstance(leaf, str):
        forms = {
            leaf, leaf.strip(), json.dumps(leaf)[1:-1], json.dumps(leaf, ensure_ascii=False)[1:-1], repr(leaf)[1:-1],
            quote(leaf), quote(leaf, safe=""), quote_plus(leaf),
        }  # fmt: skip
        yield from (form for form in forms if len(leaf.strip()) >= SHORTEST)
    elif _is_number(leaf):
        forms = {json.dumps(leaf), str(int(leaf)) if leaf == leaf // 1 else json.dumps(leaf)}
        yield from (form for form in forms if sum(c.isdigit() for c in form) >= SHORTEST)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
