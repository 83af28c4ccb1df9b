"""Clients that harm a server by being slow, and how well it serves others meanwhile.

drip         the head of a request comes byte by byte, and never ends
stay_silent  an answer is asked for, and not read
hold_body    a body comes at once, but for its last byte
guess        one random token after the other

They live on a loop of their own, in a thread, and connect again when they are closed, until the block ends.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from onetray.domain.token import new_text

PAUSE_S = 0.1
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


@dataclass
class Seen:
    """What the clients have met so far."""

    connected: int = 0
    answered: int = 0


Act = Callable[[int, Seen], Coroutine[Any, Any, None]]


@contextmanager
def slow_clients(port: int, clients: int, act: Act) -> Iterator[Seen]:
    """So many clients at once, that do the same again and again."""
    seen, loop = Seen(), asyncio.new_event_loop()
    all_of_them = loop.create_task(_all(port, clients, act, seen))
    thread = threading.Thread(target=_run, args=(loop, all_of_them), name="slow-clients")
    thread.start()
    try:
        yield seen
    finally:
        loop.call_soon_threadsafe(all_of_them.cancel)
        thread.join(60)
        assert not thread.is_alive()


def _run(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


async def _all(port: int, clients: int, act: Act, seen: Seen) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(_again_and_again(port, act, seen))


async def _again_and_again(port: int, act: Act, seen: Seen) -> None:
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            await act(port, seen)
        await asyncio.sleep(PAUSE_S)


@contextmanager
def _narrow_socket() -> Iterator[socket.socket]:
    """A socket that takes few bytes ahead."""
    with socket.socket() as plug:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plug.setblocking(False)
        yield plug


def _send_and_stay(first: bytes, then: bytes, every_s: float) -> Act:
    """Send something, and then little by little, until the connection is closed: the second sending notices that."""

    async def act(port: int, seen: Seen) -> None:
        loop = asyncio.get_running_loop()
        with _narrow_socket() as plug:
            await loop.sock_connect(plug, ("127.0.0.1", port))
            seen.connected += 1
            await loop.sock_sendall(plug, first)
            while True:
                await asyncio.sleep(every_s)
                await loop.sock_sendall(plug, then)

    return act


def drip(every_s: float = PAUSE_S) -> Act:
    return _send_and_stay(HEAD, b"x", every_s)


def stay_silent(path: str, token: str, every_s: float = 1.0) -> Act:
    # Blank lines before a request mean nothing.
    return _send_and_stay(_head("GET", path, token) + b"\r\n", b"\r\n", every_s)


def hold_body(path: str, token: str, size: int, every_s: float = 1.0) -> Act:
    head = _head("POST", path, token) + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % size
    return _send_and_stay(head + b" " * (size - 100), b" ", every_s)


def _head(method: str, path: str, token: str) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n".encode()


async def guess(port: int, seen: Seen) -> None:
    """Ask with random tokens, on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seen.connected += 1
    try:
        while True:
            head = f"GET /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {new_text()}\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            await reader.readexactly(length)
            seen.answered += 1
    finally:
        writer.transport.abort()
