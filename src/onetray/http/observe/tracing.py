"""The trace context and correlation id of a request, which its commands inherit.

Owns the trace of the current request. W3C trace context: https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uuid_utils import uuid4

from onetray.domain.checks import is_traceparent
from onetray.http.request import header_values, last_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Scope

    from onetray.domain.commands import Command

SAFE_ID = re.compile(r"[A-Za-z0-9._:+=@/-]{1,128}")
"""Ids from clients that are logged and shown to others."""


@dataclass(slots=True)
class RequestTrace:
    """A request's ids."""

    request_id: str
    correlation_id: str | None = None
    """The client's X-Request-Id."""
    received: str | None = None
    """The client's traceparent."""
    traceparent: str | None = None
    """The traceparent of the request's commands: the client's, or that of the server's span."""

    @property
    def trace_id(self) -> str | None:
        return None if self.traceparent is None else self.traceparent.split("-")[1]


current_trace: ContextVar[RequestTrace | None] = ContextVar("onetray.current_trace", default=None)


def trace_request(scope: Scope) -> RequestTrace:
    """Read the request's headers. Invalid ids are ignored."""
    if b"x-request-id" not in header_values(scope) and b"traceparent" not in header_values(scope):
        return RequestTrace(str(uuid4()))
    correlation = last_value(scope, b"x-request-id").decode("latin-1")
    traceparent = last_value(scope, b"traceparent").decode("latin-1")
    received = traceparent if is_traceparent(traceparent) else None
    return RequestTrace(str(uuid4()), correlation if SAFE_ID.fullmatch(correlation) else None, received, received)


def carry(commands: Sequence[Command], trace: str | None = None) -> None:
    """Give commands without a trace or correlation id those of the current request."""
    current = current_trace.get() or RequestTrace("")
    trace = trace or current.traceparent
    for command in commands:
        if trace is not None and getattr(command, "trace", "") in (None, current.received):
            command.trace = trace  # type: ignore[attr-defined]
        if current.correlation_id is not None and getattr(command, "correlation_id", "") is None:
            command.correlation_id = current.correlation_id  # type: ignore[attr-defined]
