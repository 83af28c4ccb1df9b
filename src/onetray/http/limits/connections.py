"""The server's connections: how many may be open, and which are closed when there are too many.

Owns accepting, counting and choosing which connection to close: the one on which the server has waited longest.
protocol.py reads the requests.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

import orjson

from onetray.config import HttpConfig
from onetray.domain.errors import Busy, InvalidInput
from onetray.http.problems import problem

if TYPE_CHECKING:
    from onetray.http.limits.protocol import Protocol

logger = logging.getLogger("onetray.http")

DEFAULT_CONNECTIONS = 4_096
"""The connection limit if none is configured. Each connection may buffer the head of a request."""
RESERVED_FILES, FILES_PER_THREAD, FILES_PER_TASK = 64, 4, 10
"""Open files reserved for the rest of the process (logs, the program), for each thread, for each task of a worker."""
ACCEPTS_PER_WAKEUP = 16
"""Connections accepted per turn of the event loop: as many may briefly exceed the limit."""
PAUSE_S = 0.1
"""Pause in accepting when the process is out of file descriptors. The kernel's backlog holds new connections."""
LOG_INTERVAL_S = 10.0
_PROBLEM = orjson.dumps(problem(503, Busy.code, "the server has reached its connection limit: try again"))
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_PROBLEM), _PROBLEM)
)


def max_connections(config: HttpConfig, tasks: int = 0) -> int:
    """The connection limit that the open-file limit allows, next to a worker that runs `tasks` tasks."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return config.connections or DEFAULT_CONNECTIONS
    needed = RESERVED_FILES + FILES_PER_THREAD * config.threads + FILES_PER_TASK * tasks
    limit = max(files - needed, files // 4)
    if config.connections > limit:
        raise InvalidInput(
            f"http.connections is {config.connections:,}, but this process may open {files:,} files and needs "
            f"{needed:,} of them for other things: set it to {limit:,} or less, or raise `ulimit -n`",
            field="http.connections",
        )
    return config.connections or min(limit, DEFAULT_CONNECTIONS)


class ThrottledWarning:
    """A warning logged at most once every ten seconds, however often it occurs."""

    def __init__(self, message: str) -> None:
        self._message, self._count, self._next_at = message, 0, float("-inf")

    def warn(self, *args: object) -> None:
        self._count += 1
        if (now := time.monotonic()) >= self._next_at:
            logger.warning(f"{self._message} (%d since the last such line)", *args, self._count)
            self._count, self._next_at = 0, now + LOG_INTERVAL_S


class Connections:
    """All open connections. Everything runs on the event loop."""

    def __init__(self, limit: int, unsent_bytes: int) -> None:
        self.limit, self._unsent_bytes = limit, unsent_bytes
        self._open: set[Protocol] = set()
        self._new: OrderedDict[Protocol, None] = OrderedDict()
        """Connections without a complete request head so far, oldest first."""
        self._idle: OrderedDict[Protocol, None] = OrderedDict()
        """Connections between two requests, longest idle first."""
        self._receiving: OrderedDict[Protocol, None] = OrderedDict()
        """Connections whose request body is incomplete, oldest first."""
        self._unread: OrderedDict[Protocol, None] = OrderedDict()
        """Connections whose client does not read its response, longest first."""
        self._cut_off_warning = ThrottledWarning("closed connections that are not read: over %s bytes were unsent")

    def __len__(self) -> int:
        return len(self._open)

    def add(self, protocol: Protocol) -> None:
        self._open.add(protocol)
        self._new[protocol] = None

    def remove(self, protocol: Protocol) -> None:
        self._open.discard(protocol)
        self._unread.pop(protocol, None)
        self._forget(protocol)

    def _forget(self, protocol: Protocol) -> None:
        for group in (self._new, self._idle, self._receiving):
            group.pop(protocol, None)

    def begin_request(self, protocol: Protocol) -> None:
        """Called when a request head is complete; the body, if there is one, follows."""
        self._forget(protocol)
        self._receiving[protocol] = None

    def end_body(self, protocol: Protocol) -> None:
        self._receiving.pop(protocol, None)

    def end_request(self, protocol: Protocol) -> None:
        self._forget(protocol)
        if protocol in self._open:
            self._idle[protocol] = None

    def evict(self) -> bool:
        """Close a connection on which the server is waiting. Returns False if there is none.

        New connections come last, unless they are more than half of all. So no group can fill the server alone: neither
        connections without a request, nor idle ones, nor those that never complete a body.
        """
        receiving = (protocol for protocol in self._receiving if protocol.waits_for_body)
        group = self._new if len(self._new) > self.limit // 2 else chain(self._idle, receiving, self._new)
        protocol = next(iter(group), None)
        if protocol is None:
            return False
        self._forget(protocol)
        protocol.cut_off()
        return True

    def mark_unread(self, protocol: Protocol) -> None:
        """Called when a client stops reading. Closes the longest unread connections if all exceed the limit."""
        self._unread[protocol] = None
        total = sum(unread.unsent for unread in self._unread)
        while total > self._unsent_bytes and len(self._unread) > 1:
            oldest, _ = self._unread.popitem(last=False)
            total -= oldest.unsent
            oldest.cut_off()
            self._cut_off_warning.warn(f"{self._unsent_bytes:,}")

    def mark_read(self, protocol: Protocol) -> None:
        self._unread.pop(protocol, None)


class Acceptor:
    """Accepts the connections to a socket, in place of the asyncio server that uvicorn would use.

    That one accepts its whole backlog before serving any, and logs thousands of errors a second when out of files.
    """

    def __init__(self, listener: socket.socket, connections: Connections, protocol: Callable[[], Protocol]) -> None:
        self.sockets = (listener,)
        self._listener, self._connections, self._protocol = listener, connections, protocol
        self._loop = asyncio.get_running_loop()
        self._resume_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._connecting: set[asyncio.Task[None]] = set()
        self._no_files_warning = ThrottledWarning(
            "cannot accept connections: %s; raise ulimit -n, or lower http.connections"
        )
        self._full_warning = ThrottledWarning("all %d connections have an open request: rejected another one with 503")
        listener.setblocking(False)
        self._start()

    def close(self) -> None:
        self._closing = True
        self._loop.remove_reader(self._listener)
        if self._resume_timer is not None:
            self._resume_timer.cancel()

    async def wait_closed(self) -> None:
        """Returns at once: uvicorn closes the connections itself."""

    def _start(self) -> None:
        self._resume_timer = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_WAKEUP):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                self._pause(e)
                return
            self._admit(accepted)

    def _pause(self, error: OSError) -> None:
        """The process is out of files or memory: close a connection, and accept no more for a moment."""
        self._no_files_warning.warn(error.strerror or error)
        self._connections.evict()
        self._loop.remove_reader(self._listener)
        self._resume_timer = self._loop.call_later(PAUSE_S, self._start)

    def _admit(self, accepted: socket.socket) -> None:
        if len(self._connections) >= self._connections.limit and not self._connections.evict():
            self._full_warning.warn(self._connections.limit)
            _send_503(accepted)
            return
        accepted.setblocking(False)
        protocol = self._protocol()
        self._connections.add(protocol)
        connecting = self._loop.create_task(self._connect(protocol, accepted))
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)

    async def _connect(self, protocol: Protocol, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, accepted)
        except OSError:
            # The client disconnected before its connection was set up.
            self._connections.remove(protocol)
            accepted.close()
        else:
            if self._closing:
                # uvicorn has already asked the other connections to shut down.
                protocol.shutdown()


def _send_503(accepted: socket.socket) -> None:
    """Send a 503 without waiting: a client that does not take it at once is lost."""
    with accepted:
        try:
            accepted.setblocking(False)
            accepted.send(FULL)
            accepted.shutdown(socket.SHUT_WR)
            # Closing a socket with unread input would discard the response.
            accepted.recv(65_536)
        except OSError:
            return
