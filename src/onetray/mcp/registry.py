"""Tools and tool sets: what a server offers to agents, and which of them a caller may see.

A tool set is a package with a value `TOOL_SET`; TOOL_SETS names its module. Owns the rule that a caller without the
scopes of a tool does not learn that it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import orjson

from onetray.config import TOOL_SETS
from onetray.domain.errors import InvalidInput, OnetrayError
from onetray.domain.token import READ
from onetray.http.auth.scopes import Principal
from onetray.mcp.arguments import Arguments, input_schema

if TYPE_CHECKING:
    from onetray.mcp.call import Call

BOTH, NONE = "both", "none"


@dataclass(frozen=True)
class Tool:
    """One tool: what a model reads about it, who may call it, and what it does."""

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    handler: Callable[[Call, Any], Any]
    """Takes the call and the checked arguments, and returns a JSON value. A plain function runs in a thread; an async
    one runs on the event loop and must not block."""
    scopes: tuple[str, ...]
    """The caller needs all of these."""
    output: dict[str, Any] | None = None
    """The JSON Schema of its result, which must be an object then."""
    destructive: bool = False
    idempotent: bool = False
    confirms: Callable[[Call, Any], str] | None = None
    """Says what the call would do. The tool runs only once the caller has confirmed it: see dispatch.py."""
    reports_progress: bool = False
    """Whether it sends progress notifications to a caller who asked for them."""
    as_task: Callable[[Call, Any], Any] | None = None
    """Begins the work and returns the id of its job, for callers who come back for the result: see tasks.py."""

    @property
    def reads_only(self) -> bool:
        return self.scopes == (READ,)

    @cached_property
    def description_json(self) -> dict[str, Any]:
        """The tool as `tools/list` shows it."""
        annotations = {
            "title": self.title, "readOnlyHint": self.reads_only, "destructiveHint": self.destructive,
            "idempotentHint": self.reads_only or self.idempotent, "openWorldHint": False,
        }  # fmt: skip
        shown = {
            "name": self.name, "title": self.title, "description": self.description,
            "inputSchema": input_schema(self.arguments), "annotations": annotations,
        }  # fmt: skip
        return shown if self.output is None else {**shown, "outputSchema": self.output}

    def is_for(self, principal: Principal) -> bool:
        return all(principal.has(scope) for scope in self.scopes)


@dataclass(frozen=True)
class ToolSet:
    """Tools that belong together."""

    name: str
    instructions: str
    """For the model: how to use the set."""
    tools: tuple[Tool, ...]
    error_text: Callable[[OnetrayError], str]
    """The text of a tool error. Errors of other types are bugs: the caller gets a reference to the log."""


class Registry:
    """The tools of one server."""

    def __init__(self, sets: Iterable[ToolSet]) -> None:
        self.sets = tuple(sets)
        self._tools: dict[str, tuple[ToolSet, Tool]] = {}
        for each in self.sets:
            for tool in each.tools:
                if tool.name in self._tools:
                    raise RuntimeError(f"two tool sets have a tool {tool.name}")
                self._tools[tool.name] = (each, tool)
        self._listed: dict[frozenset[str], bytes] = {}

    @property
    def instructions(self) -> str:
        return "\n\n".join(each.instructions for each in self.sets)

    def find(self, name: str, principal: Principal) -> tuple[ToolSet, Tool] | None:
        """A tool that this caller may use."""
        found = self._tools.get(name)
        return found if found is not None and found[1].is_for(principal) else None

    def names(self, principal: Principal) -> list[str]:
        return [name for name, (_, tool) in self._tools.items() if tool.is_for(principal)]

    def listed(self, principal: Principal) -> bytes:
        """The tools that a caller may use, as the JSON array of `tools/list`."""
        scopes = principal.scopes
        if scopes not in self._listed:
            shown = [tool.description_json for _, tool in self._tools.values() if tool.is_for(principal)]
            self._listed[scopes] = orjson.dumps(shown)
        return self._listed[scopes]


def load_tools(names: str) -> Registry:
    """The registry of the named tool sets: one of them, `both` for all, or `none`. Raises InvalidInput."""
    chosen = {BOTH: tuple(TOOL_SETS), NONE: ()}.get(names, (names,))
    unknown = [name for name in chosen if name not in TOOL_SETS]
    if unknown:
        raise InvalidInput(f"there is no tool set {unknown[0]!r}: use {', '.join(TOOL_SETS)} or both", field="tools")
    return Registry(import_module(TOOL_SETS[name]).TOOL_SET for name in chosen)
