"""A doorbell between the processes of one machine that share a file: a datagram to whoever listens.

Owns the sockets. It says in which queues there may be more to claim (new_work.py), may be lost, and anybody may ring
it: whoever hears it looks for itself. It goes to a multicast address made from the file's identity, over the loopback
interface only: nobody has to know who is there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from hashlib import blake2b

PORT = 21_505
BYTES = 8192
MOST_RINGS = 1000
_LOOPBACK = socket.inet_aton("127.0.0.1")
# Elsewhere this would let only the processes of one user share the port.
_SHARED = socket.SO_REUSEPORT if sys.platform == "darwin" else socket.SO_REUSEADDR


def multicast_address(path: str) -> str:
    """The file's address, among those for private use. Two files may happen to share one: they wake each other."""
    found = os.stat(path)
    a, b, c = blake2b(struct.pack("<QQ", found.st_dev, found.st_ino), digest_size=3).digest()
    return f"239.{a}.{b}.{c}"


class DoorbellSender:
    """Rings. Raises OSError where there is no loopback interface."""

    def __init__(self, path: str) -> None:
        self._to = multicast_address(path), PORT
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, _LOOPBACK)
        # Not beyond this machine, and not twice on it.
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)

    def press(self, news: str) -> None:
        self._socket.sendto(news.encode(), self._to)

    def close(self) -> None:
        self._socket.close()


class DoorbellListener:
    """Is heard. Raises OSError where it cannot be put up."""

    def __init__(self, path: str) -> None:
        group = multicast_address(path)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SHARED, 1)
            # To the group's address: what is sent to the port otherwise is not for us.
            self._socket.bind((group, PORT))
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + _LOOPBACK)
        except OSError:
            self._socket.close()
            raise

    def wait(self, timeout_s: float) -> list[str]:
        """Wait until it rings or the time is over; answers all that was said so far."""
        self._socket.settimeout(timeout_s)
        try:
            said = [self._socket.recv(BYTES)]
        except TimeoutError:
            return []
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while len(said) < MOST_RINGS:
                said.append(self._socket.recv(BYTES))
        return [news.decode(errors="replace") for news in said]

    def close(self) -> None:
        self._socket.close()
