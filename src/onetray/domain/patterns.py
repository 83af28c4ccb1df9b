"""Regular expressions of users, matched in a time that is bounded by the lengths of expression and text.

Python's `re` may take years for an expression like `(a+)+$`, and cannot be interrupted. Here all ways through an
expression are followed at the same time, so that each character is compared once with each state. What cannot be done
in this way is refused: lookaround, backreferences, flags. Expressions that are simple enough for `re` are left to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

MAX_CHARS = 1_000
MAX_STATES = 1_000
MAX_WORK = 1_000_000
"""How many comparisons of a character with a state one check may take: less than a second."""
_parser: Any = import_module("re._parser")
_CHARS = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT")
_STARTS = ("AT_BEGINNING", "AT_BEGINNING_STRING")
_REFUSED = {
    "ASSERT": "a lookaround", "ASSERT_NOT": "a lookaround", "GROUPREF": "a backreference",
    "GROUPREF_EXISTS": "a condition", "ATOMIC_GROUP": "an atomic group", "POSSESSIVE_REPEAT": "a possessive repetition",
}  # fmt: skip
Reads = Callable[[str], bool]
Holds = Callable[[str, int], bool]


class BadPattern(Exception):
    """The expression cannot be matched in bounded time. The message says why."""


class State(NamedTuple):
    then: tuple[int, ...]
    reads: Reads | None = None
    """It consumes a character, if this is true of it."""
    holds: Holds | None = None
    """It consumes nothing, and is passed where this is true."""


class Pattern:
    """An expression that is searched for in texts."""

    def __init__(self, text: str) -> None:
        parts = _parsed(text)
        self._plain = re.compile(text) if _is_plain(parts) else None
        self._states: list[State] = [State(())]
        self._parts = 0
        self._start = 0 if self._plain is not None else self._all(parts, 0)

    def work(self, text: str) -> int:
        """How much a search costs at most."""
        return 0 if self._plain is not None else (len(text) + 1) * len(self._states)

    def is_in(self, text: str) -> bool:
        if self._plain is not None:
            return self._plain.search(text) is not None
        now: Iterable[int] = ()
        for place in range(len(text) + 1):
            reached = self._reached((*now, self._start), text, place)
            if 0 in reached:
                return True
            states = [self._states[each] for each in reached] if place < len(text) else []
            now = {s.then[0] for s in states if s.reads is not None and s.reads(text[place])}
        return False

    def _reached(self, states: Iterable[int], text: str, place: int) -> set[int]:
        """The states, and those that follow without another character."""
        reached, open_ = set(states), list(states)
        while open_:
            state = self._states[open_.pop()]
            if state.reads is None and (state.holds is None or state.holds(text, place)):
                new = set(state.then) - reached
                reached |= new
                open_ += new
        return reached

    # Built from the end: each part gets the state that follows it, and returns the one that it begins with.

    def _all(self, parts: Any, then: int) -> int:
        for op, value in reversed(list(parts)):
            then = self._one(op.name, value, then)
        return then

    def _one(self, op: str, value: Any, then: int) -> int:
        self._parts += 1
        if self._parts > MAX_STATES:
            raise BadPattern(f"it has more than {MAX_STATES:,} parts, with what is repeated")
        if op in _CHARS:
            return self._add(State((then,), reads=_reader(op, value)))
        if op == "AT":
            return self._add(State((then,), holds=_ANCHORS[value.name]))
        if op == "BRANCH":
            return self._add(State(tuple(self._all(branch, then) for branch in value[1])))
        if op == "SUBPATTERN" and not value[1] and not value[2]:
            return self._all(value[3], then)
        if op in _REPEATS:
            least, most, parts = value
            return self._repeated(least, most, parts, then)
        raise BadPattern(f"it has {_REFUSED.get(op, 'flags')}")

    def _repeated(self, least: int, most: Any, parts: Any, then: int) -> int:
        end = then
        if most is _parser.MAXREPEAT:
            then = self._add(State(()))
            self._states[then] = State((self._all(parts, then), end))
        else:
            for _ in range(most - least):
                then = self._add(State((self._all(parts, then), end)))
        for _ in range(least):
            then = self._all(parts, then)
        return then

    def _add(self, state: State) -> int:
        self._states.append(state)
        return len(self._states) - 1


def _parsed(text: str) -> Any:
    if len(text) > MAX_CHARS:
        raise BadPattern(f"it has {len(text):,} characters: at most {MAX_CHARS:,}")
    try:
        parts = _parser.parse(text)
    except (re.error, OverflowError) as e:
        raise BadPattern(f"it is not a regular expression: {e}"[:200]) from None
    if parts.state.flags & ~re.UNICODE:
        raise BadPattern("it has flags")
    return parts


def _is_plain(parts: Any) -> bool:
    """Whether `re` needs at most a step for each character and part: no choices, and at most one length to try."""
    found = [(op.name, value) for op, value in parts]
    varied = 0
    for op, value in found:
        if op in _REPEATS:
            varied += value[0] != value[1]
            if [each.name for each, _ in value[2]] not in [[name] for name in _CHARS]:
                return False
        elif op not in (*_CHARS, "AT"):
            return False
    is_anchored = bool(found) and found[0][0] == "AT" and found[0][1].name in _STARTS
    return varied <= is_anchored


def _reader(op: str, value: Any) -> Reads:
    if op == "ANY":
        return lambda char: char != "\n"
    if op == "LITERAL":
        return chr(value).__eq__
    if op == "NOT_LITERAL":
        return chr(value).__ne__
    negated = value[0][0].name == "NEGATE"
    members = [_member(part.name, of) for part, of in value[negated:]]
    return lambda char: any(member(char) for member in members) is not negated


def _member(part: str, of: Any) -> Reads:
    if part == "LITERAL":
        return chr(of).__eq__
    if part == "RANGE":
        return lambda char: of[0] <= ord(char) <= of[1]
    kind = _CATEGORIES[of.name.removeprefix("CATEGORY_").removeprefix("NOT_")]
    wanted = "_NOT_" not in of.name
    return lambda char: kind(char) is wanted


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _at_boundary(text: str, place: int) -> bool:
    return (place > 0 and _is_word(text[place - 1])) is not (place < len(text) and _is_word(text[place]))


_CATEGORIES: dict[str, Reads] = {"DIGIT": str.isdecimal, "SPACE": str.isspace, "WORD": _is_word}
_ANCHORS: dict[str, Holds] = {
    "AT_BEGINNING": lambda text, place: place == 0,
    "AT_BEGINNING_STRING": lambda text, place: place == 0,
    "AT_END": lambda text, place: place == len(text) or (place == len(text) - 1 and text[place] == "\n"),
    "AT_END_STRING": lambda text, place: place == len(text),
    "AT_BOUNDARY": _at_boundary,
    "AT_NON_BOUNDARY": lambda text, place: bool(text) and not _at_boundary(text, place),
}


@lru_cache(256)
def pattern_of(text: str) -> Pattern:
    """Raises BadPattern if it cannot be matched in bounded time."""
    try:
        return Pattern(text)
    except RecursionError:
        raise BadPattern("it is nested too deeply") from None
