"""Claims, batches of reports, and reads of one task. Single reports are in commands.py.

A report names the fence and the worker of its claim, so a worker can only change tasks that it holds.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request

from onetray.domain import commands as c
from onetray.domain.errors import InvalidInput
from onetray.domain.task import Assignment, Verdict
from onetray.engine.api import EngineApi
from onetray.http import views
from onetray.http.auth.scopes import Principal, Reader, Worker
from onetray.http.claim_delivery import deliver, deliver_at_once, track_request
from onetray.http.claim_waiters import watch_disconnect
from onetray.http.idempotency import free_key_if_unavailable, key_of
from onetray.http.json_answers import Json
from onetray.http.native_route import NativeRoute, Plan, accepts, can_be_short, own_key, returns
from onetray.http.openapi import answers
from onetray.http.params import At, Id, trace_of
from onetray.http.schemas.base import adapter_of, read_model
from onetray.http.schemas.bodies import ClaimBody, ReportsBody
from onetray.http.services import SHARED_COMMANDS, services_of
from onetray.notify.waiters import group_of
from onetray.remote.command_codec import command_from

router = APIRouter(prefix="/api/v1/tasks", tags=["tasks"], route_class=NativeRoute)


def _plan_claim(request: Request, raw: bytes, principal: Principal) -> Plan | None:
    body = adapter_of(ClaimBody).validate_json(raw)
    command: c.Claim = body.value(namespace=principal.namespace)
    if command.request_key is not None or key_of(request) is not None:
        # Such a claim may be repeated: its requests are tracked.
        return None
    services, deadline = services_of(request), time.monotonic() + body.wait_s
    seen = services.engine.wake.work_in([(command.namespace, command.queue)])

    def respond(verdicts: Sequence[Verdict]) -> Json | Coroutine[Any, Any, Json]:
        claimed: list[Assignment] = verdicts[0].unwrap()
        if claimed and not deliver_at_once(request, principal, command, claimed):
            return _answer_claim(request, principal, command, deadline, seen, claimed)
        if not claimed and body.wait_s:
            return _answer_claim(request, principal, command, deadline, seen, claimed)
        return Json(views.answer_view(c.Claim, claimed))

    return Plan((command,), respond)


async def _answer_claim(
    request: Request, principal: Principal, command: c.Claim, deadline: float, seen: int, claimed: list[Assignment]
) -> Json:
    return Json(views.answer_view(c.Claim, await _finish_claim(request, principal, command, deadline, seen, claimed)))


@router.post("/claim", summary="Claim tasks", **returns(answers.CLAIMED), **accepts(ClaimBody))
@own_key
@can_be_short(_plan_claim)
async def claim_tasks(request: Request, principal: Principal = Worker) -> Json:
    """Claims up to `limit` tasks of a queue, highest priority first, then oldest. An empty list is not an error.

    With `wait_s`, waits for a task. The `Idempotency-Key` is the claim's `request_key`: a repeated claim returns the
    same tasks while the worker holds them.
    """
    body = await read_model(request, ClaimBody)
    command = body.value(**_request_key(body, key_of(request)), namespace=principal.namespace)
    return Json(views.answer_view(c.Claim, await _claim(request, principal, command, body.wait_s)))


def _request_key(body: Any, key: str | None) -> dict[str, Any]:
    if key is None or body.request_key == key:
        return {}
    if body.request_key is not None:
        raise InvalidInput("Idempotency-Key and request_key differ: send only one", field="request_key")
    return {"request_key": key}


async def _claim(request: Request, principal: Principal, command: c.Claim, wait_s: float) -> list[Assignment]:
    """Claim tasks, waiting up to `wait_s` for them, and check that the client can receive them."""
    services, deadline = services_of(request), time.monotonic() + wait_s
    with track_request(command):
        seen = services.engine.wake.work_in([(command.namespace, command.queue)])
        claimed: list[Assignment] = await services.call(command)
        return await _finish_claim(request, principal, command, deadline, seen, claimed)


async def _finish_claim(
    request: Request, principal: Principal, command: c.Claim, deadline: float, seen: int, claimed: list[Assignment]
) -> list[Assignment]:
    """Wait for tasks if a claim has found none, and check that the client can receive them."""
    if not claimed and time.monotonic() < deadline:
        claimed = await _wait_and_claim(request, principal, command, deadline, seen)
    return await deliver(request, principal, command, claimed) if claimed else []


async def _wait_and_claim(
    request: Request, principal: Principal, command: c.Claim, deadline: float, seen: int
) -> list[Assignment]:
    """Claim at each wake-up, until the deadline, or until the client disconnects or its token ends."""
    services, queue = services_of(request), (command.namespace, command.queue)
    with (
        services.waits.slot(principal) as may_wait,
        services.waiting.waiter([queue], group_of(command.kinds)) as waiter,
        watch_disconnect(request) as disconnected,
        services.tokens.watching(principal) as ended,
    ):
        while may_wait and (left_s := deadline - time.monotonic()) > 0 and not services.waiting.closed:
            is_woken = await waiter.wait(seen, left_s, disconnected, ended)
            # Claim nothing for a client that cannot receive it.
            if disconnected.done():
                break
            if ended.done():
                raise ended.result()
            if not is_woken:
                continue
            await services.tokens.must_hold(principal)
            seen = waiter.seen()
            claimed: list[Assignment] = await services.call(command)
            waiter.polled(reached_limit=len(claimed) == command.limit)
            if claimed:
                return claimed
    return []


def _plan_reports(request: Request, raw: bytes, principal: Principal) -> Plan | None:
    body = adapter_of(ReportsBody).validate_json(raw)
    if len(body.reports) > SHARED_COMMANDS or key_of(request) is not None:
        return None
    return Plan(_report_commands(request, body, principal), partial(_reported, request, body))


def _report_commands(request: Request, body: Any, principal: Principal) -> list[c.Command]:
    owned = {"namespace": principal.namespace, "trace": trace_of(request)}
    return [command_from(report.describes, {**owned, **report.field_values()}) for report in body.reports]


def _reported(request: Request, body: Any, verdicts: Sequence[Verdict]) -> Json:
    free_key_if_unavailable(request, verdicts)
    return Json({
        "verdicts": [
            views.verdict(verdict, partial(views.answer_view, report.describes, id=report.task))
            for verdict, report in zip(verdicts, body.reports, strict=True)
        ]
    })  # fmt: skip


@router.post("/reports", summary="Send many reports", **returns(answers.REPORTED), **accepts(ReportsBody))
@can_be_short(_plan_reports)
async def report_tasks(request: Request, principal: Principal = Worker) -> Json:
    """Returns one verdict per report, in request order. A rejected report does not affect the others."""
    body = await read_model(request, ReportsBody)
    return _reported(request, body, await services_of(request).run(_report_commands(request, body, principal)))


@router.get("/{id}", summary="Get a task", **returns(answers.TASK))
async def get_task(request: Request, id: Id, at: At = None, principal: Principal = Reader) -> Json:
    """Returns a single task, or a task of a flow. With `at`, as it was right after one of its events."""
    services = services_of(request)
    if at is not None:
        return await services.answer(_task_at, services.engine, id, principal.namespace, at)
    return await services.answer(_task, services.engine, id, principal.namespace)


def _task_at(engine: EngineApi, id: str, namespace: str, at: int) -> dict[str, Any]:
    # Not a flow: it has its own route.
    engine.task(id, namespace=namespace, raw=True)
    return views.past_job(engine.at(id, at, namespace=namespace))


def _task(engine: EngineApi, id: str, namespace: str) -> dict[str, Any]:
    return views.job(engine.task(id, namespace=namespace, raw=True))
