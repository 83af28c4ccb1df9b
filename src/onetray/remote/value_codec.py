"""The engine's values as JSON, and back: dataclasses and named tuples by their fields, each read as its type says.

Owns the shape of what the remote client and the server tell each other. What is somebody's own JSON (a payload, a
result) has the type Any, and is left as it is: nothing in it is ever taken for a value of ours.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import orjson

from onetray.domain.errors import IllegalTransition, InvalidInput, OnetrayError, short_repr
from onetray.domain.flow import More, TaskSpec
from onetray.domain.policy import Policy
from onetray.domain.task import RawJson

Read = Callable[[Any], Any]

TYPES: dict[tuple[type, str], Any] = {(More, "spawn"): dict[str, list[TaskSpec]]}
"""Fields whose own annotation is wider than what they hold."""


def dumps(value: object) -> bytes:
    """Any value of ours, or a list or dict of such, as JSON."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_PASSTHROUGH_DATACLASS)


def _plain(value: Any) -> Any:
    """What JSON does not know, one level of it."""
    if isinstance(value, Policy):
        return orjson.Fragment(value.body)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, tuple):
        return value._asdict() if hasattr(value, "_asdict") else list(value)
    if isinstance(value, RawJson):
        return orjson.Fragment(bytes(value))
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def decode(kind: Any, told: Any, *, strict: bool = False) -> Any:
    """What was told, as a value of a type. When strict, a field that the type does not have is refused; otherwise it
    is left out: a newer server may say more than this client knows."""
    return _reader(kind, strict)(told)


def known_fields(kind: type) -> dict[str, Any]:
    """The fields of a dataclass or a named tuple with their types."""
    hints = get_type_hints(kind)
    names = [f.name for f in fields(kind)] if is_dataclass(kind) else list(kind._fields)  # type: ignore[attr-defined]
    return {name: TYPES.get((kind, name), hints[name]) for name in names}


def as_it_is(told: Any) -> Any:
    return told


@lru_cache(maxsize=512)
def _reader(kind: Any, strict: bool) -> Read:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Policy:
        return _policy
    if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields")):
        return _of_fields(kind, strict)
    if origin in (Union, types.UnionType):
        return _either([part for part in inner if part is not type(None)], strict)
    if origin is list:
        return _many(list, _reader(inner[0], strict))
    if origin is tuple and inner[-1] is Ellipsis:
        return _many(tuple, _reader(inner[0], strict))
    if origin is tuple:
        each = [_reader(part, strict) for part in inner]
        return lambda told: tuple(r(t) for r, t in zip(each, told, strict=True)) if _fits(told, each) else told
    if origin in (dict, Mapping):
        value = _reader(inner[1], strict)
        return lambda told: {k: value(v) for k, v in told.items()} if isinstance(told, dict) else told
    # A number or text: what it may be is checked where it is used.
    return as_it_is


def _fits(told: Any, each: list[Read]) -> bool:
    return isinstance(told, list) and len(told) == len(each)


def _many(container: type, each: Read) -> Read:
    if each is as_it_is:
        return lambda told: container(told) if isinstance(told, list) else told
    return lambda told: container(map(each, told)) if isinstance(told, list) else told


def _either(parts: list[Any], strict: bool) -> Read:
    """One of several types: a list is read as the one that is made of many, a dict as the one that has fields."""
    lists = [p for p in parts if get_origin(p) in (list, tuple)]
    dicts = [p for p in parts if p not in lists and _reader(p, strict) is not as_it_is]
    of_list = _reader(lists[0], strict) if lists else as_it_is
    of_dict = _reader(dicts[0], strict) if dicts else as_it_is

    def either(told: Any) -> Any:
        if isinstance(told, list):
            return of_list(told)
        return of_dict(told) if isinstance(told, dict) else told

    return either


def _of_fields(kind: type, strict: bool) -> Read:
    readers = {name: _reader(inner, strict) for name, inner in known_fields(kind).items()}

    def of_fields(told: Any) -> Any:
        if not isinstance(told, dict):
            raise InvalidInput(
                f"a {kind.__name__} is told by its fields, not by {short_repr(told)}", field=kind.__name__
            )
        given = {}
        for name, value in told.items():
            reader = readers.get(name)
            if reader is not None:
                given[name] = reader(value)
            elif strict:
                raise InvalidInput(f"a {kind.__name__} has no {short_repr(name)}", field=str(name)[:100])
        return decode_fields(kind, given)

    return of_fields


def decode_fields(kind: type, given: dict[str, Any]) -> Any:
    """A value from its fields; what is missing is refused by its name."""
    try:
        return kind(**given)
    except TypeError as e:
        message = str(e).partition("() ")[2] or str(e)
        raise InvalidInput(f"{kind.__name__}: {message}", field=kind.__name__) from None


def _policy(told: Any) -> Policy:
    if not isinstance(told, dict):
        raise InvalidInput(f"a policy is told by its fields, not by {short_repr(told)}", field="policy")
    return _policy_of(orjson.dumps(told, option=orjson.OPT_SORT_KEYS).decode())


# Most tasks of a claim share one.
_policy_of = lru_cache(maxsize=256)(Policy.from_body)


PROBLEM = ("type", "title", "status", "code", "detail")
"""What RFC 9457 says of every problem. The rest are facts."""


def _all(kind: type[OnetrayError]) -> Iterator[type[OnetrayError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _all(inner)


def of_problem(problem: dict[str, Any]) -> dict[str, Any]:
    """A problem, as the server tells it of a request, as the refusal of one command."""
    facts = {name: fact for name, fact in problem.items() if name not in PROBLEM}
    return {"code": problem["code"], "message": problem["detail"], "facts": facts}


def raised(code: object, message: object, facts: object) -> OnetrayError:
    """The error that was told. A code that is not known here is an error without a class of its own."""
    kind = next((k for k in _all(OnetrayError) if k.code == code), OnetrayError)
    known = {str(name): fact for name, fact in facts.items()} if isinstance(facts, dict) else {}
    if issubclass(kind, IllegalTransition) and "actions" in known:
        known["allowed"] = known.pop("actions")
    for taken in ("self", "message"):
        known.pop(taken, None)
    return kind(str(message), **known)
