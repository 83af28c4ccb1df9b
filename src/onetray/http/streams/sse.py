"""Server-sent events: frames, and a streaming response.

Owns the format and how a stream ends. Routes decide what is sent. protocol.py closes connections that are not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onetray.domain.errors import OnetrayError
from onetray.domain.task import RawJson

logger = logging.getLogger("onetray.http")

HEARTBEAT = b": still here\n\n"
"""A comment: it keeps proxies from closing the connection, and does not change the client's cursor."""
HEADERS = {
    "cache-control": "no-store",
    # Keeps proxies from buffering events.
    "x-accel-buffering": "no",
    "connection": "close",
}

FLOW_CONTROL_BYTES = 16_384
"""After a larger part, wait until the client has read. The transport's own limit is four times this."""

Frames = AsyncGenerator[bytes, None]


def frame(event: str, data: Any, id: str | int | None = None) -> bytes:
    """One event. The data is one line: JSON has line breaks only as escapes."""
    id_line = b"" if id is None else b"id: %s\n" % str(id).encode()
    return b"%sevent: %s\ndata: %s\n\n" % (id_line, event.encode(), orjson.dumps(data, default=_single_line))


def _single_line(value: Any) -> Any:
    """Stored JSON as it is, or rewritten if the user sent it with line breaks."""
    if not isinstance(value, RawJson):
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")
    raw = bytes(value)
    return value.value if b"\n" in raw or b"\r" in raw else orjson.Fragment(raw)


def mark(id: str | int) -> bytes:
    """A cursor without an event: a client sends it when it reconnects, but dispatches nothing."""
    return b"id: %s\n\n" % str(id).encode()


class EventStream(Response):
    """A response that ends when its frames end, its token ends or the client disconnects.

    It sends a heartbeat whenever the frames produced nothing for `heartbeat_s`.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: Frames,
        *,
        leave: Callable[[], Awaitable[object]],
        ended: asyncio.Future[Any],
        heartbeat_s: float,
        heartbeat: Callable[[], bytes] = lambda: HEARTBEAT,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code, self.background = 200, None
        self._frames, self._leave, self._ended = frames, leave, ended
        self._heartbeat_s, self._heartbeat = heartbeat_s, heartbeat
        self.init_headers({**HEADERS, **(headers or {})})

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        self.body = b""
        super().init_headers(headers)
        # The length is unknown.
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            # HEAD returns the headers without opening the stream.
            await self._leave()
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        sending = asyncio.create_task(self._send_all(send))
        disconnected = asyncio.create_task(_until_disconnected(receive))
        try:
            await asyncio.wait((sending, disconnected, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            token_ended = self._ended.done() and not sending.done() and not disconnected.done()
            for task in (sending, disconnected):
                task.cancel()
            await asyncio.gather(sending, disconnected, return_exceptions=True)
            await self._frames.aclose()
            await self._leave()
        if token_ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        if not sending.cancelled() and (error := sending.exception()) is not None and not disconnected.done():
            raise error

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with aclosing(self._parts()) as parts:
                async for part in parts:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                    if len(part) > FLOW_CONTROL_BYTES:
                        # An empty part is sent once there is room again: produce no frame before that.
                        await send({"type": "http.response.body", "body": b"", "more_body": True})
                    # Sending does not always yield: let the disconnect be noticed, and other tasks run.
                    await asyncio.sleep(0)
        except OnetrayError as e:
            # The client has its cursor and reconnects.
            logger.warning("a stream was closed: %s", e)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _parts(self) -> Frames:
        """The frames, with heartbeats in between."""
        while True:
            next_frame = asyncio.ensure_future(anext(self._frames, None))
            try:
                while not (await asyncio.wait((next_frame,), timeout=self._heartbeat_s))[0]:
                    yield self._heartbeat()
                part = next_frame.result()
            finally:
                if not next_frame.done():
                    next_frame.cancel()
                    await asyncio.gather(next_frame, return_exceptions=True)
            if part is None:
                return
            yield part


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
