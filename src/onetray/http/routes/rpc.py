"""Reads and acts by name, kinds, workers: the routes that only the remote client needs.

Each read and each act of the engine's API has a route, derived from its declaration (engine/reads.py). The token sets
the namespace and the actor's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from onetray import __version__
from onetray.domain.policy import Policy
from onetray.domain.token import ANY_GROUP, OPERATE, SCOPES, WORK
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine
from onetray.engine.api import METHODS, EngineApi
from onetray.engine.reads import ApiMethod
from onetray.http.auth.scopes import Principal, Worker, allow
from onetray.http.native_route import NativeRoute, accepts, own_key, returns
from onetray.http.openapi import answers
from onetray.http.openapi.values import answer_of
from onetray.http.schemas.base import read_model
from onetray.http.schemas.rpc import KindsBody, LeaveBody, WorkerBeatBody, parameters_body
from onetray.http.services import services_of
from onetray.remote.transport import REDACTED
from onetray.remote.value_codec import dumps

router = APIRouter(prefix="/api/v1", tags=["remote"], route_class=NativeRoute)

AnyScope = Depends(allow(*SCOPES))


class ValueResponse(Response):
    """Values in the format of remote/value_codec.py."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dumps(content)


@router.get("/whoami", summary="Get the token's identity and the server's limits", **returns(answers.WHOAMI))
async def whoami(request: Request, principal: Principal = AnyScope) -> ValueResponse:
    """Returns the token's name, namespace, scopes and groups."""
    limits = services_of(request).engine.config.limits
    return ValueResponse({
        "name": principal.name, "namespace": principal.namespace, "scopes": sorted(principal.scopes),
        "groups": [group for group in principal.groups if group != ANY_GROUP],
        "version": __version__, "limits": asdict(limits),
    })  # fmt: skip


def _add_route(method: ApiMethod[Any, Any]) -> None:
    body, allowed = parameters_body(method), Depends(allow(*method.scopes))

    async def call_method(request: Request, principal: Principal = allowed) -> Response:
        services, parameters = services_of(request), await read_model(request, body)
        for name, scope in method.guarded.items():
            if parameters.sent_fields.get(name) is not None:
                await allow(scope)(request)
        # A worker gets unredacted values, as it does from its claims.
        is_unredacted = principal.has(WORK) and REDACTED not in request.headers
        engine: EngineApi = services.unredacted if is_unredacted else services.engine
        call: Callable[..., Any] = getattr(engine, method.name)
        arguments = parameters.sent_fields | method.of_caller(namespace=principal.namespace, by=principal.name)
        return await services.read(lambda: ValueResponse({"value": call(**arguments)}))

    group = "act" if method.writes else "read"
    call_method.__name__, call_method.__doc__ = f"{group}_{method.name}", method.__doc__
    required = any(p.default is p.empty for p in method.parameters.values())
    router.post(
        f"/{group}s/{method.name}",
        summary=f"Call the {group} `{method.name}`",
        **returns(answer_of(method.answer_type)),
        **accepts(body, required=required),
    )(call_method if method.writes else own_key(call_method))


for _method in METHODS.values():
    _add_route(_method)


@router.post("/kinds", summary="Declare kinds and their policies", **returns(answers.KEPT_PATHS), **accepts(KindsBody))
async def declare_kinds(request: Request, principal: Principal = Worker) -> ValueResponse:
    """Without the scope `operate`, the paths that a kind already redacts stay redacted: `kept` lists them."""
    services, body = services_of(request), await read_model(request, KindsBody)
    declared = {kind: Policy(**policy.model_dump(exclude_unset=True)) for kind, policy in body.policies.items()}
    return ValueResponse({"kept": await services.read(_declare, services.unredacted, declared, principal)})


def _declare(engine: Engine, declared: dict[str, Policy], principal: Principal) -> dict[str, list[str]]:
    """Declare kinds. Returns, by kind, the paths that stay redacted although the declaration lacks them.

    A worker only adds paths: when an old version of an app restarts, it must not reveal what a newer one redacts. Only
    an operator removes paths.
    """
    if principal.has(OPERATE):
        engine.declare(declared, namespace=principal.namespace)
        return {}
    kept = engine.declare_keeping_redaction(declared, namespace=principal.namespace)
    return {kind: paths for kind, paths in kept.items() if paths}


@router.post("/workers/beat", summary="Register a worker", **returns(answers.EMPTY), **accepts(WorkerBeatBody))
async def beat_worker(request: Request, principal: Principal = Worker) -> ValueResponse:
    """Repeat it within `ttl_s`, or the worker counts as lost. It renews no lease: the report `beat` does."""
    services, body = services_of(request), await read_model(request, WorkerBeatBody)
    beat = WorkerBeat(**body.sent_fields)
    await services.read(services.engine.worker_beat, beat, namespace=principal.namespace)
    return ValueResponse({})


@router.post("/workers/leave", summary="Unregister a worker", **returns(answers.EMPTY), **accepts(LeaveBody))
async def leave_worker(request: Request, principal: Principal = Worker) -> ValueResponse:
    """Removes a worker that has stopped from the list of workers."""
    services, body = services_of(request), await read_model(request, LeaveBody)
    await services.read(services.engine.worker_leave, body.name, namespace=principal.namespace)
    return ValueResponse({})
