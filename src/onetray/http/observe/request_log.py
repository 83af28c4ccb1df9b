"""The request log: one line for each request.

Owns the request id. Log lines never contain a query string, nor ids from the path. log_format.py formats the lines.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from onetray import otel
from onetray.domain.errors import OutcomeUnknown
from onetray.http import problems
from onetray.http.observe.tracing import RequestTrace, current_trace, trace_request
from onetray.http.request import CONNECTION, connection_of
from onetray.log_format import log_facts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from onetray.http.observe.metrics import Metrics

logger = logging.getLogger("onetray.http")

PROBE_ROUTES = frozenset({"/healthz", "/readyz", "/metrics"})
"""Polled every few seconds by machines, so logged at DEBUG."""
ENTRY = "onetray.entry"
"""Key in a request's scope."""
NO_ROUTE = "(none)"
CUT_OFF = (
    "the server stopped before this request was done: check elsewhere whether it took effect, or repeat it with its key"
)


class RequestLog:
    """The outermost middleware: assigns request ids, and logs every response."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        entry = RequestEntry(scope, send)
        token = current_trace.set(entry.trace)
        self.begun()
        try:
            await self.watch(entry, scope, receive, self._app(scope, receive, entry.send))
        finally:
            current_trace.reset(token)

    def begun(self) -> None:
        self._metrics.open += 1

    def ended(self, entry: RequestEntry) -> None:
        self._metrics.open -= 1
        entry.close(self._metrics)

    async def watch(self, entry: RequestEntry, scope: Scope, receive: Receive, rest: Awaitable[None]) -> None:
        """Await the rest of a request that has begun: answer its errors, and log its end."""
        try:
            await rest
        except asyncio.CancelledError:
            # The server stops, and the time for open requests is over.
            if entry.status is not None:
                raise
            await problems.answer(problems.of_error(OutcomeUnknown(CUT_OFF)))(scope, receive, entry.send)
        except Exception as error:
            if entry.status is None:
                await problems.problem_answer(error, scope)(scope, receive, entry.send)
                return
            # The exception closes the connection of a client that still waits. A complete 5xx is logged already.
            if not entry.complete:
                raise
            if entry.status < 500:
                logger.exception("request %s failed after its response was sent", entry.trace.request_id)
        finally:
            self.ended(entry)


class RequestEntry:
    """One request, from its first line to the last byte of its response."""

    def __init__(self, scope: Scope, send: Send, began: float | None = None) -> None:
        self._scope, self._send = scope, send
        self._began = time.perf_counter() if began is None else began
        self.trace: RequestTrace = trace_request(scope)
        self._span = None if otel.tracer() is None else self._begin_span()
        self.status: int | None = None
        self.complete = False
        scope["onetray.request_id"], scope[ENTRY] = self.trace.request_id, self

    def _begin_span(self) -> otel.Span | None:
        # A span of an enclosing app, if there is one, is the parent.
        span = otel.begin(self._scope["method"], "SERVER", None if otel.here() else self.trace.traceparent)
        if span is not None:
            self.trace.traceparent = span.traceparent
        return span

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._with_request_id(message.get("headers", ()))}
        elif message["type"] == "http.response.body" and not message.get("more_body"):
            self.complete = True
        await self._send(message)

    def send_at_once(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes, more_lines: bytes) -> bool:
        """Send a whole response without an await. Returns whether the server can."""
        connection = connection_of(self._scope)
        if connection is None:
            return False
        if b"x-request-id" in dict(headers):
            headers = self._with_request_id(headers)
        else:
            more_lines += b"x-request-id: %s\r\n" % self.trace.request_id.encode()
        if not connection.send_at_once(status, headers, body, more_lines):
            return False
        self.status, self.complete = status, True
        return True

    def _with_request_id(self, headers: Any) -> list[tuple[bytes, bytes]]:
        """Replace any X-Request-Id by the server's."""
        others = [(name, value) for name, value in headers if name.lower() != b"x-request-id"]
        return [*others, (b"x-request-id", self.trace.request_id.encode())]

    @property
    def route(self) -> str:
        """The path template: without ids and other user input."""
        return getattr(self._scope.get("route"), "path_format", None) or NO_ROUTE

    def close(self, metrics: Metrics) -> None:
        took_s, route, method = time.perf_counter() - self._began, self.route, self._scope["method"]
        metrics.count_request(method, route, self.status, took_s)
        if self._span is not None:
            self._close_span(method, route)
        level = _level(route, self.status)
        if logger.isEnabledFor(level):
            self._log(level, method, route, took_s * 1000)
        # Both refer to the scope: without this, only the garbage collector would free a request, and stop the server
        # for milliseconds after every few hundred of them.
        for name in (ENTRY, CONNECTION):
            self._scope.pop(name, None)

    def _log(self, level: int, method: str, route: str, ms: float) -> None:
        principal, trace = self._scope.get("onetray.principal"), self.trace
        facts = {
            "request_id": trace.request_id, "method": method, "route": route, "status": self.status,
            "ms": round(ms, 2), "principal": getattr(principal, "name", None),
            "correlation_id": trace.correlation_id, "trace_id": trace.trace_id,
        }  # fmt: skip
        facts = {name: value for name, value in facts.items() if value is not None}
        message = f"{method} {route} {self.status or 'cut off'} in {ms:.1f} ms, request {trace.request_id}"
        log_facts(logger, level, message, facts)

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
    return logging.DEBUG if route in PROBE_ROUTES else logging.INFO
