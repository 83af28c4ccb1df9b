"""Lists of dead letters, in groups and one by one.

Owns their filters. dead_letters.py writes them, control_verbs.py redrives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onetray.domain.checks import FAR_US, choice, listed, optional_text, task_id, whole
from onetray.domain.errors import NotFound
from onetray.domain.listing import DeadGroup, DeadLetterSummary
from onetray.domain.task import REASON_CODES
from onetray.engine.flow_api import FlowApi
from onetray.engine.job_search import MAX_IDS
from onetray.engine.reads import DatabaseReads, kind_filters, read
from onetray.redaction.answers import by_owner


class DeadLetterApi(DatabaseReads):
    """The engine's lists of dead letters, on a database."""

    def __init__(self, flows: FlowApi) -> None:
        super().__init__(flows.store, flows.config, flows.must_not_have_forked)
        self._flows = flows

    @read(by_owner)
    def dead_groups(
        self,
        *,
        kind: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        redriven: bool = False,
        limit: int = 100,
        namespace: str = "default",
    ) -> list[DeadGroup]:
        """Dead letters by kind, reason and error, the largest group first."""
        filters = self._dead_letter_filters(kind, reason, error, redriven)
        statement = "dead_groups" if error is None else "dead_groups_with_text"
        return self._read(statement, namespace=namespace, limit=limit, **filters)

    @read(by_owner)
    def dead_lines(
        self,
        *,
        kind: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        redriven: bool = False,
        flow: str | None = None,
        kinds: Sequence[str] = (),
        queue: str | None = None,
        alike: str | None = None,
        ids: Sequence[str] = (),
        until: int | None = None,
        after: int = 0,
        limit: int = 100,
        offset: int = 0,
        namespace: str = "default",
    ) -> list[DeadLetterSummary]:
        """Dead letters, oldest first. Pass the last key as `after` to get the next page. `error` is a part of
        "Class: message"; `kinds` are several kinds, `flow` is the id of a flow; `alike` is the id of a task: only the
        letters of the same group as that of this task; `until` is when they were set aside at the latest."""
        filters = self._dead_letter_filters(
            kind, reason, error, redriven, kinds, flow, namespace, queue, ids, until
        ) | self._alike(alike, namespace)
        whole(offset, "offset", 0, FAR_US)
        statement = "list_letters" if alike is None else "list_letters_alike"
        return self._read(statement, namespace=namespace, after=after, limit=limit, offset=offset, **filters)

    def count_letters(
        self,
        most: int,
        *,
        kind: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        flow: str | None = None,
        kinds: Sequence[str] = (),
        queue: str | None = None,
        alike: str | None = None,
        ids: Sequence[str] = (),
        namespace: str = "default",
    ) -> int:
        """How many dead letters `dead_lines` would list, at most `most`."""
        filters = self._dead_letter_filters(
            kind, reason, error, False, kinds, flow, namespace, queue, ids, None
        ) | self._alike(alike, namespace)
        statement = "count_letters" if alike is None else "count_letters_alike"
        ((number,),) = self._read(statement, namespace=namespace, after=0, most=most, **filters)
        return int(number)

    def _alike(self, alike: str | None, namespace: str) -> dict[str, Any]:
        """The filters for the group of a letter."""
        if alike is None:
            return {}
        rows = self._read("group_of_letter", id=task_id(alike, "alike"), namespace=namespace)
        for group in rows:
            return {
                "group_ns": group.ns, "group_kind": group.kind, "group_reason": group.reason_code,
                "group_class": group.error_class, "group_pattern": group.pattern,
            }  # fmt: skip
        raise NotFound(f"the task {alike} has no dead letter: name one that has", task=alike)

    def _dead_letter_filters(
        self,
        kind: str | None,
        reason: str | None,
        error: str | None,
        redriven: bool,
        kinds: Sequence[str] = (),
        flow: str | None = None,
        namespace: str = "default",
        queue: str | None = None,
        ids: Sequence[str] = (),
        until: int | None = None,
    ) -> dict[str, Any]:
        if reason is not None:
            choice(reason, "reason", REASON_CODES)
        wanted = [task_id(id_, "ids") for id_ in listed(ids, "ids", 0, MAX_IDS)]
        return {
            "any_key": int(not wanted),
            "keys": [int(key) for _, key, _ in self._read("keys_of", ids=wanted)] if wanted else [],
            "until": FAR_US if until is None else whole(until, "until", 0, FAR_US),
            "kind": optional_text(kind, "kind", self.config.limits.name_chars),
            "reason": reason,
            "error": optional_text(error, "error", self.config.limits.reason_chars),
            "redriven": int(redriven),
            "queue": optional_text(queue, "queue", self.config.limits.name_chars),
            **kind_filters(kinds, self.config.limits.name_chars),
            "job": None if flow is None else self._flows.flow(flow, namespace=namespace, raw=True).key,
        }
