"""Requests to a server, repeated until they are answered or it is certain that they will not be.

Owns the connections and the retries. A request that may have been carried out is repeated only where that does no harm;
otherwise the caller is told that nobody knows. See docs/remote.md.
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
    raise MissingExtra("a server is reached through httpx2: install onetray[remote]") from e

logger = logging.getLogger("onetray.remote")

REDACTED = "Onetray-Redacted"
"""A header: answer as to readers, whatever the token allows."""
CONNECT_S = 5.0
ANSWER_S = 30.0
"""How long an answer is waited for. A request that takes longer is asked again, and finds what the first has done."""
KEEP_ALIVE_S = 4.0
"""Less than uvicorn's five seconds: a connection that the server is about to close is not used any more."""
MAX_CONNECTIONS = 100
WAITS_S = (0.05, 1.0)
AWAY = frozenset({502, 503, 504})
BUSY = 429

_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Transport:
    """The way to one server. Safe to use from any thread."""

    def __init__(self, url: str, token: str | None, patience_s: float, *, redacted: bool = False) -> None:
        self.url, self._token, self._patience_s = server_url(url), token, patience_s
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if redacted:
            headers[REDACTED] = "1"
        if token is not None:
            headers["Authorization"] = f"Bearer {_printable(token)}"
        self._client = httpx2.Client(
            headers=headers,
            verify=_certificates() if self.url.startswith("https") else False,
            timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S),
            limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=KEEP_ALIVE_S),
        )
        self._closing, self._process = threading.Event(), os.getpid()

    def another(self) -> Transport:
        """One with connections of its own."""
        return Transport(self.url, self._token, self._patience_s)

    def post(self, path: str, body: bytes, *, writes: bool = True, repeatable: bool = True) -> Any:
        return self.ask("POST", path, body, writes=writes, repeatable=repeatable)

    def ask(
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
        """The answer to a request. Unavailable: it was not carried out. OutcomeUnknown: perhaps it was."""
        until = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        wait, unsure = WAITS_S[0], False
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
            may_go_on = repeatable or not unsure
            if not may_go_on or time.monotonic() + wait > until or self._closing.wait(wait):
                raise OutcomeUnknown(str(error)) if unsure and writes else Unavailable(str(error))
            wait = min(2 * wait, WAITS_S[1])

    def must_not_have_forked(self) -> None:
        """A forked child has its parent's connections: both would read each other's answers."""
        if os.getpid() != self._process:
            raise StoreError("this engine was opened before a fork: open one in each process, or spawn instead")

    def _once(self, method: str, path: str, body: bytes | None, options: dict[str, Any]) -> Any:
        self.must_not_have_forked()
        if self._closing.is_set():
            raise Unavailable("the engine is closed")
        try:
            answer = self._client.request(method, self.url + path, content=body, **options)
        except _UNSENT as e:
            raise Unavailable(f"the server at {self.url} cannot be reached: {e}") from e
        except httpx2.TransportError as e:
            raise OutcomeUnknown(f"the server at {self.url} has not answered: {type(e).__name__}: {e}") from e
        return self._understood(answer)

    def _understood(self, answer: httpx2.Response) -> Any:
        try:
            answered = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            answered = None
        if answer.status_code == 200 and answered is not None:
            return answered
        raise self._refusal(answer.status_code, answered)

    def _refusal(self, status: int, answered: Any) -> OnetrayError:
        if not isinstance(answered, dict) or "code" not in answered:
            if status in AWAY:
                # Said by something on the way: the server may have begun.
                return OutcomeUnknown(f"the server at {self.url} is away: something on the way says {status}")
            return InvalidInput(
                f"{self.url} is no server of onetray's: it answered {status}. Check the URL", field="url"
            )
        if status == BUSY:
            return Unavailable(f"the server at {self.url} has too much to do: {answered.get('detail', '')}")
        return error_of(answered)

    def close(self) -> None:
        self._closing.set()
        self._client.close()


@lru_cache
def _certificates() -> ssl.SSLContext:
    """Whom to trust, read once: that takes a tenth of a second."""
    return httpx2.create_ssl_context()


def server_url(url: str) -> str:
    """The URL of a server, without a slash at its end."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise InvalidInput(
            "a server is named by http://host:port or https://host:port; the token is given beside it", field="server"
        )
    return url.rstrip("/")


def _printable(token: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInput("the token has characters that no token has: was it copied whole?", field="token")
    return token
