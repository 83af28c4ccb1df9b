"""Commands as JSON, encoded and decoded by their declared fields.

Owns the public format of a command: its verb, and its public fields under their public names. Undeclared fields are
errors. value_codec.py encodes and decodes the answers.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import orjson

from onetray.domain.checks import as_json
from onetray.domain.commands import Command, Lines, Report
from onetray.domain.declare import Declaration
from onetray.domain.errors import InvalidInput, short_repr
from onetray.domain.fields import MOMENT, OWNED, FieldSpec, Json, Spec, TaskRef, Whole, fields_of, public_fields
from onetray.domain.machine import USER, WORKER
from onetray.domain.policy import Policy
from onetray.domain.task import parse_ticket
from onetray.domain.verbs import sendable
from onetray.remote.value_codec import decode, iso_time, known_fields, micros


def encode_command(command: Command) -> dict[str, Any]:
    """A command's verb, and the fields that differ from their defaults."""
    return {"verb": command.verb, **encode_fields(command)}


def encode_fields(value: Any) -> dict[str, Any]:
    """The public fields of a command, or of a part of one, that differ from the defaults."""
    kind: Any = type(value)
    encoded: dict[str, Any] = {}
    for name, f in public_fields(kind).items():
        current = getattr(value, f.name)
        if current is f.default or (type(current) is type(f.default) and current == f.default):
            continue
        if isinstance(f.rule, Spec) and f.rule.flat:
            encoded |= encode_fields(current)
        else:
            encoded[name] = _encode(f, current)
    return encoded


def _encode(f: FieldSpec, value: Any) -> Any:
    rule = f.rule
    if isinstance(rule, Json):
        return orjson.Fragment(as_json(value))
    if rule is MOMENT:
        return iso_time(value)
    if isinstance(rule, Spec):
        return _encode_spec(rule, value)
    if isinstance(rule, Lines):
        return [line if isinstance(line, str) else _encode_line(*line) for line in value]
    if isinstance(rule, TaskRef) and isinstance(value, int):
        raise InvalidInput("a server identifies tasks by their ids, not by their keys", field=f.name)
    return value


def _encode_spec(rule: Spec, value: Any) -> Any:
    if rule.kind is Policy:
        return orjson.Fragment(value.body)
    if rule.kind is dict:
        return orjson.Fragment(as_json(value))
    if rule.by_name:
        return {name: [encode_fields(item) for item in items] for name, items in value.items()}
    return [encode_fields(item) for item in value] if rule.many else encode_fields(value)


def _encode_line(level: str, line: str, data: Any) -> dict[str, Any]:
    return {"level": level, "line": line, "data": orjson.Fragment(as_json(data))}


def decode_command(sent: object, owned: Mapping[str, str]) -> Command:
    """Decodes a command. `owned` has the caller's namespace and name, which the sender cannot choose."""
    if not isinstance(sent, dict):
        raise InvalidInput(f"a command must be an object with a verb, not {short_repr(sent)}", field="commands")
    kind: Any = sendable(sent.get("verb"))
    values = decode_fields(kind, {name: value for name, value in sent.items() if name != "verb"})
    values |= {f.name: owned[f.name] for f in fields_of(kind).values() if f.kept_by == OWNED and f.name in owned}
    return command_from(kind, values)


def command_from(kind: Any, values: dict[str, Any]) -> Command:
    """Creates a command from its fields; a report also takes the numbers of its ticket."""
    command: Command = kind(**values)
    if isinstance(command, Report) and command.ticket is not None:
        use_ticket(command)
    return command


def use_ticket(report: Report) -> None:
    """Identify a report's task by the numbers of its ticket. The engine still checks fence and worker."""
    numbers = parse_ticket(str(report.ticket), str(report.task))
    report.task, report.flow = numbers["key"], numbers["flow"]
    report.lease, report.version, report.attempt = numbers["lease"], numbers["version"], numbers.get("attempt", 0)
    report.ticket = None


def encode_report(report: Report) -> dict[str, Any]:
    """A report without the fields that all reports have, which identify its attempt."""
    fields = {name: value for name, value in encode_fields(report).items() if name not in public_fields(Report)}
    return {"verb": report.verb, "fields": fields}


def decode_report(sent: dict[str, Any], ticket: Mapping[str, Any]) -> Report:
    """Decodes a report of a child process. The caller identifies the attempt by `ticket`, not the sender."""
    kind: Any = sendable(sent["verb"])
    if not issubclass(kind, Report):
        raise InvalidInput(f"{kind.verb} is not a report", field="verb")
    report: Report = kind(**decode_fields(kind, dict(sent["fields"]), without=public_fields(Report)), **ticket)
    return report


def decode_fields(kind: type, sent: dict[str, Any], without: Container[str] = ()) -> dict[str, Any]:
    """Decodes the public fields of a class. Raises InvalidInput for a missing or an unknown one."""
    known, values = {name: f for name, f in public_fields(kind).items() if name not in without}, {}
    for name, f in known.items():
        if isinstance(f.rule, Spec) and f.rule.flat:
            part = {inner: sent.pop(inner) for inner in public_fields(f.rule.kind) if inner in sent}
            if part:
                values[f.name] = f.rule.kind(**decode_fields(f.rule.kind, part))
        elif name in sent:
            values[f.name] = _decode(f, sent.pop(name))
        elif f.is_required:
            raise InvalidInput(f"{kind.__name__} needs {name}", field=name)
    if sent:
        name = str(next(iter(sent)))
        raise InvalidInput(
            f"{kind.__name__} has no field {short_repr(name)}; it has: {', '.join(known)}", field=name[:100]
        )
    return values


def _decode(f: FieldSpec, sent: Any) -> Any:
    """Decodes one field. The command checks its value later."""
    rule = f.rule
    if sent is None:
        return None
    if rule is MOMENT:
        return _moment(sent, f.public_name)
    if isinstance(rule, Whole) and isinstance(sent, float) and sent.is_integer():
        return int(sent)  # JSON has one kind of number.
    if isinstance(rule, Spec):
        return _decode_spec(rule, sent, f.public_name)
    if isinstance(rule, Lines) and isinstance(sent, list | tuple):
        return tuple(_decode_line(line) for line in sent)
    if isinstance(rule, TaskRef) and not isinstance(sent, str):
        raise InvalidInput(f"{f.public_name} must be an id as submit returned it", field=f.public_name)
    return sent


def _moment(sent: Any, name: str) -> int:
    try:
        return micros(sent)
    except (TypeError, ValueError, OverflowError) as e:
        raise InvalidInput(f"{name} must be an ISO 8601 time with a time zone: {e}"[:200], field=name) from None


def _decode_spec(rule: Spec, sent: Any, name: str) -> Any:
    if rule.kind is dict:
        return sent
    if rule.by_name and isinstance(sent, dict):
        return {key: _decode_list(rule.kind, items, name) for key, items in sent.items()}
    return _decode_list(rule.kind, sent, name) if rule.many else _decode_item(rule.kind, sent, name)


def _decode_list(kind: type, sent: Any, name: str) -> Any:
    return tuple(_decode_item(kind, item, name) for item in sent) if isinstance(sent, list | tuple) else sent


def _decode_item(kind: type, sent: Any, name: str) -> Any:
    if not isinstance(sent, dict):
        raise InvalidInput(f"{name}: a {kind.__name__} must be an object, not {short_repr(sent)}", field=name)
    if kind is Policy:
        for unknown in sent.keys() - known_fields(Policy).keys():
            raise InvalidInput(f"a policy has no field {short_repr(unknown)}", field=f"{name}.{unknown}"[:100])
        return decode(Policy, sent)
    return kind(**decode_fields(kind, dict(sent)))


def _decode_line(sent: Any) -> Any:
    if isinstance(sent, dict) and "line" in sent and not sent.keys() - {"level", "line", "data"}:
        return sent.get("level", "info"), sent["line"], sent.get("data")
    return sent


def decode_answer(command: Command, sent: Any) -> Any:
    declared: Declaration = command.declared
    value = decode(declared.answer, sent[declared.answer_name] if declared.answer_name else sent)
    if hasattr(value, "actions") and hasattr(value, "_replace"):
        value = value._replace(actor=WORKER if isinstance(command, Report) else USER)
        # The server knows more than the state: whatever it does not list is refused now.
        return value._replace(not_now=tuple(a for a in value.actions if a not in sent.get("actions", value.actions)))
    return value
