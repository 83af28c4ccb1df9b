"""The engine's values as JSON, and back: what the API answers, and what its client reads.

Owns the shape: times as ISO 8601 in UTC with microseconds, so that nothing is lost on the way; dataclasses and named
tuples by their fields, each read as its type says; errors as problems of RFC 9457. What is somebody's own JSON (a
payload, a result) is left as it is: nothing in it is ever taken for a value of ours.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import orjson

from onetray.domain.errors import IllegalTransition, InvalidInput, OnetrayError, short_repr
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment, RawJson, parse_ticket

Read = Callable[[Any], Any]

HIDDEN = frozenset({"key"})
"""Numbers that mean something inside alone."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso_time(us: int) -> str:
    """Microseconds since the epoch as text."""
    return (_EPOCH + timedelta(microseconds=us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def micros(text: str) -> int:
    """The same back. ValueError for what is no time."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("a time needs its zone: end it with Z")
    return (at - _EPOCH) // timedelta(microseconds=1)


def is_time(field: str) -> bool:
    return field.endswith("_at") or field in ("ts", "at")


@lru_cache
def shown_fields(kind: type) -> tuple[tuple[str, bool], ...]:
    """The fields of a value that are shown, and whether they are times."""
    # The kind of actor that asked is clear from what it may do. An event's actor is who did it.
    more, hidden = (["actions"], HIDDEN | {"actor"}) if hasattr(kind, "actions") else ([], HIDDEN)
    return tuple((name, is_time(name)) for name in _names(kind) + more if name not in hidden)


def _names(kind: Any) -> list[str]:
    return [f.name for f in fields(kind)] if is_dataclass(kind) else list(kind._fields)


def is_record(value: Any) -> bool:
    if isinstance(value, type):
        return False
    return is_dataclass(value) or (isinstance(value, tuple) and hasattr(value, "_fields"))


def public_values(value: Any) -> dict[str, Any]:
    """One level of a value: what is shown of it, with its times as text."""
    kind: Any = type(value)
    return {
        name: iso_time(found) if time and found is not None else found
        for name, time in shown_fields(kind)
        for found in (getattr(value, name),)
    }


def dumps(value: object) -> bytes:
    """Any value of ours, or a list or dict of such, as JSON. Unlike what the API shows, it has the key of each value
    that has one: the engine's own lists go on from a key."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_PASSTHROUGH_DATACLASS)


def _plain(value: Any) -> Any:
    """What JSON does not know, one level of it."""
    if isinstance(value, Policy):
        return orjson.Fragment(value.body)
    if is_record(value):
        return {**public_values(value), **{name: getattr(value, name) for name in HIDDEN if hasattr(value, name)}}
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, RawJson):
        return orjson.Fragment(bytes(value))
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def decode(kind: Any, data: Any, *, strict: bool = False) -> Any:
    """What JSON says, as a value of a type. When strict, a field that the type does not have is refused; otherwise it
    is left out: a newer server may say more than this client knows."""
    return _reader(kind, strict)(data)


def known_fields(kind: type) -> dict[str, Any]:
    """The fields of a dataclass or a named tuple with their types."""
    hints = get_type_hints(kind)
    return {name: hints[name] for name in _names(kind)}


def as_it_is(data: Any) -> Any:
    return data


@lru_cache(maxsize=512)
def _reader(kind: Any, strict: bool) -> Read:
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _READERS:
        return _READERS[kind]
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
        return lambda data: tuple(r(t) for r, t in zip(each, data, strict=True)) if _fits(data, each) else data
    if origin in (dict, Mapping):
        value = _reader(inner[1], strict)
        return lambda data: {k: value(v) for k, v in data.items()} if isinstance(data, dict) else data
    # A number or text: what it may be is checked where it is used.
    return as_it_is


def _fits(data: Any, each: list[Read]) -> bool:
    return isinstance(data, list) and len(data) == len(each)


def _many(container: type, each: Read) -> Read:
    if each is as_it_is:
        return lambda data: container(data) if isinstance(data, list) else data
    return lambda data: container(map(each, data)) if isinstance(data, list) else data


def _either(parts: list[Any], strict: bool) -> Read:
    """One of several types: a list is read as the one that is made of many, a dict as the one that has fields."""
    lists = [p for p in parts if get_origin(p) in (list, tuple)]
    dicts = [p for p in parts if p not in lists and _reader(p, strict) is not as_it_is]
    of_list = _reader(lists[0], strict) if lists else as_it_is
    of_dict = _reader(dicts[0], strict) if dicts else as_it_is

    def either(data: Any) -> Any:
        if isinstance(data, list):
            return of_list(data)
        return of_dict(data) if isinstance(data, dict) else data

    return either


def _of_fields(kind: type, strict: bool) -> Read:
    readers = {name: _time if is_time(name) else _reader(inner, strict) for name, inner in known_fields(kind).items()}

    def of_fields(data: Any) -> Any:
        if not isinstance(data, dict):
            raise InvalidInput(
                f"a {kind.__name__} is an object with its fields, not {short_repr(data)}", field=kind.__name__
            )
        values = {}
        for name, value in data.items():
            reader = readers.get(name)
            if reader is not None:
                values[name] = reader(value)
            elif strict:
                raise InvalidInput(f"a {kind.__name__} has no {short_repr(name)}", field=str(name)[:100])
        return _construct(kind, values)

    return of_fields


def _construct(kind: type, values: dict[str, Any]) -> Any:
    """A value from its fields; what is missing is refused by its name."""
    try:
        return kind(**values)
    except TypeError as e:
        message = str(e).partition("() ")[2] or str(e)
        raise InvalidInput(f"{kind.__name__}: {message}", field=kind.__name__) from None


def _policy(data: Any) -> Policy:
    if not isinstance(data, dict):
        raise InvalidInput(f"a policy is an object with its fields, not {short_repr(data)}", field="policy")
    return _policy_of(orjson.dumps(data, option=orjson.OPT_SORT_KEYS).decode())


# Most tasks of a claim share one.
_policy_of = lru_cache(maxsize=256)(Policy.from_body)


def _time(data: Any) -> Any:
    try:
        return micros(data) if isinstance(data, str) else data
    except (ValueError, OverflowError) as e:
        raise InvalidInput(f"no time as ISO 8601 has it, with its zone: {e}"[:200], field="time") from None


def _assignment(data: Any) -> Assignment:
    """A claimed task. What a worker reckons with inside is in its ticket."""
    if not isinstance(data, dict) or not isinstance(data.get("ticket"), str):
        raise InvalidInput("a claimed task is an object with its fields and its ticket", field="tasks")
    values = {name: data[name] for name in _names(Assignment) if name in data}
    values |= {
        "payload_json": orjson.dumps(data["payload"]).decode(),
        "input_json": None if data["input"] is None else orjson.dumps(data["input"]).decode(),
        "lease_expires_at": _time(data["lease_expires_at"]),
        "policy": _policy(data["policy"]),
        **parse_ticket(data["ticket"], data["id"]),
    }
    return Assignment(**values)


_READERS: dict[Any, Read] = {Policy: _policy, Assignment: _assignment}
"""Values that are read by more than their fields."""
PROBLEM = ("type", "title", "status", "code", "detail")
"""What RFC 9457 says of every problem. The rest are facts."""


def _all(kind: type[OnetrayError]) -> Iterator[type[OnetrayError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _all(inner)


def error_of(problem: Mapping[str, Any]) -> OnetrayError:
    """The error that a problem tells of. A code that is not known here is an error without a class of its own."""
    kind = next((k for k in _all(OnetrayError) if k.code == problem.get("code")), OnetrayError)
    facts = {name: fact for name, fact in problem.items() if name not in (*PROBLEM, "self", "message")}
    if issubclass(kind, IllegalTransition) and "actions" in facts:
        facts["allowed"] = facts.pop("actions")
    return kind(str(problem.get("detail", "")), **facts)
