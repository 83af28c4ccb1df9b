"""The parts of a request, read once: its headers by name, its body, and its connection.

Owns where in the scope they are kept. The limits read the body, protocol.py sets the connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fastapi import Request
from starlette.types import Scope

BODY, CONNECTION, HEADERS = "onetray.body", "onetray.connection", "onetray.headers"
"""Keys in a request's scope."""
TAKES_FORMS = "onetray.takes_forms"
"""Key in a request's scope: its body is a form, which the route checks, and not JSON."""
HeaderValues = dict[bytes, list[bytes]]
Headers = Iterable[tuple[bytes, bytes]]


class RequestConnection(Protocol):
    """The connection of a request, beside ASGI: what our server knows and does without an await. Others have none."""

    def take_body(self) -> bytes | None:
        """The body, if all of it has arrived, as it mostly has. None: receive it as usual."""

    @property
    def is_disconnected(self) -> bool: ...

    def send_at_once(self, status: int, headers: Headers, body: bytes, more_lines: bytes = b"") -> bool:
        """Send a whole response in one write. Returns False, and does nothing, if it has to be sent as usual.

        `more_lines` are further headers as they are sent: nobody looks for control characters in them.
        """


def header_values(scope: Scope) -> HeaderValues:
    """All values of each header, by its name in lower case."""
    found: HeaderValues | None = scope.get(HEADERS)
    if found is None:
        found = scope[HEADERS] = {}
        for name, value in scope["headers"]:
            if name in found:
                found[name].append(value)
            else:
                found[name] = [value]
    return found


def last_value(scope: Scope, name: bytes) -> bytes:
    """The value of a header, the last one if it is repeated; empty if there is none."""
    values = header_values(scope).get(name)
    return b"" if values is None else values[-1]


def connection_of(scope: Scope) -> RequestConnection | None:
    connection: RequestConnection | None = scope.get(CONNECTION)
    return connection


class BufferedRequest(Request):
    """A request whose body the limits have read. Asking for it, or for the connection, costs no await of the server."""

    async def body(self) -> bytes:
        body: bytes | None = self.scope.get(BODY)
        return await super().body() if body is None else body

    async def is_disconnected(self) -> bool:
        connection = connection_of(self.scope)
        return await super().is_disconnected() if connection is None else connection.is_disconnected
