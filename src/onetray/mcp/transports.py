"""The SDK's transports: stdio for one client that has started this process, HTTP without sessions for route.py.

Imports the SDK, which takes most of a second: import this module late.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import (
    MCP_NAME_HEADER,
    InboundLadderRejection,
    classify_inbound_request,
    decode_header_value,
    find_duplicated_routing_header,
)
from mcp_types import HEADER_MISMATCH
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers

from onetray.config import HttpConfig
from onetray.engine.api import EngineApi
from onetray.http.auth.scopes import Principal
from onetray.http.claim_waiters import ClaimWaiters
from onetray.mcp.call import CALL, Backend, Call, Client
from onetray.mcp.registry import Registry
from onetray.mcp.server import build_server
from onetray.mcp.short_path import RpcRequest

OF_TASKS = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})


def serve_stdio(engine: EngineApi, tools: Registry, principal: Principal) -> None:
    """Serve until the client closes stdin."""
    anyio.run(_serve_stdio, engine, tools, principal)


async def _serve_stdio(engine: EngineApi, tools: Registry, principal: Principal) -> None:
    backend = Backend(engine, tools, ClaimWaiters(engine.wake))
    call = Call(backend, principal)

    def call_of(_: Any, client: Client) -> Call:
        return replace(call, client=client)

    server = build_server(backend, call_of)
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())


def http_manager(backend: Backend, config: HttpConfig) -> StreamableHTTPSessionManager:
    """A transport without sessions. Hosts, origins and bodies were checked before."""

    def call_of(ctx: Any, client: Client) -> Call:
        call: Call = ctx.request.scope[CALL]
        return replace(call, client=client)

    server = build_server(backend, call_of)
    return StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=config.body_bytes)


def refusal(headers: Headers, rpc: RpcRequest) -> InboundLadderRejection | None:
    """Why a request of 2026-07-28 or later is refused: headers and envelope must name the same version and method."""
    duplicated = find_duplicated_routing_header(headers.items())
    if duplicated is not None:
        return InboundLadderRejection(HEADER_MISMATCH, f"{duplicated} header appears more than once")
    body = {"method": rpc.method, "params": rpc.params}
    verdict = classify_inbound_request(body, headers=dict(headers))
    if isinstance(verdict, InboundLadderRejection):
        return verdict
    # The SDK compares the names of core requests only.
    named = headers.get(MCP_NAME_HEADER)
    if rpc.method in OF_TASKS and named is not None and decode_header_value(named) != rpc.params.get("taskId"):
        return InboundLadderRejection(HEADER_MISMATCH, f"{MCP_NAME_HEADER} header does not match the taskId")
    return None


def is_older(version: str) -> bool:
    """Whether a revision of the protocol begins with a handshake."""
    return version in HANDSHAKE_PROTOCOL_VERSIONS
