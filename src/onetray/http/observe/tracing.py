"""What a request brings along, and what becomes of it: the trace and the correlation of the commands it gives.

Owns what is known of the request that is being answered here. W3C trace context: https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uuid_utils import uuid4

from onetray.domain.checks import is_traceparent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Scope

    from onetray.domain.commands import Command

SANE = re.compile(r"[A-Za-z0-9._:+=@/-]{1,128}")
"""What may be kept of an id that a client has chosen: it is logged, and shown to others."""


@dataclass(slots=True)
class RequestTrace:
    """What is known of a request before any route is looked for."""

    request_id: str
    correlation_id: str | None = None
    """The X-Request-Id that came with it."""
    came: str | None = None
    """The traceparent that came with it."""
    trace: str | None = None
    """The traceparent that commands are given: the request's own, or that of the span it is answered under."""

    @property
    def trace_id(self) -> str | None:
        return None if self.trace is None else self.trace.split("-")[1]


asked: ContextVar[RequestTrace | None] = ContextVar("onetray.asked", default=None)


def trace_request(scope: Scope) -> RequestTrace:
    """What a request says of itself. What is no id, or no traceparent, is as if it were not there."""
    told = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _HEADERS}
    correlation, trace = told.get(b"x-request-id", ""), told.get(b"traceparent", "")
    came = trace if is_traceparent(trace) else None
    return RequestTrace(str(uuid4()), correlation if SANE.fullmatch(correlation) else None, came, came)


_HEADERS = (b"x-request-id", b"traceparent")


def carry(commands: Sequence[Command], trace: str | None = None) -> None:
    """Give commands the trace and the correlation of the request, where they have none of their own."""
    here = asked.get() or RequestTrace("")
    trace = trace or here.trace
    for command in commands:
        if trace is not None and getattr(command, "trace", "") in (None, here.came):
            command.trace = trace  # type: ignore[attr-defined]
        if here.correlation_id is not None and getattr(command, "correlation_id", "") is None:
            command.correlation_id = here.correlation_id  # type: ignore[attr-defined]
