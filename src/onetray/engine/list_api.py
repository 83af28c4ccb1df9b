"""The engine's lists: jobs, members of flows, queues, dead letters, and what a part of an id stands for.

Owns how a long walk is cut into short reads. Changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onetray.domain.checks import FAR_US, MOST_ROWS, choice, listed, optional_text, seconds, task_id, text, whole
from onetray.domain.clock import SECOND
from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.lifecycle import FLOW, MACHINES, TASK
from onetray.domain.listing import (
    DeadGroup,
    DeadLetterSummary,
    JobPage,
    JobSummary,
    Located,
    MemberSummary,
    Prunable,
    QueueDepth,
)
from onetray.domain.task import REASON_CODES, json_of
from onetray.engine.flow_api import FlowApi
from onetray.engine.pending_writes import RUN
from onetray.engine.reads import DatabaseReads, read
from onetray.redaction.answers import by_owner, plain

SCAN = 20_000
"""Keys that one read walks through at most. When nearly nothing matches it stays short, and so it does on a PostgreSQL
without statistics, which reads the whole span and sorts it."""
LATE_US = 3600 * SECOND
"""A job's key may be older than its time, by no more than this."""
MESSAGE_CHARS = 80
"""How much of a message dead letters are grouped by."""
NEWEST = 1_000
"""Among how many of each entity a part of an id is looked for."""
PART_CHARS = 6
MOST_LABELS = 20
BETWEEN = "\x1f"
"""Stands in no label: a name and a value with it in between are one text that means one pair."""
ENTITIES = tuple(MACHINES)
JOB_STATES = tuple(dict.fromkeys((*TASK.states, *FLOW.states)))
_WHOLE_ID = re.compile(r"[\da-f]{8}-[\da-f]{4}-[\da-f]{4}-[\da-f]{4}-[\da-f]{12}")


class ListApi(DatabaseReads):
    """Lists, as the database has them."""

    def __init__(self, flows: FlowApi) -> None:
        super().__init__(flows.store, flows.config, flows.must_not_have_forked)
        self._flows = flows

    @read(plain)
    def jobs(
        self,
        *,
        namespace: str = "default",
        states: Sequence[str] = (),
        kind: str | None = None,
        queue: str | None = None,
        correlation_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        since: int = 0,
        before: int | None = None,
        limit: int = 100,
    ) -> JobPage:
        """Single tasks and flows in one list, newest first. Less than a full page is not the end: `before` says."""
        whole(limit, "limit", 1, MOST_ROWS)
        whole(since, "since", 0, FAR_US)
        upto = (FAR_US if before is None else whole(before, "before", 0, FAR_US)) - 1
        wanted = {
            **self._states(states, JOB_STATES), "namespace": namespace, "since": since, "limit": limit,
            "kind": optional_text(kind, "kind", self.config.limits.name_chars),
            "queue": optional_text(queue, "queue", self.config.limits.name_chars), **self._labels(labels or {}),
        }  # fmt: skip
        if correlation_id is not None:
            return self._correlated(correlation_id, upto, wanted)
        if labels:
            label, labelled = next(iter(labels.items()))
            return _page(self._read("list_jobs_labelled", label=label, labelled=labelled, upto=upto, **wanted), limit)
        top = self._read("newest_before", upto=upto)
        upto, created_at = top[0] if top else (0, 0)
        if not top or created_at < since - LATE_US:
            return JobPage([], None)
        after = max(upto - SCAN, 0)
        found = self._read("list_jobs", after=after, upto=upto, **wanted)
        if len(found) == limit:
            return JobPage(found, found[-1].key)
        return JobPage(found, after + 1 if after else None)

    def _correlated(self, correlation_id: str, upto: int, wanted: dict[str, Any]) -> JobPage:
        text(correlation_id, "correlation_id", self.config.limits.key_chars)
        id_ = correlation_id.lower() if _WHOLE_ID.fullmatch(correlation_id.lower()) else None
        rows = self._read("list_jobs_of_correlation", correlation_id=correlation_id, id=id_, upto=upto, **wanted)
        return _page(rows, wanted["limit"])

    @read(plain)
    def job_key(self, job: str, *, namespace: str = "default") -> int:
        """The key of a job: what `jobs(before=…)` takes to go on after it."""
        rows = self._read("key_of_job", id=task_id(job, "job"), namespace=namespace)
        for (key,) in rows:
            return int(key)
        raise NotFound(f"there is no job {job}", job=job)

    @read(plain)
    def locate(self, part: str, *, among: Sequence[str] = ENTITIES, namespace: str = "default") -> Located:
        """What an id stands for. The beginning or the end of one will do, if only one of the newest has it."""
        for entity in among:
            choice(entity, "among", ENTITIES)
        word = text(part, "id", self.config.limits.name_chars).strip().lower()
        if _WHOLE_ID.fullmatch(word):
            for entity, _ in self._read("entity_of_id", id=word, namespace=namespace):
                if entity in among:
                    return Located(entity, word)
            raise NotFound(f"there is no {' or '.join(among)} {word} in the namespace {namespace}", id=word)
        if not re.fullmatch(rf"[\da-f-]{{{PART_CHARS},36}}", word):
            raise InvalidInput(
                f"{part!r} is no id: give one whole, or {PART_CHARS} characters at least of its beginning or its end",
                field="id",
            )
        return self._by_part(word, among, namespace)

    def _by_part(self, word: str, among: Sequence[str], namespace: str) -> Located:
        newest = self._read("ids_newest", namespace=namespace, limit=NEWEST)
        found = [row for row in newest if row.entity in among and (row.id.startswith(word) or row.id.endswith(word))]
        if not found:
            raise NotFound(
                f"none of the newest {NEWEST:,} {', '.join(among)} ids begins or ends with {word}: give the whole id",
                id=word,
            )
        if len(found) > 1:
            first = "; ".join(f"{row.entity} {row.id} ({row.name}, {row.state})" for row in found[:10])
            more = f"; and {len(found) - 10} more" if len(found) > 10 else ""
            raise InvalidInput(f"{word} could be any of {len(found)}: give more of it. {first}{more}", field="id")
        return Located(found[0].entity, found[0].id)

    @read(by_owner)
    def members(
        self,
        flow: str,
        *,
        stage: str | None = None,
        states: Sequence[str] = (),
        after: str | None = None,
        limit: int = 100,
        namespace: str = "default",
    ) -> list[MemberSummary]:
        """The tasks of a flow, or of one of its stages, in their order; `after` the id of one pages on."""
        job = self._flows.flow(flow, namespace=namespace).key
        ord_, key = 0, 0
        if after is not None:
            place = self._read("place_of_member", id=task_id(after, "after"), job=job)
            if not place:
                raise NotFound(f"there is no task {after} in the flow {flow}", task=after)
            ord_, key = place[0]
        wanted = {**self._states(states, TASK.states), "after": key, "limit": limit}
        if stage is None:
            rows = self._read("list_members", job=job, ord=ord_, **wanted)
        else:
            rows = self._read("list_members_of_stage", stage=self._stage_key(stage, job, namespace), **wanted)
        return [replace(row, error=json_of(row.error)) for row in rows]

    @read(by_owner)
    def stage_members(
        self, stage: str, *, after: int = 0, limit: int = 100, namespace: str = "default"
    ) -> list[MemberSummary]:
        """The tasks of a stage as lines of a list, in their order; `after` the key of one pages on."""
        key = self._flows.stage(stage, namespace=namespace).key
        wanted = {**self._states((), TASK.states), "after": after, "limit": limit}
        rows = self._read("list_members_of_stage", stage=key, **wanted)
        return [replace(row, error=json_of(row.error)) for row in rows]

    def _stage_key(self, stage: str, job: int, namespace: str) -> int:
        rows = self._read("key_of_stage", id=task_id(stage, "stage"), job=job, namespace=namespace)
        for (key,) in rows:
            return int(key)
        raise NotFound(f"the flow has no stage {stage}", stage=stage)

    @read(plain)
    def queues(self, *, namespace: str = "default", limit: int = 1_000) -> list[QueueDepth]:
        """Every queue of a namespace, with how many tasks are where."""
        return self._read("list_queues", namespace=namespace, run=RUN, limit=limit)

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
        wanted = self._letters_wanted(kind, reason, error, redriven)
        return self._read("dead_groups", namespace=namespace, limit=limit, chars=MESSAGE_CHARS, **wanted)

    @read(by_owner)
    def dead_lines(
        self,
        *,
        kind: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        redriven: bool = False,
        after: int = 0,
        limit: int = 100,
        namespace: str = "default",
    ) -> list[DeadLetterSummary]:
        """Dead letters one by one, oldest first; `after` a key pages on. `error` is a part of "Class: message"."""
        wanted = self._letters_wanted(kind, reason, error, redriven)
        return self._read("list_letters", namespace=namespace, after=after, limit=limit, **wanted)

    def prunable(self, older_than_s: float, *, namespace: str | None = None) -> Prunable:
        """How many jobs `prune` would remove now."""
        seconds(older_than_s, "older_than_s")
        ns = None
        if namespace is not None:
            ns = self.store.names.namespace(text(namespace, "namespace", self.config.limits.name_chars))
            if ns is None:
                return Prunable(0, 0)
        now = self.store.now()
        return self._read("count_prunable", before=max(now - int(older_than_s * SECOND), 0), now=now, ns=ns)[0]

    def _letters_wanted(
        self, kind: str | None, reason: str | None, error: str | None, redriven: bool
    ) -> dict[str, Any]:
        if reason is not None:
            choice(reason, "reason", REASON_CODES)
        return {
            "kind": optional_text(kind, "kind", self.config.limits.name_chars),
            "reason": reason,
            "error": optional_text(error, "error", self.config.limits.reason_chars),
            "redriven": int(redriven),
        }

    def _labels(self, labels: Mapping[str, str]) -> dict[str, Any]:
        if not isinstance(labels, Mapping):
            raise InvalidInput("labels must be names and values", field="labels")
        listed(list(labels), "labels", 0, MOST_LABELS)
        for part in (*labels, *labels.values()):
            text(part, "labels", self.config.limits.name_chars)
        pairs = [f"{name}{BETWEEN}{value}" for name, value in labels.items()]
        return {"labels": pairs, "labels_wanted": len(pairs), "between": BETWEEN}

    def _states(self, states: Sequence[str], known: Sequence[str]) -> dict[str, Any]:
        for state in listed(states, "states", 0, len(known)):
            choice(state, "states", tuple(known))
        return {"states": list(states), "any_state": int(not states)}


def _page(found: list[JobSummary], limit: int) -> JobPage:
    """What an index has found: less than a full page is the end."""
    return JobPage(found, found[-1].key if len(found) == limit else None)
