"""Flows that workers have declared: list, describe, submit and forget them by name."""

from __future__ import annotations

from fastapi import APIRouter, Request

from onetray.http import views
from onetray.http.auth.scopes import Operator, Principal, Reader, Submitter, Worker
from onetray.http.idempotency import key_of, submit_key
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import NativeRoute, accepts, own_key, returns
from onetray.http.openapi import answers
from onetray.http.params import Limit, Name, headers_of_request
from onetray.http.schemas.base import read_model
from onetray.http.schemas.bodies import DeclareFlowBody, ReasonBody, SubmitDeclaredBody
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1/flow-definitions", tags=["flow definitions"], route_class=NativeRoute)


@router.get("", summary="List the declared flows", **returns(answers.DECLARED_FLOWS))
async def list_declared_flows(request: Request, limit: Limit = 1_000, principal: Principal = Reader) -> Json:
    """The flows that workers have declared, by name. `other_version` names a second version that is or was in use."""
    services = services_of(request)
    flows = await services.read(services.engine.declared_flows, namespace=principal.namespace, limit=limit)
    return Json({"flows": to_json(flows)})


@router.post("", summary="Declare a flow", **returns(answers.EMPTY), **accepts(DeclareFlowBody))
async def declare_flow(request: Request, principal: Principal = Worker) -> Json:
    """Workers do this when they start. The last declaration of a name is the current one."""
    services, body = services_of(request), await read_model(request, DeclareFlowBody)
    await services.read(
        services.engine.declare_flow, body.value(), worker=body.worker, renew=body.renew, namespace=principal.namespace
    )
    return Json({})


@router.get("/{name:path}", summary="Get a declared flow", **returns(answers.DECLARED_FLOW))
async def get_declared_flow(request: Request, name: Name, principal: Principal = Reader) -> Json:
    """Returns its stages in order, its rules, and the JSON Schema of its config."""
    services = services_of(request)
    flow = await services.read(services.engine.declared_flow, name, namespace=principal.namespace)
    return Json(to_json(flow))


@router.post("/{name:path}/submit", summary="Submit a declared flow", **accepts(SubmitDeclaredBody, required=False),
             **returns(answers.FLOW_PLACED, 201, also={200: answers.FLOW_PLACED}))  # fmt: skip
@own_key
async def submit_declared_flow(request: Request, name: Name, principal: Principal = Submitter) -> Json:
    """Checks the config against the flow's schema, fills in its defaults, and submits the flow.

    The `Idempotency-Key` is the job's `idempotency_key`: a repeated submit returns the existing job with status 200 and
    `repeated`. A second submit of a singleton is rejected with `already_open`, and `job` is the id of the open one.
    """
    body = await read_model(request, SubmitDeclaredBody)
    command = body.value(name=name, **submit_key(body, key_of(request)), **headers_of_request(request, principal))
    job = await services_of(request).call(command)
    location = {"Location": f"/api/v1/jobs/{job.id}"}
    return Json(views.placed_view(job), status_code=200 if job.repeated else 201, headers=location)


@router.post("/{name:path}/forget", summary="Forget a declared flow", **returns(answers.EMPTY),
             **accepts(ReasonBody, required=False))  # fmt: skip
async def forget_declared_flow(request: Request, name: Name, principal: Principal = Operator) -> Json:
    """Removes the declaration. Its jobs stay. A worker that still has the flow declares it again."""
    services = services_of(request)
    await read_model(request, ReasonBody)
    await services.read(services.engine.forget_flow, name, namespace=principal.namespace)
    return Json({})
