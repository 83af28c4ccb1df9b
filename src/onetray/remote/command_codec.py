"""Commands as they are sent, and what they are answered with.

Owns which fields of a command cross the wire, which commands may be sent again when an answer was lost, and the type
of each answer. Who may send what is the server's to say: see http/routes/rpc.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import lru_cache
from typing import Any

from onetray.domain import commands as c
from onetray.domain.errors import InvalidInput, UnknownVerb, short_repr
from onetray.domain.flow import Placed
from onetray.domain.flow_commands import FLOW_VERBS, SubmitFlow
from onetray.domain.system_commands import SystemCommand
from onetray.domain.task import Assignment, Beaten, Receipt
from onetray.domain.verbs import TASK_VERBS, SubmitMany
from onetray.remote.value_codec import decode, decode_fields, known_fields

_ALL: dict[str, type[c.Command]] = {**TASK_VERBS, **FLOW_VERBS, SubmitMany.verb: SubmitMany}
SENT = {verb: kind for verb, kind in _ALL.items() if not issubclass(kind, SystemCommand)}
"""Every command that can be sent. Those of the engine's own cannot."""

OWNED = frozenset({"namespace", "actor", "actor_name"})
"""Said by the token alone, whatever a body says."""
DERIVED = frozenset(
    {"payload_json", "result_json", "error_json", "stored", "body_json", "input_json", "data_json", "bodies"}
)
"""Filled in by a command's own check."""

SUBMITS = (c.Submit.verb, SubmitFlow.verb)
REPEATABLE = frozenset({
    *SUBMITS, SubmitMany.verb, "claim", "start", "beat", "succeed", "fail", "release", "pause", "progress",
    "checkpoint", "set_priority",
})  # fmt: skip
"""What may be sent again when nobody knows whether it arrived: submits and claims are known by their keys, reports by
their fence; the others do the same when they are done twice."""

ANSWERS: dict[str, Any] = {
    **dict.fromkeys(SENT, Receipt),
    **dict.fromkeys(FLOW_VERBS, Placed),
    "append_context": str, "beat": Beaten, "claim": list[Assignment], "log": int, SubmitMany.verb: list[str],
}  # fmt: skip
"""What each is answered with."""


_FIELDS = {kind.verb: tuple(f for f in fields(kind) if f.name not in OWNED | DERIVED) for kind in SENT.values()}


@lru_cache
def _types(verb: str) -> dict[str, Any]:
    known = known_fields(SENT[verb])
    return {f.name: known[f.name] for f in _FIELDS[verb]}


def encode_command(command: c.Command) -> dict[str, Any]:
    """A command as it is sent: what differs from the defaults."""
    said: dict[str, Any] = {"verb": command.verb}
    for f in _FIELDS[command.verb]:
        value = getattr(command, f.name)
        if not _is_default(f, value):
            said[f.name] = encode_command(value) if isinstance(value, c.Command) else value
    return said


def _is_default(f: Field[Any], value: Any) -> bool:
    if f.default is MISSING:
        return False
    return value is f.default or (type(value) is type(f.default) and bool(value == f.default))


def decode_command(said: object, owned: Mapping[str, str]) -> c.Command:
    """The command that was sent, in the name of the one who sent it: `owned` says the namespace and the name."""
    if not isinstance(said, dict):
        raise InvalidInput(f"a command is told by its verb and its fields, not by {short_repr(said)}", field="commands")
    kind = kind_of(said)
    types, given = _types(kind.verb), {}
    for name, value in said.items():
        if name in types:
            given[name] = (
                decode_command(value, owned) if types[name] is c.Submit else decode(types[name], value, strict=True)
            )
        elif name not in OWNED and name != "verb":
            raise InvalidInput(
                f"{kind.verb} has no {short_repr(name)}; it has: {', '.join(types)}", field=str(name)[:100]
            )
    own = {f.name for f in fields(kind)} & owned.keys()
    return _must_be_held(decode_fields(kind, {**given, **{name: owned[name] for name in own}}))  # type: ignore[no-any-return]


def kind_of(said: object) -> type[c.Command]:
    verb = said.get("verb") if isinstance(said, dict) else None
    kind = SENT.get(verb) if isinstance(verb, str) else None
    if kind is None:
        raise UnknownVerb(f"there is no verb {short_repr(verb)}; there are: {', '.join(SENT)}", field="verb")
    return kind


def _must_be_held(command: Any) -> Any:
    """A report from elsewhere says which attempt it means, and who makes it: nobody speaks for another worker."""
    if isinstance(command, c.Report) and (command.fence is None or command.worker is None):
        raise InvalidInput(f"{command.verb} needs the fence and the worker of the claim", field="fence")
    return command
