"""Reads about flows: a flow, its stages with their tasks and results, its contexts, its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from typing import Any

from onetray.domain.actions import flow_refuses, stage_refuses
from onetray.domain.checks import MAX_ROWS, choice, id_or_none, listed, task_id, text, whole
from onetray.domain.errors import NotFound
from onetray.domain.flow import (
    Context,
    Counts,
    Flow,
    FlowError,
    FlowErrors,
    MemberReport,
    Progress,
    Stage,
    StageResult,
    message_of_error,
)
from onetray.domain.lifecycle import FLOW
from onetray.domain.machine import ACTORS, USER
from onetray.domain.policy import Policy
from onetray.domain.progress import flow_percentage, stage_percentage, task_percentage
from onetray.domain.task import Event, Task, TaskProgress, json_of
from onetray.domain.token import READ, WORK
from onetray.engine.reads import DatabaseReads, before_if_given, read
from onetray.engine.refusals import NO_REDRIVE, NO_RETRY, is_uncertain, refuse_redrive, refuse_retry
from onetray.feed import event_of
from onetray.feed.history import events_of_flows, last_events_of_flow
from onetray.redaction.answers import by_owner, errors_of_flow, json_of_task, of_flow, plain, results_of_stage
from onetray.store.base import Store
from onetray.store.overview_rows import TaskShareRow
from onetray.store.shown_rows import FlowDetails, HeldInStageRow, StageDetails, TaskDetails


class FlowApi(DatabaseReads):
    """The engine's reads about flows and stages, on a database."""

    @read(by_owner, READ, WORK)
    def flow(self, flow: str, *, namespace: str = "default", actor: str = USER, raw: bool = False) -> Flow:
        """A flow. `raw`: its JSON fields as RawJson, for callers that do not need them parsed."""
        choice(actor, "actor", ACTORS)
        rows = self._read("flow_by_id", id=task_id(flow, "flow"), namespace=namespace)
        if not rows:
            raise NotFound(f"there is no flow {flow}", flow=flow)
        return flows_of_rows(self.store, rows, actor, raw)[0]

    @read(by_owner)
    def flows(self, *, namespace: str = "default", limit: int = 100, before: int = 2**62) -> list[Flow]:
        """Flows, newest first. Pass the last key as `before` to get the next page."""
        rows = self._read("flows_newest", namespace=namespace, limit=limit, before=before)
        return flows_of_rows(self.store, rows)

    @read(by_owner, READ, WORK)
    def stage(self, stage: str, *, namespace: str = "default", actor: str = USER, raw: bool = False) -> Stage:
        choice(actor, "actor", ACTORS)
        rows = self._read("stage_by_id", id=task_id(stage, "stage"), namespace=namespace)
        if not rows:
            raise NotFound(f"there is no stage {stage}", stage=stage)
        return self.stages_of_rows(rows, actor, raw)[0]

    @read(by_owner, READ, WORK)
    def stages(self, flow: str, *, namespace: str = "default", raw: bool = False) -> list[Stage]:
        """The stages of a flow, in order."""
        rows = self._read("stages_of", id=task_id(flow, "flow"), namespace=namespace)
        if not rows:
            self.flow(flow, namespace=namespace)
        return self.stages_of_rows(rows, USER, raw)

    @read(by_owner)
    def stages_of_flows(self, flows: Sequence[str], *, namespace: str = "default") -> list[Stage]:
        """The stages of several flows, flow by flow, in order. Costs two statements, however many they are."""
        ids = [task_id(flow, "flows") for flow in listed(flows, "flows", 0, MAX_ROWS)]
        return self.stages_of_rows(self._read("stages_of_ids", ids=ids, namespace=namespace) if ids else [])

    def stages_of_rows(self, rows: list[StageDetails], actor: str = USER, raw: bool = False) -> list[Stage]:
        open_ = [row.key for row in rows if row.open]
        held = {row.stage: row for row in self.store.read("held_in_stages", stages=open_)} if open_ else {}
        return [_stage(row, held.get(row.key), actor, raw) for row in rows]

    @read(by_owner)
    def progress(self, flow: str, *, namespace: str = "default") -> Progress:
        """The progress of a flow, from its counters and what its running tasks have reported: the cost does not depend
        on the number of tasks."""
        root = self.flow(flow, namespace=namespace)
        stages = tuple(self.stages(flow, namespace=namespace))
        # What was committed between the two reads would show counts that the state does not know of yet.
        while root.finished_at is None and (now := self.flow(flow, namespace=namespace)).version != root.version:
            root, stages = now, tuple(self.stages(flow, namespace=namespace))
        return Progress.of_flow(root, stages)

    @read(plain)
    def percentages(self, ids: Sequence[str], *, namespace: str = "default") -> dict[str, int]:
        """How much of each job is done, by its id. Tasks that have reported no share are left out.

        For lists: it reads no payloads and no results, and its cost does not depend on the number of tasks in flows.
        """
        wanted = [task_id(each, "ids") for each in listed(ids, "ids", 0, MAX_ROWS)]
        if not wanted:
            return {}
        tasks = self._read("shares_of_tasks", ids=wanted, namespace=namespace)
        shares = {row.id: task_percentage(row.state, row.attempts, _reported(row)) for row in tasks}
        found = {id_: share for id_, share in shares.items() if share is not None}
        return found | self._percentages_of_flows([id_ for id_ in wanted if id_ not in shares], namespace)

    def _percentages_of_flows(self, ids: list[str], namespace: str) -> dict[str, int]:
        rows = self._read("shares_of_stages", ids=ids, namespace=namespace) if ids else []
        open_ = [row.key for row in rows if row.open]
        held = {row.stage: row.progress for row in self.store.read("held_in_stages", stages=open_)} if open_ else {}
        stages: dict[tuple[str, str], list[tuple[str, int]]] = {}
        for row in rows:
            of_flow = stages.setdefault((row.flow_id, row.flow_state), [])
            if row.key is not None:
                counts = Counts(row.total, succeeded=row.succeeded, failed=row.total - row.open - row.succeeded)
                reported = min(held.get(row.key, 0.0), row.open)
                of_flow.append((row.state, stage_percentage(row.state, counts, reported)))
        return {id_: flow_percentage(state, done) for (id_, state), done in stages.items()}

    @read(errors_of_flow)
    def flow_errors(self, flow: str, *, namespace: str = "default", limit: int = 100) -> FlowErrors:
        """What went wrong in a flow: which task of which stage, with which message. Of each stage the first errors."""
        whole(limit, "limit", 0, MAX_ROWS)
        stages = self.stages(flow, namespace=namespace)
        errors = [error for stage in stages for error in stage.all_errors]
        total = sum(max(stage.error_count, len(stage.all_errors)) for stage in stages)
        if not errors:
            flow_error = self.flow(flow, namespace=namespace).error
            if flow_error is not None:
                errors, total = [FlowError(None, None, None, message_of_error(flow_error))], 1
        return FlowErrors(errors[:limit], total)

    @read(of_flow)
    def member_reports(
        self,
        flow: str,
        *,
        namespace: str = "default",
        after: int = 0,
        before: int | None = None,
        limit: int = 1000,
        raw: bool = False,
    ) -> list[MemberReport]:
        """What the tasks of a flow have logged after a cursor, and the last progress of each, in order. Progress that a
        task reports again gets a new cursor, in place of its old one. With `before`: the last ones before that cursor.
        """
        keys = [key for (key,) in self._read("key_of_flow", id=task_id(flow, "flow"), namespace=namespace)]
        if not keys:
            raise NotFound(f"there is no flow {flow}", flow=flow)
        reports = self._read_either_way("reports_of_flow", before, job=keys[0], after=after, limit=limit)
        return [row if row.data is None else replace(row, data=json_of(row.data, raw)) for row in reports]

    @read(by_owner)
    def stage_tasks(self, stage: str, *, namespace: str = "default", after: int = 0, limit: int = 100) -> list[Task]:
        """The tasks of a stage, in order. Pass the last key as `after` to get the next page."""
        key = self.stage(stage, namespace=namespace).key
        return tasks_of_rows(self.store, self._read("tasks_of_stage", stage=key, after=after, limit=limit))

    @read(by_owner)
    def tasks_of_stages(self, stages: Sequence[int], *, namespace: str = "default", limit: int = 1000) -> list[Task]:
        """The tasks of several stages, by the keys of these, stage by stage, in order."""
        keys = [whole(key, "stages", 1, 2**63 - 1) for key in listed(stages, "stages", 0, MAX_ROWS)]
        rows = self._read("tasks_of_stages", stages=keys, namespace=namespace, limit=limit) if keys else []
        return tasks_of_rows(self.store, rows)

    @read(results_of_stage, READ, WORK)
    def stage_results(
        self, stage: str, *, namespace: str = "default", after: int = 0, limit: int = 1000, raw: bool = False
    ) -> list[StageResult]:
        """The results of a stage's tasks. Pass the last key as `after` to get the next page."""
        key = self.stage(stage, namespace=namespace, raw=True).key
        rows = self._read("results_of_stage", stage=key, after=after, limit=limit)
        return [StageResult(row.key, row.id, row.name, row.state, json_of(row.result, raw)) for row in rows]

    @read(json_of_task, READ, WORK)
    def inputs(self, task: str, *, namespace: str = "default") -> dict[str, Any]:
        """The inputs of a task of a flow: results of earlier stages, and of the tasks that it depends on."""
        rows = self._read("place_of_task", id=task_id(task), namespace=namespace)
        if not rows:
            raise NotFound(f"there is no task {task} in a flow", task=task)
        of_stages = self.store.read("results_before", job=rows[0].job, ord=rows[0].ord)
        of_tasks = self.store.read("results_needed", task=rows[0].key)
        return {
            "stages": {name: json_of(result) for name, result in of_stages},
            "tasks": {row.name or row.id: json_of(row.result) for row in of_tasks},
        }

    @read(by_owner)
    def flow_events(
        self,
        flow: str,
        *,
        namespace: str = "default",
        after: int = 0,
        before: int | None = None,
        limit: int = 1000,
        raw: bool = False,
    ) -> list[Event]:
        """The events of a flow, its stages and its tasks, in order: the first ones after an event or, with `before`,
        the last ones before it."""
        self.check(namespace=namespace, after=after, limit=limit, **before_if_given(before))
        key = self.flow(flow, namespace=namespace, raw=True).key
        if before is None:
            events, _ = events_of_flows(self.store, [key], after, limit)
        else:
            events = last_events_of_flow(self.store, key, after, before, limit)
        return [event_of(e, raw) for e in events]

    @read(by_owner, READ, WORK)
    def contexts(self, flow: str, *, namespace: str = "default", after: int = 0, limit: int = 100) -> list[Context]:
        rows = self._read("contexts_of_flow", id=task_id(flow, "flow"), namespace=namespace, after=after, limit=limit)
        if not rows:
            self.flow(flow, namespace=namespace)
        return [_context(r) for r in rows]

    @read(by_owner, READ, WORK)
    def context(self, flow: str, *, namespace: str = "default") -> Context | None:
        """The current context of a flow, if it has one."""
        rows = self._read("current_context", id=task_id(flow, "flow"), namespace=namespace)
        if not rows:
            self.flow(flow, namespace=namespace)
        return _context(rows[0]) if rows else None

    @read(by_owner, READ, WORK)
    def context_by_id(self, context: str, *, namespace: str = "default") -> Context:
        """A snapshot of a flow's context, by its id or its alias."""
        alias = text(context, "context", self.config.limits.name_chars)
        rows = self._read("context_by_id", id=id_or_none(alias), alias=alias, namespace=namespace)
        if not rows:
            raise NotFound(f"there is no context {context!r}", context=context)
        return _context(rows[0])


def _reported(row: TaskShareRow) -> TaskProgress | None:
    if row.done is None or row.reported_on is None:
        return None
    return TaskProgress(0, row.reported_on, row.done, row.out_of, None)


def _parsed(fields: dict[str, Any], raw: bool, *names: str) -> dict[str, Any]:
    """The fields of a row, with the named ones parsed as JSON."""
    return fields | {name: json_of(fields[name], raw) for name in names}


def flows_of_rows(store: Store, rows: list[FlowDetails], actor: str = USER, raw: bool = False) -> list[Flow]:
    """Flows with what may be done with them: for those that have ended, that takes another read."""
    refused = refuse_retry(store.read, [row.key for row in rows if row.state in FLOW.terminal])
    return [_flow(row, actor, raw, row.key in refused) for row in rows]


def _flow(row: FlowDetails, actor: str, raw: bool, cannot_retry: bool) -> Flow:
    not_now = NO_RETRY if cannot_retry else tuple(flow_refuses(row.ending, row.ending_how))
    fields = _parsed(row._asdict(), raw, "data", "metadata", "error")
    return Flow(**fields | {"labels": json_of(row.labels) or {}, "actor": actor, "not_now": not_now})


def _stage(row: StageDetails, held: HeldInStageRow | None, actor: str, raw: bool) -> Stage:
    fields = _parsed(row._asdict(), raw, "data", "metadata", "result", "metrics", "error", "approval", "answer")
    refused = stage_refuses(
        row._replace(ending_how=row.own_ending_how), is_current=bool(row.is_current), flow_state=row.flow_state,
        flow_ending=row.flow_ending,
    )  # fmt: skip
    fields |= {"order": row.ord, "takes_more": bool(row.takes_more), "actor": actor, "not_now": tuple(sorted(refused))}
    fields["errors"] = tuple(FlowError(row.name, **error) for error in json_of(row.errors) or ())
    counts = _counts(row, held)
    fields["reported_progress"] = min(held.progress, counts.held) if held else 0.0
    return Stage(counts=counts, **{name: fields[name] for name in _STAGE_FIELDS})


def _counts(row: StageDetails, held_row: HeldInStageRow | None) -> Counts:
    # Held tasks were counted a moment later than the rest: never more than are open.
    queued_or_held = row.open - row.blocked - row.waiting_input
    held = min(held_row.held, queued_or_held) if held_row else 0
    waiting = row.open - held
    retried = min(max(row.retrying - (held_row.retried if held_row else 0), 0), waiting)
    created = waiting if row.opened_at is None else 0
    pending = waiting - retried - created
    stored = {name: getattr(row, name) for name in _COUNTERS}
    return Counts(queued=queued_or_held - held, held=held, created=created, pending=pending, retried=retried, **stored)


_COUNTERS = tuple(field.name for field in dataclass_fields(Counts) if field.name in StageDetails._fields)
_STAGE_FIELDS = tuple(field.name for field in dataclass_fields(Stage) if field.name != "counts")


def _context(row: Context) -> Context:
    return replace(row, payload=json_of(row.payload))


def tasks_of_rows(store: Store, rows: list[TaskDetails], actor: str = USER, raw: bool = False) -> list[Task]:
    """Tasks with what may be done with them: for ended members of flows and dead letters, that takes another read."""
    uncertain = [row.key for row in rows if is_uncertain(row.state, row.stage_id is not None)] if actor == USER else []
    refused = refuse_redrive(store.read, uncertain)
    return [_task(row, actor, raw, row.key in refused) for row in rows]


def _task(row: TaskDetails, actor: str, raw: bool, cannot_redrive: bool) -> Task:
    fields = _parsed(row._asdict(), raw, "payload", "input", "result", "error", "metadata")
    return Task(**fields | {
        "policy": Policy.from_body(row.policy), "control": bool(row.control), "labels": json_of(row.labels) or {},
        "actor": actor, "redacts": bool(row.redacts), "not_now": NO_REDRIVE if cannot_redrive else (),
    })  # fmt: skip
