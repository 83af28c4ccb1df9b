"""The server of the SDK: everything of the protocol that short_path.py does not answer itself, over any transport.

Imports the SDK, which takes most of a second: import this module late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mcp_types as types
import orjson
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from onetray import __version__
from onetray.domain.errors import OnetrayError
from onetray.http import problems
from onetray.http.json_answers import encoded
from onetray.mcp import resources, tasks
from onetray.mcp.call import TASKS, Backend, Call, Client
from onetray.mcp.dispatch import call_tool

Context = Any
"""The SDK's context of a request."""
COMPLETE = {"resultType": "complete"}
LISTED = {**COMPLETE, "ttlMs": 60_000, "cacheScope": "private"}
"""How long clients may keep a list. It depends on the token, so it must not be shared."""
READ_NOW = {**COMPLETE, "ttlMs": 0, "cacheScope": "private"}


class TaskParams(types.RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    # Not `InputResponses`: an answer to an unknown question must not fail the request.
    input_responses: dict[str, Any] | None = None


class Handlers:
    """What the SDK calls for each request."""

    def __init__(self, backend: Backend, call_of: Callable[[Context, Client], Call]) -> None:
        self._backend, self._call_of = backend, call_of

    def _call(self, ctx: Context, **client: Any) -> Call:
        declared = ctx.session.client_capabilities
        capabilities = {} if declared is None else declared.model_dump(by_alias=True, exclude_none=True)
        is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        return self._call_of(ctx, Client(is_modern=is_modern, capabilities=capabilities, **client))

    async def list_tools(self, ctx: Context, _: Any) -> Any:
        return {**LISTED, "tools": orjson.loads(self._backend.tools.listed(self._call(ctx).principal))}

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        # The raw params: their answers are kept as the client sent them.
        answers = (ctx.params or {}).get("inputResponses") or {}
        call = self._call(ctx, answers=answers, progress=_progress_of(ctx), ask=_ask_of(ctx))
        with _as_errors():
            result = await call_tool(call, params.name, params.arguments)
        return orjson.loads(orjson.dumps({**COMPLETE, **result}))

    async def list_resources(self, ctx: Context, _: Any) -> Any:
        return {**LISTED, "resources": list(resources.RESOURCES)}

    async def list_templates(self, ctx: Context, _: Any) -> Any:
        return {**LISTED, "resourceTemplates": list(resources.TEMPLATES)}

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> Any:
        call = self._call(ctx)
        with _as_errors(uri=str(params.uri)):
            return {**READ_NOW, "contents": [await call.in_thread(resources.read_resource, call, str(params.uri))]}

    async def get_task(self, ctx: Context, params: TaskParams) -> Any:
        return await self._about_task(ctx, tasks.get_task, params.task_id)

    async def update_task(self, ctx: Context, params: UpdateParams) -> Any:
        return await self._about_task(ctx, tasks.update_task, params.task_id, params.input_responses)

    async def cancel_task(self, ctx: Context, params: TaskParams) -> Any:
        return await self._about_task(ctx, tasks.cancel_task, params.task_id)

    async def _about_task(self, ctx: Context, act: Callable[..., dict[str, Any]], *args: Any) -> Any:
        call = self._call(ctx)
        if not call.client.has_tasks:
            raise MCPError(
                code=MISSING_REQUIRED_CLIENT_CAPABILITY,
                message=f"declare the extension {TASKS} to use tasks",
                data={"requiredCapabilities": {"extensions": {TASKS: {}}}},
            )
        with _as_errors():
            return await call.in_thread(_as_json, act, call, *args)


def build_server(backend: Backend, call_of: Callable[[Context, Client], Call]) -> Server[Any]:
    """A server for these tools. `call_of` says who makes a request."""
    on = Handlers(backend, call_of)
    server: Server[Any] = Server(
        "onetray",
        version=__version__,
        title="onetray",
        instructions=backend.tools.instructions,
        # No tool has parameters in headers, and a lookup saves a listing for each call.
        get_tool_input_schema=lambda name: None,
        on_list_tools=on.list_tools,
        on_call_tool=on.call_tool,
        on_list_resources=on.list_resources,
        on_list_resource_templates=on.list_templates,
        on_read_resource=on.read_resource,
    )
    server.extensions[TASKS] = {}
    server.add_request_handler("tasks/get", TaskParams, on.get_task)
    server.add_request_handler("tasks/update", UpdateParams, on.update_task)
    server.add_request_handler("tasks/cancel", TaskParams, on.cancel_task)
    return server


def _as_json(act: Callable[..., dict[str, Any]], *args: Any) -> Any:
    return orjson.loads(encoded(act(*args)))


class _as_errors:
    """Turns our errors into errors of the protocol, with these facts."""

    def __init__(self, **facts: str) -> None:
        self._facts = facts

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OnetrayError):
            facts = problems.of_error(error)
            data = {name: value for name, value in facts.items() if name not in ("type", "title", "detail")}
            data |= self._facts
            raise MCPError(code=INVALID_PARAMS, message=facts["detail"], data=data) from None


def _progress_of(ctx: Context) -> Any:
    token = ctx.meta.get("progress_token") if ctx.meta else None
    if token is None:
        return None

    async def progress(done: float, total: float | None, message: str | None) -> None:
        await ctx.session.send_progress_notification(token, done, total, message, related_request_id=ctx.request_id)

    return progress


def _ask_of(ctx: Context) -> Any:
    if not ctx.session.can_send_request:
        return None

    async def ask(message: str, form: dict[str, Any]) -> dict[str, Any]:
        answer = await ctx.session.elicit_form(message, form, related_request_id=ctx.request_id)
        return {"action": answer.action, "content": answer.content}

    return ask
