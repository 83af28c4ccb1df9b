"""List, read and redrive dead letters: tasks that were set aside."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field

from onetray.domain import commands as c
from onetray.domain.bulk import belongs_to_ended_flow
from onetray.domain.errors import Forbidden, InvalidInput, NotFound
from onetray.domain.task import REASON_CODES
from onetray.domain.token import READ
from onetray.engine.api import EngineApi
from onetray.http import problems, views
from onetray.http.auth.scopes import Operator, Principal, Reader
from onetray.http.idempotency import free_key_if_nothing_was_done
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import NativeRoute, accepts, returns
from onetray.http.openapi import answers
from onetray.http.params import Cursor, Id, Kind, Limit, cursor_at, cursor_position, headers_of_request
from onetray.http.schemas.base import read_model
from onetray.http.schemas.bodies import RedriveBody, RedriveManyBody
from onetray.http.schemas.sizes import LIMIT
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1/dead-letters", tags=["dead letters"], route_class=NativeRoute)

ReasonCode = Annotated[str, Field(min_length=1, json_schema_extra={"enum": list(REASON_CODES)})]
Reason = Annotated[ReasonCode | None, Query(description="Only dead letters with this reason code.")]
ErrorText = Annotated[
    str | None,
    Query(min_length=1, description='Only dead letters whose error, as "Class: message", contains this text.',
          json_schema_extra={LIMIT: "reason_chars"}),
]  # fmt: skip
Redriven = Annotated[bool, Query(description="Include dead letters that were redriven.")]


@router.get("", summary="List dead letters, oldest first", **returns(answers.LETTERS))
async def list_dead_letters(
    request: Request,
    kind: Kind = None,
    reason_code: Reason = None,
    error: ErrorText = None,
    redriven: Redriven = False,
    cursor: Cursor = None,
    limit: Limit = 100,
    principal: Principal = Reader,
) -> Json:
    """Redriven ones are listed only with `redriven`."""
    services, after = services_of(request), cursor_position("dead_letters", cursor)
    return await services.answer(
        _page, services.engine, kind=kind, reason=reason_code, error=error, redriven=redriven, after=after, limit=limit,
        namespace=principal.namespace,
    )  # fmt: skip


def _page(engine: EngineApi, *, limit: int, **filters: Any) -> dict[str, Any]:
    letters = engine.dead_lines(limit=limit, **filters)
    next_ = cursor_at("dead_letters", letters[-1].key) if len(letters) == limit else None
    return {"dead_letters": to_json(letters), "next": next_}


@router.get("/groups", summary="Group dead letters by error", **returns(answers.GROUPS))
async def group_dead_letters(
    request: Request,
    kind: Kind = None,
    reason_code: Reason = None,
    error: ErrorText = None,
    redriven: Redriven = False,
    limit: Limit = 100,
    principal: Principal = Reader,
) -> Json:
    """Counts dead letters by kind, reason and error, largest group first."""
    services = services_of(request)
    return await services.answer(
        _groups, services.engine, kind=kind, reason=reason_code, error=error, redriven=redriven, limit=limit,
        namespace=principal.namespace,
    )  # fmt: skip


def _groups(engine: EngineApi, **filters: Any) -> dict[str, Any]:
    return {"groups": to_json(engine.dead_groups(**filters))}


@router.get("/{id}", summary="Get a dead letter", **returns(answers.LETTER))
async def get_dead_letter(request: Request, id: Id, principal: Principal = Reader) -> Json:
    """Returns why the task with this id was set aside, with its last error and its payload."""
    services = services_of(request)
    return await services.answer(_letter, services.engine, id, principal.namespace)


def _letter(engine: EngineApi, id: str, namespace: str) -> dict[str, Any]:
    task = engine.task(id, namespace=namespace, raw=True)
    letters = engine.dead_letters(id, namespace=namespace)
    if not letters:
        raise NotFound(f"the task {id} is {task.state}: it has no dead letter", task=id, state=task.state)
    return views.dead_letter_view(letters[0], task)


@router.post("/redrive", summary="Redrive many dead letters", **returns(answers.REDRIVEN), **accepts(RedriveManyBody))
async def redrive_dead_letters(request: Request, principal: Principal = Operator) -> Json:
    """Redrives either the dead letters in `ids`; or one page of those that match `kind`, `reason_code` and `error`; or
    one page of `all`, oldest first. Exactly one of the three must be sent.

    Send `next` as `cursor` to redrive the next page. The filter `error` also needs the scope `read`.

    Pages skip dead letters of flows that have ended, because each would retry its whole flow, and list them in `left`:
    retry those flows instead.
    """
    services, body = services_of(request), await read_model(request, RedriveManyBody)
    _check_selection(body)
    if body.error is not None and not principal.has(READ):
        # The matches reveal parts of the errors.
        raise Forbidden(f"to filter by error, the token {principal.name!r} also needs the scope {READ}", needs=[READ])
    headers = {**headers_of_request(request, principal), "cause": body.reason}
    return Json(await services.read(_redrive, request, body, headers))


def _check_selection(body: RedriveManyBody) -> None:
    """Requires exactly one of ids, filters and all."""
    filtered = any(value is not None for value in (body.kind, body.reason_code, body.error))
    if (body.ids is not None) + filtered + body.all != 1 or (body.ids is not None and body.cursor is not None):
        raise InvalidInput(
            'send ids; or any of kind, reason_code and error; or {"all": true} for every dead letter. ids take no '
            "cursor",
            field="all",
        )


def _redrive(request: Request, body: RedriveManyBody, headers: dict[str, Any]) -> dict[str, Any]:
    engine = services_of(request).engine
    ids, left, next_ = _selection(engine, body, headers["namespace"])
    verdicts = engine.run([c.Redrive(task=id, **body.options, **headers) for id in ids])
    # A repeated request would select other dead letters.
    free_key_if_nothing_was_done(request, verdicts)
    results = list(zip(ids, verdicts, strict=True))
    return {
        "redriven": [{"task": id, "value": views.placed_view(v.value)} for id, v in results if v.error is None],
        "refused": [{"task": id, "error": problems.of_error(v.error)} for id, v in results if v.error is not None],
        "left": left,
        "next": next_,
    }


def _selection(
    engine: EngineApi, body: RedriveManyBody, namespace: str
) -> tuple[list[str], list[dict[str, Any]], str | None]:
    """The tasks to redrive, the skipped ones, and the cursor of the next page."""
    if body.ids is not None:
        return list(dict.fromkeys(id.lower() for id in body.ids)), [], None
    page = engine.dead_lines(
        kind=body.kind, reason=body.reason_code, error=body.error, after=cursor_position("dead_letters", body.cursor),
        limit=body.limit, namespace=namespace,
    )  # fmt: skip
    left = [{"task": letter.id, "flow": letter.flow_id} for letter in page if belongs_to_ended_flow(letter)]
    next_ = cursor_at("dead_letters", page[-1].key) if len(page) == body.limit else None
    return [letter.id for letter in page if not belongs_to_ended_flow(letter)], left, next_


@router.post("/{id}/redrive", summary="Redrive a dead letter", **returns(answers.PLACED, 201),
             **accepts(RedriveBody, required=False))  # fmt: skip
async def redrive_dead_letter(request: Request, id: Id, principal: Principal = Operator) -> Json:
    """Submits a new task that is linked to the old one. If its flow has ended, that is in a new flow, to which what has
    succeeded of its stage is carried over."""
    body = await read_model(request, RedriveBody)
    command = body.value(task=id, **headers_of_request(request, principal))
    return Json(views.placed_view(await services_of(request).call(command)), status_code=201)
