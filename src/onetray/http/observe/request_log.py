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

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from onetray.http.observe.metrics import Metrics

logger = logging.getLogger("onetray.http")

PROBE_ROUTES = frozenset({"/healthz", "/readyz", "/metrics"})
"""Polled every few seconds by machines, so logged at DEBUG."""
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
        self._metrics.open += 1
        try:
            await self._app(scope, receive, entry.send)
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
            current_trace.reset(token)
            self._metrics.open -= 1
            entry.close(self._metrics)


class RequestEntry:
    """One request, from its first line to the last byte of its response."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send, self._began = scope, send, time.perf_counter()
        self.trace: RequestTrace = trace_request(scope)
        # A span of an enclosing app, if there is one, is the parent.
        self._span = otel.begin(scope["method"], "SERVER", None if otel.here() else self.trace.traceparent)
        if self._span is not None:
            self.trace.traceparent = self._span.traceparent
        self.status: int | None = None
        self.complete = False
        scope["onetray.request_id"] = self.trace.request_id

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._with_request_id(message.get("headers", ()))}
        elif message["type"] == "http.response.body" and not message.get("more_body"):
            self.complete = True
        await self._send(message)

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
            principal = self._scope.get("onetray.principal")
            facts = {
                "request_id": self.trace.request_id, "method": method, "route": route, "status": self.status,
                "ms": round(took_s * 1000, 2), "principal": getattr(principal, "name", None),
                "correlation_id": self.trace.correlation_id, "trace_id": self.trace.trace_id,
            }  # fmt: skip
            facts = {name: value for name, value in facts.items() if value is not None}
            args = (method, route, self.status or "cut off", took_s * 1000, self.trace.request_id)
            logger.log(level, "%s %s %s in %.1f ms, request %s", *args, extra={"facts": facts})

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
