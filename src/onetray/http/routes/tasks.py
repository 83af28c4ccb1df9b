"""The work itself: claims, and many reports at once of whoever holds tasks. Single reports are in commands.py.

A report names the fence and the worker of its claim: a worker touches only what it holds.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Request

from onetray.domain import commands as c
from onetray.domain.errors import InvalidInput
from onetray.domain.task import Assignment
from onetray.engine.api import EngineApi
from onetray.http import views
from onetray.http.auth.scopes import AtWork, Principal, Reader
from onetray.http.claim_handover import handed_over, under_way
from onetray.http.claim_waiters import gone
from onetray.http.idempotency import free_key_if_unavailable, key_of
from onetray.http.json_answers import Json
from onetray.http.native_route import NativeRoute, gives, own_key, takes
from onetray.http.openapi import answers
from onetray.http.params import Id, trace_of
from onetray.http.schemas.base import read_model
from onetray.http.schemas.bodies import ClaimBody, ReportsBody
from onetray.http.services import services_of
from onetray.notify.waiters import group_of
from onetray.remote.command_codec import command_from

router = APIRouter(prefix="/api/v1/tasks", tags=["tasks"], route_class=NativeRoute)


@router.post("/claim", summary="Claim tasks", **gives(answers.CLAIMED), **takes(ClaimBody))
@own_key
async def claim_tasks(request: Request, who: Principal = AtWork) -> Json:
    """Up to `limit` tasks of a queue, highest priority first, then oldest. None is no error.

    With `wait_s` it waits for the first one. The `Idempotency-Key` is the claim's `request_key`: the same claim again
    gives the same tasks, while the worker holds them.
    """
    body = await read_model(request, ClaimBody)
    command = body.value(**_request_key(body, key_of(request)), namespace=who.namespace)
    return Json(views.answer_view(c.Claim, await _claimed(request, who, command, body.wait_s)))


def _request_key(body: Any, key: str | None) -> dict[str, Any]:
    if key is None or body.request_key == key:
        return {}
    if body.request_key is not None:
        raise InvalidInput("Idempotency-Key and request_key differ: give one", field="request_key")
    return {"request_key": key}


async def _claimed(request: Request, who: Principal, command: c.Claim, wait_s: float) -> list[Assignment]:
    """What was found, now or within the time, and can be handed over."""
    services, until = services_of(request), time.monotonic() + wait_s
    with under_way(command):
        seen = services.engine.wake.work_in([(command.namespace, command.queue)])
        found: list[Assignment] = await services.call(command)
        if not found and wait_s:
            found = await _waited(request, who, command, until, seen)
        return await handed_over(request, who, command, found) if found else []


async def _waited(request: Request, who: Principal, command: c.Claim, until: float, seen: int) -> list[Assignment]:
    """Look whenever there may be more, until the time is over, nobody waits for the answer, or nobody may have it."""
    services, queue = services_of(request), (command.namespace, command.queue)
    with (
        services.waits.place(who) as may_wait,
        services.waiting.place([queue], group_of(command.kinds)) as place,
        gone(request) as left_us,
        services.tokens.watching(who) as ended,
    ):
        while may_wait and (left_s := until - time.monotonic()) > 0 and not services.waiting.closed:
            may_be_more = await place.wait(seen, left_s, left_us, ended)
            # Nothing is claimed for somebody who has gone, or may not have it.
            if left_us.done():
                break
            if ended.done():
                raise ended.result()
            if not may_be_more:
                continue
            await services.tokens.must_hold(who)
            seen = place.seen()
            found: list[Assignment] = await services.call(command)
            place.looked(found_all=len(found) == command.limit)
            if found:
                return found
    return []


@router.post("/reports", summary="Report about many tasks", **gives(answers.REPORTED), **takes(ReportsBody))
async def report_tasks(request: Request, who: Principal = AtWork) -> Json:
    """Each report names its verb and its task, and is answered in its place. One that is refused harms no other."""
    owned = {"namespace": who.namespace, "trace": trace_of(request)}
    body = await read_model(request, ReportsBody)
    commands = [command_from(report.describes, {**owned, **report.field_values()}) for report in body.reports]
    verdicts = await services_of(request).run(commands)
    free_key_if_unavailable(request, verdicts)
    answered = [
        views.verdict(verdict, partial(views.answer_view, report.describes, id=report.task))
        for verdict, report in zip(verdicts, body.reports, strict=True)
    ]
    return Json({"verdicts": answered})


@router.get("/{id}", summary="One task", **gives(answers.TASK))
async def get_task(request: Request, id: Id, who: Principal = Reader) -> Json:
    """A single task, or a member of a flow."""
    services = services_of(request)
    return await services.answer(_task, services.engine, id, who.namespace)


def _task(engine: EngineApi, id: str, namespace: str) -> dict[str, Any]:
    return views.job(engine.task(id, namespace=namespace, raw=True))
