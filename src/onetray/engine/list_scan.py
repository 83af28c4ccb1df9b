"""Scans of long lists, newest first: a page after a cursor, a page by its number, the number of all items.

Owns how a long scan is split into short reads. No index covers the filters: a scan goes by key.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from onetray.domain.checks import FAR_US, MAX_ROWS, whole
from onetray.domain.clock import SECOND
from onetray.domain.errors import InvalidInput
from onetray.store.base import Rows

if TYPE_CHECKING:
    from onetray.domain.listing import JobSummary
    from onetray.engine.api import EngineApi
    from onetray.engine.list_api import ListApi

SCAN = 20_000
"""How many keys one read scans at most. It stays short even if almost nothing matches, or if a PostgreSQL without
statistics reads and sorts the whole span."""
LISTED_SPAN = 1_500
"""How many entries of an index one read looks up at most: each costs a lookup of its job, about 10 µs."""
COUNTED_STATES = 10_000
"""How many keys one read of a count by state scans at most."""
COUNTED_SPAN = 100_000
"""How many keys one read counts at most."""
MAX_TOTAL = 1_000_000
"""A total stops here: a million, or more."""
MAX_PAGE = 1_000_000
MAX_KEY_AGE_US = 3600 * SECOND
"""A key may have been allocated this long before `created_at` of its job, at most."""


class Statements(NamedTuple):
    """The statements of a list: its rows, the number of its items, the key of its nth item, their numbers by state.

    `newest` is its newest key up to another one, `span` the key before a span of so many items. A list that is found by
    an index and is short has neither: it is read in one span.
    """

    rows: str
    total: str
    nth: str
    states: str = ""
    newest: str | None = None
    span: str | None = None


class Slice(NamedTuple):
    """The rows of a page, the cursor of the next one, and the number of all items, if it was requested."""

    rows: Rows
    before: int | None
    total: int | None


class ListScan:
    """One list with its filters."""

    def __init__(
        self,
        read: Callable[..., Rows],
        statements: Statements,
        filters: dict[str, Any],
        since: int = 0,
        until: int | None = None,
    ) -> None:
        self._read, self._statements, self._filters = read, statements, filters
        self._since, self._until = since, until

    def slice(self, before: int | None, limit: int, page: int | None, total: bool) -> Slice:
        whole(limit, "limit", 1, MAX_ROWS)
        start = FAR_US if before is None else whole(before, "before", 0, FAR_US)
        if page is None:
            rows, cursor = self._window(start, limit)
        elif before is not None:
            raise InvalidInput("pass before or page, not both", field="page")
        else:
            rows, cursor = self._numbered(whole(page, "page", 1, MAX_PAGE), limit)
        return Slice(rows, cursor, self._total() if total else None)

    def _window(self, before: int, limit: int) -> tuple[Rows, int | None]:
        """Read one bounded window of keys, downwards. Returns the rows and where the next window starts."""
        for after, upto in self._spans(SCAN, before):
            rows = self._read(self._statements.rows, after=after, upto=upto, limit=limit, **self._filters)
            if len(rows) == limit:
                return rows, rows[-1].key
            return rows, after + 1 if after else None
        return [], None

    def _numbered(self, page: int, limit: int) -> tuple[Rows, int | None]:
        """A whole page: windows until it is full or the list ends."""
        rows: Rows = []
        before = self._start_of(page, limit)
        while before is not None and len(rows) < limit:
            more, before = self._window(before, limit - len(rows))
            rows += more
        return rows, before

    def _start_of(self, page: int, limit: int) -> int | None:
        """The cursor before the first item of a page; None past the end."""
        skip = (page - 1) * limit
        if not skip:
            return FAR_US
        for after, upto in self._spans(COUNTED_SPAN):
            count = self._count(after, upto)
            if skip < count:
                keys = self._read(self._statements.nth, after=after, upto=upto, offset=skip, **self._filters)
                # None if items were deleted since they were counted.
                return next((int(key) for (key,) in keys), after) + 1
            skip -= count
        return None

    def _total(self) -> int:
        total = 0
        for after, upto in self._spans(COUNTED_SPAN):
            total += self._count(after, upto)
            if total >= MAX_TOTAL:
                return MAX_TOTAL
        return total

    def states(self, within_s: float) -> tuple[dict[str, int], bool]:
        """The numbers of items by state, and whether all were counted. It stops in time, but counts one span."""
        numbers: Counter[str] = Counter()
        ends_at = time.monotonic() + within_s
        for after, upto in self._spans(COUNTED_STATES):
            found = self._read(self._statements.states, after=after, upto=upto, **self._filters)
            numbers.update({state: int(number) for state, number in found})
            if time.monotonic() >= ends_at:
                return dict(numbers), after == 0
        return dict(numbers), True

    def _count(self, after: int, upto: int) -> int:
        ((count,),) = self._read(self._statements.total, after=after, upto=upto, **self._filters)
        return int(count)

    def _spans(self, size: int, before: int = FAR_US) -> Iterator[tuple[int, int]]:
        """Ranges of keys below a cursor, downwards, as far as the items are not older than `since`."""
        if self._statements.span is not None:
            yield from self._spans_by_index(size, before)
        elif self._statements.newest is not None:
            yield from self._spans_by_key(self._statements.newest, size, before)
        else:
            yield 0, before - 1

    def _spans_by_index(self, size: int, before: int) -> Iterator[tuple[int, int]]:
        """Ranges that contain at most so many entries of an index."""
        upto = before - 1
        while upto:
            rows = self._read(self._statements.span, upto=upto, size=min(size, LISTED_SPAN), **self._filters)
            after = next((job for (job,) in rows), 0)
            yield after, upto
            upto = after

    def _spans_by_key(self, newest: str, size: int, before: int) -> Iterator[tuple[int, int]]:
        upto = self._first_key(newest, before - 1)
        while top := self._newest(newest, upto):
            upto, created_at = top
            if created_at < self._since - MAX_KEY_AGE_US:
                return
            after = max(upto - size, 0)
            yield after, upto
            upto = after

    def _first_key(self, newest: str, upto: int) -> int:
        """A key above which all items are newer than `until`: found by halving, as keys rise with time."""
        if self._until is None:
            return upto
        too_new = self._until + MAX_KEY_AGE_US
        high, created_at = self._newest(newest, upto) or (0, 0)
        if created_at <= too_new:
            return upto
        low = 0
        while high - low > SCAN:
            middle = (low + high) // 2
            key, created_at = self._newest(newest, middle) or (0, 0)
            low, high = (low, key) if created_at > too_new else (middle, high)
        return high

    def _newest(self, statement: str, upto: int) -> tuple[int, int] | None:
        """The key and the time of the newest item up to a key."""
        return next(((key, created_at) for key, created_at in self._read(statement, upto=upto)), None)


WALK_READS = 20
"""Reads per page of a list: most jobs of the database may belong to other namespaces, or match no filter."""


def walk_jobs(
    engine: EngineApi | ListApi,
    namespace: str,
    before: int | None,
    limit: int,
    *,
    within_s: float = float("inf"),
    **filters: Any,
) -> tuple[list[JobSummary], int | None]:
    """A page of jobs, newest first, and the key to continue before; None after the last page.

    The page may be short, but it is not the last one unless the key is None. Filters: see `engine.jobs`. After
    `within_s` no further read begins.
    """
    jobs: list[JobSummary] = []
    ends_at = time.monotonic() + within_s
    for _ in range(WALK_READS):
        page = engine.jobs(namespace=namespace, before=before, limit=limit - len(jobs), **filters)
        before = page.before
        jobs += page.jobs
        if len(jobs) == limit or before is None or time.monotonic() >= ends_at:
            break
    return jobs, before
