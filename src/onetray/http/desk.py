"""What routes work with: the engine, called without blocking the loop, and how the server is set up.

Owns the way from a route to the engine. Commands of requests that come together share a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from fastapi import Request

from onetray.client.gathering import gathering_of
from onetray.commands import Command
from onetray.engine import Engine
from onetray.http.bell import Bell
from onetray.http.limits import Streams

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """How a server works. Defaults stand here and nowhere else."""

    host: str = "127.0.0.1"
    port: int = 8321
    dialects: tuple[str, ...] = ("so1",)
    allowed_hosts: tuple[str, ...] = ()
    """Names that a server with tokens may be called by. None: by any."""
    allowed_origins: tuple[str, ...] = ()
    """Pages of browsers that may call a server with tokens: https://jobs.example.org. None: none may."""
    token_cache_s: float = 3.0
    """How long a token that was found good counts as good. So long may a revoked one live on."""
    body_bytes: int = 10_000_000
    body_s: float = 30.0
    """How long the body of a request may take to come."""
    json_depth: int = 64
    requests_per_s: float = 0.0
    """Requests of one token in a second. 0: any number."""
    streams: int = 1_000
    """Open streams on this server."""
    streams_each: int = 100
    """Open streams of one token."""


class Desk:
    """What routes work with: the engine, called without blocking the loop."""

    def __init__(self, engine: Engine, config: HttpConfig) -> None:
        self.engine, self.config = engine, config
        self.bell = Bell(engine.wake)
        self.streams = Streams(config.streams, config.streams_each)

    async def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask the engine something, in a thread."""
        return await asyncio.to_thread(function, *args, **kwargs)

    async def call(self, command: Command) -> Any:
        """Carry out a command, in a transaction with those of other requests; its value, or its error raised."""
        return (await gathering_of(self.engine).call(command)).unwrap()


def desk_of(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk
