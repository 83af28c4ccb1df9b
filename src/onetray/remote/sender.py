"""Send commands to a server in few requests; each command gets a verdict.

Owns how a batch is split into requests, and the keys by which the server recognizes a repeated command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from uuid_utils import uuid4

from onetray.domain.commands import Claim, Command, Submit
from onetray.domain.errors import InvalidInput, OnetrayError, OutcomeUnknown, Unavailable
from onetray.domain.flow_commands import SubmitDeclared, SubmitFlow
from onetray.domain.task import Verdict
from onetray.domain.verbs import SubmitMany
from onetray.remote.command_codec import decode_answer, encode_command
from onetray.remote.transport import Transport
from onetray.remote.value_codec import error_of

MAX_BYTES = 1_000_000
"""Size of a request: the rest of a batch follows in another one."""
MAX_COMMANDS = 500


@dataclass(slots=True)
class EncodedCommand:
    """One command as JSON."""

    index: int
    """The index of its command in the batch."""
    command: Command
    body: bytes
    has_new_key: bool = False
    """Whether the sender generated the key: then a repeated submit is only its own retry."""


class CommandSender:
    def __init__(self, transport: Transport, check_namespace: Callable[[str], None]) -> None:
        self._transport, self._check_namespace = transport, check_namespace

    def must_not_have_forked(self) -> None:
        self._transport.must_not_have_forked()

    def close(self) -> None:
        self._transport.close()

    def execute(self, commands: Sequence[Command]) -> list[Verdict]:
        self.must_not_have_forked()
        answers: list[list[Verdict]] = [[] for _ in commands]
        encoded: list[EncodedCommand] = []
        for index, command in enumerate(commands):
            try:
                self._check_namespace(_namespace_of(command))
                encoded += _encode(index, command)
            except OnetrayError as e:
                answers[index] = [Verdict(error=e)]
        unsent: Unavailable | None = None
        for request in _requests(encoded):
            verdicts = self._send(request) if unsent is None else [Verdict(error=unsent)] * len(request)
            for item, verdict in zip(request, verdicts, strict=True):
                answers[item.index].append(verdict)
                if isinstance(verdict.error, Unavailable) and unsent is None:
                    # The server is unavailable: each further request would wait for the whole timeout, too.
                    unsent = Unavailable(f"not sent: {verdict.error}")
        return [_joined(command, parts) for command, parts in zip(commands, answers, strict=True)]

    def _send(self, request: list[EncodedCommand]) -> list[Verdict]:
        body = b'{"commands":[' + b",".join(item.body for item in request) + b"]}"
        repeatable = all(item.command.declared.repeatable for item in request)
        try:
            answer = self._transport.post("/api/v1/commands", body, repeatable=repeatable)
            verdicts = answer.get("verdicts") if isinstance(answer, dict) else None
            if not isinstance(verdicts, list) or len(verdicts) != len(request):
                raise OnetrayError(f"{self._transport.url} did not return one verdict per command")
            return [_verdict(item, verdict) for item, verdict in zip(request, verdicts, strict=True)]
        except OnetrayError as e:
            return [Verdict(error=e)] * len(request)


def _namespace_of(command: Command) -> str:
    return str(getattr(command.like if isinstance(command, SubmitMany) else command, "namespace", "default"))


def _encode(index: int, command: Command) -> Iterator[EncodedCommand]:
    """Encode a command; a submit or a claim without a key gets a new one."""
    if isinstance(command, SubmitMany):
        yield from _encode_many(index, command)
        return
    body, has_new_key = encode_command(command), False
    if isinstance(command, Submit | SubmitFlow | SubmitDeclared) and command.idempotency_key is None:
        body["idempotency_key"], has_new_key = f"remote-{uuid4()}", command.unique_key is None
    elif isinstance(command, Claim) and command.request_key is None:
        body["request_key"] = str(uuid4())
    yield EncodedCommand(index, command, _bytes_of(body), has_new_key)


def _encode_many(index: int, command: SubmitMany) -> Iterator[EncodedCommand]:
    """Encode one submit per task, each with its own key."""
    body, key = encode_command(command.like), f"remote-{uuid4()}"
    for number, payload in enumerate(command.bodies):
        body |= {"payload": orjson.Fragment(payload), "idempotency_key": f"{key}.{number}"}
        yield EncodedCommand(index, command.like, _bytes_of(body))


def _bytes_of(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as e:
        raise InvalidInput(f"{body['verb']}: {e}"[:300], field=body["verb"]) from None


def _requests(encoded: list[EncodedCommand]) -> Iterator[list[EncodedCommand]]:
    """Split the commands into requests, in order."""
    request: list[EncodedCommand] = []
    size = 0
    for item in encoded:
        if request and (size + len(item.body) > MAX_BYTES or len(request) >= MAX_COMMANDS):
            yield request
            request, size = [], 0
        request.append(item)
        size += len(item.body)
    if request:
        yield request


def _verdict(item: EncodedCommand, answer: Any) -> Verdict:
    if not isinstance(answer, dict):
        raise OnetrayError("the server returned an invalid verdict")
    if "error" in answer:
        return Verdict(error=error_of(answer["error"]))
    value = decode_answer(item.command, answer.get("value"))
    is_new = item.has_new_key and getattr(value, "window", None) is None
    return Verdict(value._replace(repeated=False) if is_new else value)


def _joined(command: Command, parts: list[Verdict]) -> Verdict:
    """One verdict for a command that was sent as several."""
    if not isinstance(command, SubmitMany):
        return parts[0]
    errors = [part.error for part in parts if part.error is not None]
    if not errors:
        return Verdict([part.value.id for part in parts])
    if len(errors) == len(parts):
        return Verdict(error=errors[0])
    done = len(parts) - len(errors)
    return Verdict(error=OutcomeUnknown(f"{done} of {len(command.payloads)} tasks were submitted: {errors[0]}"))
