"""HTTP/1.1 on one connection: uvicorn's parser in C, and bounds on all that comes beside a body.

Owns how much a request may say before a route is asked. Bodies are bounded in limits.py.
"""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST = 65_536
"""Bytes of the first line and the headers of a request, and of whatever the parser keeps to itself."""


class Protocol(HttpToolsProtocol):
    _head = _kept = 0
    """Bytes of this request's line and headers, and of what was read since the parser told of anything."""
    _in_head = _resumed = False
    _length = b""
    """The headers of this request that say how long its body is."""

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._kept += len(data)
        try:
            while data:
                data = self._fed(data)
            if self._kept > MOST:
                raise httptools.HttpParserError
        except httptools.HttpParserError:
            much = max(self._head, self._kept) > MOST
            self.send_400_response(
                f"The line and the headers of a request have at most {MOST:,} bytes: send less."
                if much else "This is no HTTP request: see RFC 9112."
            )  # fmt: skip

    def _fed(self, data: bytes) -> bytes:
        """Give it to the parser. What is left belongs to a next request."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as e:
            # No other protocol is spoken here: the request is answered as it is, and the connection goes on as it was.
            self.parser = httptools.HttpRequestParser(self)
            self._resume()
            return data[e.args[0] :]
        return b""

    def _resume(self) -> None:
        """Have the body parsed: the parser left it to the other protocol."""
        if self._length:
            self._resumed = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + self._length + b"\r\n")

    def on_message_begin(self) -> None:
        self._head = self._kept = 0
        self._in_head = True
        if not self._resumed:
            self._length = b""
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        if not self._resumed:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        # What follows a body is no header: the request was let in without it.
        if self._in_head and not self._resumed:
            super().on_header(name, value)
            if name.lower() in (b"content-length", b"transfer-encoding"):
                self._length += name + b": " + value + b"\r\n"

    def on_headers_complete(self) -> None:
        self._in_head, self._kept = False, 0
        if not self._resumed:
            super().on_headers_complete()
        self._resumed = False

    def on_message_complete(self) -> None:
        # The body of one that asks for another protocol is still to come.
        if not (self.parser.should_upgrade() and self._length):
            super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._kept = 0
        super().on_body(body)

    def _count(self, size: int) -> None:
        self._kept = 0
        self._head += size
        if self._head > MOST:
            raise ValueError("too many headers")
