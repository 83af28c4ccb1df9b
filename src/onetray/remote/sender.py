"""Take commands to a server, in few requests, and bring back a verdict for each.

Owns how a batch is cut into requests, and the keys by which the server knows a request that comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from uuid_utils import uuid4

from onetray.domain.commands import Claim, Command, Submit
from onetray.domain.errors import InvalidInput, OnetrayError, OutcomeUnknown, Unavailable
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.task import Verdict
from onetray.domain.verbs import SubmitMany
from onetray.remote.command_codec import ANSWERS, REPEATABLE, encode_command
from onetray.remote.transport import Transport
from onetray.remote.value_codec import decode, dumps, raised

MOST_BYTES = 1_000_000
"""From so many bytes on the rest of a batch is another request."""
MOST_COMMANDS = 500


@dataclass(slots=True)
class SentBatch:
    """One command, or a part of one, as it is sent."""

    place: int
    """Which of the commands it belongs to."""
    verb: str
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
        parcels: list[SentBatch] = []
        for place, command in enumerate(commands):
            try:
                self._must_be_ours(_namespace_of(command))
                parcels += _packed(place, command)
            except OnetrayError as e:
                answers[place] = [Verdict(error=e)]
        away: Unavailable | None = None
        for some in _loads(parcels):
            verdicts = self._send(some) if away is None else [Verdict(error=away)] * len(some)
            for parcel, verdict in zip(some, verdicts, strict=True):
                answers[parcel.place].append(verdict)
                if isinstance(verdict.error, Unavailable) and away is None:
                    # The rest was not sent, and would have to wait as long.
                    away = Unavailable(f"not sent: {verdict.error}")
        return [_joined(command, parts) for command, parts in zip(commands, answers, strict=True)]

    def _send(self, parcels: list[SentBatch]) -> list[Verdict]:
        body = b'{"commands":[' + b",".join(p.body for p in parcels) + b"]}"
        repeatable = all(p.verb in REPEATABLE for p in parcels)
        try:
            answer = self._transport.post("/api/v1/commands", body, repeatable=repeatable)
            verdicts = answer.get("verdicts") if isinstance(answer, dict) else None
            if not isinstance(verdicts, list) or len(verdicts) != len(parcels):
                raise OnetrayError(f"{self._transport.url} answered something else than a verdict for each command")
            return [_verdict(parcel, said) for parcel, said in zip(parcels, verdicts, strict=True)]
        except OnetrayError as e:
            return [Verdict(error=e)] * len(parcels)


def _namespace_of(command: Command) -> str:
    return str(getattr(command.like if isinstance(command, SubmitMany) else command, "namespace", "default"))


def _packed(place: int, command: Command) -> Iterator[SentBatch]:
    """A command, with a key by which it is known when it comes again."""
    if isinstance(command, SubmitMany):
        yield from _packed_many(place, command)
        return
    said, own_key = encode_command(command), False
    if isinstance(command, Submit | SubmitFlow) and command.idempotency_key is None:
        said["idempotency_key"], own_key = f"remote-{uuid4()}", command.unique_key is None
    elif isinstance(command, Claim) and command.request_key is None:
        said["request_key"] = str(uuid4())
    yield SentBatch(place, command.verb, _bytes_of(said), own_key)


def _packed_many(place: int, command: SubmitMany) -> Iterator[SentBatch]:
    """Many tasks in parts that are not too large. Each task has a key of its own, numbered within the part's."""
    like = encode_command(command.like)
    like.pop("payload", None)
    start, size = 0, 0
    for i, body in enumerate([*command.bodies, ""]):
        last = i == len(command.bodies)
        if last or (i > start and size + len(body) > MOST_BYTES) or i - start >= MOST_COMMANDS:
            said = {"verb": command.verb, "like": like, "payloads": command.payloads[start:i]}
            yield SentBatch(place, command.verb, _bytes_of({**said, "request_key": f"remote-{uuid4()}"}))
            start, size = i, 0
        size += len(body)


def _bytes_of(said: dict[str, Any]) -> bytes:
    try:
        return dumps(said)
    except TypeError as e:
        raise InvalidInput(f"{said['verb']}: {e}"[:300], field=said["verb"]) from None


def _loads(parcels: list[SentBatch]) -> Iterator[list[SentBatch]]:
    """Parcels that go together, in their order."""
    some: list[SentBatch] = []
    size = 0
    for parcel in parcels:
        if some and (size + len(parcel.body) > MOST_BYTES or len(some) >= MOST_COMMANDS):
            yield some
            some, size = [], 0
        some.append(parcel)
        size += len(parcel.body)
    if some:
        yield some


def _verdict(parcel: SentBatch, said: Any) -> Verdict:
    if not isinstance(said, dict):
        raise OnetrayError("the server gave no verdict")
    if "error" in said:
        error = said["error"]
        return Verdict(error=raised(error.get("code"), error.get("message"), error.get("facts")))
    value = decode(ANSWERS[parcel.verb], said.get("value"))
    return Verdict(value._replace(repeated=False) if parcel.own_key else value)


def _joined(command: Command, parts: list[Verdict]) -> Verdict:
    """One verdict for a command that was sent in parts."""
    if not isinstance(command, SubmitMany) or len(parts) == 1:
        return parts[0]
    refused = next((p.error for p in parts if p.error is not None), None)
    if refused is None:
        return Verdict([id_ for p in parts for id_ in p.value])
    return Verdict(error=OutcomeUnknown(f"not all of {len(command.payloads)} tasks were submitted: {refused}"))
