"""Requests of Starlette's TestClient in one step instead of eight.

TestClient hands each part of an answer from the thread of the app's loop to the thread of the test, because somebody
may read it part by part. Whoever waits for all of it gets it in one piece: most of what a small request took were the
switches between the two threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import unquote

import httpx2
from starlette import testclient
from starlette.testclient import TestClient

WHOLE = "onetray.whole"
Message = MutableMapping[str, Any]

_by_parts = testclient._TestClientTransport.handle_request
_send = TestClient.send


def use_whole_answers() -> None:
    TestClient.send = _send_marked  # type: ignore[method-assign]
    testclient._TestClientTransport.handle_request = _handle_request  # type: ignore[method-assign]


def _send_marked(self: TestClient, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
    request.extensions = {**request.extensions, WHOLE: not stream}
    return _send(self, request, stream=stream, **options)


def _handle_request(self: testclient._TestClientTransport, request: httpx2.Request) -> httpx2.Response:
    if not request.extensions.get(WHOLE) or request.url.scheme not in ("http", "https"):
        return _by_parts(self, request)
    exchange = _Exchange(request)
    try:
        with self.portal_factory() as portal:
            portal.call(exchange.run, self.app, _scope(self, request))
    except BaseException:
        if self.raise_server_exceptions:
            raise
    return exchange.response(self.raise_server_exceptions)


class _Exchange:
    """A request, and what the app sends for it."""

    def __init__(self, request: httpx2.Request) -> None:
        self._request = request
        self._content = request.read()
        self._status: int | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = b""
        self._is_read = False

    async def run(self, app: Any, scope: dict[str, Any]) -> None:
        self._is_over = asyncio.Event()
        await app(scope, self._receive, self._sent)

    async def _receive(self) -> Message:
        if self._is_read:
            await self._is_over.wait()
            return {"type": "http.disconnect"}
        self._is_read = True
        return {"type": "http.request", "body": self._content}

    async def _sent(self, message: Message) -> None:
        assert not self._is_over.is_set(), "the answer goes on after its end"
        if message["type"] == "http.response.start":
            assert self._status is None, "the answer begins twice"
            self._status, self._headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            assert self._status is not None, "the answer has a body and no beginning"
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                self._is_over.set()

    def response(self, must_be_there: bool) -> httpx2.Response:
        assert self._status is not None or not must_be_there, "there is no answer"
        body = b"" if self._request.method == "HEAD" else self._body
        headers = [(name.decode(), value.decode()) for name, value in self._headers]
        stream = httpx2.ByteStream(body)
        return httpx2.Response(self._status or 500, headers=headers, stream=stream, request=self._request)


def _scope(transport: testclient._TestClientTransport, request: httpx2.Request) -> dict[str, Any]:
    url = request.url
    return {
        "type": "http",
        "http_version": "1.1",
        "method": request.method,
        "path": unquote(url.path),
        "raw_path": url.raw_path.split(b"?", 1)[0],
        "root_path": transport.root_path,
        "scheme": url.scheme,
        "query_string": url.query,
        "headers": [(name.lower().encode(), value.encode()) for name, value in request.headers.multi_items()],
        "client": transport.client,
        "server": [url.raw_host.decode("ascii"), url.port or {"http": 80, "https": 443}[url.scheme]],
        "extensions": {},
        "state": transport.app_state.copy(),
    }
