"""Reads about tasks: a task, its history, its log, its dead letter, and why it is not running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onetray.domain.checks import FAR_US, MAX_ROWS, choice, listed, optional_text, task_id, text, whole
from onetray.domain.errors import NotFound
from onetray.domain.lifecycle import PENDING, RUNNING, TASK, WAITING
from onetray.domain.listing import Dependency
from onetray.domain.machine import ACTORS, USER
from onetray.domain.task import Blocker, DeadLetter, Event, LogLine, Task, json_of
from onetray.domain.token import READ, WORK
from onetray.engine.flow_api import tasks_of_rows
from onetray.engine.pending_writes import RUN
from onetray.engine.reads import DatabaseReads, before_if_given, kind_filters, read
from onetray.engine.refusals import refuse_redrive, refuse_retry
from onetray.explain.tasks import explain, position
from onetray.feed import event_of
from onetray.feed.history import events_by_correlation, events_of_task
from onetray.redaction.answers import by_owner, of_task, plain


class TaskApi(DatabaseReads):
    """The engine's reads about tasks, on a database."""

    @read(by_owner, READ, WORK)
    def task(self, task: str, *, namespace: str = "default", actor: str = USER, raw: bool = False) -> Task:
        """A task. `raw`: its JSON fields as RawJson, for callers that do not need them parsed."""
        choice(actor, "actor", ACTORS)
        rows = self._read("task_by_id", id=task_id(task), namespace=namespace)
        if not rows:
            raise NotFound(f"there is no task {task}", task=task)
        return tasks_of_rows(self.store, rows, actor, raw)[0]

    @read(by_owner)
    def tasks(self, *, namespace: str = "default", limit: int = 100, before: int = 2**62) -> list[Task]:
        """Tasks, newest first. Pass the last key as `before` to get the next page."""
        rows = self._read("tasks_newest", namespace=namespace, limit=limit, before=before)
        return tasks_of_rows(self.store, rows)

    @read(by_owner, READ, WORK)
    def tasks_by_id(self, ids: Sequence[str], *, namespace: str = "default", raw: bool = False) -> list[Task]:
        """Tasks by their ids, in this order. Ids of no task are left out."""
        wanted = [task_id(each, "ids") for each in listed(ids, "ids", 0, MAX_ROWS)]
        rows = self._read("tasks_by_ids", ids=wanted, namespace=namespace) if wanted else []
        found = {task.id: task for task in tasks_of_rows(self.store, rows, USER, raw)}
        return [found[id_] for id_ in dict.fromkeys(wanted) if id_ in found]

    @read(plain, READ, WORK)
    def dependencies(self, ids: Sequence[str], *, namespace: str = "default") -> list[Dependency]:
        """What tasks of flows depend on, by the ids of these tasks."""
        wanted = [task_id(each, "ids") for each in listed(ids, "ids", 0, MAX_ROWS)]
        rows = self._read("dependencies_of", ids=wanted, namespace=namespace) if wanted else []
        # Not in the statement: for that order PostgreSQL would read all dependencies.
        return sorted(rows, key=lambda row: (row.task_id, row.needs_id))

    @read(of_task)
    def explain(self, task: str, *, namespace: str = "default") -> list[Blocker]:
        """Why a task, a stage or a flow is not running, or how it ended: each reason with its owner and its end.

        Empty if a worker may claim the task now. That no registered worker would is a reason, too."""
        text(namespace, "namespace", self.config.limits.name_chars)
        return explain(self.store, task, namespace, self._is_refused)

    def _is_refused(self, entity: str, key: int) -> bool:
        refuse = refuse_redrive if entity == TASK.entity else refuse_retry
        return bool(refuse(self.store.read, [key]))

    @read(plain)
    def position(self, task: str, *, namespace: str = "default", most: int = 1000) -> int | None:
        """How many tasks would be claimed before this one, counted up to `most`. None if it has no ready row."""
        text(namespace, "namespace", self.config.limits.name_chars)
        return position(self.store, task, namespace, whole(most, "most", 1, MAX_ROWS))

    @read(by_owner)
    def events(
        self,
        task: str,
        *,
        namespace: str = "default",
        after: int = 0,
        before: int | None = None,
        limit: int = 1000,
        raw: bool = False,
    ) -> list[Event]:
        """The events of a task, in order: the first ones after an event or, with `before`, the last ones before it."""
        self.check(namespace=namespace, after=after, limit=limit, **before_if_given(before))
        events = events_of_task(self.store, task_id(task), namespace, after, limit, before)
        if not events:
            self.task(task, namespace=namespace, raw=True)
        return [event_of(e, raw) for e in events]

    @read(by_owner)
    def events_by_correlation(
        self, correlation_id: str, *, namespace: str = "default", after: int = 0, limit: int = 1000
    ) -> list[Event]:
        text(correlation_id, "correlation_id", self.config.limits.key_chars)
        self.check(namespace=namespace, after=after, limit=limit)
        return [event_of(e) for e in events_by_correlation(self.store, correlation_id, namespace, after, limit)]

    @read(of_task)
    def logs(
        self,
        task: str,
        *,
        namespace: str = "default",
        after: int = 0,
        before: int | None = None,
        limit: int = 1000,
        raw: bool = False,
    ) -> list[LogLine]:
        """The log lines of a task, in order: the first after a cursor or, with `before`, the last ones before it."""
        wanted = {"id": task_id(task), "namespace": namespace, "after": after, "limit": limit}
        rows = self._read_either_way("logs_of", before, **wanted)
        if not rows:
            self.task(task, namespace=namespace)
        return [row if row.data is None else replace(row, data=json_of(row.data, raw)) for row in rows]

    @read(by_owner)
    def pending_tasks(
        self,
        *,
        flow: str | None = None,
        kinds: Sequence[str] = (),
        queue: str | None = None,
        ready_by: int | None = None,
        limit: int = 100,
        offset: int = 0,
        namespace: str = "default",
    ) -> list[Task]:
        """Tasks that can be claimed, or could be at their `run_at` (up to `ready_by`), in the order of claims.

        Without those that wait for a dependency, their stage or their flow: `explain` says so of each.
        """
        filters = {
            **kind_filters(kinds, self.config.limits.name_chars), "namespace": namespace, "limit": limit, "run": RUN,
            "ready_by": FAR_US if ready_by is None else whole(ready_by, "ready_by", 0, FAR_US),
            "offset": whole(offset, "offset", 0, FAR_US), "going_stages": [PENDING, RUNNING],
            "queue": optional_text(queue, "queue", self.config.limits.name_chars),
            "going_flows": [PENDING, RUNNING, WAITING],
        }  # fmt: skip
        if flow is None:
            rows = self._read("pending_tasks", **filters)
        else:
            keys = [key for (key,) in self._read("key_of_flow", id=task_id(flow, "flow"), namespace=namespace)]
            if not keys:
                raise NotFound(f"there is no flow {flow}", flow=flow)
            stages = [stage for (stage,) in self._read("stage_keys_of_flows", keys=keys)]
            rows = self._read("pending_tasks_of_flow", stages=stages, **filters) if stages else []
        return tasks_of_rows(self.store, rows)

    @read(by_owner)
    def dead_letters(
        self, task: str | None = None, *, namespace: str = "default", limit: int = 100
    ) -> list[DeadLetter]:
        if task is None:
            rows = self._read("dead_letters", namespace=namespace, limit=limit)
        else:
            self.check(limit=limit)
            rows = self._read("dead_letter_of_task", id=task_id(task), namespace=namespace)
        return [replace(row, last_error=json_of(row.last_error)) for row in rows]
