"""Commands: any of them in a batch, and those that have a route of their own.

Both are derived from what commands declare. The namespace and the name of the caller are the token's.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, Request

from onetray.domain.commands import Claim, Command, Report, TaskCommand
from onetray.domain.errors import Forbidden, InvalidInput, OnetrayError, TooLarge
from onetray.domain.fields import fields_of, public_fields
from onetray.domain.task import Verdict
from onetray.domain.token import OPERATE, SUBMIT, WORK
from onetray.domain.verbs import VERBS, sendable_verbs
from onetray.engine.api import EngineApi
from onetray.http import views
from onetray.http.auth.middleware import UNDO
from onetray.http.auth.scopes import Principal, allow
from onetray.http.claim_handover import REFUSED, give_back
from onetray.http.idempotency import free_key_if_unavailable
from onetray.http.json_answers import Json, read_object
from onetray.http.native_route import NativeRoute, gives, takes, takes_named
from onetray.http.observe.tracing import carry
from onetray.http.openapi import answers
from onetray.http.params import Id, headers_of_request
from onetray.http.schemas.base import read_model
from onetray.http.schemas.bodies import COMMANDS_BODY, COMMANDS_EXAMPLE
from onetray.http.schemas.derive import id_field, route_body
from onetray.http.services import services_of
from onetray.remote.command_codec import command_from, decode_command

router = APIRouter(prefix="/api/v1", route_class=NativeRoute)

Sender = Depends(allow(SUBMIT, WORK, OPERATE))


@router.post("/commands", tags=["commands"], summary="Carry out commands", **gives(answers.CARRIED_OUT),
             **takes_named({COMMANDS_BODY: [COMMANDS_EXAMPLE]}))  # fmt: skip
async def run_commands(request: Request, principal: Principal = Sender) -> Json:
    """Each is answered in its place: one that is refused, or cannot be read, harms no other.

    Each verb needs its scope: to submit jobs and to grow them `submit`, to claim and to report `work`, for all else
    `operate`. If the token lacks one of them, nothing of the batch is carried out.
    """
    services, sent = services_of(request), (await read_object(request)).get("commands")
    if not isinstance(sent, list):
        raise InvalidInput("give a list of commands", field="commands")
    most = services.engine.config.limits.batch
    if len(sent) > most:
        raise TooLarge(f"a batch has at most {most} commands, not {len(sent)}", field="commands", limit=most)
    _must_be_allowed(sent, principal)
    commands = await services.read(_decode_all, sent, headers_of_request(request, principal))
    verdicts = await services.read(_carry_out, services.engine, commands)
    _note_claims(request, commands, verdicts)
    free_key_if_unavailable(request, verdicts)
    return await services.read(_answer, sent, commands, verdicts)


def _must_be_allowed(sent: Sequence[object], principal: Principal) -> None:
    """All of them, or none is carried out."""
    known = sendable_verbs()
    for one in sent:
        verb = one.get("verb") if isinstance(one, dict) else None
        kind = known.get(verb) if isinstance(verb, str) else None
        scope = None if kind is None else kind.declared.scope
        if scope is not None and not principal.has(scope):
            raise Forbidden(f"{verb} needs the scope {scope}, which the token {principal.name!r} has not", needs=[scope])


def _decode_all(sent: Sequence[object], owned: dict[str, Any]) -> list[Command | OnetrayError]:
    """Each command, or why it cannot be read."""
    found: list[Command | OnetrayError] = []
    for one in sent:
        try:
            found.append(decode_command(one, owned))
        except OnetrayError as e:
            found.append(e)
    return found


def _carry_out(engine: EngineApi, commands: Sequence[Command | OnetrayError]) -> list[Verdict]:
    """One run for all that could be read, under the trace of the request where they have none of their own."""
    read = [c for c in commands if isinstance(c, Command)]
    carry(read)
    answered = iter(engine.run(read))
    return [next(answered) if isinstance(c, Command) else Verdict(error=c) for c in commands]


def _note_claims(request: Request, commands: Sequence[object], verdicts: Sequence[Verdict]) -> None:
    """What was claimed goes back if the token has ended before the answer. A client that has left asks again."""
    found = [
        assignment
        for command, verdict in zip(commands, verdicts, strict=True)
        if isinstance(command, Claim) and verdict.error is None
        for assignment in verdict.value
    ]
    if found:
        request.scope[UNDO] = partial(give_back, services_of(request), found, REFUSED)


def _answer(sent: Sequence[Any], commands: Sequence[Any], verdicts: Sequence[Verdict]) -> Json:
    return Json({
        "verdicts": [
            views.verdict(v, partial(views.answer_view, type(c), id=one.get("task") if isinstance(one, dict) else None))
            for one, c, v in zip(sent, commands, verdicts, strict=True)
        ]
    })  # fmt: skip


def _add_route(kind: Any) -> None:
    """The route of one command: what it is about stands in the path."""
    body, name, known = route_body(kind), public_fields(kind)[id_field(kind)].name, fields_of(kind)
    allowed = Depends(allow(kind.declared.scope))

    async def carry_out(request: Request, id: Id, principal: Principal = allowed) -> Json:
        owned = {n: value for n, value in headers_of_request(request, principal).items() if n in known}
        command = command_from(kind, {**(await read_model(request, body)).field_values(), **owned, name: id})
        return Json(views.answer_view(kind, await services_of(request).call(command), id))

    again = (
        " The same report again is answered the same." if issubclass(kind, Report) and kind.declared.repeatable else ""
    )
    carry_out.__doc__ = f"{inspect.getdoc(kind)}{again}"
    carry_out.__name__ = f"{kind.verb}_task" if issubclass(kind, TaskCommand) else kind.verb.replace("_flow", "_job")
    router.post(
        kind.declared.path, tags=[kind.declared.path.split("/")[1]], summary=kind.declared.summary,
        **gives(answers.OF_COMMANDS[kind.declared.answer]),
        **takes(body, required=any(field.is_required() for field in body.model_fields.values())),
    )(carry_out)  # fmt: skip


for _kind in VERBS.values():
    if _kind.declared.path:
        _add_route(_kind)
