"""Schedules: add, list, explain, preview, pause, resume, trigger, backfill and remove them; workers declare theirs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from onetray.domain.errors import Forbidden
from onetray.domain.token import SUBMIT
from onetray.http.auth.scopes import Operator, Principal, Reader, Worker
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import NativeRoute, accepts, own_key, returns
from onetray.http.openapi import answers
from onetray.http.params import Limit, Name
from onetray.http.schemas.base import read_model
from onetray.http.schemas.bodies import ReasonBody
from onetray.http.schemas.schedules import BackfillBody, DeclareSchedulesBody, PreviewBody, ScheduleBody
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1/schedules", tags=["schedules"], route_class=NativeRoute)

Count = Annotated[int, Query(ge=1, le=100, description="How many.")]


def _must_submit(principal: Principal) -> None:
    if not principal.has(SUBMIT):
        raise Forbidden(
            f"a schedule submits jobs: the token {principal.name!r} also needs the scope {SUBMIT}", needs=[SUBMIT]
        )


@router.get("", summary="List schedules", **returns(answers.SCHEDULES))
async def list_schedules(request: Request, limit: Limit = 1_000, principal: Principal = Reader) -> Json:
    """By name, each with its next and its last fire time."""
    services = services_of(request)
    found = await services.read(services.engine.schedules, limit=limit, namespace=principal.namespace)
    return Json({"schedules": to_json(found)})


@router.post("", summary="Add or change a schedule", **returns(answers.SCHEDULE), **accepts(ScheduleBody))
async def put_schedule(request: Request, principal: Principal = Operator) -> Json:
    """Creates the schedule of this name, or replaces its definition. Also needs the scope `submit`.

    A changed expression changes the next fire time: none is lost, and none is repeated. A schedule in the code of an
    app is refused with `declared_in_code`.
    """
    services, body = services_of(request), await read_model(request, ScheduleBody)
    _must_submit(principal)
    fields = body.field_values() | {"reason": body.reason}
    shown = await services.read(
        services.engine.put_schedule, **fields, by=principal.name, namespace=principal.namespace
    )
    return Json(to_json(shown))


@router.post("/declare", summary="Declare the schedules of an app", **returns(answers.SCHEDULES_REFUSED),
             **accepts(DeclareSchedulesBody))  # fmt: skip
async def declare_schedules(request: Request, principal: Principal = Worker) -> Json:
    """Workers do this when they start, and every minute. Also needs the scope `submit`."""
    services, body = services_of(request), await read_model(request, DeclareSchedulesBody)
    _must_submit(principal)
    refused = await services.read(
        services.engine.declare_schedules, [schedule.value() for schedule in body.schedules], app=body.app,
        worker=body.worker, renew=body.renew, namespace=principal.namespace,
    )  # fmt: skip
    return Json({"refused": refused})


@router.post("/preview", summary="Preview an expression", **returns(answers.FIRE_TIMES), **accepts(PreviewBody))
@own_key
async def preview_expression(request: Request, principal: Principal = Reader) -> Json:
    """Returns the next fire times of a cron expression or an interval, in its time zone."""
    services, body = services_of(request), await read_model(request, PreviewBody)
    times = await services.read(services.engine.preview_schedule, **body.sent_fields, namespace=principal.namespace)
    return Json({"times": to_json(times)})


@router.get("/{name:path}/preview", summary="Preview a schedule", **returns(answers.FIRE_TIMES))
async def preview_schedule(request: Request, name: Name, limit: Count = 10, principal: Principal = Reader) -> Json:
    """Returns its next fire times. `note` marks those that a change of the clock moves, and those that exist twice."""
    services = services_of(request)
    times = await services.read(
        services.engine.preview_schedule, name, limit=limit, namespace=principal.namespace
    )  # fmt: skip
    return Json({"times": to_json(times)})


@router.get("/{name:path}/fires", summary="List the last fire times", **returns(answers.FIRES))
async def list_fires(request: Request, name: Name, limit: Limit = 100, principal: Principal = Reader) -> Json:
    """Newest first, each with what it has come to."""
    services = services_of(request)
    fires = await services.read(services.engine.schedule_fires, name, limit=limit, namespace=principal.namespace)
    return Json({"fires": to_json(fires)})


@router.get("/{name:path}/explain", summary="Explain a schedule", **returns(answers.SCHEDULE_EXPLAINED))
async def explain_schedule(request: Request, name: Name, principal: Principal = Reader) -> Json:
    """Returns why it fires or does not, its next fire times, and what happened to the last ten."""
    services = services_of(request)
    return Json(to_json(await services.read(services.engine.explain_schedule, name, namespace=principal.namespace)))


@router.post("/{name:path}/pause", summary="Pause a schedule", **returns(answers.SCHEDULE),
             **accepts(ReasonBody, required=False))  # fmt: skip
async def pause_schedule(request: Request, name: Name, principal: Principal = Operator) -> Json:
    """It does not fire until it is resumed. Its jobs continue."""
    return await _act(request, name, principal, services_of(request).engine.pause_schedule)


@router.post("/{name:path}/resume", summary="Resume a schedule", **returns(answers.SCHEDULE),
             **accepts(ReasonBody, required=False))  # fmt: skip
async def resume_schedule(request: Request, name: Name, principal: Principal = Operator) -> Json:
    """It fires from now on: fire times of the pause are not caught up."""
    return await _act(request, name, principal, services_of(request).engine.resume_schedule)


@router.post("/{name:path}/trigger", summary="Trigger a schedule", **returns(answers.FIRE),
             **accepts(ReasonBody, required=False))  # fmt: skip
async def trigger_schedule(request: Request, name: Name, principal: Principal = Operator) -> Json:
    """Submits its job now, beside its fire times, even while it is paused."""
    return await _act(request, name, principal, services_of(request).engine.trigger_schedule)


@router.post("/{name:path}/backfill", summary="Backfill a schedule", **returns(answers.BACKFILL),
             **accepts(BackfillBody))  # fmt: skip
async def backfill_schedule(request: Request, name: Name, principal: Principal = Operator) -> Json:
    """Submits the fire times of a range that have no job yet, each once. With `preview`, it only lists them."""
    services, body = services_of(request), await read_model(request, BackfillBody)
    done = await services.read(
        services.engine.backfill_schedule, name, **body.sent_fields, by=principal.name, namespace=principal.namespace
    )
    return Json(to_json(done))


@router.post("/{name:path}/remove", summary="Remove a schedule", **returns(answers.EMPTY),
             **accepts(ReasonBody, required=False))  # fmt: skip
async def remove_schedule(request: Request, name: Name, principal: Principal = Operator) -> Json:
    """Deletes it and its history. Its jobs stay. An app that still has it in its code adds it again."""
    await _act(request, name, principal, services_of(request).engine.remove_schedule)
    return Json({})


@router.get("/{name:path}", summary="Get a schedule", **returns(answers.SCHEDULE))
async def get_schedule(request: Request, name: Name, principal: Principal = Reader) -> Json:
    """Returns its definition, its next and its last fire time, and why it rests."""
    services = services_of(request)
    return Json(to_json(await services.read(services.engine.schedule, name, namespace=principal.namespace)))


async def _act(request: Request, name: str, principal: Principal, act: Any) -> Json:
    body = await read_model(request, ReasonBody)
    done = await services_of(request).read(
        act, name, reason=body.reason, by=principal.name, namespace=principal.namespace
    )
    return Json(to_json(done))
