"""The parameters that many routes have: ids, cursors, limits, filters."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Any

from fastapi import Path, Query, Request

from onetray.domain.checks import FAR_US, trace_text
from onetray.domain.errors import InvalidInput
from onetray.http.auth.scopes import Principal
from onetray.http.schemas.base import ID, SOME_ID
from onetray.http.schemas.sizes import LIMIT

MOST_CHARS = 100
MOST = 1_000
"""What one page holds at most."""

Id = Annotated[
    str,
    Path(pattern=ID, description="An id, as submit gave it.", json_schema_extra={"format": "uuid"}, examples=[SOME_ID]),
]
Name = Annotated[
    str,
    Path(min_length=1, description="A name. It may contain slashes.", examples=["default"],
         json_schema_extra={LIMIT: "name_chars"}),
]  # fmt: skip
Cursor = Annotated[str | None, Query(max_length=MOST_CHARS, description="Where to go on: as the page before gave it.")]
Limit = Annotated[int, Query(ge=1, le=MOST, description="How many at most.")]
Kind = Annotated[
    str | None,
    Query(min_length=1, description="Only this kind of task, or flows of this name.",
          json_schema_extra={LIMIT: "name_chars"}),
]  # fmt: skip


def headers_of_request(request: Request, who: Principal) -> dict[str, Any]:
    """The fields of a command by a user."""
    return {"namespace": who.namespace, "actor_name": who.name, "trace": trace_of(request)}


def trace_of(request: Request) -> str | None:
    """The W3C trace context. One that is wrong counts as none, as the standard wants it."""
    try:
        return trace_text(request.headers.get("traceparent"))
    except InvalidInput:
        return None


_FORM = re.compile(r"([a-z_]+):(\d{1,19})")


def cursor(of: str, place: int) -> str:
    return base64.urlsafe_b64encode(f"{of}:{place}".encode()).decode().rstrip("=")


def place(of: str, text: str | None, first: int = 0) -> int:
    """Where a cursor of this list stands; `first` without one."""
    if text is None:
        return first
    found = _FORM.fullmatch(_opened(text))
    if found is None or found[1] != of or int(found[2]) >= FAR_US or cursor(of, int(found[2])) != text:
        raise InvalidInput(
            f"cursor must be as the page before gave it: {text[:20]!r} is no cursor of {of}", field="cursor"
        )
    return int(found[2])


def _opened(text: str) -> str:
    if not text.isascii() or len(text) > MOST_CHARS:
        return ""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        return ""
