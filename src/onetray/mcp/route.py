"""/mcp: the streamable HTTP transport, without sessions, behind the checks of all other routes.

    POST /mcp ─▶ authentication, limits, scope ─▶ namespace ─▶ short_path.py, or the SDK

Owns the namespace of a request: the token's, or on a server without tokens the one that `x-tenant` names.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onetray import __version__
from onetray.domain.checks import text
from onetray.domain.errors import Forbidden, InvalidInput, MissingExtra
from onetray.domain.token import OPERATE, READ, SUBMIT, WORK
from onetray.http.auth.scopes import Principal, allow
from onetray.http.claim_delivery import deliver
from onetray.http.limits.requests import replay
from onetray.http.native_route import GuardedRoute
from onetray.http.services import Services, services_of
from onetray.mcp.call import CALL, Backend, Call, Client
from onetray.mcp.registry import load_tools
from onetray.mcp.short_path import BadRequest, RpcRequest, client_of, error_body, is_short, parse_request, short_answer

if TYPE_CHECKING:
    from types import ModuleType

PREFIX = "/mcp"
VERSION = "mcp-protocol-version"
INTERNAL_ERROR, REFUSED = -32603, -32000
JSON = "application/json"
STAMP = {
    "resultType": "complete",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "onetray", "title": "onetray", "version": __version__}},
}

router = APIRouter(route_class=GuardedRoute)


@router.post(PREFIX, summary="Call a tool, or any other request of MCP", include_in_schema=False)
async def post(request: Request, principal: Principal = Depends(allow(READ, SUBMIT, WORK, OPERATE))) -> Response:  # noqa: B008
    """One JSON-RPC request or notification of the Model Context Protocol. There are no sessions."""
    try:
        rpc = parse_request(await request.body())
    except BadRequest as error:
        return Response(error_body(error.id, error.code, str(error)), 400, media_type=JSON)
    mcp = mcp_of(request)
    call = Call(mcp.backend, in_tenant(principal, request, mcp.services))
    if rpc.id is None:
        # No notification of a client concerns a server without sessions.
        return Response(status_code=202)
    headers = trimmed_headers(request)
    version = headers.get(VERSION)
    if version is None:
        return await mcp.respond(request, call, rpc, is_modern=False)
    sdk = await mcp.sdk()
    if sdk.is_older(version):
        return await mcp.respond(request, call, rpc, is_modern=False)
    refused = sdk.refusal(headers, rpc)
    if refused is not None:
        return Response(error_body(rpc.id, refused.code, refused.message, refused.data), 400, media_type=JSON)
    return await mcp.respond(request, call, rpc, is_modern=True)


def trimmed_headers(request: Request) -> Headers:
    """The headers without the whitespace that HTTP allows around their values, for the SDK, too."""
    headers = [(name, value.strip(b" \t")) for name, value in request.scope["headers"]]
    request.scope["headers"] = headers
    return Headers(raw=headers)


def in_tenant(principal: Principal, request: Request, services: Services) -> Principal:
    """The principal in the namespace that the request names. Raises Forbidden for another one than the token's."""
    named = request.headers.getlist("x-tenant")
    if not named:
        return principal
    if len(named) > 1:
        raise InvalidInput("x-tenant appears more than once: send it once", field="x-tenant")
    try:
        namespace = named[0].encode("latin-1").decode()
    except UnicodeDecodeError:
        raise InvalidInput("x-tenant is not UTF-8: send the namespace in UTF-8", field="x-tenant") from None
    if principal.token is None:
        return replace(principal, namespace=text(namespace, "x-tenant", services.engine.config.limits.name_chars))
    if namespace != principal.namespace:
        raise Forbidden(
            f"the token is for the namespace {principal.namespace!r}: leave x-tenant out, or use a token for the other "
            "namespace"
        )
    return principal


class McpServer:
    """What the requests of one app to /mcp share."""

    def __init__(self, services: Services) -> None:
        self.services = services
        tools = load_tools(services.config.mcp_tools)
        self.backend = Backend(services.unredacted, tools, services.waiting, services.waits)
        self._sdk: ModuleType | None = None
        self._manager: Any = None
        self._ready: asyncio.Event
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None

    async def respond(self, request: Request, call: Call, rpc: RpcRequest, *, is_modern: bool) -> Response:
        delivers = partial(deliver, request, call.principal)
        if not is_short(rpc, call, is_modern=is_modern):
            request.scope[CALL] = replace(call, deliver=delivers)
            return Delegated(await self._manager_here(), await request.body())
        declared = client_of(rpc) if is_modern else {}
        short = replace(call, client=Client(is_gone=request.is_disconnected, **declared), deliver=delivers)
        body, is_error = await short_answer(rpc, short, STAMP if is_modern else {})
        # Older clients read the error of a request only if its status is 200.
        return Response(body, 400 if is_error and is_modern else 200, media_type=JSON)

    async def sdk(self) -> ModuleType:
        """The module that uses the SDK. Imported by the first request that needs it."""
        if self._sdk is None:
            self._sdk = await asyncio.to_thread(_import_sdk)
        return self._sdk

    async def _manager_here(self) -> Any:
        """The SDK's transport, on this loop."""
        sdk, loop = await self.sdk(), asyncio.get_running_loop()
        if self._loop is not loop or self._serving is None or self._serving.done():
            self._loop, self._manager = loop, sdk.http_manager(self.backend, self.services.config)
            self._ready = asyncio.Event()
            # It ends with the loop: a shutdown waits for open requests, and these need it.
            self._serving = asyncio.create_task(self._serve(self._manager, self._ready), name="onetray-mcp")
        await self._ready.wait()
        return self._manager

    async def _serve(self, manager: Any, ready: asyncio.Event) -> None:
        async with manager.run():
            ready.set()
            await asyncio.Event().wait()


_IMPORTING = threading.Lock()


def _import_sdk() -> ModuleType:
    # One thread at a time: of two that import modules which import each other, one may see an unfinished module.
    with _IMPORTING:
        try:
            return import_module("onetray.mcp.transports")
        except ModuleNotFoundError as e:
            if e.name is None or e.name.startswith("onetray"):
                raise
            raise MissingExtra(f"{e.name} is missing: install it with `pip install 'onetray[mcp]'`") from e


class Delegated(Response):
    """A response that the SDK writes: a JSON document or a stream."""

    def __init__(self, manager: Any, body: bytes) -> None:
        super().__init__()
        self._manager, self._sent = manager, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._manager.handle_request(scope, replay(self._sent, receive), send)


def mcp_of(request: Request) -> McpServer:
    state = request.app.state
    if getattr(state, "mcp", None) is None:
        state.mcp = McpServer(services_of(request))
    mcp: McpServer = state.mcp
    return mcp


def rpc_error(problem: dict[str, Any], scope: Scope, headers: dict[str, str] | None = None) -> Response:
    """A problem as an error of JSON-RPC: of authentication, limits, routing."""
    code = INTERNAL_ERROR if problem["status"] >= 500 else REFUSED
    data = {name: value for name, value in problem.items() if name not in ("type", "title", "detail")}
    body = error_body(None, code, str(problem["detail"]), data)
    return Response(body, problem["status"], headers=headers, media_type=JSON)
