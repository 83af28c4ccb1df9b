"""Commands: a batch of any, and the routes of single ones.

Both are derived from the declarations of commands. The token sets the namespace and the actor's name.
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
from onetray.http.claim_delivery import REFUSED, release_undelivered
from onetray.http.idempotency import free_key_if_unavailable
from onetray.http.json_answers import Json, read_object
from onetray.http.native_route import NativeRoute, accepts, accepts_named, returns
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


@router.post("/commands", tags=["commands"], summary="Carry out commands", **returns(answers.CARRIED_OUT),
             **accepts_named({COMMANDS_BODY: [COMMANDS_EXAMPLE]}))  # fmt: skip
async def run_commands(request: Request, principal: Principal = Sender) -> Json:
    """Returns one verdict per command, in request order. A rejected or invalid command does not affect the others.

    Each verb needs a scope: `submit` to submit jobs and add to them, `work` to claim and report, `operate` for
    everything else. If the token lacks one of them, no command of the batch is carried out.
    """
    services, items = services_of(request), (await read_object(request)).get("commands")
    if not isinstance(items, list):
        raise InvalidInput("commands must be a list", field="commands")
    limit = services.engine.config.limits.batch
    if len(items) > limit:
        raise TooLarge(f"a batch has at most {limit} commands, not {len(items)}", field="commands", limit=limit)
    _check_scopes(items, principal)
    commands = await services.read(_decode_all, items, _owned(request, principal))
    verdicts = await services.read(_carry_out, services.engine, commands)
    _release_if_refused(request, commands, verdicts)
    free_key_if_unavailable(request, verdicts)
    return await services.read(_answer, items, commands, verdicts)


def _owned(request: Request, principal: Principal) -> dict[str, Any]:
    """The fields that the server sets, of the commands that have them."""
    return headers_of_request(request, principal) | {"actor_groups": principal.groups}


def _check_scopes(items: Sequence[object], principal: Principal) -> None:
    known = sendable_verbs()
    for item in items:
        verb = item.get("verb") if isinstance(item, dict) else None
        kind = known.get(verb) if isinstance(verb, str) else None
        scope = None if kind is None else kind.declared.scope
        if scope is not None and not principal.has(scope):
            raise Forbidden(f"{verb} needs the scope {scope}, which the token {principal.name!r} lacks", needs=[scope])


def _decode_all(items: Sequence[object], owned: dict[str, Any]) -> list[Command | OnetrayError]:
    """Decode the commands. An invalid one is replaced by its error."""
    decoded: list[Command | OnetrayError] = []
    for item in items:
        try:
            decoded.append(decode_command(item, owned))
        except OnetrayError as e:
            decoded.append(e)
    return decoded


def _carry_out(engine: EngineApi, commands: Sequence[Command | OnetrayError]) -> list[Verdict]:
    """Run the valid commands together. Those without a trace get the request's."""
    valid = [c for c in commands if isinstance(c, Command)]
    carry(valid)
    verdicts = iter(engine.run(valid))
    return [next(verdicts) if isinstance(c, Command) else Verdict(error=c) for c in commands]


def _release_if_refused(request: Request, commands: Sequence[object], verdicts: Sequence[Verdict]) -> None:
    """Release claimed tasks if the token ends before the response. A disconnected client repeats its request."""
    claimed = [
        assignment
        for command, verdict in zip(commands, verdicts, strict=True)
        if isinstance(command, Claim) and verdict.error is None
        for assignment in verdict.value
    ]
    if claimed:
        request.scope[UNDO] = partial(release_undelivered, services_of(request), claimed, REFUSED)


def _answer(items: Sequence[Any], commands: Sequence[Any], verdicts: Sequence[Verdict]) -> Json:
    ids = [item.get("task") if isinstance(item, dict) else None for item in items]
    return Json({
        "verdicts": [
            views.verdict(v, partial(views.answer_view, type(c), id=id_))
            for id_, c, v in zip(ids, commands, verdicts, strict=True)
        ]
    })  # fmt: skip


def _add_route(kind: Any) -> None:
    """Add the route of one command, with the id of its task, stage or flow in the path."""
    body, name, known = route_body(kind), public_fields(kind)[id_field(kind)].name, fields_of(kind)
    allowed = Depends(allow(kind.declared.scope))

    async def carry_out(request: Request, id: Id, principal: Principal = allowed) -> Json:
        owned = {n: value for n, value in _owned(request, principal).items() if n in known}
        command = command_from(kind, {**(await read_model(request, body)).field_values(), **owned, name: id})
        return Json(views.answer_view(kind, await services_of(request).call(command), id))

    is_repeatable = issubclass(kind, Report) and kind.declared.repeatable
    carry_out.__doc__ = f"{inspect.getdoc(kind)}{' A repeated report gets the same answer.' if is_repeatable else ''}"
    carry_out.__name__ = f"{kind.verb}_task" if issubclass(kind, TaskCommand) else kind.verb.replace("_flow", "_job")
    router.post(
        kind.declared.path, tags=[kind.declared.path.split("/")[1]], summary=kind.declared.summary,
        **returns(answers.OF_COMMANDS[kind.declared.answer]),
        **accepts(body, required=any(field.is_required() for field in body.model_fields.values())),
    )(carry_out)  # fmt: skip


for _kind in VERBS.values():
    if _kind.declared.path:
        _add_route(_kind)
