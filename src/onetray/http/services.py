"""The services that routes use: the engine without blocking the event loop, streams, waits, metrics.

Owns how a route calls the engine; its reads are redacted. Commands of concurrent requests share a transaction.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from fastapi import Request

from onetray import otel
from onetray.app.gather_submits import Gathering, gathering_of
from onetray.config import HttpConfig
from onetray.domain.commands import Command
from onetray.domain.errors import OnetrayError, Unavailable
from onetray.domain.task import Verdict
from onetray.engine import Engine
from onetray.http.claim_waiters import ClaimWaiters, WaitSlots
from onetray.http.json_answers import Json
from onetray.http.limits.connections import DEFAULT_CONNECTIONS
from onetray.http.limits.requests import StreamSlots
from onetray.http.observe.metrics import Metrics
from onetray.http.observe.tracing import carry
from onetray.http.streams.hub import Hub

if TYPE_CHECKING:
    from starlette.types import Scope

    from onetray.http.auth.scopes import Principal
    from onetray.http.auth.token_cache import TokenCache
    from onetray.http.auth.token_watch import TokenWatch
logger = logging.getLogger("onetray.http")

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C", bound=Command)
SHARED_COMMANDS = 10
"""Up to this many commands of a request share a transaction with other requests. More get their own."""
READY_S = 2.0
"""How long /readyz waits for the database."""
SERVICES = "onetray.services"
"""Key in a request's scope."""
MAX_KNOWN_KINDS, MAX_UNKNOWN_KINDS = 10_000, 10
CLOSE_S = 1.0
"""How long a shutdown waits for each callback of `closing`."""


class BrowserAccess(Protocol):
    """Authenticates the requests of browsers, which have sessions instead of tokens."""

    def owns(self, path: str) -> bool:
        """Whether a path is one of its pages. All others take tokens only."""

    async def principal(self, scope: Scope, tokens: TokenCache) -> Principal:
        """The caller. Raises Unauthorized."""


class Services:
    """What the routes of one app share."""

    def __init__(self, engine: Engine, config: HttpConfig) -> None:
        self.engine, self.config = engine.redacted, config
        self.unredacted = engine
        """Only for internal reads, and for reads of workers."""
        self.waiting = ClaimWaiters(engine.wake)
        self.hub = Hub(engine)
        self.streams = StreamSlots(config.streams, config.streams_each)
        self.waits = WaitSlots(config.connections or DEFAULT_CONNECTIONS, lambda: self.streams.open)
        self.catching_up = asyncio.Semaphore(max(1, config.threads // 4))
        """Limits the streams that read pages of the feed: other requests need the other threads."""
        self.metrics = Metrics(engine)
        self.metrics.streams = lambda: self.streams.open
        self.ready = Probe(lambda: engine.store.now(), limit_s=READY_S, cached_s=1.0)
        self.scrapes: dict[tuple[str, bool], Probe[bytes]] = {}
        """Metrics by namespace and whether they include those of the process."""
        self.closing: list[Callable[[], object]] = [self.waiting.close, self.hub.close]
        """Called on the loop when the server stops, before it waits for open requests. They may be async."""
        self.stopping = False
        self.keys_in_use: set[tuple[str, str]] = set()
        """Callers and idempotency keys of open requests."""
        self.gatherings: dict[tuple[Callable[..., Any], str], Gathering[Any, Any]] = {}
        """By what they call for a whole batch, and for which items."""
        self._batches: tuple[weakref.ref[asyncio.AbstractEventLoop], Gathering[Command, Verdict]] | None = None
        """Those of the loop that used them last: looking them up costs as much as the rest of a call."""
        self._known_kinds: set[tuple[str, str]] = set()
        """Kinds that were found once, by namespace: nearly all submits are of these."""
        self.browser: BrowserAccess | None = None
        """How the dashboard's pages authenticate; None without a dashboard."""
        self.tokens: TokenWatch
        """Set by the authentication middleware."""

    async def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a blocking function in a thread."""
        return await asyncio.to_thread(function, *args, **kwargs)

    async def answer(self, content: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Json:
        """A response that may be large: a thread reads its content and encodes it."""
        return await self.read(lambda: Json(content(*args, **kwargs)))

    async def unknown_kinds(self, kinds: Iterable[str], namespace: str) -> list[str]:
        """Those that no worker has declared and no job has. Their tasks may wait for ever."""
        new = [kind for kind in dict.fromkeys(kinds) if (namespace, kind) not in self._known_kinds]
        return await self.read(self._unknown_kinds, new[:MAX_UNKNOWN_KINDS], namespace) if new else []

    def knows(self, kind: str, namespace: str) -> bool:
        """Whether a kind is known without a query."""
        return (namespace, kind) in self._known_kinds

    def _unknown_kinds(self, kinds: list[str], namespace: str) -> list[str]:
        unknown = []
        for kind in kinds:
            with suppress(OnetrayError):  # The submit itself is refused, and says why.
                if self.engine.policy_of(kind, namespace=namespace) is None:
                    unknown.append(kind)
                elif len(self._known_kinds) < MAX_KNOWN_KINDS:
                    self._known_kinds.add((namespace, kind))
        return unknown

    async def call(self, command: Command) -> Any:
        """Carry out a command in a transaction shared with other requests. Returns its value or raises its error."""
        with otel.span_around(command.verb, _span_kind(command)) as span:
            self._carry([command], span)
            (verdict,) = await self.commands().put((command,))
            return verdict.unwrap()

    async def call_by(self, work: Callable[[Services, list[C]], Sequence[R]], command: C) -> R:
        """Let a function carry out a command, together with those of other requests: see `gather`."""
        with otel.span_around(command.verb, _span_kind(command)) as span:
            self._carry([command], span)
            return await self.gather(work, command)

    async def run(self, commands: Sequence[Command]) -> list[Verdict]:
        """Carry out the commands of one request. Returns one verdict per command."""
        with otel.span_around("commands", "PRODUCER") as span:
            self._carry(commands, span)
            if len(commands) > SHARED_COMMANDS:
                return await self.read(self.engine.run, commands)
            return list(await self.commands().put(commands))

    def commands(self) -> Gathering[Command, Verdict]:
        """The engine's batches on the running loop."""
        loop = asyncio.get_running_loop()
        if self._batches is None or self._batches[0]() is not loop:
            self._batches = weakref.ref(loop), gathering_of(self.unredacted)
        return self._batches[1]

    async def gather(self, work: Callable[[Services, list[T]], Sequence[R]], item: T, *, beside: str = "") -> R:
        """Call a function in a thread with this item and those of other requests that came meanwhile.

        `beside` names items that need not wait for the others: on PostgreSQL, which has many writers, they run in
        batches of their own.
        """
        name = work, beside if self.unredacted.store.writers > 1 else ""
        gathering = self.gatherings.get(name)
        if gathering is None:
            limit = self.engine.config.limits.batch
            gathering = self.gatherings[name] = Gathering(partial(work, self), limit)
        answer: R = await gathering.call(item)
        return answer

    def _carry(self, commands: Sequence[Command], span: otel.Span | None) -> None:
        carry(commands, None if span is None else span.traceparent)

    async def close(self) -> None:
        """End waiting requests and streams: the server stops."""
        self.stopping = True
        for callback in self.closing:
            try:
                result = callback()
                if isawaitable(result):
                    await asyncio.wait_for(result, CLOSE_S)
            except Exception:
                logger.exception("a shutdown callback failed")


def _span_kind(command: Command) -> str:
    return "PRODUCER" if command.verb.startswith("submit") else "INTERNAL"


def services_of(request: Request) -> Services:
    services: Services = request.scope[SERVICES]
    return services


class Probe(Generic[T]):
    """A query with a timeout, whose callers share one thread: a hanging database costs no more than that."""

    def __init__(self, query: Callable[[], T], *, limit_s: float, cached_s: float = 0.0) -> None:
        self._query, self._limit_s, self._cached_s = query, limit_s, cached_s
        self._task: asyncio.Task[T] | None = None
        self._began = 0.0

    async def answer(self) -> T:
        """Returns an answer that is at most `cached_s` old. Raises Unavailable if the query takes over `limit_s`."""
        now = asyncio.get_running_loop().time()
        if self._task is None or (self._task.done() and now >= self._began + self._cached_s):
            self._began = now
            self._task = asyncio.create_task(_in_daemon_thread(self._query))
        try:
            async with asyncio.timeout_at(self._began + self._limit_s):
                return await asyncio.shield(self._task)
        except TimeoutError:
            raise Unavailable(f"the database did not answer within {self._limit_s:g} s: try again") from None


async def _in_daemon_thread(function: Callable[[], T]) -> T:
    """Call it in a thread that does not delay the end of the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def call() -> None:
        try:
            result = function()
        except Exception as error:
            resolve = partial(done.set_exception, error)
        else:
            resolve = partial(done.set_result, result)
        # The loop may be closed: then nothing waits for the result.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(resolve)

    threading.Thread(target=call, name="onetray-probe", daemon=True).start()
    return await done


__all__ = ["SERVICES", "HttpConfig", "Services", "services_of"]
