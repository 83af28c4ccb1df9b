"""Lists of dialects: all that matches, or one page by its number, with the total."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
from pydantic import ConfigDict, Field

from onetray.dialects.kit import ClosedBody
from onetray.domain.errors import InvalidInput
from onetray.http.json_answers import encoded

CHUNK, PAGE_SIZE = 100, 10
MAX_ITEMS, MAX_BYTES = 10_000, 32_000_000
"""How many items a list without pages has at most, and how many bytes of JSON."""


Show = Callable[[Sequence[Any]], list[Any]]


class PageQuery(ClosedBody):
    """A page by its number, from 1. Without either parameter: all that matches."""

    model_config = ConfigDict(strict=False)

    page: int | None = Field(default=None, ge=1, le=1_000_000)
    page_size: int | None = Field(default=None, ge=1, le=100)

    @property
    def is_page(self) -> bool:
        return self.page is not None or self.page_size is not None


def page_or_all(query: PageQuery, read: Callable[..., Any], show: Show, always: bool = False) -> Any:
    """A list as an array, or a page of it as `{total, items}`. `read` is a list of the engine with its filters."""
    if not query.is_page and not always:
        return _all(read, show)
    page = read(page=query.page or 1, limit=query.page_size or PAGE_SIZE, total=True)
    return {"total": page.total, "items": show(page[0])}


def page_of_values(query: PageQuery, values: Sequence[Any], show: Show, always: bool = False) -> Any:
    """The same of values that are at hand."""
    if not query.is_page and not always:
        return show(values)
    size = query.page_size or PAGE_SIZE
    first = ((query.page or 1) - 1) * size
    return {"total": len(values), "items": show(values[first : first + size])}


def _all(read: Callable[..., Any], show: Show) -> list[Any]:
    items: list[Any] = []
    size, before = 0, None
    while True:
        page = read(before=before, limit=CHUNK)
        # Encoded at once: that takes less memory, and says how much it is.
        texts = [encoded(item) for item in show(page[0])]
        items += map(orjson.Fragment, texts)
        size += sum(map(len, texts))
        before = page.before
        if len(items) > MAX_ITEMS or size > MAX_BYTES:
            limit = f"{MAX_ITEMS:,} items, or {MAX_BYTES:,} bytes,"
            raise InvalidInput(f"more than {limit} match: send page and page_size", field="page")
        if before is None:
            return items
