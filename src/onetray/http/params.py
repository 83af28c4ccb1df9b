"""Parameters shared by many routes: ids, cursors, limits, filters."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Any

from fastapi import Path, Query, Request

from onetray.domain.checks import FAR_US, trace_text
from onetray.domain.errors import InvalidInput
from onetray.http.auth.scopes import Principal
from onetray.http.request import header_values
from onetray.http.schemas.base import ID, SOME_ID
from onetray.http.schemas.sizes import LIMIT

MAX_CHARS = 100
MAX_LIMIT = 1_000
"""Maximum page size."""

Id = Annotated[
    str,
    Path(pattern=ID, description="An id.", json_schema_extra={"format": "uuid"}, examples=[SOME_ID]),
]
Name = Annotated[
    str,
    Path(min_length=1, description="A name. It may contain slashes.", examples=["default"],
         json_schema_extra={LIMIT: "name_chars"}),
]  # fmt: skip
Cursor = Annotated[str | None, Query(max_length=MAX_CHARS, description="`next` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="The maximum number of items.")]
At = Annotated[
    int | None, Query(ge=1, le=FAR_US, description="Show it as it was right after this event, by the event's id.")
]
PastTasks = Annotated[
    int, Query(ge=0, le=MAX_LIMIT, description="The maximum number of tasks of a flow.")
]  # fmt: skip
Kind = Annotated[
    str | None,
    Query(min_length=1, description="Only this kind of task, or flows of this name.",
          json_schema_extra={LIMIT: "name_chars"}),
]  # fmt: skip


def headers_of_request(request: Request, principal: Principal) -> dict[str, Any]:
    """The fields that all commands of a request share."""
    return {"namespace": principal.namespace, "actor_name": principal.name, "trace": trace_of(request)}


def trace_of(request: Request) -> str | None:
    """The W3C trace context. An invalid one is ignored, as the standard demands."""
    try:
        values = header_values(request.scope).get(b"traceparent")
        return None if values is None else trace_text(values[0].decode("latin-1"))
    except InvalidInput:
        return None


_CURSOR = re.compile(r"([a-z_]+):(\d{1,19})")


def cursor_at(name: str, position: int) -> str:
    """A cursor of the list with this name."""
    return base64.urlsafe_b64encode(f"{name}:{position}".encode()).decode().rstrip("=")


def cursor_position(name: str, text: str | None, first: int = 0) -> int:
    """The position of a cursor of this list; `first` without a cursor."""
    if text is None:
        return first
    match = _CURSOR.fullmatch(_decode(text))
    if match is None or match[1] != name or int(match[2]) >= FAR_US or cursor_at(name, int(match[2])) != text:
        raise InvalidInput(f"{text[:20]!r} is not a cursor of {name}: use `next` of the previous page", field="cursor")
    return int(match[2])


def _decode(text: str) -> str:
    if not text.isascii() or len(text) > MAX_CHARS:
        return ""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        return ""
