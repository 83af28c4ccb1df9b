"""What a request says besides its body: who asks, for which namespace, as part of which trace.

Owns the fields that every command gets from its request. They come from nowhere else.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request

from onetray.errors import InvalidInput
from onetray.fields import trace_text
from onetray.http.access import Principal


def said(request: Request, who: Principal) -> dict[str, Any]:
    """The fields of a command by a user."""
    return {"namespace": who.namespace, "actor_name": who.name, "trace": trace_of(request)}


def trace_of(request: Request) -> str | None:
    """The W3C trace context. One that is wrong counts as none, as the standard wants it."""
    try:
        return trace_text(request.headers.get("traceparent"))
    except InvalidInput:
        return None
