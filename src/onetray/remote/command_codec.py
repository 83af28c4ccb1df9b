"""Commands as JSON, and back, by what their classes declare.

Owns the public form of a command: its verb, and the fields that may come from outside, under their public names. What
is not declared is refused. Values that commands are answered with are in value_codec.py.
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
    """A command as it is sent: its verb, and what differs from the defaults."""
    return {"verb": command.verb, **encode_fields(command)}


def encode_fields(value: Any) -> dict[str, Any]:
    """The public fields of a command, or of a part of one, that differ from the defaults."""
    kind: Any = type(value)
    sent: dict[str, Any] = {}
    for name, f in public_fields(kind).items():
        current = getattr(value, f.name)
        if current is f.default or (type(current) is type(f.default) and current == f.default):
            continue
        if isinstance(f.rule, Spec) and f.rule.flat:
            sent |= encode_fields(current)
        else:
            sent[name] = _encoded(f, current)
    return sent


def _encoded(f: FieldSpec, value: Any) -> Any:
    rule = f.rule
    if isinstance(rule, Json):
        return orjson.Fragment(as_json(value))
    if rule is MOMENT:
        return iso_time(value)
    if isinstance(rule, Spec):
        return _encoded_spec(rule, value)
    if isinstance(rule, Lines):
        return [line if isinstance(line, str) else _encoded_line(*line) for line in value]
    if isinstance(rule, TaskRef) and isinstance(value, int):
        raise InvalidInput("a server knows tasks by their ids, not by their keys", field=f.name)
    return value


def _encoded_spec(rule: Spec, value: Any) -> Any:
    if rule.kind is Policy:
        return orjson.Fragment(value.body)
    if rule.kind is dict:
        return orjson.Fragment(as_json(value))
    if rule.by_name:
        return {name: [encode_fields(one) for one in some] for name, some in value.items()}
    return [encode_fields(one) for one in value] if rule.many else encode_fields(value)


def _encoded_line(level: str, line: str, data: Any) -> dict[str, Any]:
    return {"level": level, "line": line, "data": orjson.Fragment(as_json(data))}


def decode_command(sent: object, owned: Mapping[str, str]) -> Command:
    """The command that was sent, in the name of whoever sent it: `owned` says the namespace and the name."""
    if not isinstance(sent, dict):
        raise InvalidInput(
            f"a command is an object with a verb and its fields, not {short_repr(sent)}", field="commands"
        )
    kind: Any = sendable(sent.get("verb"))
    values = decode_fields(kind, {name: value for name, value in sent.items() if name != "verb"})
    values |= {f.name: owned[f.name] for f in fields_of(kind).values() if f.kept_by == OWNED and f.name in owned}
    return command_from(kind, values)


def command_from(kind: Any, values: dict[str, Any]) -> Command:
    """A command from its fields, with what its ticket says if it has one."""
    command: Command = kind(**values)
    if isinstance(command, Report) and command.ticket is not None:
        use_ticket(command)
    return command


def use_ticket(report: Report) -> None:
    """Let a report name its task by the numbers of its ticket. Its fence and its worker are compared as ever."""
    numbers = parse_ticket(str(report.ticket), str(report.task))
    report.task, report.flow = numbers["key"], numbers["flow"]
    report.lease, report.version, report.ticket = numbers["lease"], numbers["version"], None


def encode_report(report: Report) -> dict[str, Any]:
    """What a report says besides whose it is."""
    own = {name: value for name, value in encode_fields(report).items() if name not in public_fields(Report)}
    return {"verb": report.verb, "fields": own}


def decode_report(sent: dict[str, Any], ticket: Mapping[str, Any]) -> Report:
    """The report that somebody made who does not hold the task: `ticket` says whose it is, whatever was sent."""
    kind: Any = sendable(sent["verb"])
    if not issubclass(kind, Report):
        raise InvalidInput(f"{kind.verb} is no report", field="verb")
    report: Report = kind(**decode_fields(kind, dict(sent["fields"]), without=public_fields(Report)), **ticket)
    return report


def decode_fields(kind: type, sent: dict[str, Any], without: Container[str] = ()) -> dict[str, Any]:
    """The fields of a class from their public form. What is missing, and what the class does not have, is refused."""
    known, values = {name: f for name, f in public_fields(kind).items() if name not in without}, {}
    for name, f in known.items():
        if isinstance(f.rule, Spec) and f.rule.flat:
            own = public_fields(f.rule.kind)
            part = {inner: sent.pop(inner) for inner in own if inner in sent}
            if part:
                values[f.name] = f.rule.kind(**decode_fields(f.rule.kind, part))
        elif name in sent:
            values[f.name] = _decoded(f, sent.pop(name))
        elif f.is_required:
            raise InvalidInput(f"{kind.__name__} needs {name}", field=name)
    if sent:
        name = str(next(iter(sent)))
        raise InvalidInput(f"{kind.__name__} has no {short_repr(name)}; it has: {', '.join(known)}", field=name[:100])
    return values


def _decoded(f: FieldSpec, sent: Any) -> Any:
    """What JSON says, as the field holds it. What it may be is checked with the command."""
    rule = f.rule
    if sent is None:
        return None
    if rule is MOMENT:
        return _moment(sent, f.public_name)
    if isinstance(rule, Whole) and isinstance(sent, float) and sent.is_integer():
        return int(sent)  # JSON has one kind of number.
    if isinstance(rule, Spec):
        return _decoded_spec(rule, sent, f.public_name)
    if isinstance(rule, Lines) and isinstance(sent, list | tuple):
        return tuple(_decoded_line(line) for line in sent)
    if isinstance(rule, TaskRef) and not isinstance(sent, str):
        raise InvalidInput(f"{f.public_name} must be an id as submit returned it", field=f.public_name)
    return sent


def _moment(sent: Any, name: str) -> int:
    try:
        return micros(sent)
    except (TypeError, ValueError, OverflowError) as e:
        raise InvalidInput(f"{name} must be a time as ISO 8601 has it, with its zone: {e}"[:200], field=name) from None


def _decoded_spec(rule: Spec, sent: Any, name: str) -> Any:
    if rule.kind is dict:
        return sent
    if rule.by_name and isinstance(sent, dict):
        return {key: _decoded_list(rule.kind, some, name) for key, some in sent.items()}
    return _decoded_list(rule.kind, sent, name) if rule.many else _decoded_one(rule.kind, sent, name)


def _decoded_list(kind: type, sent: Any, name: str) -> Any:
    return tuple(_decoded_one(kind, one, name) for one in sent) if isinstance(sent, list | tuple) else sent


def _decoded_one(kind: type, sent: Any, name: str) -> Any:
    if not isinstance(sent, dict):
        raise InvalidInput(f"{name}: a {kind.__name__} is an object, not {short_repr(sent)}", field=name)
    if kind is Policy:
        for word in sent.keys() - known_fields(Policy).keys():
            raise InvalidInput(f"a policy has no {short_repr(word)}", field=f"{name}.{word}"[:100])
        return decode(Policy, sent)
    return kind(**decode_fields(kind, dict(sent)))


def _decoded_line(sent: Any) -> Any:
    if isinstance(sent, dict) and "line" in sent and not sent.keys() - {"level", "line", "data"}:
        return sent.get("level", "info"), sent["line"], sent.get("data")
    return sent


def decode_answer(command: Command, sent: Any) -> Any:
    """What a command was answered with."""
    declared: Declaration = command.declared
    value = decode(declared.answer, sent[declared.answer_name] if declared.answer_name else sent)
    if hasattr(value, "actions") and hasattr(value, "_replace"):
        return value._replace(actor=WORKER if isinstance(command, Report) else USER)
    return value
