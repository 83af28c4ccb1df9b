"""A read of the feed: committed events after a cursor, of a namespace or of one flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onetray.domain.checks import task_id, text
from onetray.domain.errors import NotFound
from onetray.domain.lifecycle import ABOUT_TOKENS
from onetray.domain.token import ADMIN
from onetray.engine.reads import DatabaseReads, read
from onetray.feed import Feed, Page
from onetray.redaction.answers import of_page


class EventApi(DatabaseReads):
    """The engine's reads of the feed, on a database."""

    def __init__(self, *reads: Any, feed: Feed) -> None:
        super().__init__(*reads)
        self._feed = feed

    @read(of_page, tokens=ADMIN)
    def events_since(
        self,
        *,
        after: int = 0,
        flow: str | None = None,
        types: Sequence[str] = (),
        limit: int = 200,
        tokens: bool | None = None,
        namespace: str = "default",
    ) -> Page:
        """Committed events after a cursor, in order, without a gap. Repeat until `next_cursor` stays the same.

        A page may be short or empty and still advance the cursor: what lies between does not match. With `flow`, the
        events of the flow, its stages and its tasks; `types` as `task.succeeded`. `tokens`: also events about tokens,
        which needs the scope `admin`.
        """
        self.must_not_have_forked()
        text(namespace, "namespace", self.config.limits.name_chars)
        key = None if flow is None else self._key(flow, namespace)
        page = self._feed.read(after, limit, namespace=namespace, types=types or None, flow=key)
        if tokens:
            return page
        return page._replace(events=[event for event in page.events if event.type not in ABOUT_TOKENS])

    def _key(self, flow: str, namespace: str) -> int:
        for (key,) in self._read("key_of_flow", id=task_id(flow, "flow"), namespace=namespace):
            return int(key)
        raise NotFound(f"there is no flow {flow}", flow=flow)
