"""Lists of dialects: all that matches, or one page by its number, with the total."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, ConfigDict, Field

from onetray.dialects.kit import ClosedBody
from onetray.domain.errors import InvalidInput
from onetray.http.json_answers import encoded

CHUNK, PAGE_SIZE = 100, 10
MAX_ITEMS, MAX_BYTES = 10_000, 32_000_000
"""How many items a list without pages has at most, and how many bytes of JSON."""


def _micros(at: datetime) -> int:
    """A date without a time zone is in UTC."""
    return max(0, int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1e6))


Time = Annotated[datetime, AfterValidator(_micros)]
"""A date in a query, as the engine's lists take it: microseconds."""


class PageQuery(ClosedBody):
    """A page by its number, from 1. Without either parameter: all that matches.

    Subclasses add filters, with the engine's names, and the other system's as aliases.
    """

    model_config = ConfigDict(strict=False)

    page: int | None = Field(default=None, ge=1, le=1_000_000, exclude=True)
    page_size: int | None = Field(default=None, ge=1, le=100, exclude=True)

    @property
    def is_page(self) -> bool:
        return self.page is not None or self.page_size is not None

    @property
    def filters(self) -> dict[str, Any]:
        """The filters that were sent, without fields that have `exclude=True`."""
        left_out = {name for name, field in type(self).model_fields.items() if field.exclude}
        return {name: value for name, value in self if value is not None and name not in left_out}


class DatedQuery(PageQuery):
    """Of things that were created between two dates."""

    since: Time | None = Field(default=None, alias="from_date")
    until: Time | None = Field(default=None, alias="end_date")


@dataclass(frozen=True)
class Found:
    """What a list shows: a list of the engine, with its filters, or values that are at hand."""

    read: Callable[..., Any] | list[Any]
    details: Callable[[Sequence[Any]], Iterable[tuple[Any, ...]]] = zip
    """Reads what else is shown of some of them: returns the arguments of `show` for each."""


def page_or_all(query: PageQuery, found: Found, show: Callable[..., Any], always: bool = False) -> Any:
    """A list as an array, or a page of it as `{total, items}`. `always`: also if the query asks for no page."""
    read, number, size = found.read, query.page or 1, query.page_size or PAGE_SIZE

    def show_all(values: Sequence[Any]) -> list[Any]:
        return [show(*each) for each in found.details(values)]

    if not query.is_page and not always:
        return show_all(read) if isinstance(read, list) else _all(read, show_all)
    if isinstance(read, list):
        return {"total": len(read), "items": show_all(read[(number - 1) * size : number * size])}
    page = read(page=number, limit=size, total=True)
    return {"total": page.total, "items": show_all(page[0])}


def _all(read: Callable[..., Any], show: Callable[[Sequence[Any]], list[Any]]) -> list[Any]:
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
