"""Carry out a tool call: find the tool, check its arguments, ask for confirmation, run it, and return its result.

Owns the result of `tools/call`: the JSON text as content and the same as structuredContent; errors with isError. Also
how a call that ends or repeats work is confirmed: by elicitation if the client can do that (one of 2026-07-28 or later
repeats the call with its user's answer, an older one is asked while the call waits), else by `confirm: true`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any

import orjson
from uuid_utils import uuid4

from onetray.domain.errors import Conflict, InvalidInput, OnetrayError
from onetray.http import problems
from onetray.http.json_answers import encoded
from onetray.mcp.arguments import parse_arguments
from onetray.mcp.call import Call
from onetray.mcp.registry import Tool, ToolSet
from onetray.mcp.tasks import task_created

logger = logging.getLogger("onetray.mcp")

Result = dict[str, Any]
"""What orjson writes as the result of a request."""


CONFIRM = "confirm"
FORM = {
    "type": "object",
    "properties": {CONFIRM: {"type": "boolean", "title": "Do it", "default": False}},
    "required": [CONFIRM],
}


class UnknownTool(InvalidInput):
    """The caller has no tool of this name. `tools/list` lists those that it has."""

    code = "unknown_tool"


class Declined(Conflict):
    """The user declined. Do not call again unless the user asks for it."""

    code = "declined"


async def call_tool(call: Call, name: object, arguments: object) -> Result:
    """The result of a tool call. Raises UnknownTool, also for a tool that the caller may not use."""
    found = call.backend.tools.find(name, call.principal) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(call.backend.tools.names(call.principal)) or "none"
        raise UnknownTool(f"there is no tool {str(name)[:50]!r} for you: use one of {known}", field="name")
    tools, tool = found
    try:
        return await _run(call, tool, parse_arguments(tool.arguments, arguments))
    except OnetrayError as error:
        return error_result(tools, error)
    except Exception as error:
        reference = str(uuid4())
        logger.error("the tool %s failed, reference %s", tool.name, reference, exc_info=error)
        return _error(f"InternalError: see reference {reference} in the server's log", {"code": "internal"})


async def _run(call: Call, tool: Tool, arguments: Any) -> Result:
    if tool.confirms is not None and not arguments.confirm:
        answer = await confirmation(call, tool, arguments)
        if answer is not None:
            return answer if "resultType" in answer else result_of(answer)
    if tool.as_task is not None and call.client.has_tasks:
        id_ = await tool.as_task(call, arguments)
        return await asyncio.to_thread(task_created, call, id_)
    if inspect.iscoroutinefunction(tool.handler):
        return result_of(await tool.handler(call, arguments))
    return await asyncio.to_thread(lambda: result_of(tool.handler(call, arguments)))


def result_of(value: Any) -> Result:
    """A value as the result of a tool. It may hold stored JSON, which is not parsed."""
    text = encoded(value)
    return {
        "content": [{"type": "text", "text": text.decode()}],
        "structuredContent": orjson.Fragment(text),
        "isError": False,
    }


def error_result(tools: ToolSet, error: OnetrayError) -> Result:
    """The result of a call that the engine has rejected. Hosts, paths and users of the database stay in the log."""
    facts = problems.of_error(error)
    if facts["detail"] != str(error):
        error = type(error)(facts["detail"])
    shown = {name: value for name, value in facts.items() if name not in ("type", "title", "status", "detail")}
    return _error(tools.error_text(error), {**shown, "message": facts["detail"]})


def _error(text: str, facts: dict[str, Any]) -> Result:
    shown = orjson.Fragment(encoded({"error": facts}))
    return {"content": [{"type": "text", "text": text}], "structuredContent": shown, "isError": True}


async def confirmation(call: Call, tool: Tool, arguments: Any) -> dict[str, Any] | None:
    """None if the caller's user agrees. Otherwise the result to answer with. Raises Declined."""
    assert tool.confirms is not None
    answer = call.client.answers.get(CONFIRM)
    if answer is not None:
        _must_agree(answer)
        return None
    # First: it raises if there is nothing to confirm, such as a job that does not exist.
    effect = await asyncio.to_thread(tool.confirms, call, arguments)
    if call.client.can_elicit and call.client.is_modern:
        asked = {"mode": "form", "message": f"{effect} Go on?", "requestedSchema": FORM}
        requests = {CONFIRM: {"method": "elicitation/create", "params": asked}}
        return {"resultType": "input_required", "inputRequests": requests}
    if call.client.can_elicit and call.client.ask is not None:
        _must_agree(await call.client.ask(f"{effect} Go on?", FORM))
        return None
    return {"done": False, "would": effect, "next": [f"{tool.name} with confirm: true, if that is wanted"]}


def _must_agree(answer: Any) -> None:
    content = answer.get("content") if isinstance(answer, dict) and answer.get("action") == "accept" else None
    if not isinstance(content, dict) or content.get(CONFIRM) is not True:
        raise Declined
