"""Take commands to a server, in few requests, and bring back a verdict for each.

Owns how a batch is cut into requests, and the keys by which the server knows a request that comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from uuid_utils import uuid4

from onetray.domain.commands import Claim, Command, Submit
from onetray.domain.errors import InvalidInput, OnetrayError, OutcomeUnknown, Unavailable
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.task import Verdict
from onetray.domain.verbs import SubmitMany
from onetray.remote.command_codec import decode_answer, encode_command
from onetray.remote.transport import Transport
from onetray.remote.value_codec import error_of

MAX_BYTES = 1_000_000
"""From so many bytes on the rest of a batch is another request."""
MAX_COMMANDS = 500


@dataclass(slots=True)
class EncodedCommand:
    """One command as it is sent."""

    place: int
    """Which of the commands of the batch it belongs to."""
    command: Command
    body: bytes
    own_key: bool = False
    """Whether the key was made here: then nobody can have submitted it before."""


class CommandSender:
    def __init__(self, transport: Transport, must_be_ours: Callable[[str], None]) -> None:
        self._transport, self._must_be_ours = transport, must_be_ours

    def must_not_have_forked(self) -> None:
        self._transport.must_not_have_forked()

    def close(self) -> None:
        self._transport.close()

    def carry_out(self, commands: Sequence[Command]) -> list[Verdict]:
        self.must_not_have_forked()
        answers: list[list[Verdict]] = [[] for _ in commands]
        encoded: list[EncodedCommand] = []
        for place, command in enumerate(commands):
            try:
                self._must_be_ours(_namespace_of(command))
                encoded += _encode(place, command)
            except OnetrayError as e:
                answers[place] = [Verdict(error=e)]
        away: Unavailable | None = None
        for some in _requests(encoded):
            verdicts = self._send(some) if away is None else [Verdict(error=away)] * len(some)
            for one, verdict in zip(some, verdicts, strict=True):
                answers[one.place].append(verdict)
                if isinstance(verdict.error, Unavailable) and away is None:
                    # The rest was not sent, and would have to wait as long.
                    away = Unavailable(f"not sent: {verdict.error}")
        return [_joined(command, parts) for command, parts in zip(commands, answers, strict=True)]

    def _send(self, some: list[EncodedCommand]) -> list[Verdict]:
        body = b'{"commands":[' + b",".join(one.body for one in some) + b"]}"
        repeatable = all(one.command.declared.repeatable for one in some)
        try:
            answer = self._transport.post("/api/v1/commands", body, repeatable=repeatable)
            verdicts = answer.get("verdicts") if isinstance(answer, dict) else None
            if not isinstance(verdicts, list) or len(verdicts) != len(some):
                raise OnetrayError(f"{self._transport.url} answered something else than a verdict for each command")
            return [_verdict(one, sent) for one, sent in zip(some, verdicts, strict=True)]
        except OnetrayError as e:
            return [Verdict(error=e)] * len(some)


def _namespace_of(command: Command) -> str:
    return str(getattr(command.like if isinstance(command, SubmitMany) else command, "namespace", "default"))


def _encode(place: int, command: Command) -> Iterator[EncodedCommand]:
    """A command, with a key by which it is known when it comes again."""
    if isinstance(command, SubmitMany):
        yield from _encode_many(place, command)
        return
    sent, own_key = encode_command(command), False
    if isinstance(command, Submit | SubmitFlow) and command.idempotency_key is None:
        sent["idempotency_key"], own_key = f"remote-{uuid4()}", command.unique_key is None
    elif isinstance(command, Claim) and command.request_key is None:
        sent["request_key"] = str(uuid4())
    yield EncodedCommand(place, command, _bytes_of(sent), own_key)


def _encode_many(place: int, command: SubmitMany) -> Iterator[EncodedCommand]:
    """A submit for each task, under a key of its own."""
    sent, key = encode_command(command.like), f"remote-{uuid4()}"
    for number, body in enumerate(command.bodies):
        sent |= {"payload": orjson.Fragment(body), "idempotency_key": f"{key}.{number}"}
        yield EncodedCommand(place, command.like, _bytes_of(sent))


def _bytes_of(sent: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(sent)
    except TypeError as e:
        raise InvalidInput(f"{sent['verb']}: {e}"[:300], field=sent["verb"]) from None


def _requests(encoded: list[EncodedCommand]) -> Iterator[list[EncodedCommand]]:
    """The commands that go together, in their order."""
    some: list[EncodedCommand] = []
    size = 0
    for one in encoded:
        if some and (size + len(one.body) > MAX_BYTES or len(some) >= MAX_COMMANDS):
            yield some
            some, size = [], 0
        some.append(one)
        size += len(one.body)
    if some:
        yield some


def _verdict(one: EncodedCommand, sent: Any) -> Verdict:
    if not isinstance(sent, dict):
        raise OnetrayError("the server gave no verdict")
    if "error" in sent:
        return Verdict(error=error_of(sent["error"]))
    value = decode_answer(one.command, sent.get("value"))
    return Verdict(value._replace(repeated=False) if one.own_key else value)


def _joined(command: Command, parts: list[Verdict]) -> Verdict:
    """One verdict for a command that was sent as several."""
    if not isinstance(command, SubmitMany):
        return parts[0]
    refused = [part.error for part in parts if part.error is not None]
    if not refused:
        return Verdict([part.value.id for part in parts])
    if len(refused) == len(parts):
        return Verdict(error=refused[0])
    done = len(parts) - len(refused)
    return Verdict(error=OutcomeUnknown(f"{done} of {len(command.payloads)} tasks were submitted: {refused[0]}"))
