"""Call: one tool call, with its caller, the engine, and what its client can do.

Owns how a tool reaches the engine: in the caller's namespace and name, on the event loop or in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from onetray.app.gather_submits import gathering_of
from onetray.domain.commands import Command
from onetray.domain.task import Assignment
from onetray.engine.api import EngineApi
from onetray.http.auth.scopes import Principal
from onetray.http.claim_waiters import ClaimWaiters, WaitSlots
from onetray.http.observe.tracing import carry

if TYPE_CHECKING:
    from onetray.mcp.registry import Registry

T = TypeVar("T")
Verb = Callable[..., Command]
Deliver = Callable[[Command, list[Assignment]], Awaitable[list[Assignment]]]
Progress = Callable[[float, float | None, str | None], Awaitable[None]]
Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
CALL = "onetray.mcp.call"
"""Key in the scope of an HTTP request: its call, for the handlers of the SDK."""
ELICITATION, TASKS = "elicitation", "io.modelcontextprotocol/tasks"


class Backend:
    """What all calls of one server share."""

    def __init__(
        self, engine: EngineApi, tools: Registry, waiting: ClaimWaiters, waits: WaitSlots | None = None
    ) -> None:
        self.engine, self.tools, self.waiting, self.waits = engine.redacted, tools, waiting, waits
        self.unredacted = engine


@dataclass(frozen=True, slots=True)
class Client:
    """What the client of one request has declared, and how to reach it while the request is open."""

    is_modern: bool = False
    """Whether it speaks 2026-07-28 or later: it repeats a request with its answers instead of being asked."""
    capabilities: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    """Its `inputResponses`, by our names of the questions."""
    progress: Progress | None = None
    """Sends a progress notification. None: it has not asked for any."""
    ask: Ask | None = None
    """Shows a form to its user. Returns the user's action, with the content."""
    is_gone: Callable[[], Awaitable[bool]] | None = None
    """Whether it has disconnected."""

    @property
    def can_elicit(self) -> bool:
        form = self.capabilities.get(ELICITATION)
        # An empty object stands for forms: the only mode that there was before modes were named.
        return isinstance(form, dict) and ("form" in form or not form)

    @property
    def has_tasks(self) -> bool:
        extensions = self.capabilities.get("extensions")
        return self.is_modern and isinstance(extensions, dict) and TASKS in extensions


@dataclass(frozen=True, slots=True)
class Call:
    """One request. Reads are redacted."""

    backend: Backend
    principal: Principal
    client: Client = field(default_factory=Client)
    deliver: Deliver | None = None
    """Checks that the client can still receive claimed tasks, and releases them if it cannot."""

    @property
    def engine(self) -> EngineApi:
        return self.backend.engine

    @property
    def namespace(self) -> str:
        return self.principal.namespace

    def may(self, *tools: str) -> list[str]:
        """Those of these tools that the caller may use."""
        return [name for name in tools if self.backend.tools.find(name, self.principal) is not None]

    def read(self, read: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a read of the engine in the caller's namespace. It blocks."""
        return read(*args, namespace=self.namespace, **options)

    async def in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Call a blocking function from an async tool."""
        return await asyncio.to_thread(function, *args)

    def run(self, verb: Verb, *args: Any, **fields: Any) -> Any:
        """Carry out a command in the caller's name. Returns its value or raises its error. It blocks."""
        return self.engine.call(self.command(verb, *args, **fields))

    async def do(self, verb: Verb, *args: Any, **fields: Any) -> Any:
        """The same on the event loop, in a transaction that it shares with other requests."""
        return await self.send(self.command(verb, *args, **fields))

    async def send(self, command: Command) -> Any:
        return (await gathering_of(self.backend.unredacted).call(command)).unwrap()

    def run_all(self, *commands: Command) -> list[Any]:
        """Carry out commands together, in this order. Returns their values, or raises the first error. It blocks."""
        return [verdict.unwrap() for verdict in self.engine.run(commands)]

    def checkpoint(self, task: str) -> Any:
        """The last checkpoint of a task, also if it is redacted: for its worker, or to decide by. It blocks."""
        return self.read(self.backend.unredacted.last_checkpoint, task)

    def command(self, verb: Verb, *args: Any, **fields: Any) -> Any:
        if "actor_name" in verb.__dataclass_fields__:  # type: ignore[attr-defined]
            fields["actor_name"] = self.principal.name
        if "actor_groups" in verb.__dataclass_fields__:  # type: ignore[attr-defined]
            fields["actor_groups"] = self.principal.groups
        command = verb(*args, namespace=self.namespace, **fields)
        carry([command])
        return command
