"""Redaction of values: replace the fields that paths name, and their contents wherever else they occur.

    redact_paths({"user": "ann", "card": {"number": "4111111111111111"}}, ("card.number",))
    → {"user": "ann", "card": {"number": "***"}}

Owns paths and replacement. Pure: redaction/job_secrets.py decides what to redact of which job.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote, quote_plus

HIDDEN = "***"
ANY = "*"
SHORTEST = 4
"""A secret with fewer characters, or a number with fewer digits, is hidden only at its path: "no" is in every text."""
MAX_PATHS, PATH_CHARS = 100, 200
MAX_TEXTS, MAX_CHARS = 100_000, 10_000_000
"""Limits on the secrets of a job, in all their spellings. Past them every value that may hold a secret is hidden."""
PREFIX_CHARS = 8
"""Secrets are indexed by this many of their first characters."""
CHECKS, CHECKS_PER_CHAR = 1_000, 4
"""The budget of comparisons for one text. A text that exceeds it, full of prefixes of secrets, is hidden whole."""
CHARS_PER_CHECK = 64
_ANY_TEXT = "surrogatepass"
IN_FLOW = (
    "config", "approval.input", "item", "result", "results.*", "payload.config", "stages.*", "tasks.*",
)  # fmt: skip
"""Where the payload of a flow's task holds values from elsewhere in the flow: config, approvals, results of others."""


def in_flow(redact: Iterable[str]) -> frozenset[str]:
    """The paths, and the same paths below every place where a flow copies values to its tasks."""
    paths = frozenset(redact)
    return paths | {f"{place}.{path}" for place in IN_FLOW for path in paths}


def redact_paths(value: Any, redact: Iterable[str]) -> Any:
    """A copy of the value in which the fields that the paths name are replaced."""
    return Paths(redact).hide(value)


def secrets_in(value: Any, redact: Iterable[str]) -> set[str]:
    """The contents of the fields that the paths name, in every spelling in which they may occur elsewhere."""
    return Paths(redact).secrets(value)


class Paths:
    """A set of paths. One walk through a value finds the fields that any of them names."""

    def __init__(self, redact: Iterable[str] = ()) -> None:
        self._start = _Step([path.split(".") for path in redact])

    def hide(self, value: Any) -> Any:
        return _hidden(value, self._start)

    def secrets(self, value: Any) -> set[str]:
        leaves = (leaf for named in _named(value, self._start) for leaf in _leaves(named))
        return {text for leaf in leaves for text in _texts(leaf)}


class _Step:
    """A node of the tree of paths, created when the walk first reaches it."""

    def __init__(self, paths: list[list[str]]) -> None:
        self._paths = [path for path in paths if path]
        self.ends = len(self._paths) < len(paths)
        """Whether a path ends here and so names the whole value."""
        self.whole = {".".join(path) for path in self._paths}
        """The rest of each path as one name: names of fields may contain dots."""
        self._names = {path[0] for path in self._paths}
        self._indexes = {int(name) for name in self._names if name.isdecimal()}
        self._next: dict[str | int, _Step] = {}

    def __bool__(self) -> bool:
        return self.ends or bool(self._paths)

    def into(self, name: str) -> _Step:
        """The node of a field of an object."""
        return self._step(name if name in self._names else ANY, self._into)

    def at(self, index: int) -> _Step:
        """The node of an item of a list. A path need not name lists: without an index it applies to each item."""
        return self._step(index if index in self._indexes else -1, self._at)

    def _step(self, key: Any, paths: Any) -> _Step:
        step = self._next.get(key)
        if step is None:
            step = self._next[key] = _Step(list(paths(key)))
        return step

    def _into(self, name: str) -> Iterator[list[str]]:
        return (path[1:] for path in self._paths if path[0] in (name, ANY))

    def _at(self, index: int) -> Iterator[list[str]]:
        for path in self._paths:
            if path[0] == ANY or (path[0].isdecimal() and int(path[0]) == index):
                yield path[1:]
            elif not path[0].isdecimal():
                yield path


def _hidden(value: Any, step: _Step) -> Any:
    if step.ends:
        return HIDDEN
    if not step:
        return value
    if isinstance(value, dict):
        return {k: HIDDEN if k in step.whole else _hidden(v, step.into(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_hidden(v, step.at(index)) for index, v in enumerate(value)]
    return value


def _named(value: Any, step: _Step) -> Iterator[Any]:
    """The fields that the paths name."""
    if step.ends:
        yield value
    elif isinstance(value, dict) and step:
        for name, inner in value.items():
            if name in step.whole:
                yield inner
            else:
                yield from _named(inner, step.into(name))
    elif isinstance(value, list) and step:
        for index, inner in enumerate(value):
            yield from _named(inner, step.at(index))


class Secrets:
    """Texts to hide wherever they occur."""

    def __init__(self, texts: Iterable[str] = (), everything: bool = False) -> None:
        self._texts = frozenset(texts) - {""}
        self.everything = everything or len(self._texts) > MAX_TEXTS or sum(map(len, self._texts)) > MAX_CHARS
        """There are too many to search for: hide every value that may hold one."""

    def __bool__(self) -> bool:
        return self.everything or bool(self._texts)

    def scrub(self, value: Any) -> Any:
        """A copy of the text or JSON with every secret replaced."""
        if value is None or not self:
            return value
        return HIDDEN if self.everything else self._scrubbed(value)

    def _scrubbed(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._finder.replaced(value)
        if isinstance(value, dict):
            return {self._scrubbed(name): self._scrubbed(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._scrubbed(inner) for inner in value]
        return HIDDEN if self._numbers and _is_number(value) and not self._numbers.isdisjoint(_texts(value)) else value

    @cached_property
    def _finder(self) -> _Finder:
        return _Finder(self._texts)

    @cached_property
    def _numbers(self) -> frozenset[str]:
        return frozenset(text for text in self._texts if text[0] in "-0123456789")


class _Finder:
    """Finds secrets in a text, in time that does not grow with the number of secrets.

    One regular expression of all secrets would try each of them at each character, while holding the GIL.
    """

    def __init__(self, texts: frozenset[str]) -> None:
        self._texts = texts
        self._size = min(PREFIX_CHARS, min(map(len, texts)))
        by_prefix: dict[str, set[int]] = {}
        for text in texts:
            by_prefix.setdefault(text[: self._size], set()).add(len(text))
        self._lengths = {prefix: sorted(lengths) for prefix, lengths in by_prefix.items()}
        characters = "".join(re.escape(c) for c in sorted(set().union(*by_prefix)))
        # A secret can begin only inside a run of characters that occur in prefixes.
        self._runs = re.compile(f"[{characters}]{{{self._size},}}")

    def replaced(self, text: str) -> str:
        if len(text) < self._size:
            return text
        if text in self._texts:
            return HIDDEN
        spans = self._spans(text)
        if spans is None:
            return HIDDEN
        if not spans:
            return text
        after = 0
        parts: list[str] = []
        for start, end in spans:
            parts += text[after:start], HIDDEN
            after = end
        return "".join((*parts, text[after:]))

    def _spans(self, text: str) -> Sequence[list[int]] | None:
        """The positions of secrets, overlapping ones merged; None if the search exceeds its budget."""
        spans: list[list[int]] = []
        hidden_to, budget = 0, CHECKS + CHECKS_PER_CHAR * len(text)
        for start in self._starts(text):
            lengths = self._lengths[text[start : start + self._size]]
            for which in range(bisect_right(lengths, len(text) - start) - 1, -1, -1):
                length = lengths[which]
                if start + length <= hidden_to:
                    break
                budget -= 1 + length // CHARS_PER_CHECK
                if budget < 0:
                    return None
                if text[start : start + length] in self._texts:
                    if start < hidden_to:
                        spans[-1][1] = start + length
                    else:
                        spans.append([start, start + length])
                    hidden_to = start + length
                    break
        return spans

    def _starts(self, text: str) -> Iterator[int]:
        """Where a secret may begin."""
        size, prefixes = self._size, self._lengths
        for run in self._runs.finditer(text):
            last = run.end() - size + 1
            yield from [at for at in range(run.start(), last) if text[at : at + size] in prefixes]


class Redactor:
    """Hides the fields that paths name, and the contents of such fields in learned values wherever they occur."""

    def __init__(self, redact: Iterable[str]) -> None:
        self._paths, self._texts, self._secrets = Paths(redact), frozenset[str](), Secrets()

    def learn(self, value: Any) -> None:
        texts = self._paths.secrets(value)
        if not texts <= self._texts:
            self._texts |= texts
            self._secrets = Secrets(self._texts)

    def hide(self, value: Any) -> Any:
        """A copy of the text or JSON without secrets."""
        return self._secrets.scrub(self._paths.hide(value))


def scrub(value: Any, secrets: Iterable[str]) -> Any:
    """A copy of the text or JSON with these secrets replaced."""
    return Secrets(secrets).scrub(value)


def why_not_a_path(path: object) -> str | None:
    """The rule that a path breaks; None if it is valid."""
    if not isinstance(path, str) or not 0 < len(path) <= PATH_CHARS or not path.isprintable():
        return f"printable text of 1 to {PATH_CHARS} characters"
    return None if all(path.split(".")) else "names with single dots in between"


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _texts(leaf: Any) -> Iterable[str]:
    """The spellings of a secret: plain, and as JSON, Python and URLs escape it."""
    if isinstance(leaf, str):
        if len(leaf.strip()) < SHORTEST:
            return ()
        if leaf.isascii() and leaf.isalnum():
            return (leaf,)
        return {
            leaf, leaf.strip(), json.dumps(leaf)[1:-1], json.dumps(leaf, ensure_ascii=False)[1:-1], repr(leaf)[1:-1],
            quote(leaf, errors=_ANY_TEXT), quote(leaf, safe="", errors=_ANY_TEXT), quote_plus(leaf, errors=_ANY_TEXT),
        }  # fmt: skip
    if _is_number(leaf):
        forms = {json.dumps(leaf), str(int(leaf)) if leaf == leaf // 1 else json.dumps(leaf)}
        return {form for form in forms if sum(c.isdigit() for c in form) >= SHORTEST}
    return ()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
