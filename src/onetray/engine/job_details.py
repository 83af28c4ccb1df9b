"""Reads about jobs, whether tasks or flows: their status, their events, and details of many jobs; and their deletion.

The number of statements does not depend on the number of jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from onetray.domain.checks import MAX_ROWS, alias_text, listed, optional_text, task_id, text, whole
from onetray.domain.errors import NotFound
from onetray.domain.flow import Flow, Stage
from onetray.domain.lifecycle import FLOW, PARTIAL, SUCCEEDED, TASK
from onetray.domain.listing import Alias, JobDetails, JobLabel, JobStatus
from onetray.domain.machine import USER
from onetray.domain.task import Event, LogLine, Task
from onetray.domain.token import READ, WORK
from onetray.engine.deletion import Deletion
from onetray.engine.flow_api import FlowApi, _stage, flows_of_rows, tasks_of_rows
from onetray.engine.reads import DatabaseReads, act, read
from onetray.engine.task_api import TaskApi
from onetray.feed import event_of
from onetray.feed.history import events_of_entities, events_of_task
from onetray.redaction.answers import by_owner, of_details, plain
from onetray.store.base import Store

MAX_DETAILS, MAX_LINES = 100, 1_000
"""How many jobs, and log lines of each, one answer contains."""


class JobApi(DatabaseReads):
    """The engine's reads about jobs, and their deletion, on a database."""

    def __init__(self, tasks: TaskApi, flows: FlowApi) -> None:
        super().__init__(tasks.store, tasks.config, tasks.must_not_have_forked)
        self._tasks, self._flows = tasks, flows

    @read(plain)
    def job_status(self, job: str, *, namespace: str = "default") -> JobStatus:
        """Whether an id belongs to a task or a flow, its state, and the actions that would be accepted from a user."""
        try:
            task = self._tasks.task(job, namespace=namespace, raw=True)
            return JobStatus(TASK.entity, task.id, task.key, task.state, task.queue, task.started_at, task.actions)
        except NotFound:
            pass
        try:
            flow = self._flows.flow(job, namespace=namespace, raw=True)
            return JobStatus(FLOW.entity, flow.id, flow.key, flow.state, None, flow.started_at, flow.actions)
        except NotFound:
            raise NotFound(f"there is no job {job}", job=job) from None

    @read(by_owner)
    def labels_of(self, ids: Sequence[str], *, namespace: str = "default") -> list[JobLabel]:
        """The labels of these jobs, by id and name."""
        wanted = [task_id(id_, "ids") for id_ in listed(ids, "ids", 0, MAX_ROWS)]
        return self._read("labels_of_jobs", ids=wanted, namespace=namespace) if wanted else []

    @read(plain, READ, WORK)
    def by_alias(self, alias: str, *, namespace: str = "default") -> Alias:
        """The task, flow or context with this alias."""
        found = self.find_aliases([alias], namespace=namespace)
        if not found:
            raise NotFound(f"nothing has the alias {alias!r}", alias=alias)
        return found[0]

    @read(plain, READ, WORK)
    def find_aliases(self, aliases: Sequence[str], *, namespace: str = "default") -> list[Alias]:
        """The tasks, flows and contexts with these aliases, in this order. Unknown aliases are left out."""
        wanted = [alias_text(each, "alias", self.config.limits) for each in listed(aliases, "aliases", 0, MAX_ROWS)]
        rows = self._read("entities_by_alias", aliases=wanted, namespace=namespace) if wanted else []
        found = {row.alias: row for row in rows}
        return [found[alias] for alias in dict.fromkeys(wanted) if alias in found]

    @read(plain, READ, WORK)
    def aliases_of(self, ids: Sequence[str], *, namespace: str = "default") -> list[Alias]:
        """The aliases of the tasks, flows and contexts with these ids, as far as they have one."""
        wanted = [task_id(each, "ids") for each in listed(ids, "ids", 0, MAX_ROWS)]
        rows = self._read("aliases_of_ids", ids=wanted, namespace=namespace) if wanted else []
        return [row for row in rows if row.alias]

    @read(by_owner)
    def own_events(self, job: str, *, namespace: str = "default", after: int = 0, limit: int = 1000) -> list[Event]:
        """The events of a task, or of a flow and its stages without their tasks. In order."""
        self.check(namespace=namespace, after=after, limit=limit)
        status = self.job_status(job, namespace=namespace)
        if status.entity == TASK.entity:
            events = events_of_task(self.store, status.id, namespace, after, limit)
        else:
            events = self._events_of_flow_and_stages(status.key, after, limit)
        return [event_of(event) for event in events]

    def _events_of_flow_and_stages(self, flow: int, after: int, limit: int) -> list[Event]:
        keys = self._with_stages(flow)
        while True:
            events = events_of_entities(self.store, keys, after, limit)
            before, keys = keys, self._with_stages(flow)
            # A stage that was added meanwhile may have earlier events than these.
            if keys == before:
                return events

    def _with_stages(self, flow: int) -> list[int]:
        return [flow, *sorted(key for (key,) in self._read("stage_keys_of_flows", keys=[flow]))]

    @read(of_details)
    def job_details(self, keys: Sequence[int], *, lines: int = 100, namespace: str = "default") -> list[JobDetails]:
        """Jobs by key, newest first, each with the first lines of its log; succeeded and partial flows with their
        stages."""
        whole(lines, "lines", 0, MAX_LINES)
        for key in listed(keys, "keys", 0, MAX_DETAILS):
            whole(key, "keys", 1, 2**63 - 1)
        found = tasks_by_keys(self.store, keys)
        all_jobs: list[Task | Flow] = [*found, *flows_by_keys(self.store, list({*keys} - {task.key for task in found}))]
        # A key may belong to a job of another namespace.
        jobs = sorted((job for job in all_jobs if job.namespace == namespace), key=lambda job: job.key, reverse=True)
        tasks = [job for job in jobs if isinstance(job, Task)]
        flows = [job.key for job in jobs if isinstance(job, Flow) and job.state in (SUCCEEDED, PARTIAL)]
        logs = first_lines(self.store, [task.key for task in tasks], lines)
        stages = stages_of_flows(self.store, flows)
        # Only a task that has returned to its queue can have been started twice.
        starts = first_starts(self.store, [t.key for t in tasks if t.started_at is not None and t.fence > 1])
        return [
            JobDetails.of(
                job, [s for s in stages if s.flow_id == job.id], logs.get(job.key, []),
                starts.get(job.key, job.started_at),
            )
            for job in jobs
        ]  # fmt: skip

    @act
    def delete_job(
        self, job: str, *, reason: str | None = None, by: str = "anonymous", namespace: str = "default"
    ) -> None:
        """Delete an ended job with everything that belongs to it: tasks, events, logs, results and keys.

        An event `job.deleted` records it. A large flow goes in steps; nobody finds it after the first one.
        """
        limits = self.config.limits
        text(by, "by", limits.name_chars)
        optional_text(reason, "reason", limits.reason_chars)
        id_ = task_id(job, "job")
        ns = self.store.names.namespace(text(namespace, "namespace", limits.name_chars))
        self.must_not_have_forked()
        Deletion(id_, ns, by, reason).run(self.store)


def tasks_by_keys(store: Store, keys: Sequence[int]) -> list[Task]:
    return tasks_of_rows(store, store.read("tasks_by_keys", keys=list(keys))) if keys else []


def flows_by_keys(store: Store, keys: Sequence[int]) -> list[Flow]:
    return flows_of_rows(store, store.read("flows_by_keys", keys=list(keys))) if keys else []


def stages_of_flows(store: Store, keys: Sequence[int]) -> list[Stage]:
    """The stages of ended flows, in order. Ended flows have no held tasks."""
    return [_stage(r, None, USER, raw=False) for r in store.read("stages_of_flows", keys=list(keys))] if keys else []


def first_lines(store: Store, keys: Sequence[int], most: int) -> dict[int, list[LogLine]]:
    lines: dict[int, list[LogLine]] = {}
    for row in store.read("first_lines", keys=list(keys), most=most) if keys and most else ():
        data = None if row.data is None else orjson.loads(row.data)
        line = LogLine(row.cursor, row.ts, row.attempt, row.level, row.line, data)
        lines.setdefault(row.task, []).append(line)
    return lines


def first_starts(store: Store, keys: Sequence[int]) -> dict[int, int]:
    """The first start of these tasks. A task's own `started_at` is its last start."""
    rows = store.read("first_starts", keys=list(keys), started=TASK.start.event) if keys else ()
    return {key: int(at) for key, at in rows}
