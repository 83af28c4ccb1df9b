"""Requests to a server, with retries.

Owns the connections and the retries. A request that the server may have carried out is repeated only if that is safe;
otherwise the caller gets OutcomeUnknown. See docs/remote.md.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import orjson

from onetray.domain.errors import (
    DatabaseMoved,
    InvalidInput,
    MissingExtra,
    OnetrayError,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from onetray.remote.value_codec import error_of

try:
    import httpx2
except ImportError as e:
    raise MissingExtra("httpx2 is needed to connect to a server: install onetray[remote]") from e

logger = logging.getLogger("onetray.remote")

REDACTED = "Onetray-Redacted"
"""A header: redact the answer, whatever the token allows."""
CONNECT_S = 5.0
ANSWER_S = 30.0
"""How long to wait for an answer. A repeated request finds what the first one has done."""
KEEP_ALIVE_S = 4.0
"""Less than the server's idle timeout: the client never uses a connection that the server is about to close."""
MAX_CONNECTIONS = 100
BACKOFF_S = (0.05, 1.0)
GATEWAY_ERRORS = frozenset({502, 503, 504})
TOO_MANY_REQUESTS = 429

_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Transport:
    """The HTTP client of one server. Thread-safe."""

    def __init__(self, url: str, token: str | None, patience_s: float, *, redacted: bool = False) -> None:
        self.url, self._token, self._patience_s = server_url(url), token, patience_s
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if redacted:
            headers[REDACTED] = "1"
        if token is not None:
            headers["Authorization"] = f"Bearer {_checked(token)}"
        self._client = httpx2.Client(
            headers=headers,
            verify=_certificates() if self.url.startswith("https") else False,
            timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S),
            limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=KEEP_ALIVE_S),
        )
        self._closing, self._process = threading.Event(), os.getpid()

    def copy(self) -> Transport:
        """A transport with separate connections."""
        return Transport(self.url, self._token, self._patience_s)

    def post(self, path: str, body: bytes, *, writes: bool = True, repeatable: bool = True) -> Any:
        return self.request("POST", path, body, writes=writes, repeatable=repeatable)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        *,
        writes: bool,
        repeatable: bool = True,
        patience_s: float | None = None,
        **options: Any,
    ) -> Any:
        """Returns the answer. Raises Unavailable if nothing was carried out, OutcomeUnknown if something may have been.

        A request that is not `repeatable` is not sent again once the server may have carried it out.
        """
        deadline = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        wait, unsure = BACKOFF_S[0], False
        error: Unavailable
        while True:
            try:
                return self._once(method, path, body, options)
            except OutcomeUnknown as e:
                unsure, error = True, e
            except DatabaseMoved as e:
                if not unsure:
                    raise
                error = e
            except Unavailable as e:
                error = e
            may_retry = repeatable or not unsure
            if not may_retry or time.monotonic() + wait > deadline or self._closing.wait(wait):
                raise OutcomeUnknown(str(error)) if unsure and writes else Unavailable(str(error))
            wait = min(2 * wait, BACKOFF_S[1])

    def must_not_have_forked(self) -> None:
        """A forked child shares its parent's connections: each would read the other's answers."""
        if os.getpid() != self._process:
            raise StoreError("this engine was opened before a fork: open one in each process, or spawn instead")

    def _once(self, method: str, path: str, body: bytes | None, options: dict[str, Any]) -> Any:
        self.must_not_have_forked()
        if self._closing.is_set():
            raise Unavailable("the engine is closed")
        try:
            response = self._client.request(method, self.url + path, content=body, **options)
        except _UNSENT as e:
            raise Unavailable(f"the server at {self.url} cannot be reached: {e}") from e
        except httpx2.TransportError as e:
            raise OutcomeUnknown(f"the server at {self.url} did not answer: {type(e).__name__}: {e}") from e
        return self._parse(response)

    def _parse(self, response: httpx2.Response) -> Any:
        try:
            answer = orjson.loads(response.content)
        except orjson.JSONDecodeError:
            answer = None
        if response.status_code == 200 and answer is not None:
            return answer
        raise self._error(response.status_code, answer)

    def _error(self, status: int, answer: Any) -> OnetrayError:
        if not isinstance(answer, dict) or "code" not in answer:
            if status in GATEWAY_ERRORS:
                # From a proxy, which may have passed the request to the server.
                return OutcomeUnknown(f"the server at {self.url} is unavailable: a proxy answered {status}")
            return InvalidInput(
                f"{self.url} is not an onetray server (it answered {status}): check the URL", field="url"
            )
        if status == TOO_MANY_REQUESTS:
            return Unavailable(f"the server at {self.url} is busy: {answer.get('detail', '')}")
        return error_of(answer)

    def close(self) -> None:
        self._closing.set()
        self._client.close()


@lru_cache
def _certificates() -> ssl.SSLContext:
    """The trusted certificates. Cached: reading them takes a tenth of a second."""
    return httpx2.create_ssl_context()


def server_url(url: str) -> str:
    """The URL of a server, without a slash at its end."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise InvalidInput(
            "a server's URL must be http://host:port or https://host:port; pass the token separately", field="server"
        )
    return url.rstrip("/")


def _checked(token: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInput("the token contains invalid characters: copy it again, without spaces", field="token")
    return token
