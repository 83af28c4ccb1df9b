"""The connections of a server: how many there may be, and which of them give way when there are too many.

Owns the accepting, the count, and the choice of whom to close: whoever keeps the server waiting longest. What comes
over a connection is read in protocol.py.
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

MOST_UNASKED = 4_096
"""Connections at once, where the setting names no number: each may hold the head of a request."""
FILES, FILES_PER_THREAD, FILES_PER_TASK = 64, 4, 10
"""Open files that are left for everything else: the log and the program, a thread's database, a task of a worker."""
AT_ONCE = 16
"""Connections that are accepted before the loop turns to others: so many may be open past the limit for a moment."""
PAUSE_S = 0.1
"""How long nothing is accepted when the system has no files left. The kernel keeps those who come meanwhile."""
SAY_EVERY_S = 10.0
_PROBLEM = orjson.dumps(problem(503, Busy.code, "the server has no room for another connection: try again"))
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_PROBLEM), _PROBLEM)
)


def most_connections(config: HttpConfig, tasks: int = 0) -> int:
    """How many there may be beside the files that the rest of the process needs: its worker runs so many tasks."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return config.connections or MOST_UNASKED
    needed = FILES + FILES_PER_THREAD * config.threads + FILES_PER_TASK * tasks
    most = max(files - needed, files // 4)
    if config.connections > most:
        raise InvalidInput(
            f"http.connections is {config.connections:,}, and this process may open {files:,} files, of which it needs "
            f"{needed:,} for other things: set it to {most:,} or less, or raise `ulimit -n`",
            field="http.connections",
        )
    return config.connections or min(most, MOST_UNASKED)


class Seldom:
    """A warning that may be called for thousands of times a second, and is written every ten seconds at most."""

    def __init__(self, message: str) -> None:
        self._message, self._times, self._next_at = message, 0, float("-inf")

    def warn(self, *facts: object) -> None:
        self._times += 1
        if (now := time.monotonic()) >= self._next_at:
            logger.warning(f"{self._message} (%d since the last such line)", *facts, self._times)
            self._times, self._next_at = 0, now + SAY_EVERY_S


class Connections:
    """All connections of a server. All of it runs on the loop."""

    def __init__(self, most: int, unsent_bytes: int) -> None:
        self.most, self._unsent_bytes = most, unsent_bytes
        self._open: set[Protocol] = set()
        self._new: OrderedDict[Protocol, None] = OrderedDict()
        """Those whose first request has not come yet, the oldest first."""
        self._idle: OrderedDict[Protocol, None] = OrderedDict()
        """Those between two requests, the one that has waited longest first."""
        self._coming: OrderedDict[Protocol, None] = OrderedDict()
        """Those with a request whose body is not whole, the oldest first."""
        self._unread: OrderedDict[Protocol, None] = OrderedDict()
        """Those whose clients do not read what they were sent, the one that began first first."""
        self._cut = Seldom("clients that do not read their answers were cut off: these take more than %s bytes")

    def __len__(self) -> int:
        return len(self._open)

    def add(self, one: Protocol) -> None:
        self._open.add(one)
        self._new[one] = None

    def remove(self, one: Protocol) -> None:
        self._open.discard(one)
        self._unread.pop(one, None)
        self._forget(one)

    def _forget(self, one: Protocol) -> None:
        for those in (self._new, self._idle, self._coming):
            those.pop(one, None)

    def begin_request(self, one: Protocol) -> None:
        """The head of a request has come; its body comes next, if it has one."""
        self._forget(one)
        self._coming[one] = None

    def end_body(self, one: Protocol) -> None:
        self._coming.pop(one, None)

    def end_request(self, one: Protocol) -> None:
        self._forget(one)
        if one in self._open:
            self._idle[one] = None

    def make_room(self) -> bool:
        """Close one that keeps the server waiting; False if none does.

        New ones give way only while they are more than half of all, so that neither those who send no request, nor
        those who send one and stay, nor those who never send all of it, take the room of the others.
        """
        coming = (one for one in self._coming if one.waits_for_body)
        those = self._new if len(self._new) > self.most // 2 else chain(self._idle, coming, self._new)
        one = next(iter(those), None)
        if one is None:
            return False
        self._forget(one)
        one.cut_off()
        return True

    def mark_unread(self, one: Protocol) -> None:
        """Its client has not read what it was sent. If all such answers take too much room, the oldest are dropped."""
        self._unread[one] = None
        total = sum(other.unsent for other in self._unread)
        while total > self._unsent_bytes and len(self._unread) > 1:
            oldest, _ = self._unread.popitem(last=False)
            total -= oldest.unsent
            oldest.cut_off()
            self._cut.warn(f"{self._unsent_bytes:,}")

    def mark_read(self, one: Protocol) -> None:
        self._unread.pop(one, None)


class Acceptor:
    """Takes the connections that come to a socket. It stands where uvicorn has a server of asyncio's.

    That one accepts a whole backlog before it looks at any, and logs thousands of errors a second when files run out.
    """

    def __init__(self, listening: socket.socket, connections: Connections, protocol: Callable[[], Protocol]) -> None:
        self.sockets = (listening,)
        self._listening, self._connections, self._protocol = listening, connections, protocol
        self._loop = asyncio.get_running_loop()
        self._resume: asyncio.TimerHandle | None = None
        self._closing = False
        self._connecting: set[asyncio.Task[None]] = set()
        self._no_files = Seldom("a connection cannot be accepted: %s; raise `ulimit -n`, or lower http.connections")
        self._no_room = Seldom("all %d connections have a request under way: another was answered with 503")
        listening.setblocking(False)
        self._start()

    def close(self) -> None:
        self._closing = True
        self._loop.remove_reader(self._listening)
        if self._resume is not None:
            self._resume.cancel()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for: connections are the server's to end."""

    def _start(self) -> None:
        self._resume = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                self._pause(e)
                return
            self._take(accepted)

    def _pause(self, error: OSError) -> None:
        """The system has no files or no memory left. Make room, and let it be for a moment."""
        self._no_files.warn(error.strerror or error)
        self._connections.make_room()
        self._loop.remove_reader(self._listening)
        self._resume = self._loop.call_later(PAUSE_S, self._start)

    def _take(self, accepted: socket.socket) -> None:
        if len(self._connections) >= self._connections.most and not self._connections.make_room():
            self._no_room.warn(self._connections.most)
            _refuse(accepted)
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
            # It was gone before it was looked at.
            self._connections.remove(protocol)
            accepted.close()
        else:
            if self._closing:
                # The server has told all others already that it stops.
                protocol.shutdown()


def _refuse(accepted: socket.socket) -> None:
    """Say that there is no room. Nothing is waited for: whoever does not take it has gone."""
    with accepted:
        try:
            accepted.setblocking(False)
            accepted.send(FULL)
            accepted.shutdown(socket.SHUT_WR)
            # What was sent and not read would have the system take the answer back.
            accepted.recv(65_536)
        except OSError:
            return
