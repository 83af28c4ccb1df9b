"""Commands in batches, each with a verdict of its own: what the remote client and the remote worker send.

Owns the scope of each verb. The namespace and the name of the caller are the token's, whatever a body says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, Request

from onetray.config import Limits
from onetray.domain.checks import text
from onetray.domain.commands import Command
from onetray.domain.errors import Forbidden, InvalidInput, OnetrayError, OutcomeUnknown, TooLarge
from onetray.domain.task import Verdict
from onetray.domain.token import OPERATE, SUBMIT, WORK
from onetray.domain.verbs import SubmitMany
from onetray.engine.api import EngineApi
from onetray.http.auth.middleware import UNDO
from onetray.http.auth.scopes import Principal, allow
from onetray.http.claim_handover import REFUSED, give_back
from onetray.http.problems import of_error
from onetray.http.routes.rpc import CommandReader, json_body
from onetray.http.services import services_of
from onetray.remote.command_codec import decode_command
from onetray.remote.value_codec import of_problem

router = APIRouter(prefix="/api/v1", tags=["remote"], include_in_schema=False)

Sender = Depends(allow(SUBMIT, WORK, OPERATE))

SCOPE_OF = {
    **dict.fromkeys((
        "submit", "submit_many", "submit_flow", "add_stage", "add_tasks", "open_flow", "seal_flow", "seal_stage",
        "append_context",
    ), SUBMIT),
    **dict.fromkeys((
        "claim", "start", "beat", "succeed", "fail", "release", "pause", "log", "progress", "checkpoint",
    ), WORK),
    **dict.fromkeys((
        "resume", "cancel", "redrive", "set_priority", "reschedule", "pause_flow", "resume_flow", "cancel_flow",
        "retry_flow", "wait_stage", "approve_stage", "reject_stage", "skip_stage",
    ), OPERATE),
}  # fmt: skip
"""The scope that each verb needs. What is not here cannot be sent."""


@router.post("/commands", summary="Carry out commands, each with a verdict of its own")
async def commands(request: Request, who: Principal = Sender) -> CommandReader:
    told, desk = await json_body(request), services_of(request)
    said = told.get("commands")
    if not isinstance(said, list):
        raise InvalidInput("give a list of commands", field="commands")
    most = desk.engine.config.limits.batch
    if len(said) > most:
        raise TooLarge(f"a batch has at most {most} commands, not {len(said)}", field="commands", limit=most)
    _must_be_allowed(said, who)
    verdicts = await desk.read(_carry_out, desk.engine, said, who)
    _note_claims(request, said, verdicts)
    return CommandReader({"verdicts": [_answer(verdict) for verdict in verdicts]})


def _note_claims(request: Request, said: Sequence[object], verdicts: Sequence[Verdict]) -> None:
    """What was claimed goes back if the token has ended before the answer. A client that has left asks again."""
    found = [
        assignment
        for one, verdict in zip(said, verdicts, strict=True)
        if isinstance(one, dict) and one.get("verb") == "claim" and verdict.error is None
        for assignment in verdict.value
    ]
    if found:
        request.scope[UNDO] = partial(give_back, services_of(request), found, REFUSED)


def _must_be_allowed(said: Sequence[object], who: Principal) -> None:
    """All of them, or none is carried out."""
    for one in said:
        verb = one.get("verb") if isinstance(one, dict) else None
        scope = SCOPE_OF.get(verb) if isinstance(verb, str) else None
        if scope is not None and not who.has(scope):
            raise Forbidden(f"{verb} needs the scope {scope}, which the token {who.name!r} has not", needs=[scope])


def _carry_out(engine: EngineApi, said: Sequence[object], who: Principal) -> list[Verdict]:
    """One run for all that can be read. What cannot is refused in its place."""
    verdicts: list[Verdict | None] = [None] * len(said)
    run: list[Command] = []
    parts: list[tuple[int, int]] = []
    for place, one in enumerate(said):
        try:
            some = _decode(one, who, engine.config.limits)
        except OnetrayError as e:
            verdicts[place] = Verdict(error=e)
        else:
            parts.append((place, len(some)))
            run += some
    answers = iter(_run(engine, run))
    for place, size in parts:
        mine = [next(answers) for _ in range(size)]
        verdicts[place] = _together(mine) if _is_many(said[place]) else mine[0]
    return [verdict for verdict in verdicts if verdict is not None]


def _run(engine: EngineApi, commands: list[Command]) -> list[Verdict]:
    """In as many runs as fit: many tasks under one key are as many commands."""
    step = engine.config.limits.batch
    return [v for start in range(0, len(commands), step) for v in engine.run(commands[start : start + step])]


def _decode(one: object, who: Principal, limits: Limits) -> list[Command]:
    """The commands that one of a batch stands for: many tasks under a key are one command each."""
    owned = {"namespace": who.namespace, "actor_name": who.name}
    if not _is_many(one):
        return [decode_command(one, owned)]
    assert isinstance(one, dict)
    many = decode_command({name: value for name, value in one.items() if name != "request_key"}, owned)
    assert isinstance(many, SubmitMany)
    key = text(one["request_key"], "request_key", 200)
    many.check(limits)
    return [
        replace(many.like, payload=payload, idempotency_key=f"{key}.{i}") for i, payload in enumerate(many.payloads)
    ]


def _is_many(one: object) -> bool:
    return isinstance(one, dict) and "request_key" in one and one.get("verb") == SubmitMany.verb


def _together(verdicts: list[Verdict]) -> Verdict:
    """The answer to many tasks under one key."""
    errors = [v.error for v in verdicts if v.error is not None]
    if not errors:
        return Verdict([v.value.id for v in verdicts])
    if len(errors) == len(verdicts):
        return Verdict(error=errors[0])
    done = len(verdicts) - len(errors)
    return Verdict(error=OutcomeUnknown(f"{done} of {len(verdicts)} tasks were submitted: {errors[0]}"))


def _answer(verdict: Verdict) -> dict[str, Any]:
    if verdict.error is None:
        return {"value": verdict.value}
    return {"error": of_problem(of_error(verdict.error))}
