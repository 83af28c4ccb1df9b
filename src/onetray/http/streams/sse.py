"""Server-sent events on the wire: frames, and an answer that goes on.

Owns the format and the end of a stream. What is told is the route's. Clients that do not read: see protocol.py.
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
"""A comment: it keeps proxies from closing the connection, and moves nobody's cursor."""
HEADERS = {
    "cache-control": "no-store",
    # A proxy that gathers answers would keep events back.
    "x-accel-buffering": "no",
    "connection": "close",
}

LARGE = 16_384
"""Bytes of a part that may have to wait for its client. The transport waits at four times as many."""

Frames = AsyncGenerator[bytes, None]


def frame(event: str, data: Any, id: str | int | None = None) -> bytes:
    """One event. Its data is one line: JSON has no line breaks outside of its escapes."""
    mark = b"" if id is None else b"id: %s\n" % str(id).encode()
    return b"%sevent: %s\ndata: %s\n\n" % (mark, event.encode(), orjson.dumps(data, default=_in_one_line))


def _in_one_line(value: Any) -> Any:
    """What was stored as JSON, as it is; written again where somebody has sent it in several lines."""
    if not isinstance(value, RawJson):
        raise TypeError(f"{type(value).__name__} is no JSON")
    raw = bytes(value)
    return value.value if b"\n" in raw or b"\r" in raw else orjson.Fragment(raw)


def mark(id: str | int) -> bytes:
    """A cursor without an event: whoever reconnects names it, and nothing is dispatched."""
    return b"id: %s\n\n" % str(id).encode()


class EventStream(Response):
    """An answer that goes on until its frames or its token end, or the client has gone.

    When nothing was sent for `heartbeat_s`, whatever the frames leave out, it sends a heartbeat.
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
        # How long it will be is not known.
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            # What the stream would be like: it is not opened.
            await self._leave()
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        told = asyncio.create_task(self._tell(send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait((told, gone, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            cut_off = self._ended.done() and not told.done() and not gone.done()
            for task in (told, gone):
                task.cancel()
            await asyncio.gather(told, gone, return_exceptions=True)
            await self._frames.aclose()
            await self._leave()
        if cut_off:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        if not told.cancelled() and (error := told.exception()) is not None and not gone.done():
            raise error

    async def _tell(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with aclosing(self._parts()) as parts:
                async for part in parts:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                    if len(part) > LARGE:
                        # Nothing, which is sent when there is room again: the next part is not made before.
                        await send({"type": "http.response.body", "body": b"", "more_body": True})
                    # Sending need not wait for anything. Let it be noticed that the client has gone, and let others
                    # speak.
                    await asyncio.sleep(0)
        except OnetrayError as e:
            # The client has its cursor, and connects again.
            logger.warning("a stream was closed: %s", e)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _parts(self) -> Frames:
        """The frames, and a heartbeat whenever nothing was sent for too long."""
        while True:
            following = asyncio.ensure_future(anext(self._frames, None))
            try:
                while not (await asyncio.wait((following,), timeout=self._heartbeat_s))[0]:
                    yield self._heartbeat()
                part = following.result()
            finally:
                if not following.done():
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
            if part is None:
                return
            yield part


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
