"""Notify the processes of one machine that share a SQLite file, by multicast datagrams on the loopback interface.

Owns the sockets. The multicast address is derived from the file's identity, so that processes need not know each other.
A datagram names the queues with new work (new_work.py). It may be lost or forged: receivers only poll sooner for it.
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
MAX_DATAGRAMS = 1000
_LOOPBACK = socket.inet_aton("127.0.0.1")
# On Linux SO_REUSEPORT would let only the processes of one user share the port.
_SHARED = socket.SO_REUSEPORT if sys.platform == "darwin" else socket.SO_REUSEADDR


def multicast_address(path: str) -> str:
    """An address in the private range. If files share one by chance, their processes wake each other in vain."""
    stat = os.stat(path)
    a, b, c = blake2b(struct.pack("<QQ", stat.st_dev, stat.st_ino), digest_size=3).digest()
    return f"239.{a}.{b}.{c}"


class MulticastSender:
    """Sends datagrams. Raises OSError without a loopback interface."""

    def __init__(self, path: str) -> None:
        self._to = multicast_address(path), PORT
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, _LOOPBACK)
        # Never leave this machine.
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)

    def send(self, text: str) -> None:
        self._socket.sendto(text.encode(), self._to)

    def close(self) -> None:
        self._socket.close()


class MulticastReceiver:
    """Receives datagrams. Raises OSError if it cannot join the group."""

    def __init__(self, path: str) -> None:
        group = multicast_address(path)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SHARED, 1)
            # Bound to the group's address, to ignore other datagrams to this port.
            self._socket.bind((group, PORT))
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + _LOOPBACK)
        except OSError:
            self._socket.close()
            raise

    def wait(self, timeout_s: float) -> list[str]:
        """Wait for a datagram or the timeout; return all datagrams that have arrived."""
        self._socket.settimeout(timeout_s)
        try:
            received = [self._socket.recv(BYTES)]
        except TimeoutError:
            return []
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while len(received) < MAX_DATAGRAMS:
                received.append(self._socket.recv(BYTES))
        return [data.decode(errors="replace") for data in received]

    def close(self) -> None:
        self._socket.close()
