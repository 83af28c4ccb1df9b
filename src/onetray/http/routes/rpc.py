"""Reads by their names: what the remote client speaks. Whoever writes by hand uses the other routes.

The namespace and the name of the caller are the token's, whatever a body says.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from onetray import __version__
from onetray.domain.checks import read_json, text
from onetray.domain.errors import Forbidden, InvalidInput, NotFound, short_repr
from onetray.domain.policy import Policy
from onetray.domain.token import OPERATE, READ, SCOPES, WORK
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine
from onetray.http.auth.scopes import AtWork, Operator, Principal, allow
from onetray.http.redacted_reads import veiled
from onetray.http.services import Services, services_of
from onetray.remote.reads import ACTS, READS, VEILED, checked
from onetray.remote.value_codec import decode, dumps

# Not in the OpenAPI: what the client and the server tell each other may change together. See docs/remote.md.
router = APIRouter(prefix="/api/v1", tags=["remote"], include_in_schema=False)

MOST_KINDS = 10_000

Anybody = Depends(allow(*SCOPES))
Asker = Depends(allow(READ, WORK))


class CommandReader(Response):
    """Values as the remote client reads them."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dumps(content)


async def json_body(request: Request) -> dict[str, Any]:
    try:
        told = read_json(await request.body())
    except (orjson.JSONDecodeError, TypeError) as e:
        raise InvalidInput(f"the body is no JSON: {e}", field="body") from None
    if not isinstance(told, dict):
        raise InvalidInput(f"the body must be an object, not {short_repr(told)}", field="body")
    return told


@router.get("/whoami", summary="What the token stands for, and the server's limits")
async def whoami(request: Request, who: Principal = Anybody) -> CommandReader:
    config = services_of(request).engine.config
    return CommandReader({
        "name": who.name, "namespace": who.namespace, "scopes": sorted(who.scopes), "version": __version__,
        "limits": asdict(config.limits),
    })  # fmt: skip


@router.post("/reads/{name}", summary="Ask the engine something by the name of the read")
async def reads(request: Request, name: str, who: Principal = Asker) -> CommandReader:
    asked = READS.get(name)
    if asked is None:
        raise NotFound(f"there is no read {short_repr(name)}; there are: {', '.join(READS)}", read=name[:100])
    if not asked.of_workers and not who.has(READ):
        raise Forbidden(f"{name} needs the scope {READ}, which the token {who.name!r} has not", needs=[READ])
    desk, told = services_of(request), await json_body(request)
    value = await _ask(desk, name, told, who)
    if VEILED in request.headers or not who.has(WORK):
        value = await desk.read(veiled, desk.engine, name, told, value)
    return await desk.read(CommandReader, {"value": value})


@router.post("/acts/{name}", summary="Pause a queue, open a breaker, and the like")
async def acts(request: Request, name: str, who: Principal = Operator) -> CommandReader:
    if name not in ACTS:
        raise NotFound(f"there is no act {short_repr(name)}; there are: {', '.join(ACTS)}", act=name[:100])
    desk = services_of(request)
    more = {"by": who.name} if name in ("open_breaker", "pause_queue") else {}
    return CommandReader({"value": await _ask(desk, name, await json_body(request), who, **more)})


async def _ask(desk: Services, name: str, told: dict[str, Any], who: Principal, **more: str) -> Any:
    own = {} if name == "now" else {"namespace": who.namespace}
    return await desk.read(getattr(desk.engine, name), **checked(name, told), **own, **more)


@router.post("/kinds", summary="Declare kinds of tasks with their policies")
async def kinds(request: Request, who: Principal = AtWork) -> CommandReader:
    told, desk = await json_body(request), services_of(request)
    policies = told.get("policies")
    if not isinstance(policies, dict) or len(policies) > MOST_KINDS:
        raise InvalidInput(f"policies must be at most {MOST_KINDS} policies by their kinds", field="policies")
    declared = {kind: decode(Policy, policy, strict=True) for kind, policy in policies.items()}
    return CommandReader({"kept": await desk.read(_declare, desk.engine, declared, who)})


def _declare(engine: Engine, declared: dict[str, Policy], who: Principal) -> dict[str, list[str]]:
    """Declare kinds; the paths that stay redacted, by kind, although the declaration does not name them.

    A worker only adds paths: an old version of an app that starts again must not show what a new one hides. To take
    some away needs somebody who operates the server.
    """
    if who.has(OPERATE):
        engine.declare(declared, namespace=who.namespace)
        return {}
    kept = engine.declare_keeping_redaction(declared, namespace=who.namespace)
    return {kind: paths for kind, paths in kept.items() if paths}


@router.post("/workers/beat", summary="What a worker says about itself")
async def worker_beat(request: Request, who: Principal = AtWork) -> CommandReader:
    desk = services_of(request)
    beat = decode(WorkerBeat, await json_body(request), strict=True)
    await desk.read(desk.engine.worker_beat, beat, namespace=who.namespace)
    return CommandReader({})


@router.post("/workers/leave", summary="A worker has stopped")
async def worker_leave(request: Request, who: Principal = AtWork) -> CommandReader:
    told, desk = await json_body(request), services_of(request)
    name = text(told.get("name"), "name", desk.engine.config.limits.name_chars)
    await desk.read(desk.engine.worker_leave, name, namespace=who.namespace)
    return CommandReader({})
