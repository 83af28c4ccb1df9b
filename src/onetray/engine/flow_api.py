"""The engine's verbs and reads for flows: what `Engine` offers besides those for tasks.

Owns nothing but their names: every verb is a command, every read a named query.
"""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onetray.domain import flow_commands as f
from onetray.domain.checks import choice, task_id
from onetray.domain.errors import NotFound
from onetray.domain.flow import Approval, Context, Counts, Flow, Placed, Progress, Stage, StageSpec, TaskSpec
from onetray.domain.lifecycle import FLOW, SUCCEEDED
from onetray.domain.machine import ACTORS, USER
from onetray.domain.task import json_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onetray.domain.commands import Command
    from onetray.domain.task import Event, Task
    from onetray.store.base import Rows, Store


from collections.abc import Sequence

from onetray.domain.policy import Policy
from onetray.domain.task import Event, Task
from onetray.feed import event_of
from onetray.store.base import Rows, Store
from onetray.store.shown_rows import FlowDetails, StageDetails, TaskDetails


class FlowApi:
    """The part of the engine that is about flows and stages."""

    store: Store

    if TYPE_CHECKING:

        def call(self, command: Command, *, connection: Any = None) -> Any: ...

        def _read(self, name: str, **params: Any) -> Rows: ...

    def submit_flow(
        self, name: str, stages: Sequence[StageSpec] = (), *, connection: Any = None, **fields: Any
    ) -> Placed:
        """Submit a flow, whole or to be grown. With a psycopg connection of yours: inside its transaction."""
        return _placed(self.call(f.SubmitFlow(name=name, stages=list(stages), **fields), connection=connection))

    def add_stage(self, flow: str, stage: StageSpec, **fields: Any) -> Placed:
        return _placed(self.call(f.AddStage(flow, stage=stage, **fields)))

    def add_tasks(self, stage: str, tasks: Sequence[TaskSpec], **fields: Any) -> Placed:
        return _placed(self.call(f.AddTasks(stage, tasks=list(tasks), **fields)))

    def open_flow(self, flow: str, **fields: Any) -> Placed:
        return _placed(self.call(f.OpenFlow(flow, **fields)))

    def pause_flow(self, flow: str, **fields: Any) -> Placed:
        return _placed(self.call(f.PauseFlow(flow, **fields)))

    def resume_flow(self, flow: str, **fields: Any) -> Placed:
        return _placed(self.call(f.ResumeFlow(flow, **fields)))

    def cancel_flow(self, flow: str, **fields: Any) -> Placed:
        return _placed(self.call(f.CancelFlow(flow, **fields)))

    def seal_flow(self, flow: str, **fields: Any) -> Placed:
        return _placed(self.call(f.SealFlow(flow, **fields)))

    def retry_flow(self, flow: str, **fields: Any) -> Placed:
        return _placed(self.call(f.RetryFlow(flow, **fields)))

    def seal_stage(self, stage: str, **fields: Any) -> Placed:
        return _placed(self.call(f.SealStage(stage, **fields)))

    def wait_stage(self, stage: str, approval: Approval | None = None, **fields: Any) -> Placed:
        return _placed(self.call(f.WaitStage(stage, approval=approval, **fields)))

    def approve_stage(self, stage: str, **fields: Any) -> Placed:
        return _placed(self.call(f.ApproveStage(stage, **fields)))

    def reject_stage(self, stage: str, **fields: Any) -> Placed:
        return _placed(self.call(f.RejectStage(stage, **fields)))

    def skip_stage(self, stage: str, **fields: Any) -> Placed:
        return _placed(self.call(f.SkipStage(stage, **fields)))

    def append_context(self, flow: str, payload: Any, **fields: Any) -> str:
        """Append a context to a flow; answers its id."""
        return str(self.call(f.AppendContext(flow, payload=payload, **fields)))

    # Reads.

    def flow(self, flow: str, *, namespace: str = "default", actor: str = USER, raw: bool = False) -> Flow:
        """A flow. `raw`: its JSON as RawJson, for whoever only passes it on."""
        choice(actor, "actor", ACTORS)
        rows = self._read("flow_by_id", id=task_id(flow, "flow"), namespace=namespace)
        if not rows:
            raise NotFound(f"there is no flow {flow}", flow=flow)
        return _flow(rows[0], actor, raw)

    def flows(self, *, namespace: str = "default", limit: int = 100, before: int = 2**62) -> list[Flow]:
        """The newest flows first; `before` a key pages on."""
        return [_flow(r, USER) for r in self._read("flows_newest", namespace=namespace, limit=limit, before=before)]

    def stage(self, stage: str, *, namespace: str = "default", actor: str = USER, raw: bool = False) -> Stage:
        choice(actor, "actor", ACTORS)
        rows = self._read("stage_by_id", id=task_id(stage, "stage"), namespace=namespace)
        if not rows:
            raise NotFound(f"there is no stage {stage}", stage=stage)
        return self._stages(rows, actor, raw)[0]

    def stages(self, flow: str, *, namespace: str = "default", raw: bool = False) -> list[Stage]:
        """A flow's stages, in their order."""
        rows = self._read("stages_of", id=task_id(flow, "flow"), namespace=namespace)
        if not rows:
            self.flow(flow, namespace=namespace)
        return self._stages(rows, USER, raw)

    def _stages(self, rows: list[StageDetails], actor: str, raw: bool) -> list[Stage]:
        held: dict[int, int] = {}
        open_ = [row.key for row in rows if row.open]
        if open_:
            held = dict(self.store.read("held_in_stages", stages=open_))
        return [_stage(row, held.get(row.key, 0), actor, raw) for row in rows]

    def progress(self, flow: str, *, namespace: str = "default") -> Progress:
        """How far a flow is: from its counters, however many tasks it has."""
        root = self.flow(flow, namespace=namespace)
        stages = tuple(self.stages(flow, namespace=namespace))
        share = sum(s.percentage for s in stages)
        percentage = 100 if root.state in FLOW.terminal else share // len(stages) if stages else 0
        counts = Counts(**{c.name: sum(getattr(s.counts, c.name) for s in stages) for c in dataclass_fields(Counts)})
        return Progress(root.state, percentage, root.current_stage, counts, stages)

    def stage_tasks(self, stage: str, *, namespace: str = "default", after: int = 0, limit: int = 100) -> list[Task]:
        """A stage's tasks, in their order; `after` a key pages on."""
        key = self.stage(stage, namespace=namespace).key
        return [task_of_row(r, USER) for r in self._read("tasks_of_stage", stage=key, after=after, limit=limit)]

    def stage_results(
        self, stage: str, *, namespace: str = "default", after: int = 0, limit: int = 1000, raw: bool = False
    ) -> Rows:
        """The results of a stage's tasks, in pages: (key, id, name, state, result) each."""
        key = self.stage(stage, namespace=namespace, raw=True).key
        found = self._read("results_of_stage", stage=key, after=after, limit=limit)
        return [(row.key, row.id, row.name, row.state, json_of(row.result, raw)) for row in found]

    def all_results(self, stage: str, *, namespace: str = "default") -> list[Any]:
        """The results of all tasks of a stage that succeeded, in their order, however many there are."""
        found: list[Any] = []
        after = 0
        while page := self.stage_results(stage, namespace=namespace, after=after):
            found += [result for *_, state, result in page if state == SUCCEEDED]
            after, *_ = page[-1]
        return found

    def inputs(self, task: str, *, namespace: str = "default") -> dict[str, Any]:
        """What a task of a flow may build on: what the stages before it gave, and the tasks that it depends on."""
        rows = self._read("place_of_task", id=task_id(task), namespace=namespace)
        if not rows:
            raise NotFound(f"there is no task {task} in a flow", task=task)
        before = self.store.read("results_before", job=rows[0].job, ord=rows[0].ord)
        needed = self.store.read("results_needed", task=rows[0].key)
        return {
            "stages": {name: json_of(result) for name, result in before},
            "tasks": {row.name or row.id: json_of(row.result) for row in needed},
        }

    def flow_events(
        self, flow: str, *, namespace: str = "default", after: int = 0, limit: int = 1000, raw: bool = False
    ) -> list[Event]:
        """Everything that happened to a flow, its stages and its tasks, in order."""

        key = self.flow(flow, namespace=namespace, raw=True).key
        return [event_of(r, raw) for r in self._read("events_of_job", key=key, after=after, limit=limit)]

    def contexts(self, flow: str, *, namespace: str = "default", after: int = 0, limit: int = 100) -> list[Context]:
        rows = self._read("contexts_of_flow", id=task_id(flow, "flow"), namespace=namespace, after=after, limit=limit)
        if not rows:
            self.flow(flow, namespace=namespace)
        return [_context(r) for r in rows]

    def context(self, flow: str, *, namespace: str = "default") -> Context | None:
        """The current context of a flow, if it has any."""
        rows = self._read("current_context", id=task_id(flow, "flow"), namespace=namespace)
        if not rows:
            self.flow(flow, namespace=namespace)
        return _context(rows[0]) if rows else None


def _placed(value: Any) -> Placed:
    assert isinstance(value, Placed)
    return value


def _parsed(fields: dict[str, Any], raw: bool, *names: str) -> dict[str, Any]:
    """The fields of a row, those with JSON parsed."""
    return fields | {name: json_of(fields[name], raw) for name in names}


def _flow(row: FlowDetails, actor: str, raw: bool = False) -> Flow:
    fields = _parsed(row._asdict(), raw, "data", "metadata", "error")
    return Flow(**fields | {"labels": json_of(row.labels) or {}, "actor": actor})


def _stage(row: StageDetails, held: int, actor: str, raw: bool) -> Stage:
    # Counted a moment later than the rest: never more than there are.
    held = min(held, row.open - row.blocked - row.waiting_input)
    queued = row.open - row.blocked - row.waiting_input - held
    fields = _parsed(row._asdict(), raw, "data", "metadata", "result", "metrics", "error", "approval", "answer")
    fields |= {"order": row.ord, "takes_more": bool(row.takes_more), "queued": queued, "held": held, "actor": actor}
    counts = Counts(**{name: fields[name] for name in _COUNTS})
    return Stage(counts=counts, **{name: fields[name] for name in _OF_STAGE})


_COUNTS = tuple(field.name for field in dataclass_fields(Counts))
_OF_STAGE = tuple(field.name for field in dataclass_fields(Stage) if field.name != "counts")


def _context(row: Context) -> Context:
    return replace(row, payload=json_of(row.payload))


def task_of_row(row: TaskDetails, actor: str, raw: bool = False) -> Task:
    fields = _parsed(row._asdict(), raw, "payload", "input", "result", "error")
    return Task(**fields | {
        "policy": Policy.from_body(row.policy), "control": bool(row.control), "labels": json_of(row.labels) or {},
        "actor": actor,
    })  # fmt: skip
