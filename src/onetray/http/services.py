"""What routes work with: the engine, called without blocking the loop, and how the server is set up.

Owns the way from a route to the engine, and that a route has the one whose answers are redacted. Commands of requests
that come together share a transaction.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from fastapi import Request

from onetray import otel
from onetray.app.gather_submits import gathering_of
from onetray.config import HttpConfig
from onetray.domain.commands import Command
from onetray.domain.errors import Unavailable
from onetray.domain.task import Verdict
from onetray.engine import Engine
from onetray.http.claim_waiters import ClaimWaiters, WaitSlots
from onetray.http.json_answers import Json
from onetray.http.limits.connections import MAX_UNASKED
from onetray.http.limits.requests import StreamSlots
from onetray.http.observe.metrics import Metrics
from onetray.http.observe.tracing import carry
from onetray.http.streams.hub import Hub

if TYPE_CHECKING:
    from onetray.http.auth.token_watch import TokenWatch
logger = logging.getLogger("onetray.http")

P = ParamSpec("P")
T = TypeVar("T")
FEW = 10
"""So many commands of one request share a transaction with those of other requests. More are one of their own."""
READY_S = 2.0
"""How long the database may take to say that it is there."""
TELL_S = 1.0
"""How long one of those who are told of a stop may take."""


class Services:
    """What routes work with: the engine, called without blocking the loop."""

    def __init__(self, engine: Engine, config: HttpConfig) -> None:
        self.engine, self.config = engine.redacted, config
        self.unredacted = engine
        """For what never leaves the server, and for workers' own reads. Nothing that it answers is shown to others."""
        self.waiting = ClaimWaiters(engine.wake)
        self.hub = Hub(engine)
        self.streams = StreamSlots(config.streams, config.streams_each)
        self.waits = WaitSlots(config.connections or MAX_UNASKED, lambda: self.streams.open)
        self.catching_up = asyncio.Semaphore(max(1, config.threads // 4))
        """Streams that read pages of the feed at the same time: the other threads are for other requests."""
        self.metrics = Metrics(engine)
        self.metrics.streams = lambda: self.streams.open
        self.ready = Probe(lambda: engine.store.now(), limit_s=READY_S, kept_s=1.0)
        self.scrapes: dict[tuple[str, bool], Probe[bytes]] = {}
        """The metrics of each name space."""
        self.closing: list[Callable[[], object]] = [self.waiting.close, self.hub.close]
        """Called on the loop when the server is to stop, before open requests are waited for. They may be async."""
        self.stopping = False
        self.keys_in_use: set[tuple[str, str]] = set()
        """Callers and the keys of their requests that are being carried out here."""
        self.tokens: TokenWatch
        """Set by the gate, which knows the tokens."""

    async def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask the engine something, in a thread."""
        return await asyncio.to_thread(function, *args, **kwargs)

    async def answer(self, make: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Json:
        """An answer that may be large: what it tells is read, and written as JSON, in a thread."""
        return await self.read(lambda: Json(make(*args, **kwargs)))

    async def call(self, command: Command) -> Any:
        """Carry out a command, in a transaction with those of other requests; its value, or its error raised."""
        with otel.span_around(command.verb, "PRODUCER" if command.verb.startswith("submit") else "INTERNAL") as span:
            self._carry([command], span)
            return (await gathering_of(self.unredacted).call(command)).unwrap()

    async def run(self, commands: Sequence[Command]) -> list[Verdict]:
        """Carry out the commands of one request, each with its own verdict."""
        with otel.span_around("commands", "PRODUCER") as span:
            self._carry(commands, span)
            if len(commands) > FEW:
                return await self.read(self.engine.run, commands)
            gathering = gathering_of(self.unredacted)
            return list(await asyncio.gather(*map(gathering.call, commands)))

    def _carry(self, commands: Sequence[Command], span: otel.Span | None) -> None:
        carry(commands, None if span is None else span.traceparent)

    async def close(self) -> None:
        """Tell all who wait, or keep somebody waiting, that the server stops."""
        self.stopping = True
        for tell in self.closing:
            try:
                told = tell()
                if isawaitable(told):
                    await asyncio.wait_for(told, TELL_S)
            except Exception:
                logger.exception("somebody could not be told that the server stops")


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


class Probe(Generic[T]):
    """One such question. It runs on the loop, but for the asking itself."""

    def __init__(self, ask: Callable[[], T], *, limit_s: float, kept_s: float = 0.0) -> None:
        self._ask, self._limit_s, self._kept_s = ask, limit_s, kept_s
        self._asked: asyncio.Task[T] | None = None
        self._began = 0.0

    async def answer(self) -> T:
        """The answer, at most `kept_s` old. Unavailable if it does not come within `limit_s` of the asking."""
        now = asyncio.get_running_loop().time()
        if self._asked is None or (self._asked.done() and now >= self._began + self._kept_s):
            self._began = now
            self._asked = asyncio.create_task(_in_thread(self._ask))
        try:
            async with asyncio.timeout_at(self._began + self._limit_s):
                return await asyncio.shield(self._asked)
        except TimeoutError:
            raise Unavailable(f"the database does not answer within {self._limit_s:g} s: try again") from None


async def _in_thread(function: Callable[[], T]) -> T:
    """Call it in a thread that the end of the process does not wait for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def call() -> None:
        try:
            result = function()
        except Exception as error:
            tell = partial(done.set_exception, error)
        else:
            tell = partial(done.set_result, result)
        # The loop may be closed: nobody waits then.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=call, name="onetray-probe", daemon=True).start()
    return await done


__all__ = ["HttpConfig", "Services", "services_of"]
