"""The rule of a field, declared in its annotation: `message: Annotated[str, Text("error_chars", least=0)]`.

Owns the rules, and checks the fields of a value by them. The bodies of the API (http/schemas/derive.py) and the
requests of the remote client (remote/command_codec.py) are derived from the same declarations. Every field has a rule.
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
    """Decides which values a field accepts."""

    __slots__ = ()

    def check(self, value: Any, label: str, limits: Limits) -> Any:
        """Returns the value to store. Raises InvalidInput, which names the field by its label."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Text(Rule):
    limit: str
    """The name of the setting with its maximum length."""
    least: int = 1

    def check(self, value: Any, label: str, limits: Limits) -> str:
        most = getattr(limits, self.limit)
        # Most texts are plain ASCII and need no further checks.
        if type(value) is str and self.least <= len(value) <= most and value.isascii() and "\0" not in value:
            return value
        return checks.text(value, label, most, self.least)


@dataclass(frozen=True, slots=True)
class Whole(Rule):
    least: int
    most: int | str
    """A number, or the name of a limit in the settings."""

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
    """Any JSON. Its text is stored in the field `into`, if there is one."""

    limit: str
    into: str = ""

    def check(self, value: Any, label: str, limits: Limits) -> Any:
        json = checks.json_text(value, label, getattr(limits, self.limit))
        return json if self.into else value


@dataclass(frozen=True, slots=True)
class Id(Rule):
    """The id of a task, a stage or a flow. Errors name the field `called`, or by its own name."""

    called: str = ""

    def check(self, value: Any, label: str, limits: Limits) -> str:
        return checks.task_id(value, self.called or label)


@dataclass(frozen=True, slots=True)
class TaskRef(Id):
    """The id of a task; inside of the engine also its key."""

    def check(self, value: Any, label: str, limits: Limits) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            return checks.task_id(value)
        if not 0 < value <= INT64:
            raise InvalidInput("task must be an id or a key from a claim", field="task")
        return value


@dataclass(frozen=True, slots=True)
class Simple(Rule):
    """A rule without parameters."""

    name: str
    how: Callable[[Any, str, Limits], Any]

    def check(self, value: Any, label: str, limits: Limits) -> Any:
        return self.how(value, label, limits)


FLAG = Simple("flag", lambda value, label, _: checks.flag(value, label))
AMOUNT = Simple("amount", lambda value, label, _: checks.amount(value, label))
MOMENT = Simple("moment", lambda value, label, _: checks.time_us(value, label))
"""A time: microseconds since the epoch inside, text as ISO 8601 outside."""
LABELS = Simple("labels", lambda value, _, limits: checks.check_labels(value, limits))
ALIAS = Simple("alias", checks.alias_text)
TRACE = Simple("trace", lambda value, label, limits: checks.trace_text(value, label))


@dataclass(frozen=True, slots=True)
class Names(Rule):
    """A list of names. Duplicates are dropped."""

    most: int | str

    def check(self, value: Any, label: str, limits: Limits) -> tuple[str, ...]:
        names = checks.listed(value, label, 0, _number(self.most, limits))
        return tuple(dict.fromkeys(checks.text(n, label, limits.name_chars) for n in names))


@dataclass(frozen=True, slots=True)
class Spec(Rule):
    """A value with its own fields, a list of such values (`many`), or a dict of such lists (`by_name`)."""

    kind: type
    how: Callable[[Any, Limits], Any] | None = None
    """Checks the value. Without it, only its class is checked: its constructor has checked the rest."""
    many: str = ""
    """The name of the limit on the number of values."""
    least: int = 0
    by_name: bool = False
    flat: bool = False
    """Whether the API has its fields at the top level of the body, instead of below this field."""
    by_hand: bool = False
    """Whether the command's own `check` checks it, instead of this rule."""

    def check(self, value: Any, label: str, limits: Limits) -> Any:
        if self.how is not None:
            return self.how(value, limits)
        if not isinstance(value, self.kind):
            raise InvalidInput(f"{label} must be a {self.kind.__name__}", field=label)
        return value


@dataclass(frozen=True, slots=True)
class Public:
    """A field that has another name in the API, or is required there although it has a default."""

    name: str = ""
    required: bool = False


OWNED = "owned"
"""The server sets it from the token; a body cannot."""
INTERNAL = "internal"
"""Only the engine sets it."""

Name = Annotated[str, Text("name_chars")]
Key = Annotated[str, Text("key_chars")]
Reason = Annotated[str, Text("reason_chars")]
AliasText = Annotated[str, ALIAS]
"""An id that a caller has chosen, unique in its namespace."""
Seconds = Annotated[float, Duration()]
LeaseSeconds = Annotated[float, Duration(0.001)]
WindowSeconds = Annotated[float, Duration(0.001)]
Amount = Annotated[float, AMOUNT]
Time = Annotated[int, MOMENT]
Priority = Annotated[int, Whole(-INT32, INT32)]
Attempts = Annotated[int, Whole(1, 1_000_000)]
Fence = Annotated[int, Whole(1, INT32)]
Traceparent = Annotated[str, TRACE]
Tracestate = Annotated[str, Text("reason_chars")]
Metadata = Annotated[Any, Json("payload_bytes")]
"""Somebody's own JSON that the engine stores, shows and never reads."""
LabelTexts = Annotated[dict[str, str], LABELS]
Namespace = Annotated[str, Text("name_chars"), OWNED]
Actor = Annotated[str, Choice(ACTORS), OWNED]
ActorName = Annotated[str, Text("name_chars"), OWNED]
Why = Annotated[str, Text("reason_chars"), Public("reason")]
"""Becomes the `cause` of the event."""


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One declared field."""

    name: str
    rule: Rule
    default: Any
    """MISSING if there is none."""
    optional: bool
    """Whether it may be None."""
    public_name: str
    required: bool
    kept_by: str
    """OWNED or INTERNAL if clients cannot set it, else empty."""

    @property
    def is_required(self) -> bool:
        """Whether clients must set it."""
        return self.required or self.default is MISSING


@lru_cache(maxsize=256)
def fields_of(kind: type) -> dict[str, FieldSpec]:
    """The declared fields of a class by name, without those with `init=False`: the check fills these in."""
    hints: dict[str, Any] = {}
    for part in reversed(kind.__mro__[:-1]):
        hints |= _own_hints(part)
    return {f.name: _spec(kind, f.name, hints[f.name], _default(f)) for f in fields(kind) if f.init}


@lru_cache(maxsize=256)
def _own_hints(kind: type) -> dict[str, Any]:
    """The annotations of a class without those of its bases. Cached, so that subclasses do not evaluate them again."""
    names = {f.name for f in fields(kind)}
    known = vars(sys.modules[kind.__module__])
    return {name: eval(hint, known) for name, hint in kind.__annotations__.items() if name in names}


@lru_cache(maxsize=256)
def public_fields(kind: type) -> dict[str, FieldSpec]:
    """The fields that clients can set, by their public names."""
    return {f.public_name: f for f in fields_of(kind).values() if not f.kept_by}


def _default(f: Any) -> Any:
    return f.default_factory() if f.default_factory is not MISSING else f.default


def _spec(kind: type, name: str, hint: Any, default: Any) -> FieldSpec:
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    optional = type(None) in parts
    marks = [mark for part in parts for mark in getattr(part, "__metadata__", ())]
    rules = [mark for mark in marks if isinstance(mark, Rule)] + [FLAG for part in parts if part is bool]
    if len(rules) != 1:
        raise TypeError(f"{kind.__name__}.{name} needs one rule in its annotation")
    if optional and default is not None:
        raise TypeError(f"{kind.__name__}.{name} can be None, so its default must be None")
    public = next((mark for mark in marks if isinstance(mark, Public)), Public())
    kept_by = next((mark for mark in marks if mark in (OWNED, INTERNAL)), "")
    return FieldSpec(name, rules[0], default, optional, public.name or name, public.required, kept_by)


Check = Callable[[Any, Limits], None]


@lru_cache(maxsize=256)
def check_of(kind: type, prefix: str = "", without: frozenset[str] = frozenset()) -> Check:
    """A function that checks the fields of a value of this class, except `without` and those with `by_hand`.

    It is generated code, as `__init__` of a dataclass: it runs for every command, and a loop over the fields takes half
    as long again. A field with its default value needs no check.
    """
    lines, names = ["def check(value, limits):", "    pass"], dict[str, Any]()
    for i, f in enumerate(fields_of(kind).values()):
        if f.name not in without and not getattr(f.rule, "by_hand", False):
            names[f"check{i}"], names[f"default{i}"] = f.rule.check, f.default
            lines += [
                f"    raw = value.{f.name}",
                f"    if raw is not default{i}:",
                f"        checked = check{i}(raw, {prefix + f.name!r}, limits)",
                f"        if checked is not raw: value.{getattr(f.rule, 'into', '') or f.name} = checked",
            ]
    exec("\n".join(lines), names)
    return names["check"]  # type: ignore[no-any-return]
