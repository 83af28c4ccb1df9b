"""Agents for tests: real MCP clients, which call tools without `await`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import mcp_types as types
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.support.relayed import relayed_command

MODERN, LEGACY = "2026-07-28", "legacy"


@dataclass
class Agent:
    """A connected client."""

    portal: BlockingPortal
    client: Client

    def result(self, tool: str, /, **arguments: Any) -> types.CallToolResult:
        return self.portal.call(self.client.call_tool, tool, arguments)  # type: ignore[no-any-return]

    def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """The answer of a tool that must succeed."""
        found = self.result(tool, **arguments)
        assert not found.is_error, text_of(found)
        assert found.structured_content is not None
        return found.structured_content

    def refusal(self, tool: str, /, **arguments: Any) -> str:
        """The text of an answer that must be an error."""
        found = self.result(tool, **arguments)
        assert found.is_error, text_of(found)
        return text_of(found)

    def tools(self) -> dict[str, types.Tool]:
        return {tool.name: tool for tool in self.portal.call(self.client.list_tools).tools}

    def submit(self, queue: str, **fields: Any) -> str:
        return str(self.call("submit_job", **{"kind": "review", "queue": queue, **fields})["id"])

    def claim(self, queue: str, worker: str = "ann", **fields: Any) -> dict[str, Any]:
        """The fields that name a claimed task in reports."""
        (task,) = self.call("claim_work", worker=worker, queue=queue, **fields)["tasks"]
        return {"id": task["id"], "fence": task["fence"], "worker": worker}


def text_of(result: types.CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    return content.text


@contextmanager
def agent(target: Any, mode: str = MODERN, **options: Any) -> Iterator[Agent]:
    """A client of a server: a URL, or the parameters of a process."""
    with start_blocking_portal() as portal:
        client = Client(target, mode=mode, read_timeout_seconds=60, **options)
        with portal.wrap_async_context_manager(client):
            yield Agent(portal, client)


@contextmanager
def agent_at(url: str, mode: str = MODERN, headers: Mapping[str, str] | None = None, **options: Any) -> Iterator[Agent]:
    """A client of /mcp at a server, with these headers."""
    http = httpx2.AsyncClient(headers=dict(headers or {}), timeout=60, trust_env=False)
    with agent(streamable_http_client(f"{url}/mcp", http_client=http), mode, **options) as connected:
        yield connected


def process(*words: str, **environment: str) -> StdioServerParameters:
    """`onetray mcp` as a client starts it."""
    command, *arguments = relayed_command("onetray", "mcp", *words)
    return StdioServerParameters(command=command, args=arguments, env={"PATH": "", **environment})
