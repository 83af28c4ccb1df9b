"""What is hidden of a job when it is shown to somebody: fields by their paths, and their values wherever they turn up.

    shown({"user": "ann", "card": {"number": "4111111111111111"}}, ("card.number",))
    → {"user": "ann", "card": {"number": "***"}}

Owns the paths and the replacing. Pure: what is shown to whom is decided in redaction/job_secrets.py.
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
"""Characters of a secret, or digits of a number, below which it is hidden in its place alone: "no" is in every text."""
MOST_PATHS, PATH_CHARS = 100, 200
MOST_TEXTS, MOST_CHARS = 100_000, 10_000_000
"""Secrets, in all their spellings, that are looked for. When a job has more, nothing is shown that could hold one."""
PREFIX_CHARS = 8
"""Secrets are found by so many of their first characters."""
CHECKS, CHECKS_PER_CHAR = 1_000, 4
"""How much comparing one text is worth. A text that needs more, made of beginnings of secrets, is hidden whole."""
CHARS_PER_CHECK = 64
_ANY_TEXT = "surrogatepass"
IN_FLOW = (
    "config", "approval.input", "item", "result", "results.*", "payload.config", "stages.*", "tasks.*",
)  # fmt: skip
"""Where a task of a flow is given what stands elsewhere in the flow: its config, an approval, the results of others."""


def in_flow(redact: Iterable[str]) -> frozenset[str]:
    """Paths as they hold in a flow: from wherever in its values something of it is passed on."""
    paths = frozenset(redact)
    return paths | {f"{place}.{path}" for place in IN_FLOW for path in paths}


def redact_paths(value: Any, redact: Iterable[str]) -> Any:
    """The value with what the paths name replaced. The value itself is left as it is."""
    return Paths(redact).hide(value)


def secrets_in(value: Any, redact: Iterable[str]) -> set[str]:
    """The texts of what the paths name, as they would turn up elsewhere."""
    return Paths(redact).secrets(value)


class Paths:
    """Paths that are walked along together: one walk through a value finds what all of them name."""

    def __init__(self, redact: Iterable[str] = ()) -> None:
        self._start = _Step([path.split(".") for path in redact])

    def hide(self, value: Any) -> Any:
        """The value with what they name replaced."""
        return _hidden(value, self._start)

    def secrets(self, value: Any) -> set[str]:
        """The texts of what they name."""
        found = (leaf for named in _named(value, self._start) for leaf in _leaves(named))
        return {text for leaf in found for text in _texts(leaf)}


class _Step:
    """Where some paths stand inside of a value. The next steps are made when a value leads there."""

    def __init__(self, paths: list[list[str]]) -> None:
        self._paths = [path for path in paths if path]
        self.ends = len(self._paths) < len(paths)
        """Whether one of them names the whole value."""
        self.whole = {".".join(path) for path in self._paths}
        """A name may have dots of its own."""
        self._names = {path[0] for path in self._paths}
        self._places = {int(name) for name in self._names if name.isdecimal()}
        self._next: dict[str | int, _Step] = {}

    def __bool__(self) -> bool:
        return self.ends or bool(self._paths)

    def into(self, name: str) -> _Step:
        """The step into a field of an object."""
        return self._step(name if name in self._names else ANY, self._into)

    def at(self, place: int) -> _Step:
        """The step to an item of a list. Lists on the way need no name: all other paths go on in each item."""
        return self._step(place if place in self._places else -1, self._at)

    def _step(self, key: Any, paths: Any) -> _Step:
        found = self._next.get(key)
        if found is None:
            found = self._next[key] = _Step(list(paths(key)))
        return found

    def _into(self, name: str) -> Iterator[list[str]]:
        return (path[1:] for path in self._paths if path[0] in (name, ANY))

    def _at(self, place: int) -> Iterator[list[str]]:
        for path in self._paths:
            if path[0] == ANY or (path[0].isdecimal() and int(path[0]) == place):
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
        return [_hidden(v, step.at(place)) for place, v in enumerate(value)]
    return value


def _named(value: Any, step: _Step) -> Iterator[Any]:
    """What the paths name."""
    if step.ends:
        yield value
    elif isinstance(value, dict) and step:
        for name, inner in value.items():
            if name in step.whole:
                yield inner
            else:
                yield from _named(inner, step.into(name))
    elif isinstance(value, list) and step:
        for place, inner in enumerate(value):
            yield from _named(inner, step.at(place))


class Secrets:
    """Texts that nobody is to see."""

    def __init__(self, texts: Iterable[str] = (), everything: bool = False) -> None:
        self._texts = frozenset(texts) - {""}
        self.everything = everything or len(self._texts) > MOST_TEXTS or sum(map(len, self._texts)) > MOST_CHARS
        """There are too many to look for: nothing is shown that could hold one."""

    def __bool__(self) -> bool:
        return self.everything or bool(self._texts)

    def scrub(self, value: Any) -> Any:
        """Text or JSON, without them."""
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
    """Finds texts in other texts, in time that grows with the text and not with how many there are to find.

    One regular expression of all of them would be tried one after the other at each character, without letting any
    other thread run.
    """

    def __init__(self, texts: frozenset[str]) -> None:
        self._texts = texts
        self._size = min(PREFIX_CHARS, min(map(len, texts)))
        by_prefix: dict[str, set[int]] = {}
        for text in texts:
            by_prefix.setdefault(text[: self._size], set()).add(len(text))
        self._lengths = {prefix: sorted(lengths) for prefix, lengths in by_prefix.items()}
        letters = "".join(re.escape(c) for c in sorted(set().union(*by_prefix)))
        # Only where all characters are of those that prefixes are made of can one begin.
        self._runs = re.compile(f"[{letters}]{{{self._size},}}")

    def replaced(self, text: str) -> str:
        """The text without them."""
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
        """Where they stand, those that overlap in one; None when that would take too long to say."""
        spans: list[list[int]] = []
        hidden_to, left = 0, CHECKS + CHECKS_PER_CHAR * len(text)
        for start in self._starts(text):
            lengths = self._lengths[text[start : start + self._size]]
            for which in range(bisect_right(lengths, len(text) - start) - 1, -1, -1):
                length = lengths[which]
                if start + length <= hidden_to:
                    break
                left -= 1 + length // CHARS_PER_CHECK
                if left < 0:
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
        """Where one of them may begin."""
        size, prefixes = self._size, self._lengths
        for run in self._runs.finditer(text):
            last = run.end() - size + 1
            yield from [at for at in range(run.start(), last) if text[at : at + size] in prefixes]


class Redactor:
    """Hides what paths name, and what was found there in any value that it has learned, wherever it turns up."""

    def __init__(self, redact: Iterable[str]) -> None:
        self._paths, self._texts, self._secrets = Paths(redact), frozenset[str](), Secrets()

    def learn(self, value: Any) -> None:
        texts = self._paths.secrets(value)
        if not texts <= self._texts:
            self._texts |= texts
            self._secrets = Secrets(self._texts)

    def hide(self, value: Any) -> Any:
        """Text or JSON as it may be shown."""
        return self._secrets.scrub(self._paths.hide(value))


def scrub(value: Any, secrets: Iterable[str]) -> Any:
    """Text or JSON with these secrets replaced, wherever they stand in it."""
    return Secrets(secrets).scrub(value)


def why_not_a_path(path: object) -> str | None:
    """What is wrong with a path; None when it is one."""
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
    """How a secret looks in texts: itself, and as JSON, Python and URLs write it."""
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
