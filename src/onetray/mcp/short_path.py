"""Answers plain tool calls without the SDK, which needs a task group and several tasks for each request.

Owns which requests it answers: `tools/call` and, for clients that name no protocol version or an older one,
`tools/list` and `ping`. All others, and calls that stream their progress, go to the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from onetray.domain.checks import read_json
from onetray.mcp.call import Call
from onetray.mcp.dispatch import UnknownTool, call_tool

PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS = -32700, -32600, -32602
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
PROGRESS = "progressToken"
LEGACY_METHODS = frozenset({"tools/call", "tools/list", "ping"})


class BadRequest(Exception):
    """Not a JSON-RPC request."""

    def __init__(self, code: int, message: str, id_: str | int | None = None) -> None:
        super().__init__(message)
        self.code, self.id = code, id_


@dataclass(frozen=True, slots=True)
class RpcRequest:
    """A JSON-RPC request; a notification has no id."""

    method: str
    params: dict[str, Any]
    id: str | int | None

    @property
    def meta(self) -> dict[str, Any]:
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}


def parse_request(body: bytes) -> RpcRequest:
    """The request in a body. Raises BadRequest."""
    try:
        sent = read_json(body)
    except (orjson.JSONDecodeError, TypeError) as e:
        raise BadRequest(PARSE_ERROR, f"the body is not valid JSON: {e}") from None
    if not isinstance(sent, dict):
        raise BadRequest(INVALID_REQUEST, "the body must be one JSON-RPC request: send an object, not a batch")
    id_ = sent.get("id")
    if ("id" in sent and not isinstance(id_, str | int)) or isinstance(id_, bool):
        raise BadRequest(INVALID_REQUEST, "id must be text or a whole number")
    if sent.get("jsonrpc") != "2.0" or not isinstance(sent.get("method"), str):
        raise BadRequest(INVALID_REQUEST, 'send {"jsonrpc": "2.0", "id": …, "method": …, "params": {…}}', id_)
    params = sent.get("params")
    if not isinstance(params, dict | None):
        raise BadRequest(INVALID_PARAMS, "params must be an object", id_)
    return RpcRequest(sent["method"], params or {}, id_)


def is_short(request: RpcRequest, call: Call, *, is_modern: bool) -> bool:
    """Whether a request is answered here."""
    if is_modern:
        return request.method == "tools/call" and not _streams(request, call)
    return request.method in LEGACY_METHODS and not _streams(request, call)


def _streams(request: RpcRequest, call: Call) -> bool:
    name = request.params.get("name")
    if request.method != "tools/call" or PROGRESS not in request.meta or not isinstance(name, str):
        return False
    found = call.backend.tools.find(name, call.principal)
    return found is not None and found[1].reports_progress


def client_of(request: RpcRequest) -> Mapping[str, Any]:
    """What a client of 2026-07-28 or later says about itself in each request."""
    capabilities, answers = request.meta.get(CAPABILITIES), request.params.get("inputResponses")
    return {
        "is_modern": True,
        "capabilities": capabilities if isinstance(capabilities, dict) else {},
        "answers": answers if isinstance(answers, dict) else {},
    }


async def short_answer(request: RpcRequest, call: Call, stamp: dict[str, Any]) -> tuple[bytes, bool]:
    """The response to a request, and whether it is an error. `stamp`: what results of newer revisions carry besides."""
    try:
        result = await _result(request, call)
    except UnknownTool as error:
        return error_body(request.id, INVALID_PARAMS, str(error)), True
    return orjson.dumps({"jsonrpc": "2.0", "id": request.id, "result": {**stamp, **result}}), False


async def _result(request: RpcRequest, call: Call) -> dict[str, Any]:
    if request.method == "tools/list":
        return {"tools": orjson.Fragment(call.backend.tools.listed(call.principal))}
    if request.method == "ping":
        return {}
    return await call_tool(call, request.params.get("name"), request.params.get("arguments"))


def error_body(id_: str | int | None, code: int, message: str, data: Any = None) -> bytes:
    error = {"code": code, "message": message} if data is None else {"code": code, "message": message, "data": data}
    return orjson.dumps({"jsonrpc": "2.0", "id": id_, "error": error})
