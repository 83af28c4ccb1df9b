"""One request and its response on a connection: what the app asks the server for, beside ASGI, and one write for all.

Owns how a response is written. protocol.py parses requests and limits the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HEADER_VALUE_RE, STATUS_LINE, RequestResponseCycle

from onetray.http.request import Headers

if TYPE_CHECKING:
    from starlette.types import Receive, Send

    from onetray.http.limits.protocol import Protocol


class JoinedWrites:
    """The transport of one response: sends its head together with the first part of its body, in one system call."""

    __slots__ = ("_held", "_is_first", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held, self._is_first = b"", True

    def write(self, data: bytes) -> None:
        if self._is_first:
            self._held, self._is_first = data, False
            # A stream may send its first event much later.
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(self._held + data if self._held else data)
            self._held = b""

    def _flush(self) -> None:
        if self._held:
            self._transport.write(self._held)
            self._held = b""

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class Exchange:
    """One request and its response, for the app: see RequestConnection."""

    __slots__ = ("_cycle", "_protocol")

    def __init__(self, cycle: RequestResponseCycle, protocol: Protocol) -> None:
        self._cycle, self._protocol = cycle, protocol

    @property
    def receive(self) -> Receive:
        return self._cycle.receive  # type: ignore[return-value]

    @property
    def send(self) -> Send:
        return self._cycle.send  # type: ignore[return-value]

    @property
    def tasks(self) -> set[Any]:
        """The open requests, each with a `cancel`: the server waits for them when it stops."""
        return self._protocol.tasks

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the rest of the request in a task."""
        self._protocol.spawn(work)

    @property
    def scope(self) -> Any:
        return self._cycle.scope

    def peek_body(self) -> bytes | None:
        """The body, if all of it has arrived. It can still be taken."""
        return None if self._cycle.more_body or self._cycle.disconnected else bytes(self._cycle.body)

    def abort(self) -> None:
        """Close the connection: the client gets no response."""
        self._protocol.transport.abort()

    def take_body(self) -> bytes | None:
        """Does what `cycle.receive` does when it has nothing to wait for."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected:
            return None
        body = bytes(cycle.body)
        cycle.body = bytearray()
        cycle.flow.resume_reading()
        cycle.message_event.clear()
        return body

    @property
    def is_disconnected(self) -> bool:
        return self._cycle.disconnected

    def send_at_once(self, status: int, headers: Headers, body: bytes, more_lines: bytes = b"") -> bool:
        """Does what `cycle.send` does for the two messages of a response with a known length."""
        cycle = self._cycle
        if cycle.response_started or cycle.disconnected or cycle.flow.write_paused or not cycle.keep_alive:
            return False
        lines = [*cycle.default_headers, *headers]
        if HEADER_VALUE_RE.search(b"".join([value for _, value in lines])) or b"connection" in dict(lines):
            return False
        parts = [STATUS_LINE[status], *[b"%s: %s\r\n" % line for line in lines], more_lines, b"\r\n", body]
        cycle.response_started, cycle.waiting_for_100_continue = True, False
        self._protocol.transport.write(b"".join(parts))
        cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()
        return True
