"""HTTP/1.1 on one connection: uvicorn's parser in C, with bounds on bytes and time.

Owns how much a request may say before a route is asked, how long its head may take, and how long its client may leave
the answer unread. Bodies are bounded in requests.py; how many connections there may be, in connections.py.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from onetray.config import HttpConfig
from onetray.http.limits.connections import Connections

logger = logging.getLogger("onetray.http")

MOST = 65_536
"""Bytes of the first line and the headers of a request, and of whatever the parser keeps to itself."""
MOST_AHEAD = 100
"""Requests that a client may send before the one under way is answered. Each takes a hundred times its bytes."""
LEAST_READ = 65_536
"""Bytes that a client has to read of a large answer within `stall_s`."""
RESET = struct.pack("ii", 1, 0)
"""Have the system, too, forget what was not sent when the socket is closed."""


class Protocol(HttpToolsProtocol):
    _head = _kept = 0
    """Bytes of this request's line and headers, and of what was read since the parser told of anything."""
    _in_head = _resumed = False
    _length = b""
    """The headers of this request that say how long its body is."""
    _in_message = _cut = False
    """Whether a request has begun to come and is not whole yet; whether the connection was cut off."""
    _late: asyncio.TimerHandle | None = None
    """Goes off when the head of a request is late."""
    _stalled: asyncio.TimerHandle | None = None
    """Goes off when the client should have read more of its answer."""
    _next: tuple[RequestResponseCycle, Any] | None = None
    """A request that is not begun before the client has read the answer to the one before it."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], http: HttpConfig, all_: Connections
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._http, self._all = http, all_
        self.timeout_keep_alive: float = http.idle_s  # type: ignore[assignment]

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._cut:
            self.cut_off()
        self._arm_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self)
        self._in_time()
        self._disarm_stall()
        self._unset_keepalive_if_required()
        self._next = None
        super().connection_lost(exc)

    def cut_off(self) -> None:
        """Close the connection at once: nothing is sent any more, and nothing is kept to be sent."""
        self._cut = True
        if self.transport is not None:
            if self.unsent:
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()

    def _arm_idle(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_end()

    def shutdown(self) -> None:
        super().shutdown()
        self._watch_end()

    # What comes.

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._kept += len(data)
        try:
            while data:
                data = self._fed(data)
            if self._kept > MOST:
                raise httptools.HttpParserError
        except httptools.HttpParserError:
            self.send_400_response(self._wrong)
        if self._is_waiting:
            self._wait_on()

    def _wait_on(self) -> None:
        """Give the rest of a request its time; after the last of one that was answered before, the next."""
        if not (self._in_message or self._kept):
            self._in_time()
            self._arm_idle()
        elif self._late is None:
            self._arm_late()

    @property
    def _wrong(self) -> str:
        """What a client is told that was refused by the parser."""
        if max(self._head, self._kept) > MOST:
            return f"The line and the headers of a request have at most {MOST:,} bytes: send less."
        if len(self.pipeline) > MOST_AHEAD:
            return f"At most {MOST_AHEAD} requests can be sent before they are answered: wait for some of the answers."
        return "This is no HTTP request: see RFC 9112."

    @property
    def _is_waiting(self) -> bool:
        """Whether no request is under way."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    @property
    def waits_for_body(self) -> bool:
        """Whether the request under way is the one whose body is still to come: it may have been sent ahead."""
        return not self.pipeline

    def _arm_late(self) -> None:
        self._late = self.loop.call_later(self._http.head_s, self._refuse_late)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse_late(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, f"The head of a request did not come within {self._http.head_s:g} s: send it at once.")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, text: str) -> None:
        """Answer what is no request, and close the connection."""
        headers = [*self.server_state.default_headers, (b"content-type", b"text/plain; charset=utf-8"),
                   (b"content-length", b"%d" % len(text)), (b"connection", b"close")]  # fmt: skip
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + text.encode("ascii"))
        self.transport.close()
        self._watch_end()

    def _fed(self, data: bytes) -> bytes:
        """Give it to the parser. What is left belongs to a next request."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as e:
            # No other protocol is spoken here: the request is answered as it is, and the connection goes on as it was.
            self.parser = httptools.HttpRequestParser(self)
            self._resume()
            return data[e.args[0] :]
        return b""

    def _resume(self) -> None:
        """Have the body parsed: the parser left it to the other protocol."""
        if self._length:
            self._resumed = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + self._length + b"\r\n")

    def on_message_begin(self) -> None:
        self._head = self._kept = 0
        self._in_head = self._in_message = True
        if not self._resumed:
            self._length = b""
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        if not self._resumed:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        # What follows a body is no header: the request was let in without it.
        if self._in_head and not self._resumed:
            super().on_header(name, value)
            if name.lower() in (b"content-length", b"transfer-encoding"):
                self._length += name + b": " + value + b"\r\n"

    def on_headers_complete(self) -> None:
        self._in_head, self._kept = False, 0
        if not self._resumed:
            self._in_time()
            self._all.begin_request(self)
            super().on_headers_complete()
            if len(self.pipeline) > MOST_AHEAD:
                raise ValueError("too many requests")
        self._resumed = False

    def on_message_complete(self) -> None:
        # The body of one that asks for another protocol is still to come.
        if not (self.parser.should_upgrade() and self._length):
            self._in_message, self._kept = False, 0
            self._all.end_body(self)
            super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._kept = 0
        super().on_body(body)

    def _count(self, size: int) -> None:
        self._kept = 0
        self._head += size
        if self._head > MOST:
            raise ValueError("too many headers")

    # What is sent.

    @property
    def unsent(self) -> int:
        """Bytes that the client has not taken."""
        return self.transport.get_write_buffer_size()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self.flow.write_paused:
            # Its answer would only be kept beside the one that is not read.
            self._next = cycle, app
            return
        task = self.loop.create_task(cycle.run_asgi(app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(self._watch_end)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_waiting:
            self._all.end_request(self)
            if self._in_message:
                # The rest of this request, or the beginning of the next one, has no more time than a head.
                self._unset_keepalive_if_required()
                self._arm_late()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._arm_stall()
        self._all.mark_unread(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._disarm_stall()
        self._watch_end()
        self._all.mark_read(self)
        if self._next is not None:
            held, self._next = self._next, None
            self._start_asgi_task(*held)

    def _watch_end(self, _: object = None) -> None:
        """A connection that is to be closed stays until its client has read the rest: not for ever."""
        if self.transport.is_closing() and self.unsent and self._stalled is None:
            self._arm_stall()

    def _arm_stall(self) -> None:
        self._disarm_stall()
        self._stalled = self.loop.call_later(self._http.stall_s, self._look_at_reader, self.unsent)

    def _disarm_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _look_at_reader(self, before: int) -> None:
        self._stalled = None
        if before - self.unsent >= LEAST_READ:
            self._arm_stall()
        elif self.unsent:
            logger.info("a connection was cut off: its client did not read its answer for %g s", self._http.stall_s)
            self.cut_off()
