"""Lists of dialects: all that matches, or one page by its number, with the total."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field

from onetray.dialects.kit import ClosedBody
from onetray.domain.errors import InvalidInput

CHUNK = 100
MAX_ITEMS = 10_000
"""How many items a list without pages has at most."""


class PageQuery(ClosedBody):
    """A page by its number, from 1. Without either parameter: all that matches."""

    page: int | None = Field(None, ge=1, le=1_000_000)
    page_size: int | None = Field(None, ge=1, le=100)

    model_config = {"strict": False}


def listed(
    query: PageQuery, read: Callable[..., Any], show: Callable[[Sequence[Any]], list[Any]], *, paged: bool = False
) -> Any:
    """A list as an array, or a page as `{total, items}`. `read` is a list of the engine with its filters."""
    if query.page is None and query.page_size is None and not paged:
        return _all(read, show)
    page = read(page=query.page or 1, limit=query.page_size or 10, total=True)
    return {"total": page.total, "items": show(page[0])}


def _all(read: Callable[..., Any], show: Callable[[Sequence[Any]], list[Any]]) -> list[Any]:
    items: list[Any] = []
    before: int | None = None
    while True:
        page = read(before=before, limit=CHUNK)
        items += show(page[0])
        before = page.before
        if before is None:
            return items
        if len(items) >= MAX_ITEMS:
            raise InvalidInput(f"more than {MAX_ITEMS:,} items match: send page and page_size", field="query.page")
