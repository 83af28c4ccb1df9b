"""The engine's lists: jobs, members of flows, queues, dead letters; and the search by a part of an id.

Owns the filters; list_scan.py reads long lists in parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onetray.domain.checks import FAR_US, MAX_ROWS, choice, flag, listed, optional_text, seconds, task_id, text, whole
from onetray.domain.clock import SECOND
from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.lifecycle import FLOW, MACHINES, STAGE, TASK
from onetray.domain.listing import (
    JobCounts,
    JobPage,
    JobSummary,
    Located,
    MemberSummary,
    Prunable,
    QueueDepth,
    StagePage,
    TaskPage,
)
from onetray.domain.task import json_of
from onetray.engine.flow_api import FlowApi, tasks_of_rows
from onetray.engine.job_search import keys_of_ids, keys_of_text
from onetray.engine.list_scan import ListScan, Statements
from onetray.engine.pending_writes import RUN
from onetray.engine.reads import DatabaseReads, read
from onetray.explain.limits import full_scopes
from onetray.redaction.answers import by_owner, of_page, plain

COUNT_S = 0.02
"""How long a count by state may take, apart from its last read."""
NEWEST = 1_000
"""`locate` searches the newest ids of each entity for a part of an id, `kinds` the newest jobs for names of flows."""
MIN_PART_CHARS = 6
MAX_LABELS = 20
ORDERS = ("updated_at", "created_at")
LABEL_SEPARATOR = "\x1f"
"""Joins a label's name and value to one text. No label contains it."""
ENTITIES = tuple(MACHINES)
JOB_ENTITIES = (TASK.entity, FLOW.entity)
JOB_STATES = tuple(dict.fromkeys((*TASK.states, *FLOW.states)))
JOBS = Statements("list_jobs", "total_jobs", "nth_job", "states_of_jobs", newest="newest_before")
OF_CORRELATION = Statements(
    "list_jobs_of_correlation", "total_jobs_of_correlation", "nth_job_of_correlation", "states_of_jobs_of_correlation"
)
LABELLED = Statements(
    "list_jobs_labelled", "total_jobs_labelled", "nth_job_labelled", "states_of_jobs_labelled", span="span_labelled"
)
OF_KEYS = Statements("list_jobs_of_keys", "total_jobs_of_keys", "nth_job_of_keys", "states_of_jobs_of_keys")
STAGES = Statements("find_stages", "total_stages", "nth_stage", newest="newest_stage")
TASKS = Statements("find_tasks", "total_tasks", "nth_task", newest="newest_task")
TASKS_OF_STAGE = Statements("find_tasks_of_stage", "total_tasks_of_stage", "nth_task_of_stage")
_FULL_ID = re.compile(r"[\da-f]{8}-[\da-f]{4}-[\da-f]{4}-[\da-f]{4}-[\da-f]{12}")


class ListApi(DatabaseReads):
    """The engine's lists, on a database."""

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
        entity: str | None = None,
        priority: int | None = None,
        since: int = 0,
        until: int | None = None,
        ids: Sequence[str] = (),
        text: str | None = None,
        before: int | None = None,
        page: int | None = None,
        limit: int = 100,
        total: bool = False,
    ) -> JobPage:
        """Single tasks and flows, newest first. A page may be short: the list ends when its `before` is None.

        `text` finds the jobs that have it as their correlation id or alias, or whose id begins with it (at least eight
        characters; the id of a task of a flow finds the flow): the newest thousand. If there is none, it finds the jobs
        whose kind or flow name contains it.

        `page` counts pages of `limit` jobs from 1, and fills them. `total` counts all jobs, up to a million.
        """
        scan = self._scan(
            namespace, states, kind, queue, correlation_id, labels, entity, priority, since, until, ids, text
        )
        return JobPage(*scan.slice(before, limit, page, total)) if scan else JobPage([], None, 0 if total else None)

    @read(plain)
    def count_by_state(
        self,
        *,
        namespace: str = "default",
        states: Sequence[str] = (),
        kind: str | None = None,
        queue: str | None = None,
        correlation_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        entity: str | None = None,
        priority: int | None = None,
        since: int = 0,
        until: int | None = None,
        ids: Sequence[str] = (),
        text: str | None = None,
    ) -> JobCounts:
        """How many jobs are in each state, of those that the filters of `jobs` select, the newest first.

        A count of many jobs ends early: see `is_complete`. `job_counts` counts all, however long that takes.
        """
        scan = self._scan(
            namespace, states, kind, queue, correlation_id, labels, entity, priority, since, until, ids, text
        )
        return JobCounts(*scan.states(COUNT_S)) if scan else JobCounts({}, True)

    def _scan(
        self,
        namespace: str,
        states: Sequence[str],
        kind: str | None,
        queue: str | None,
        correlation_id: str | None,
        labels: Mapping[str, str] | None,
        entity: str | None,
        priority: int | None,
        since: int,
        until: int | None,
        ids: Sequence[str],
        text: str | None,
    ) -> ListScan | None:
        """The shortest scan for these filters; None if nothing can match."""
        filters = self._job_filters(namespace, states, kind, queue, labels, entity, priority, since, until)
        statements, keys = JOBS, keys_of_ids(self._read, ids) if ids else None
        if text is not None:
            found, kinds = keys_of_text(self._read, text, namespace, self.config.limits.key_chars)
            if not found and not kinds:
                return None
            if found:
                keys = found if keys is None else keys & found
            else:
                filters |= {"kinds": kinds, "any_kind": 0}
        if keys is not None:
            statements, filters = OF_KEYS, {**filters, "keys": sorted(keys)}
        elif correlation_id is not None:
            statements, filters = OF_CORRELATION, filters | self._correlation_filters(correlation_id)
        elif labels:
            (label, labelled), *others = labels.items()
            statements, filters = LABELLED, {**filters, "label": label, "labelled": labelled}
            filters |= self._label_filters(dict(others))
        return ListScan(self._read, statements, filters, since, until)

    @read(plain)
    def job_counts(
        self,
        *,
        namespace: str = "default",
        states: Sequence[str] = (),
        kind: str | None = None,
        queue: str | None = None,
        labels: Mapping[str, str] | None = None,
        entity: str | None = None,
        priority: int | None = None,
        since: int = 0,
        until: int | None = None,
    ) -> dict[str, int]:
        """How many jobs are in each state, of those that the filters of `jobs` select. Reads all jobs since `since`."""
        filters = self._job_filters(namespace, states, kind, queue, labels, entity, priority, since, until)
        return {state: int(count) for state, count in self._read("count_jobs", **filters)}

    @read(plain)
    def sorted_jobs(
        self,
        *,
        namespace: str = "default",
        states: Sequence[str] = (),
        kind: str | None = None,
        labels: Mapping[str, str] | None = None,
        entity: str | None = None,
        aliased: bool | None = None,
        updated_since: int = 0,
        updated_until: int | None = None,
        order_by: str = "updated_at",
        descending: bool = True,
        limit: int = 100,
        offset: int = 0,
    ) -> list[JobSummary]:
        """Single tasks and flows in the order of their last transition, or of their creation.

        `aliased`: only those with an alias, or without. `updated_since` is inclusive, `updated_until` is not.
        No index covers these times: it reads all jobs of the namespace that have the labels. To go through long lists
        use `jobs`.
        """
        sign = -1 if flag(descending, "descending") else 1
        filters = self._job_filters(namespace, states, kind, None, labels, entity, None, 0, None) | {
            "updated_since": whole(updated_since, "updated_since", 0, FAR_US),
            "updated_until": FAR_US if updated_until is None else whole(updated_until, "updated_until", 0, FAR_US),
            "aliased": None if aliased is None else int(flag(aliased, "aliased")),
            "by_update": int(choice(order_by, "order_by", ORDERS) == ORDERS[0]), "sign": sign,
            "offset": whole(offset, "offset", 0, FAR_US), "limit": limit,
        }  # fmt: skip
        if not labels:
            return self._read("sorted_jobs", **filters)
        label, labelled = next(iter(labels.items()))
        return self._read("sorted_jobs_labelled", **filters, label=label, labelled=labelled)

    def _job_filters(
        self,
        namespace: str,
        states: Sequence[str],
        kind: str | None,
        queue: str | None,
        labels: Mapping[str, str] | None,
        entity: str | None,
        priority: int | None,
        since: int,
        until: int | None,
    ) -> dict[str, Any]:
        if entity is not None:
            choice(entity, "entity", JOB_ENTITIES)
        if priority is not None:
            whole(priority, "priority", -(2**31) + 1, 2**31 - 1)
        return {
            **self._state_filters(states, JOB_STATES), "namespace": namespace, **self._time_filters(since, until),
            "kind": optional_text(kind, "kind", self.config.limits.name_chars), "entity": entity, "priority": priority,
            "queue": optional_text(queue, "queue", self.config.limits.name_chars), **self._label_filters(labels or {}),
            "kinds": [], "any_kind": 1,
        }  # fmt: skip

    def _correlation_filters(self, correlation_id: str) -> dict[str, Any]:
        text(correlation_id, "correlation_id", self.config.limits.key_chars)
        id_ = correlation_id.lower() if _FULL_ID.fullmatch(correlation_id.lower()) else None
        return {"correlation_id": correlation_id, "id": id_}

    @read(plain)
    def job_key(self, job: str, *, namespace: str = "default") -> int:
        """The key of a job, for `jobs(before=…)` to continue after it."""
        rows = self._read("key_of_job", id=task_id(job, "job"), namespace=namespace)
        for (key,) in rows:
            return int(key)
        raise NotFound(f"there is no job {job}", job=job)

    @read(plain)
    def locate(self, part: str, *, among: Sequence[str] = ENTITIES, namespace: str = "default") -> Located:
        """Find the entity of an id. A beginning or end of an id suffices if only one of the newest ids has it."""
        for entity in among:
            choice(entity, "among", ENTITIES)
        id_ = text(part, "id", self.config.limits.name_chars).strip().lower()
        if _FULL_ID.fullmatch(id_):
            for entity, _ in self._read("entity_of_id", id=id_, namespace=namespace):
                if entity in among:
                    return Located(entity, id_)
            raise NotFound(f"there is no {' or '.join(among)} {id_} in the namespace {namespace}", id=id_)
        if not re.fullmatch(rf"[\da-f-]{{{MIN_PART_CHARS},36}}", id_):
            raise InvalidInput(
                f"{part!r} is no id: give a whole id, or at least {MIN_PART_CHARS} characters of its beginning or end",
                field="id",
            )
        return self._by_part(id_, among, namespace)

    def _by_part(self, id_: str, among: Sequence[str], namespace: str) -> Located:
        newest = self._read("ids_newest", namespace=namespace, limit=NEWEST)
        rows = [row for row in newest if row.entity in among and (row.id.startswith(id_) or row.id.endswith(id_))]
        if not rows:
            raise NotFound(
                f"none of the newest {NEWEST:,} {', '.join(among)} ids begins or ends with {id_}: give the whole id",
                id=id_,
            )
        if len(rows) > 1:
            first = "; ".join(f"{row.entity} {row.id} ({row.name}, {row.state})" for row in rows[:10])
            more = f"; and {len(rows) - 10} more" if len(rows) > 10 else ""
            raise InvalidInput(f"{id_} could be any of {len(rows)} ids: give more of it. {first}{more}", field="id")
        return Located(rows[0].entity, rows[0].id)

    @read(of_page)
    def find_stages(
        self,
        *,
        namespace: str = "default",
        type: str | None = None,
        states: Sequence[str] = (),
        since: int = 0,
        until: int | None = None,
        before: int | None = None,
        page: int | None = None,
        limit: int = 100,
        total: bool = False,
    ) -> StagePage:
        """Stages of any flows, newest first. A page may be short: the list ends when its `before` is None.

        `page` and `total` are as for `jobs`.
        """
        filters = {
            **self._state_filters(states, STAGE.states), **self._time_filters(since, until), "namespace": namespace,
            "type": optional_text(type, "type", self.config.limits.name_chars),
        }  # fmt: skip
        found = ListScan(self._read, STAGES, filters, since).slice(before, limit, page, total)
        return StagePage(self._flows.stages_of_rows(found.rows), found.before, found.total)

    @read(of_page)
    def find_tasks(
        self,
        *,
        namespace: str = "default",
        kind: str | None = None,
        stage: str | None = None,
        stage_type: str | None = None,
        attempted: bool | None = None,
        states: Sequence[str] = (),
        since: int = 0,
        until: int | None = None,
        before: int | None = None,
        page: int | None = None,
        limit: int = 100,
        total: bool = False,
    ) -> TaskPage:
        """Tasks of any jobs, newest first. A page may be short: the list ends when its `before` is None.

        `stage` is the id of a stage; `attempted` says whether an attempt has been made; `page` and `total` are as for
        `jobs`.
        """
        names = self.config.limits.name_chars
        filters = {
            **self._state_filters(states, TASK.states), **self._time_filters(since, until), "namespace": namespace,
            "kind": optional_text(kind, "kind", names), "type": optional_text(stage_type, "stage_type", names),
            "attempted": None if attempted is None else int(flag(attempted, "attempted")),
        }  # fmt: skip
        statements = TASKS
        if stage is not None:
            statements = TASKS_OF_STAGE
            filters["stage"] = self._flows.stage(stage, namespace=namespace, raw=True).key
        found = ListScan(self._read, statements, filters, since).slice(before, limit, page, total)
        return TaskPage(tasks_of_rows(self.store, found.rows), found.before, found.total)

    def _time_filters(self, since: int, until: int | None) -> dict[str, int]:
        return {
            "since": whole(since, "since", 0, FAR_US),
            "until": FAR_US if until is None else whole(until, "until", 0, FAR_US),
        }

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
        """The tasks of a flow or of one of its stages, in order. Pass the last id as `after` to get the next page."""
        job = self._flows.flow(flow, namespace=namespace).key
        ord_, key = 0, 0
        if after is not None:
            place = self._read("place_of_member", id=task_id(after, "after"), job=job)
            if not place:
                raise NotFound(f"there is no task {after} in the flow {flow}", task=after)
            ord_, key = place[0]
        filters = {**self._state_filters(states, TASK.states), "after": key, "limit": limit}
        if stage is None:
            rows = self._read("list_members", job=job, ord=ord_, **filters)
        else:
            rows = self._read("list_members_of_stage", stage=self._stage_key(stage, job, namespace), **filters)
        return [replace(row, error=json_of(row.error)) for row in rows]

    @read(by_owner)
    def stage_members(
        self, stage: str, *, after: int = 0, limit: int = 100, namespace: str = "default"
    ) -> list[MemberSummary]:
        """Summaries of a stage's tasks, in order. Pass the last key as `after` to get the next page."""
        key = self._flows.stage(stage, namespace=namespace).key
        filters = {**self._state_filters((), TASK.states), "after": after, "limit": limit}
        rows = self._read("list_members_of_stage", stage=key, **filters)
        return [replace(row, error=json_of(row.error)) for row in rows]

    def _stage_key(self, stage: str, job: int, namespace: str) -> int:
        rows = self._read("key_of_stage", id=task_id(stage, "stage"), job=job, namespace=namespace)
        for (key,) in rows:
            return int(key)
        raise NotFound(f"the flow has no stage {stage}", stage=stage)

    @read(plain)
    def queues(self, *, namespace: str = "default", limit: int = 1_000) -> list[QueueDepth]:
        """The queues of a namespace, with their numbers of tasks."""
        ns = self.store.names.namespace(text(namespace, "namespace", self.config.limits.name_chars))
        full = full_scopes(self.store, -1 if ns is None else ns)
        return self._read(
            "list_queues", namespace=namespace, run=RUN, limit=limit, most=2**31 - 1, **full._asdict()
        )  # fmt: skip

    @read(plain)
    def retried(self, ids: Sequence[str], *, namespace: str = "default") -> list[str]:
        """Those of these jobs that were retried already, if the new job is still there."""
        wanted = [task_id(id_, "ids") for id_ in listed(ids, "ids", 0, MAX_ROWS)]
        return [id_ for (id_,) in self._read("retried_jobs", ids=wanted, namespace=namespace)] if wanted else []

    @read(plain)
    def kinds(self, *, namespace: str = "default", limit: int = 1_000) -> list[str]:
        """The kinds of tasks in a namespace, by name: those that workers have declared, and those of tasks.

        The names of flows are left out, as far as the newest jobs tell them apart.
        """
        return [name for (name,) in self._read("list_kinds", namespace=namespace, limit=limit, scan=NEWEST)]

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

    def _label_filters(self, labels: Mapping[str, str]) -> dict[str, Any]:
        if not isinstance(labels, Mapping):
            raise InvalidInput(f"labels must be a mapping, not {type(labels).__name__}", field="labels")
        listed(list(labels), "labels", 0, MAX_LABELS)
        for label in (*labels, *labels.values()):
            text(label, "labels", self.config.limits.name_chars)
        pairs = [f"{name}{LABEL_SEPARATOR}{value}" for name, value in labels.items()]
        return {"labels": pairs, "labels_wanted": len(pairs), "between": LABEL_SEPARATOR}

    def _state_filters(self, states: Sequence[str], known: Sequence[str]) -> dict[str, Any]:
        for state in listed(states, "states", 0, len(known)):
            choice(state, "states", tuple(known))
        return {"states": list(states), "any_state": int(not states)}
