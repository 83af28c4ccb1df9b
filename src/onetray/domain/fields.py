"""What a field may hold, declared once, in its annotation: `message: Annotated[str, Text("error_chars", least=0)]`.

Owns the rules, and how a value's fields are checked by them. The bodies of the API (http/schemas/derive.py) and what is
sent to a server (remote/command_codec.py) are derived from the same declarations: a field without a rule does not load.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Annotated, Any, Union, get_args, get_origin

from onetray.config import Limits
from onetray.domain import checks
from onetray.domain.errors import InvalidInput
from onetray.domain.machine import ACTORS

INT32 = 2**31 - 1
INT64 = 2**63 - 1


class Rule:
    """What a value may be."""

    __slots__ = ()

    def check(self, value: Any, label: str, limits: Limits) -> Any:
        """The value as it is kept, or an error that names the field by its label."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Text(Rule):
    limit: str
    """The name of the limit of the engine's that bounds it."""
    least: int = 1

    def check(self, value: Any, label: str, limits: Limits) -> str:
        most = getattr(limits, self.limit)
        # Most texts are plain: they are not looked at more closely.
        if type(value) is str and self.least <= len(value) <= most and value.isascii() and "\0" not in value:
            return value
        return checks.text(value, label, most, self.least)


@dataclass(frozen=True, slots=True)
class Whole(Rule):
    least: int
    most: int | str
    """A number, or the name of a limit of the engine's."""

    def check(self, value: Any, label: str, limits: Limits) -> int:
        return checks.whole(value, label, self.least, _number(self.most, limits))


def _number(most: int | str, limits: Limits) -> int:
    return most if isinstance(most, int) else getattr(limits, most)


@dataclass(frozen=True, slots=True)
class Duration(Rule):
    """Seconds."""

    least: float = 0.0

    def check(self, value: Any, label: str, limits: Limits) -> float:
        return checks.seconds(value, label, self.least)


@dataclass(frozen=True, slots=True)
class Choice(Rule):
    among: tuple[str, ...]

    def check(self, value: Any, label: str, limits: Limits) -> str:
        return checks.choice(value, label, self.among)


@dataclass(frozen=True, slots=True)
class Json(Rule):
    """Somebody's own JSON. Its text is kept in the field `into`, if there is one."""

    limit: str
    into: str = ""

    def check(self, value: Any, label: str, limits: Limits) -> Any:
        found = checks.json_text(value, label, getattr(limits, self.limit))
        return found if self.into else value


@dataclass(frozen=True, slots=True)
class Id(Rule):
    """The id of a task, a stage or a flow. `called` is how errors name it, if not by the field's own name."""

    called: str = ""

    def check(self, value: Any, label: str, limits: Limits) -> str:
        return checks.task_id(value, self.called or label)


@dataclass(frozen=True, slots=True)
class TaskRef(Id):
    """A task by its id, or inside of the engine by its key."""

    def check(self, value: Any, label: str, limits: Limits) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            return checks.task_id(value)
        if not 0 < value <= INT64:
            raise InvalidInput("task must be an id or a key from a claim", field="task")
        return value


@dataclass(frozen=True, slots=True)
class Simple(Rule):
    """What has nothing to be set."""

    name: str
    how: Callable[[Any, str, Limits], Any]

    def check(self, value: Any, label: str, limits: Limits) -> Any:
        return self.how(value, label, limits)


FLAG = Simple("flag", lambda value, label, _: checks.flag(value, label))
AMOUNT = Simple("amount", lambda value, label, _: checks.amount(value, label))
MOMENT = Simple("moment", lambda value, label, _: checks.whole(value, label, 0, checks.FAR_US))
"""A time: microseconds since the epoch inside, text as ISO 8601 outside."""
LABELS = Simple("labels", lambda value, _, limits: checks.check_labels(value, limits))
TRACE = Simple("trace", lambda value, label, limits: checks.trace_text(value))


@dataclass(frozen=True, slots=True)
class Names(Rule):
    """Several names, each once."""

    most: int | str

    def check(self, value: Any, label: str, limits: Limits) -> tuple[str, ...]:
        names = checks.listed(value, label, 0, _number(self.most, limits))
        return tuple(dict.fromkeys(checks.text(n, label, limits.name_chars) for n in names))


@dataclass(frozen=True, slots=True)
class Spec(Rule):
    """A value with fields of its own, several of them (`many`), or several by name (`by_name`)."""

    kind: type
    how: Callable[[Any, Limits], Any] | None = None
    """Checks it. Without it only its class is looked at: it has checked itself when it was made."""
    many: str = ""
    """The limit of the engine's on how many there may be."""
    least: int = 0
    by_name: bool = False
    flat: bool = False
    """Whether its fields stand beside the others outside, and not below this one."""
    by_hand: bool = False
    """Whether whoever checks the other fields has code of his own for this one."""

    def check(self, value: Any, label: str, limits: Limits) -> Any:
        if self.how is not None:
            return self.how(value, limits)
        if not isinstance(value, self.kind):
            raise InvalidInput(f"{label} must be a {self.kind.__name__}", field=label)
        return value


@dataclass(frozen=True, slots=True)
class Public:
    """How a field is seen from outside: by another name; or required, although it has a default inside."""

    name: str = ""
    required: bool = False


OWNED = "owned"
"""Said by the token alone, whatever a body says."""
INTERNAL = "internal"
"""Known inside of the engine alone."""

Name = Annotated[str, Text("name_chars")]
Key = Annotated[str, Text("key_chars")]
Reason = Annotated[str, Text("reason_chars")]
Seconds = Annotated[float, Duration()]
LeaseSeconds = Annotated[float, Duration(0.001)]
Amount = Annotated[float, AMOUNT]
Time = Annotated[int, MOMENT]
Priority = Annotated[int, Whole(-INT32, INT32)]
Attempts = Annotated[int, Whole(1, 1_000_000)]
Fence = Annotated[int, Whole(1, INT32)]
Traceparent = Annotated[str, TRACE]
LabelTexts = Annotated[dict[str, str], LABELS]
Namespace = Annotated[str, Text("name_chars"), OWNED]
Actor = Annotated[str, Choice(ACTORS), OWNED]
ActorName = Annotated[str, Text("name_chars"), OWNED]
Why = Annotated[str, Text("reason_chars"), Public("reason")]
"""Stands in the event as its cause."""


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One declared field."""

    name: str
    rule: Rule
    default: Any
    """MISSING where it must be given."""
    optional: bool
    """Whether it may be None."""
    public_name: str
    required: bool
    kept_by: str
    """OWNED or INTERNAL, if nobody outside may say it."""

    @property
    def is_required(self) -> bool:
        """Whether it must be given from outside."""
        return self.required or self.default is MISSING


@lru_cache(maxsize=256)
def fields_of(kind: type) -> dict[str, FieldSpec]:
    """The declared fields of a class, by their names. Those with init=False are no part of them: the check of a command
    fills them in."""
    hints: dict[str, Any] = {}
    for part in reversed(kind.__mro__[:-1]):
        hints |= _own_hints(part)
    return {f.name: _spec(kind, f.name, hints[f.name], _default(f)) for f in fields(kind) if f.init}


@lru_cache(maxsize=256)
def _own_hints(kind: type) -> dict[str, Any]:
    """The annotations that stand in a class itself. Each is read once, not again for every class below."""
    names = {f.name for f in fields(kind)}
    known = vars(sys.modules[kind.__module__])
    return {name: eval(hint, known) for name, hint in kind.__annotations__.items() if name in names}


@lru_cache(maxsize=256)
def public_fields(kind: type) -> dict[str, FieldSpec]:
    """Those that may come from outside, by their public names."""
    return {f.public_name: f for f in fields_of(kind).values() if not f.kept_by}


def _default(f: Any) -> Any:
    return f.default_factory() if f.default_factory is not MISSING else f.default


def _spec(kind: type, name: str, hint: Any, default: Any) -> FieldSpec:
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    optional = type(None) in parts
    marks = [mark for part in parts for mark in getattr(part, "__metadata__", ())]
    rules = [mark for mark in marks if isinstance(mark, Rule)] + [FLAG for part in parts if part is bool]
    if len(rules) != 1:
        raise TypeError(f"{kind.__name__}.{name} needs one rule that says what it may hold")
    if optional and default is not None:
        raise TypeError(f"{kind.__name__}.{name} may be None: then None is its default")
    public = next((mark for mark in marks if isinstance(mark, Public)), Public())
    kept_by = next((mark for mark in marks if mark in (OWNED, INTERNAL)), "")
    return FieldSpec(name, rules[0], default, optional, public.name or name, public.required, kept_by)


Check = Callable[[Any, Limits], None]


@lru_cache(maxsize=256)
def check_of(kind: type, prefix: str = "", without: frozenset[str] = frozenset()) -> Check:
    """A function that checks the fields of a value of this class, all but those that are checked by hand.

    It is written out as code, as dataclasses write `__init__`: every command goes through it, and a loop over the
    fields takes half as long again. A field that has its default is good as it is.
    """
    lines, known = ["def check(value, limits):", "    pass"], dict[str, Any]()
    for i, f in enumerate(fields_of(kind).values()):
        if f.name not in without and not getattr(f.rule, "by_hand", False):
            known[f"check{i}"], known[f"default{i}"] = f.rule.check, f.default
            lines += [
                f"    found = value.{f.name}",
                f"    if found is not default{i}:",
                f"        kept = check{i}(found, {prefix + f.name!r}, limits)",
                f"        if kept is not found: value.{getattr(f.rule, 'into', '') or f.name} = kept",
            ]
    exec("\n".join(lines), known)
    return known["check"]  # type: ignore[no-any-return]
