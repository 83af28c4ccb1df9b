"""A loopback proxy that does what a bad network does: loses a request, or an answer, or says nothing any more."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from typing import Self
from urllib.parse import urlsplit, urlunsplit

LOSE_REQUEST, LOSE_ANSWER = "lose the request", "lose the answer"
IDLE = b"Z\x00\x00\x00\x05I"
"""What a PostgreSQL server says when it has carried everything out and is in no transaction any more."""
COMMIT = re.compile(rb"(\w*)\x00?COMMIT\x00")
"""A COMMIT as it is sent, after the name by which it is prepared, if it is."""


class Proxy:
    """Forwards bytes to a PostgreSQL server until it is armed; then the next request decides."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}"))
        self.cuts = 0
        self._armed: str | None = None
        self._commits_only = False
        self._lock = threading.Lock()
        self.lines: list[Line] = []
        self.flows = threading.Event()
        """While this is not set nothing is forwarded, and nothing is closed: as by a server that hangs."""
        self.flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, mode: str, commits_only: bool = False) -> None:
        """Lose the next request, or the next COMMIT: other connections may send something before it."""
        self._commits_only = commits_only
        self._armed = mode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flows.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.serve(client)

    def serve(self, client: socket.socket) -> None:
        Line(self, client, socket.create_connection(self._target)).start()

    def cut(self) -> None:
        """Cut all connections, whatever is under way on them. New ones are forwarded as before."""
        for line in self.lines:
            line.cut()

    def disarm(self, is_commit: bool) -> str | None:
        """Take the armed mode, once, if this request is one to lose."""
        with self._lock:
            if self._armed is None or (self._commits_only and not is_commit):
                return None
            mode, self._armed = self._armed, None
            self.cuts += 1
            return mode


class Line:
    """One connection, in both directions."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket, last_words: bytes = b"") -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._last_words = last_words
        self._swallow = False
        self._prepared_commit: bytes | None = None

    def start(self) -> None:
        self._proxy.lines.append(self)
        threading.Thread(target=self.requests, daemon=True).start()
        threading.Thread(target=self.answers, daemon=True).start()

    def requests(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(65536):
                self._proxy.flows.wait()
                mode = self._proxy.disarm(self._is_commit(data))
                if mode == LOSE_REQUEST:
                    break
                self._swallow |= mode == LOSE_ANSWER
                self._server.sendall(data)
        if not self._swallow:
            self.cut()

    def _is_commit(self, data: bytes) -> bool:
        found = COMMIT.search(data)
        if found is not None and found[1]:
            self._prepared_commit = b"\x00" + found[1] + b"\x00"
        return found is not None or (self._prepared_commit is not None and self._prepared_commit in data)

    def answers(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(65536):
                # One request may come in several parts, each with an answer of its own: the last one is lost.
                if self._swallow and IDLE in data:
                    break
                self._proxy.flows.wait()
                self._client.sendall(data)
        with contextlib.suppress(OSError):
            self._client.sendall(self._last_words)
        self.cut()

    def cut(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
