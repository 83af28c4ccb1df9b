"""What the server writes down: a line for each request.

Owns the request's id, and what is said of it: never its query, never an id in its path. log_format.py says how lines
look.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from onetray import otel
from onetray.domain.errors import OutcomeUnknown
from onetray.http import problems
from onetray.http.observe.tracing import RequestTrace, asked, trace_request

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from onetray.http.observe.metrics import Metrics

logger = logging.getLogger("onetray.http")

QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked every few seconds by machines: their lines are for those who look for them."""
NO_ROUTE = "(none)"
CUT_OFF = (
    "the server stopped before this was done: ask elsewhere whether it took effect, or send it again under its key"
)


class RequestLog:
    """The outermost layer: gives each request its id, and writes down how it was answered."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        entry = RequestEntry(scope, send)
        token = asked.set(entry.asked)
        self._metrics.open += 1
        try:
            await self._app(scope, receive, entry.send)
        except asyncio.CancelledError:
            # The server stops, and has waited for as long as it may.
            if entry.status is not None:
                raise
            await problems.answer(problems.of_error(OutcomeUnknown(CUT_OFF)))(scope, receive, entry.send)
        except Exception:
            # A client that still waits is cut off by it. One that was told of it: that is in the log already.
            if not entry.complete:
                raise
            if entry.status is None or entry.status < 500:
                logger.exception("request %s broke after it was answered", entry.asked.request_id)
        finally:
            asked.reset(token)
            self._metrics.open -= 1
            entry.close(self._metrics)


class RequestEntry:
    """One request, from its first line to the last byte of its answer."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send, self._began = scope, send, time.perf_counter()
        self.asked: RequestTrace = trace_request(scope)
        # Under what stands around this app already, if something there makes spans, too.
        self._span = otel.begin(scope["method"], "SERVER", None if otel.here() else self.asked.trace)
        if self._span is not None:
            self.asked.trace = self._span.traceparent
        self.status: int | None = None
        self.complete = False
        scope["onetray.request_id"] = self.asked.request_id

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._with_id(message.get("headers", ()))}
        elif message["type"] == "http.response.body" and not message.get("more_body"):
            self.complete = True
        await self._send(message)

    def _with_id(self, headers: Any) -> list[tuple[bytes, bytes]]:
        """Every answer has one X-Request-Id, and it is ours."""
        others = [(name, value) for name, value in headers if name.lower() != b"x-request-id"]
        return [*others, (b"x-request-id", self.asked.request_id.encode())]

    @property
    def route(self) -> str:
        """The path as it was declared: ids and other people's words are left out of it."""
        return getattr(self._scope.get("route"), "path_format", None) or NO_ROUTE

    def close(self, metrics: Metrics) -> None:
        took_s, route, method = time.perf_counter() - self._began, self.route, self._scope["method"]
        metrics.answered(method, route, self.status, took_s)
        if self._span is not None:
            self._close_span(method, route)
        level = _level(route, self.status)
        if logger.isEnabledFor(level):
            principal = self._scope.get("onetray.principal")
            facts = {
                "request_id": self.asked.request_id, "method": method, "route": route, "status": self.status,
                "ms": round(took_s * 1000, 2), "principal": getattr(principal, "name", None),
                "correlation_id": self.asked.correlation_id, "trace_id": self.asked.trace_id,
            }  # fmt: skip
            facts = {name: value for name, value in facts.items() if value is not None}
            words = (method, route, self.status or "cut off", took_s * 1000, self.asked.request_id)
            logger.log(level, "%s %s %s in %.1f ms, request %s", *words, extra={"facts": facts})

    def _close_span(self, method: str, route: str) -> None:
        assert self._span is not None
        self._span.name(f"{method} {route}")
        self._span.tell(http__request__method=method, http__route=route, http__response__status_code=self.status or 0)
        if self.status is None or self.status >= 500:
            self._span.failed("cut off" if self.status is None else f"HTTP {self.status}")
        self._span.close()


def _level(route: str, status: int | None) -> int:
    if status is not None and status >= 500:
        return logging.ERROR
    return logging.DEBUG if route in QUIET else logging.INFO
