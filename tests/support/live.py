"""A server on a real socket, in a thread; and clients of its streams that can be cut off at any moment."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import orjson

from onetray.engine import Engine
from onetray.http.app import build
from onetray.http.limits.connections import Connections
from onetray.http.server import Server, listen
from onetray.http.services import HttpConfig, Services

WAIT_S = 60.0
T = TypeVar("T")


class Live(NamedTuple):
    """A server that runs."""

    port: int
    services: Services
    server: Server
    loop: asyncio.AbstractEventLoop

    @property
    def connections(self) -> Connections:
        return self.server._connections

    def on_loop(self, function: Callable[[], T]) -> T:
        """What a function answers on the server's loop."""

        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(WAIT_S)

    def in_thread(self, function: Callable[[], T]) -> T:
        """What a function answers in one of the threads that requests use."""
        return asyncio.run_coroutine_threadsafe(self.services.read(function), self.loop).result(WAIT_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(engine: Engine, config: HttpConfig | None = None, listening: socket.socket | None = None) -> Iterator[Live]:
    """A server on a free port of the loopback interface, or on a socket that listens already."""
    config = replace(config or HttpConfig(), grace_s=5)
    app, ready, loops = build(engine, config), threading.Event(), []

    def begin() -> None:
        loops.append(asyncio.get_running_loop())
        ready.set()

    server, listening = Server(app, config, ready=begin), listening or listen("127.0.0.1", 0)
    # Signals are the main thread's.
    thread = threading.Thread(target=lambda: asyncio.run(server._serve([listening])), name="live-server", daemon=True)
    thread.start()
    try:
        assert ready.wait(WAIT_S), "the server did not start"
        yield Live(listening.getsockname()[1], app.state.services, server, loops[0])
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive(), "the server did not stop"


class Frame(NamedTuple):
    """One block of a stream: an event, a bare cursor, or a comment."""

    event: str | None = None
    data: Any = None
    id: str | None = None
    comment: str | None = None


class Stream:
    """The client's end of a stream, on a socket of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._rest = b""
        self._blocks: deque[bytes] = deque()
        self.status = 0
        self.headers: dict[str, str] = {}

    async def begin(self) -> None:
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), WAIT_S)
        first, *lines = head.decode().splitlines()
        self.status = int(first.split()[1])
        self.headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines if line)}

    async def frames(self, light: bool = False) -> AsyncIterator[Frame]:
        """Every block, until the server ends the stream. Light ones have no data."""
        while True:
            if not self._blocks:
                chunk = await asyncio.wait_for(self._chunk(), WAIT_S)
                if not chunk:
                    return
                *blocks, self._rest = (self._rest + chunk).split(b"\n\n")
                self._blocks.extend(blocks)
            while self._blocks:
                yield parsed(self._blocks.popleft().decode(), light)

    async def events(self, most: int = 10**9) -> list[Frame]:
        """The events alone, without comments and bare cursors: so many, or all until the end."""
        found: list[Frame] = []
        if most == 0:
            return found
        async for one in self.frames():
            if one.event is not None:
                found.append(one)
                if len(found) == most:
                    break
        return found

    async def _chunk(self) -> bytes:
        size = int(await self._reader.readline() or b"0", 16)
        body = await self._reader.readexactly(size + 2)
        return body[:-2]

    def cut(self) -> None:
        """Be gone, without a word."""
        self._writer.transport.abort()


def parsed(block: str, light: bool = False) -> Frame:
    facts: dict[str, str] = {}
    for line in block.split("\n"):
        name, _, value = line.partition(":")
        facts[name or "comment"] = value.removeprefix(" ")
    data = None if light else facts.get("data")
    return Frame(
        facts.get("event"), None if data is None else orjson.loads(data), facts.get("id"), facts.get("comment")
    )


@asynccontextmanager
async def stream(
    port: int, path: str, last: str | None = None, narrow: bool = False, token: str | None = None
) -> AsyncIterator[Stream]:
    """Open a stream; its connection is cut at the end of the block. A narrow one takes few bytes ahead."""
    plug = socket.socket()
    if narrow:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plug.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plug, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=plug, limit=1024 if narrow else 2**16)
    header = "" if last is None else f"Last-Event-ID: {last}\r\n"
    header += "" if token is None else f"Authorization: Bearer {token}\r\n"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{header}\r\n".encode())
    one = Stream(reader, writer)
    try:
        await one.begin()
        yield one
    finally:
        one.cut()


def told(port: int, path: str, last: str | None = None, most: int = 10**9) -> list[Frame]:
    """The events of a stream: so many, or all until its end."""

    async def read() -> list[Frame]:
        async with stream(port, path, last) as one:
            assert one.status == 200, one.status
            return await one.events(most)

    return asyncio.run(read())
