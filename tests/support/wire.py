"""A loopback proxy for HTTP that does what bad networks do: it loses requests and answers, cuts them, and is slow."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit

PASS, LOSE_REQUEST, LOSE_ANSWER, CUT_ANSWER, DELAY = "pass", "lose request", "lose answer", "cut answer", "delay"
DELAY_S = 0.05


class Wire:
    """Forwards to a server. `fate` decides for each request that matters what becomes of it."""

    def __init__(self, url: str, fate: Callable[[bytes], str] = lambda _: PASS) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.fate = fate
        self.fates: dict[str, int] = {}
        self.answered = threading.Event()
        """Set when the server has answered a request whose answer is lost: what it wrote is committed."""
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_once(self, what: str, path: bytes = b"/api/v1/commands") -> None:
        """The next request to a path meets this; all after it pass."""
        self.answered.clear()
        left = [what]

        def fate(head: bytes) -> str:
            return left.pop() if left and path in head.split(b"\r\n", 1)[0] else PASS

        self.fate = fate

    def chance(self, seed: int, share: float) -> None:
        """From now on so many requests of all meet something, drawn by lot."""
        lots = random.Random(seed)
        self.fate = lambda _: (
            lots.choice([LOSE_REQUEST, LOSE_ANSWER, CUT_ANSWER, DELAY]) if lots.random() < share else PASS
        )

    def _fate(self, head: bytes) -> str:
        with self._lock:
            fate = self.fate(head)
            self.fates[fate] = self.fates.get(fate, 0) + 1
            return fate

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One connection: requests one after the other, each forwarded whole and answered whole."""
        with contextlib.suppress(OSError, ValueError), client, socket.create_connection(self._target) as server:
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while request := _message(client):
                fate = self._fate(request)
                if fate == LOSE_REQUEST:
                    return
                server.sendall(request)
                answer = _message(server)
                if not answer:
                    return
                if fate == LOSE_ANSWER:
                    self.answered.set()
                    return
                if fate == CUT_ANSWER:
                    client.sendall(answer[: len(answer) // 2])
                    return
                if fate == DELAY:
                    threading.Event().wait(DELAY_S)
                client.sendall(answer)


def _message(end: socket.socket) -> bytes:
    """A whole message of HTTP/1.1: its head, and as many bytes as that says. Empty at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        some = end.recv(65536)
        if not some:
            return b""
        data += some
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
    )
    while len(body) < length:
        body += (some := end.recv(65536))
        if not some:
            return b""
    return head + b"\r\n\r\n" + body
