"""The engine's values as JSON: the server encodes them, the client decodes them.

Owns the format: times as ISO 8601 in UTC with all microseconds; dataclasses and named tuples as objects, decoded by the
types of their fields; errors as RFC 9457 problems. User data (payloads, results) stays plain JSON.
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

Decoder = Callable[[Any], Any]

HIDDEN = frozenset({"key", "not_now", "redacts", "written"})
"""Internal fields that the public API does not show."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso_time(us: int) -> str:
    """Formats microseconds since the epoch."""
    seconds, fraction = divmod(us, 1_000_000)
    return f"{_iso_second(seconds)}.{fraction:06}Z"


@lru_cache(1_024)
def _iso_second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")


def micros(text: str) -> int:
    """Parses an ISO 8601 time into microseconds since the epoch. Raises ValueError if it is invalid."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("the time zone is missing: end it with Z")
    return (at - _EPOCH) // timedelta(microseconds=1)


def is_time(field: str) -> bool:
    return field.endswith("_at") or field in ("ts", "at")


@lru_cache
def shown_fields(kind: type) -> tuple[tuple[str, bool], ...]:
    """The public fields of a class, and whether each is a time."""
    # Where there are `actions`, `actor` only says for whom they are listed. The actor of an event is public.
    more, hidden = (["actions"], HIDDEN | {"actor"}) if hasattr(kind, "actions") else ([], HIDDEN)
    return tuple((name, is_time(name)) for name in _field_names(kind) + more if name not in hidden)


def _field_names(kind: Any) -> list[str]:
    return [f.name for f in fields(kind)] if is_dataclass(kind) else list(kind._fields)


def is_record(value: Any) -> bool:
    if isinstance(value, type):
        return False
    return is_dataclass(value) or (isinstance(value, tuple) and hasattr(value, "_fields"))


def public_values(value: Any) -> dict[str, Any]:
    """The public fields of a value, with times as text. Nested values are not converted."""
    kind: Any = type(value)
    return {
        name: iso_time(item) if time and item is not None else item
        for name, time in shown_fields(kind)
        for item in (getattr(value, name),)
    }


def dumps(value: object) -> bytes:
    """Encodes values, with their keys: the engine's lists continue from a key. The public API hides those."""
    return orjson.dumps(value, default=_as_plain, option=orjson.OPT_PASSTHROUGH_DATACLASS)


def _as_plain(value: Any) -> Any:
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
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


def decode(kind: Any, data: Any, *, strict: bool = False) -> Any:
    """Decodes parsed JSON as a value of this type. Ignores unknown fields, which a newer server may send, unless
    `strict`: then they raise InvalidInput."""
    return _decoder(kind, strict)(data)


def known_fields(kind: type) -> dict[str, Any]:
    """The types of the fields of a dataclass or a named tuple, by name."""
    hints = get_type_hints(kind)
    return {name: hints[name] for name in _field_names(kind)}


def _unchanged(data: Any) -> Any:
    return data


@lru_cache(maxsize=512)
def _decoder(kind: Any, strict: bool) -> Decoder:
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _DECODERS:
        return _DECODERS[kind]
    if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields")):
        return _record_decoder(kind, strict)
    if origin in (Union, types.UnionType):
        return _union_decoder([part for part in inner if part is not type(None)], strict)
    if origin is list:
        return _list_decoder(list, _decoder(inner[0], strict))
    if origin is tuple and inner[-1] is Ellipsis:
        return _list_decoder(tuple, _decoder(inner[0], strict))
    if origin is tuple:
        each = [_decoder(part, strict) for part in inner]
        return lambda data: tuple(d(t) for d, t in zip(each, data, strict=True)) if _fits(data, each) else data
    if origin in (dict, Mapping):
        value = _decoder(inner[1], strict)
        return lambda data: {k: value(v) for k, v in data.items()} if isinstance(data, dict) else data
    # Numbers and texts: the code that uses them checks them.
    return _unchanged


def _fits(data: Any, each: list[Decoder]) -> bool:
    return isinstance(data, list) and len(data) == len(each)


def _list_decoder(container: type, each: Decoder) -> Decoder:
    if each is _unchanged:
        return lambda data: container(data) if isinstance(data, list) else data
    return lambda data: container(map(each, data)) if isinstance(data, list) else data


def _union_decoder(parts: list[Any], strict: bool) -> Decoder:
    """Decodes a JSON list as the first list or tuple type of the union, an object as the first type with fields."""
    lists = [p for p in parts if get_origin(p) in (list, tuple)]
    dicts = [p for p in parts if p not in lists and _decoder(p, strict) is not _unchanged]
    of_list = _decoder(lists[0], strict) if lists else _unchanged
    of_dict = _decoder(dicts[0], strict) if dicts else _unchanged

    def decode_union(data: Any) -> Any:
        if isinstance(data, list):
            return of_list(data)
        return of_dict(data) if isinstance(data, dict) else data

    return decode_union


def _record_decoder(kind: type, strict: bool) -> Decoder:
    decoders = {name: _time if is_time(name) else _decoder(type_, strict) for name, type_ in known_fields(kind).items()}

    def decode_record(data: Any) -> Any:
        if not isinstance(data, dict):
            raise InvalidInput(f"a {kind.__name__} must be an object, not {short_repr(data)}", field=kind.__name__)
        values = {}
        for name, value in data.items():
            decoder = decoders.get(name)
            if decoder is not None:
                values[name] = decoder(value)
            elif strict:
                raise InvalidInput(f"a {kind.__name__} has no field {short_repr(name)}", field=str(name)[:100])
        return _construct(kind, values)

    return decode_record


def _construct(kind: type, values: dict[str, Any]) -> Any:
    """Raises InvalidInput with the name of a missing field."""
    try:
        return kind(**values)
    except TypeError as e:
        message = str(e).partition("() ")[2] or str(e)
        raise InvalidInput(f"{kind.__name__}: {message}", field=kind.__name__) from None


def _policy(data: Any) -> Policy:
    if not isinstance(data, dict):
        raise InvalidInput(f"a policy must be an object, not {short_repr(data)}", field="policy")
    return Policy.from_body(orjson.dumps(data, option=orjson.OPT_SORT_KEYS).decode())


def _time(data: Any) -> Any:
    try:
        return micros(data) if isinstance(data, str) else data
    except (ValueError, OverflowError) as e:
        raise InvalidInput(f"not an ISO 8601 time with a time zone: {e}"[:200], field="time") from None


def _assignment(data: Any) -> Assignment:
    """Decodes a claimed task, with the internal numbers from its ticket."""
    if not isinstance(data, dict) or not isinstance(data.get("ticket"), str):
        raise InvalidInput("a claimed task must be an object with a ticket", field="tasks")
    values = {name: data[name] for name in _field_names(Assignment) if name in data}
    values |= {
        "payload_json": orjson.dumps(data["payload"]).decode(),
        "input_json": None if data["input"] is None else orjson.dumps(data["input"]).decode(),
        "lease_expires_at": _time(data["lease_expires_at"]),
        "policy": _policy(data["policy"]),
        **parse_ticket(data["ticket"], data["id"]),
    }
    return Assignment(**values)


_DECODERS: dict[Any, Decoder] = {Policy: _policy, Assignment: _assignment}
PROBLEM = ("type", "title", "status", "code", "detail")
"""The members that every problem has. The others are facts of the error."""


def _with_subclasses(kind: type[OnetrayError]) -> Iterator[type[OnetrayError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _with_subclasses(inner)


def error_of(problem: Mapping[str, Any]) -> OnetrayError:
    """The error that a problem describes; an OnetrayError if this version does not know its code."""
    kind = next((k for k in _with_subclasses(OnetrayError) if k.code == problem.get("code")), OnetrayError)
    facts = {name: fact for name, fact in problem.items() if name not in (*PROBLEM, "self", "message")}
    if issubclass(kind, IllegalTransition) and "actions" in facts:
        facts["allowed"] = facts.pop("actions")
    return kind(str(problem.get("detail", "")), **facts)
