"""Reads and acts by name, kinds, workers: what a remote client needs besides commands.

Each read and each act of the engine's API has a route, made from its declaration (engine/reads.py). The namespace and
the name of the caller are the token's, whatever a body says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from onetray import __version__
from onetray.domain.policy import Policy
from onetray.domain.token import OPERATE, SCOPES, WORK
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine
from onetray.engine.api import METHODS, EngineApi
from onetray.engine.reads import ApiMethod
from onetray.http.auth.scopes import AtWork, Principal, allow
from onetray.http.native_route import NativeRoute, gives, own_key, takes
from onetray.http.openapi import answers
from onetray.http.openapi.values import answer_of
from onetray.http.schemas.base import read_model
from onetray.http.schemas.rpc import KindsBody, LeaveBody, WorkerBeatBody, parameters_body
from onetray.http.services import services_of
from onetray.remote.transport import REDACTED
from onetray.remote.value_codec import dumps

router = APIRouter(prefix="/api/v1", tags=["remote"], route_class=NativeRoute)

Anybody = Depends(allow(*SCOPES))


class CommandReader(Response):
    """Values as the remote client reads them."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dumps(content)


@router.get("/whoami", summary="Who the token is, and the server's limits", **gives(answers.WHO))
async def whoami(request: Request, principal: Principal = Anybody) -> CommandReader:
    """Its name, its namespace, its scopes."""
    config = services_of(request).engine.config
    return CommandReader({
        "name": principal.name, "namespace": principal.namespace, "scopes": sorted(principal.scopes), "version": __version__,
        "limits": asdict(config.limits),
    })  # fmt: skip


def _add(method: ApiMethod[Any, Any]) -> None:
    """The route of one read or act."""
    body, allowed = parameters_body(method), Depends(allow(*method.scopes))

    async def ask(request: Request, principal: Principal = allowed) -> Response:
        services, parameters = services_of(request), await read_model(request, body)
        # A worker gets the real values, as it does with its claims.
        real = principal.has(WORK) and REDACTED not in request.headers
        engine: EngineApi = services.unredacted if real else services.engine
        call: Callable[..., Any] = getattr(engine, method.name)
        arguments = parameters.sent_fields | method.of_caller(namespace=principal.namespace, by=principal.name)
        return await services.read(lambda: CommandReader({"value": call(**arguments)}))

    group = "act" if method.writes else "read"
    ask.__name__, ask.__doc__ = f"{group}_{method.name}", method.__doc__
    required = any(p.default is p.empty for p in method.parameters.values())
    router.post(
        f"/{group}s/{method.name}",
        summary=f"{group.title()} `{method.name}`",
        **gives(answer_of(method.answer_type)),
        **takes(body, required=required),
    )(ask if method.writes else own_key(ask))


for _method in METHODS.values():
    _add(_method)


@router.post("/kinds", summary="Declare kinds of tasks with their policies", **gives(answers.KEPT), **takes(KindsBody))
async def declare_kinds(request: Request, principal: Principal = AtWork) -> CommandReader:
    """Without the scope `operate`, paths that a kind redacts already stay redacted: `kept` names them."""
    services, body = services_of(request), await read_model(request, KindsBody)
    declared = {kind: Policy(**policy.sent_fields) for kind, policy in body.policies.items()}
    return CommandReader({"kept": await services.read(_declare, services.unredacted, declared, principal)})


def _declare(engine: Engine, declared: dict[str, Policy], principal: Principal) -> dict[str, list[str]]:
    """Declare kinds; the paths that stay redacted, by kind, although the declaration does not name them.

    A worker only adds paths: an old version of an app that starts again must not show what a new one hides. To take
    some away needs somebody who operates the server.
    """
    if principal.has(OPERATE):
        engine.declare(declared, namespace=principal.namespace)
        return {}
    kept = engine.declare_keeping_redaction(declared, namespace=principal.namespace)
    return {kind: paths for kind, paths in kept.items() if paths}


@router.post(
    "/workers/beat", summary="Register a worker, again and again", **gives(answers.DONE), **takes(WorkerBeatBody)
)
async def beat_worker(request: Request, principal: Principal = AtWork) -> CommandReader:
    """A worker that has not done so for `ttl_s` counts as gone. It renews no lease: `beat` does, at its tasks."""
    services, body = services_of(request), await read_model(request, WorkerBeatBody)
    beat = WorkerBeat(**body.sent_fields)
    await services.read(services.engine.worker_beat, beat, namespace=principal.namespace)
    return CommandReader({})


@router.post("/workers/leave", summary="Take a worker off the list", **gives(answers.DONE), **takes(LeaveBody))
async def leave_worker(request: Request, principal: Principal = AtWork) -> CommandReader:
    """It has stopped."""
    services, body = services_of(request), await read_model(request, LeaveBody)
    await services.read(services.engine.worker_leave, body.name, namespace=principal.namespace)
    return CommandReader({})
