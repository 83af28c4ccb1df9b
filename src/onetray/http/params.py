"""The parameters that many routes have: ids, cursors, limits, filters."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from onetray.http.cursors import MOST_CHARS
from onetray.http.schemas.base import ID, SOME_ID
from onetray.http.schemas.sizes import LIMIT

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
