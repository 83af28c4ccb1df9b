"""HTTP/1.1 on one connection: uvicorn's C parser, with limits on size and time.

Owns the size of a request head, the time it may take to arrive, and the time that a client may leave its response
unread. requests.py limits bodies, connections.py the number of connections.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from onetray.config import HttpConfig
from onetray.http.limits.connections import Connections
from onetray.http.limits.exchange import Exchange, JoinedWrites
from onetray.http.request import CONNECTION

if TYPE_CHECKING:
    from onetray.http.short_requests import ShortRequests

logger = logging.getLogger("onetray.http")

MAX_HEAD_BYTES = 65_536
"""Size of a request line with its headers, and of the data that the parser may buffer."""
MAX_PIPELINED = 100
"""Pipelined requests. Each takes about a hundred times its size in memory."""
MIN_PROGRESS_BYTES = 65_536
"""A client must read at least this much of a large response within `stall_s`."""
LATE_S, MAX_LATE_BYTES = 0.02, 16_384
"""How long a request that may be a short one waits for its body, and how much of an incomplete body there may be."""
LENGTH_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
LINGER_ZERO = struct.pack("ii", 1, 0)
"""SO_LINGER value: on close, the kernel discards unsent data, too."""


class Protocol(HttpToolsProtocol):
    _head_bytes = _buffered = 0
    """Size of the current request line and headers; bytes read since the last callback of the parser."""
    _in_head = _reparsing = False
    _length_headers = b""
    """The current request's Content-Length and Transfer-Encoding headers."""
    _is_feeding = False
    """Whether the parser is being fed."""
    _unstarted: RequestResponseCycle | None = None
    """A request that may be a short one, until its body is complete."""
    _late_timer: asyncio.TimerHandle | None = None
    """Starts it the usual way, which limits the time for a body."""
    _in_message = _is_cut_off = False
    """Whether a request has been received in part; whether the server closed the connection."""
    _idle_since: float | None = None
    """When the connection became idle, by the loop's clock; None while it is not."""
    _idle_timer: asyncio.TimerHandle | None = None
    """Closes an idle connection. It runs on during requests, and looks at `_idle_since` when it fires: starting and
    cancelling one for each request took a twentieth of its time."""
    _head_timer: asyncio.TimerHandle | None = None
    """Fires when a request head takes too long."""
    _stall_timer: asyncio.TimerHandle | None = None
    """Fires when the client has read too little of its response."""
    _deferred: tuple[RequestResponseCycle, Any] | None = None
    """A pipelined request that waits until the client has read the previous response."""

    def __init__(
        self, config: Config, state: ServerState, app_state: dict[str, Any], http: HttpConfig, connections: Connections
    ) -> None:
        super().__init__(config, state, app_state)
        self._http, self._connections = http, connections
        self._short: ShortRequests | None = getattr(config.loaded_app, "short_requests", None)

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._is_cut_off:
            self.cut_off()
        self._start_idle_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        self._stop_head_timer()
        self._stop_stall_timer()
        self._stop_idle_timer()
        self._deferred = None
        super().connection_lost(exc)
        if self._unstarted is not None:
            self._start_unstarted()

    def cut_off(self) -> None:
        """Close the connection at once and discard unsent data."""
        self._is_cut_off = True
        if self.transport is not None:
            if self.unsent:
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
            self.transport.abort()

    def _start_idle_timer(self) -> None:
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self._http.idle_s, self._close_if_idle)

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _close_if_idle(self) -> None:
        self._idle_timer = None
        if self._idle_since is None:
            return  # The end of the request starts it again.
        end = self._idle_since + self._http.idle_s
        if end > self.loop.time():
            self._idle_timer = self.loop.call_at(end, self._close_if_idle)
            return
        self.timeout_keep_alive_handler()
        self._watch_end()

    def shutdown(self) -> None:
        super().shutdown()
        self._watch_end()

    # Receiving.

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._buffered += len(data)
        self._is_feeding = True
        try:
            while data:
                data = self._feed(data)
            if self._buffered > MAX_HEAD_BYTES:
                raise httptools.HttpParserError
        except httptools.HttpParserError:
            self.send_400_response(self._parse_error)
        self._is_feeding = False
        if self._unstarted is not None:
            self._start_if_complete(self._unstarted)
        if self._is_idle:
            self._restart_timers()

    def _restart_timers(self) -> None:
        """Limit the time for the rest of a request, or the idle time if the last one was received completely."""
        if not (self._in_message or self._buffered):
            self._stop_head_timer()
            self._start_idle_timer()
        elif self._head_timer is None:
            self._start_head_timer()

    @property
    def _parse_error(self) -> str:
        """The response to input that the parser rejects."""
        if max(self._head_bytes, self._buffered) > MAX_HEAD_BYTES:
            return f"The request line and headers exceed {MAX_HEAD_BYTES:,} bytes: send fewer or shorter headers."
        if len(self.pipeline) > MAX_PIPELINED:
            return f"At most {MAX_PIPELINED} requests can be pipelined: wait for responses before sending more."
        return "This is not a valid HTTP/1.1 request: see RFC 9112."

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being handled."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    @property
    def waits_for_body(self) -> bool:
        """Whether the open request is the one whose body is incomplete, not one pipelined before it."""
        return not self.pipeline

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._http.head_s, self._reject_slow_head)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _reject_slow_head(self) -> None:
        if not self.transport.is_closing():
            self._reject(408, f"The request head did not arrive within {self._http.head_s:g} s: send it at once.")

    def send_400_response(self, msg: str) -> None:
        self._reject(400, msg)

    def _reject(self, status: int, text: str) -> None:
        """Answer invalid input and close the connection."""
        headers = [*self.server_state.default_headers, (b"content-type", b"text/plain; charset=utf-8"),
                   (b"content-length", b"%d" % len(text)), (b"connection", b"close")]  # fmt: skip
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + text.encode("ascii"))
        self.transport.close()
        self._watch_end()

    def _feed(self, data: bytes) -> bytes:
        """Feed the parser. Returns the data that follows an upgrade request."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as e:
            # Upgrades are not supported: handle the request as plain HTTP/1.1 and keep the connection.
            self.parser = httptools.HttpRequestParser(self)
            self._parse_body()
            return data[e.args[0] :]
        return b""

    def _parse_body(self) -> None:
        """Parse the body of an upgrade request, which the parser left to the other protocol."""
        if self._length_headers:
            self._reparsing = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + self._length_headers + b"\r\n")

    def on_message_begin(self) -> None:
        self._head_bytes = self._buffered = 0
        self._in_head = self._in_message = True
        if not self._reparsing:
            self._length_headers = b""
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        if not self._reparsing:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        # Ignore trailers: the request was accepted without them.
        if self._in_head and not self._reparsing:
            name = name.lower()
            self.headers.append((name, value))
            if name in LENGTH_HEADERS:
                self._length_headers += name + b": " + value + b"\r\n"
            elif name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        self._in_head, self._buffered = False, 0
        if not self._reparsing:
            self._stop_head_timer()
            self._connections.begin_request(self)
            super().on_headers_complete()
            if len(self.pipeline) > MAX_PIPELINED:
                raise ValueError("too many requests")
        self._reparsing = False

    def on_message_complete(self) -> None:
        # The body of an upgrade request is still to be parsed.
        if not (self.parser.should_upgrade() and self._length_headers):
            self._in_message, self._buffered = False, 0
            self._connections.end_body(self)
            super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._buffered = 0
        super().on_body(body)

    def _count(self, size: int) -> None:
        self._buffered = 0
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("too many headers")

    # Sending.

    @property
    def unsent(self) -> int:
        """Bytes buffered for the client."""
        return self.transport.get_write_buffer_size()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self.flow.write_paused:
            # Its response would only be buffered behind the unread one.
            self._deferred = cycle, app
            return
        cycle.scope[CONNECTION] = Exchange(cycle, self)  # type: ignore[literal-required]
        cycle.transport = JoinedWrites(self.transport, self.loop)  # type: ignore[assignment]
        if self._is_feeding and self._short is not None and app is self.app and self._short.takes(cycle.scope):  # type: ignore[arg-type]
            # Its body comes next: see `data_received`.
            self._unstarted = cycle
        else:
            self.spawn(cycle.run_asgi(app))

    def _start_if_complete(self, cycle: RequestResponseCycle) -> None:
        """Start a request that may be a short one, or wait for the rest of its body: many clients send it apart."""
        if not cycle.more_body:
            self._start_unstarted(short=True)
        elif cycle.waiting_for_100_continue or len(cycle.body) > MAX_LATE_BYTES or self.transport.is_closing():
            self._start_unstarted()
        elif self._late_timer is None:
            self._late_timer = self.loop.call_later(LATE_S, self._start_unstarted)

    def _start_unstarted(self, short: bool = False) -> None:
        cycle, self._unstarted = self._unstarted, None
        if self._late_timer is not None:
            self._late_timer.cancel()
            self._late_timer = None
        if cycle is not None and not (short and self._short is not None and self._short.begin(cycle.scope[CONNECTION])):  # type: ignore[literal-required]
            self.spawn(cycle.run_asgi(self.app))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a request, or the rest of one, in a task."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self._watch_end()

    def on_response_complete(self) -> None:
        """Does what uvicorn does, with an idle timer of our own."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            else:
                self._start_idle_timer()
        if self._is_idle:
            self._connections.end_request(self)
            if self._in_message:
                # The rest of this request, or the start of the next one, gets as much time as a head.
                self._unset_keepalive_if_required()
                self._start_head_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_stall_timer()
        self._connections.mark_unread(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stall_timer()
        self._watch_end()
        self._connections.mark_read(self)
        if self._deferred is not None:
            deferred, self._deferred = self._deferred, None
            self._start_asgi_task(*deferred)

    def _watch_end(self) -> None:
        """Limit the time for which a closing connection waits for its client to read the rest."""
        if self.transport.is_closing() and self.unsent and self._stall_timer is None:
            self._start_stall_timer()

    def _start_stall_timer(self) -> None:
        self._stop_stall_timer()
        self._stall_timer = self.loop.call_later(self._http.stall_s, self._check_progress, self.unsent)

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _check_progress(self, unsent_before: int) -> None:
        self._stall_timer = None
        if unsent_before - self.unsent >= MIN_PROGRESS_BYTES:
            self._start_stall_timer()
        elif self.unsent:
            logger.info("closed a connection: its client did not read its response for %g s", self._http.stall_s)
            self.cut_off()
