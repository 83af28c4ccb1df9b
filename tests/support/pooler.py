"""What a client of pgbouncer sees, without pgbouncer: a proxy that lets clients in while the server behind it is away.

The bytes are those that pgbouncer 1.18 was seen to send: a login that it answers by itself, an error without the
unlocalised severity, and then the end of the connection.
"""

from __future__ import annotations

import socket
import struct
import threading

from tests.support.proxy import LOSE_ANSWER, Line, Proxy

_SSL, _GSS = 80877103, 80877104
FAILING = "server login has been failing, try again later (server_login_retry)"
CRASHED = "server conn crashed?"
_SETTINGS = {
    "integer_datetimes": "on",
    "server_version": "18.6",
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "TimeZone": "Etc/UTC",
    "standard_conforming_strings": "on",
}


class Pooler(Proxy):
    """Forwards everything while the server is there. What it lets in otherwise is refused with its first query."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.refused = threading.Event()
        """Set when somebody has asked for a server that is away."""

    def lose_commit(self) -> None:
        """Let the next request through, and say that the server crashed instead of what it answers."""
        self.arm(LOSE_ANSWER)

    def serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            threading.Thread(target=self._turn_away, args=(client,), daemon=True).start()
            return
        Line(self, client, server, last_words=_error(CRASHED)).start()

    def _turn_away(self, client: socket.socket) -> None:
        with client:
            while _startup(client) in (_SSL, _GSS):
                client.sendall(b"N")
            settings = b"".join(_message(b"S", _texts(name, value)) for name, value in _SETTINGS.items())
            client.sendall(_message(b"R", bytes(4)) + settings + _message(b"K", bytes(8)) + _message(b"Z", b"I"))
            if client.recv(65536):
                self.refused.set()
                client.sendall(_error(FAILING))


def _startup(client: socket.socket) -> int:
    """Read the first message of a client: its code."""
    size, code = struct.unpack("!II", client.recv(8, socket.MSG_WAITALL))
    if size > 8:
        client.recv(size - 8, socket.MSG_WAITALL)
    return int(code)


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _texts(*texts: str) -> bytes:
    return b"".join(text.encode() + b"\0" for text in texts)


def _error(text: str) -> bytes:
    return _message(b"E", _texts("SFATAL", "C08P01", f"M{text}") + b"\0")
