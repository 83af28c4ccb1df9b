"""Dead letters: tasks that were set aside. See why, and run them again."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field

from onetray.domain import commands as c
from onetray.domain.errors import Forbidden, InvalidInput, NotFound
from onetray.domain.task import REASON_CODES
from onetray.domain.token import READ
from onetray.engine.api import EngineApi
from onetray.http import problems, views
from onetray.http.auth.scopes import Operator, Principal, Reader
from onetray.http.idempotency import free_key_if_nothing_was_done
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import NativeRoute, gives, takes
from onetray.http.openapi import answers
from onetray.http.params import Cursor, Id, Kind, Limit, headers_of_request, place
from onetray.http.params import cursor as cursor_at
from onetray.http.schemas.base import read_model
from onetray.http.schemas.bodies import RedriveBody, RedriveManyBody
from onetray.http.schemas.sizes import LIMIT
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1/dead-letters", tags=["dead letters"], route_class=NativeRoute)

ReasonCode = Annotated[str, Field(min_length=1, json_schema_extra={"enum": list(REASON_CODES)})]
Reason = Annotated[ReasonCode | None, Query(description="Only with this reason code.")]
Part = Annotated[
    str | None,
    Query(min_length=1, description='Only where "Class: message" contains this.',
          json_schema_extra={LIMIT: "reason_chars"}),
]  # fmt: skip
Redriven = Annotated[bool, Query(description="Also those that were redriven.")]


@router.get("", summary="List dead letters, oldest first", **gives(answers.LETTERS))
async def list_dead_letters(
    request: Request,
    kind: Kind = None,
    reason_code: Reason = None,
    error: Part = None,
    redriven: Redriven = False,
    cursor: Cursor = None,
    limit: Limit = 100,
    principal: Principal = Reader,
) -> Json:
    """One by one."""
    services, after = services_of(request), place("dead_letters", cursor)
    return await services.answer(
        _page, services.engine, kind=kind, reason=reason_code, error=error, redriven=redriven, after=after, limit=limit,
        namespace=principal.namespace,
    )  # fmt: skip


def _page(engine: EngineApi, *, limit: int, **wanted: Any) -> dict[str, Any]:
    found = engine.dead_lines(limit=limit, **wanted)
    next_ = cursor_at("dead_letters", found[-1].key) if len(found) == limit else None
    return {"dead_letters": to_json(found), "next": next_}


@router.get("/groups", summary="Dead letters that say the same", **gives(answers.GROUPS))
async def group_dead_letters(
    request: Request,
    kind: Kind = None,
    reason_code: Reason = None,
    error: Part = None,
    redriven: Redriven = False,
    limit: Limit = 100,
    principal: Principal = Reader,
) -> Json:
    """By kind, reason and error, the largest group first."""
    services = services_of(request)
    return await services.answer(
        _groups, services.engine, kind=kind, reason=reason_code, error=error, redriven=redriven, limit=limit,
        namespace=principal.namespace,
    )  # fmt: skip


def _groups(engine: EngineApi, **wanted: Any) -> dict[str, Any]:
    return {"groups": to_json(engine.dead_groups(**wanted))}


@router.get("/{id}", summary="One dead letter", **gives(answers.LETTER))
async def get_dead_letter(request: Request, id: Id, principal: Principal = Reader) -> Json:
    """All that is known of why the task of this id was set aside."""
    services = services_of(request)
    return await services.answer(_letter, services.engine, id, principal.namespace)


def _letter(engine: EngineApi, id: str, namespace: str) -> dict[str, Any]:
    task = engine.task(id, namespace=namespace, raw=True)
    letters = engine.dead_letters(id, namespace=namespace)
    if not letters:
        raise NotFound(f"the task {id} is {task.state}: it has no dead letter", task=id, state=task.state)
    return views.dead_letter_view(letters[0], task)


@router.post("/redrive", summary="Run many dead letters again", **gives(answers.REDRIVEN), **takes(RedriveManyBody))
async def redrive_dead_letters(request: Request, principal: Principal = Operator) -> Json:
    """Those of `ids`, a page of those that `kind`, `reason_code` and `error` leave, or of `all`, oldest first.

    Go on with `next` as `cursor`. A body that says none of these is refused: it might be a mistake. The filter `error`
    needs the scope `read`, too.

    By filters, letters of flows that have ended are left: each would retry its whole flow. Retry these flows.
    """
    services, body = services_of(request), await read_model(request, RedriveManyBody)
    _must_say_which(body)
    if body.error is not None and not principal.has(READ):
        # Which letters it leaves tells what stands in them.
        raise Forbidden(f"to choose by error, the token {principal.name!r} needs the scope {READ} too", needs=[READ])
    return Json(
        await services.read(_redrive, request, body, {**headers_of_request(request, principal), "cause": body.reason})
    )


def _must_say_which(body: RedriveManyBody) -> None:
    """Ids, or filters, or all: one of the three."""
    filtered = any(name is not None for name in (body.kind, body.reason_code, body.error))
    if (body.ids is not None) + filtered + body.all != 1 or (body.ids is not None and body.cursor is not None):
        raise InvalidInput(
            'give ids; or any of kind, reason_code and error; or {"all": true} for every dead letter. Only the latter '
            "two take a cursor",
            field="all",
        )


def _redrive(request: Request, body: RedriveManyBody, by: dict[str, Any]) -> dict[str, Any]:
    engine = services_of(request).engine
    ids, left, next_ = _meant(engine, body, by["namespace"])
    verdicts = engine.run([c.Redrive(task=id, delay_s=body.delay_s, **by) for id in ids])
    # Filters would choose other letters the second time.
    free_key_if_nothing_was_done(request, verdicts)
    results = list(zip(ids, verdicts, strict=True))
    return {
        "redriven": [{"task": id, "value": views.placed_view(v.value)} for id, v in results if v.error is None],
        "refused": [{"task": id, "error": problems.of_error(v.error)} for id, v in results if v.error is not None],
        "left": left,
        "next": next_,
    }


def _meant(
    engine: EngineApi, body: RedriveManyBody, namespace: str
) -> tuple[list[str], list[dict[str, Any]], str | None]:
    """The tasks to redrive, those that are left, and where the next page begins."""
    if body.ids is not None:
        return list(dict.fromkeys(id.lower() for id in body.ids)), [], None
    page = engine.dead_lines(
        kind=body.kind, reason=body.reason_code, error=body.error, after=place("dead_letters", body.cursor),
        limit=body.limit, namespace=namespace,
    )  # fmt: skip
    left = [{"task": line.id, "flow": line.flow_id} for line in page if line.flow_finished_at is not None]
    next_ = cursor_at("dead_letters", page[-1].key) if len(page) == body.limit else None
    return [line.id for line in page if line.flow_finished_at is None], left, next_


@router.post("/{id}/redrive", summary="Run a dead letter again", **gives(answers.PLACED, 201),
             **takes(RedriveBody, required=False))  # fmt: skip
async def redrive_dead_letter(request: Request, id: Id, principal: Principal = Operator) -> Json:
    """A new task that names the old one; of a flow that has ended, the flow from that stage."""
    body = await read_model(request, RedriveBody)
    command = c.Redrive(task=id, delay_s=body.delay_s, cause=body.reason, **headers_of_request(request, principal))
    return Json(views.placed_view(await services_of(request).call(command)), status_code=201)
