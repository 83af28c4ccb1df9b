"""Create flows, stages and their tasks: their rows, dependencies and first events.

advance.py decides when they may run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from uuid_utils import uuid7

from onetray.domain.checks import as_json
from onetray.domain.commands import Command, Succeed
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.flow_commands import AddStage, AddTasks, SubmitFlow
from onetray.domain.lifecycle import CREATED, FLOW, STAGE, SUCCEEDED, TASK
from onetray.domain.rollup import OPEN_ENDED, SEALED, WHEN_DONE
from onetray.engine.aliases import NewAlias
from onetray.engine.flows.contexts import write_context
from onetray.engine.flows.dependencies import Member, known_members, resolve
from onetray.engine.pending_writes import ENGINE, FLOW_DEADLINE, PendingWrites, actor, event_detail
from onetray.engine.submit import (
    Spec,
    TaskNumbers,
    intern_lanes,
    intern_task,
    optional_text_of,
    write_labels,
    write_tasks,
)
from onetray.engine.submit_keys import allocate_keys
from onetray.redaction.job_secrets import MARK
from onetray.store.rows import FlowRow, StageRow

if TYPE_CHECKING:
    from onetray.engine.batch_context import BatchContext
    from onetray.engine.flows.locked import LockedFlows
    from onetray.store.base import Tx
    from onetray.store.interned import InternedNames

DEPENDENCY_FAILED = "dependency_failed"


@dataclass(slots=True)
class StageDraft:
    """A new stage that is not written yet."""

    name: str | None
    """None for one that is named after its type when it is added."""
    on_failure: str
    sealed: int
    takes_more: int
    gate: int
    collect: str
    control: str | None
    compensate: str | None
    approval: str | None
    data: str
    metadata: str | None
    type: str | None = None
    trace: str | None = None
    tracestate: str | None = None
    tasks: list[tuple[Spec, tuple[str, ...]]] = field(default_factory=list)
    """Each with the names or ids of the tasks that it depends on."""
    carried_from: int | None = None
    carried_as: str | None = None
    result: str | None = None
    metrics: str | None = None
    key: int = 0
    kind: int = 0
    policy: int = 0
    id: str = field(default_factory=lambda: str(uuid7()))


@dataclass(slots=True)
class FlowDraft:
    """A new flow that is not written yet."""

    ns: int
    kind: int
    policy: int
    roll_up: str
    sealed: int
    data: str
    metadata: str | None
    actor: str
    correlation_id: str | None = None
    trace: str | None = None
    cause: str | None = None
    deadline_us: int | None = None
    context: str | None = None
    retry_of: int | None = None
    compensates: int | None = None
    labels: dict[str, str] | None = None
    priority: int = 0
    tracestate: str | None = None
    alias: str | None = None
    stages: list[StageDraft] = field(default_factory=list)
    key: int = 0
    id: str = field(default_factory=lambda: str(uuid7()))

    @property
    def has_aliases(self) -> bool:
        return self.alias is not None or any(spec.has_aliases for spec in self._members())

    def new_aliases(self, tx: Tx) -> list[NewAlias]:
        allocate_keys(tx, [self])
        own = [] if self.alias is None else [NewAlias(self.ns, self.alias, FLOW.entity, self.key, self.id)]
        return own + aliases_of(tx, self._members())

    def _members(self) -> list[Spec]:
        return [spec for stage in self.stages for spec, _ in stage.tasks]


def aliases_of(tx: Tx, specs: list[Spec]) -> list[NewAlias]:
    """The aliases of new tasks. If there are any, all of the tasks get their keys: these are the order of the tasks."""
    if not any(spec.has_aliases for spec in specs):
        return []
    allocate_keys(tx, specs)
    return [new for spec in specs for new in spec.new_aliases(tx)]


def intern_flows(names: InternedNames, commands: Sequence[Command], policy_ttl_s: float) -> Drafts:
    """Replace the names in flow commands by their numbers. Runs before the transaction."""
    drafts = Drafts(names, policy_ttl_s)
    for i, c in enumerate(commands):
        if isinstance(c, SubmitFlow):
            drafts.flows[i] = drafts.flow(c)
        elif isinstance(c, AddStage):
            drafts.stages[i] = drafts.stage(c.stage, c.namespace, actor(c.actor, c.actor_name), WHEN_DONE)
        elif isinstance(c, AddTasks):
            drafts.tasks[i] = drafts.members(c.tasks, c.namespace, actor(c.actor, c.actor_name), c.cause)
        elif isinstance(c, Succeed) and c.more is not None:
            by = actor("worker", c.worker or "anonymous")
            drafts.spawned[i] = {
                stage: drafts.members(tasks, c.namespace, by, "spawned") for stage, tasks in c.more.spawn.items()
            }
    return drafts


class Drafts:
    """New flows, stages and members of a batch, by the places of their commands."""

    def __init__(self, names: InternedNames, policy_ttl_s: float) -> None:
        self._names, self._ttl_s = names, policy_ttl_s
        self._interned: dict[tuple[object, ...], TaskNumbers] = {}
        self.flows: dict[int, FlowDraft] = {}
        self.stages: dict[int, StageDraft] = {}
        self.tasks: dict[int, list[tuple[Spec, tuple[str, ...]]]] = {}
        self.spawned: dict[int, dict[str, list[tuple[Spec, tuple[str, ...]]]]] = {}

    def _numbers(self, spec: TaskSpec, namespace: str) -> TaskNumbers:
        names_of_task = namespace, spec.queue, spec.kind, spec.max_attempts, id(spec.policy)
        if names_of_task not in self._interned:
            self._interned[names_of_task] = intern_task(self._names, spec, namespace, self._ttl_s)
        return self._interned[names_of_task]

    def members(
        self, tasks: Iterable[TaskSpec], namespace: str, by: str, cause: str | None
    ) -> list[tuple[Spec, tuple[str, ...]]]:
        members = [
            (
                Spec(
                    *self._numbers(t, namespace), t.priority, t.run_at, as_json(t.payload), by, None, t.trace, cause,
                    None, t.delay_s, name=t.name, context_id=t.context_id, metadata=optional_text_of(t.metadata),
                    tracestate=t.tracestate, alias=t.alias,
                ),
                t.depends_on,
            )
            for t in tasks
        ]  # fmt: skip
        intern_lanes(self._names, [spec for spec, _ in members])
        return members

    def _control(self, spec: TaskSpec | None, namespace: str) -> str | None:
        if spec is None:
            return None
        payload = orjson.Fragment(as_json(spec.payload))
        return as_json({**self._numbers(spec, namespace)._asdict(), "priority": spec.priority, "payload": payload})

    def stage(self, spec: StageSpec, namespace: str, by: str, default_sealed: int) -> StageDraft:
        sealed = default_sealed if spec.sealed is None else SEALED if spec.sealed else OPEN_ENDED
        approval = None
        if spec.approval is not None:
            approval = as_json(spec.approval)
        return StageDraft(
            spec.name, spec.on_failure, sealed, int(spec.takes_more),
            int(spec.start_as_waiting or approval is not None), spec.collect,
            self._control(spec.when, namespace), self._control(spec.compensate, namespace), approval,
            as_json(spec.data), optional_text_of(spec.metadata), spec.type, spec.trace, spec.tracestate,
            self.members(spec.tasks, namespace, by, None),
        )  # fmt: skip

    def flow(self, c: SubmitFlow) -> FlowDraft:
        by = actor(c.actor, c.actor_name)
        ns = self._names.intern_namespace(c.namespace)
        kind = self._names.intern_kind(ns, c.name)
        policy = self._names.policy_of_kind(kind, self._ttl_s)
        if c.redact:
            policy = self._names.intern_policy(self._names.policy(policy).with_(redact=tuple(c.redact)))
        stages_end = WHEN_DONE if c.sealed is False else SEALED
        return FlowDraft(
            ns, kind, policy, c.roll_up, WHEN_DONE if c.sealed is None else SEALED if c.sealed else OPEN_ENDED,
            c.data_json, optional_text_of(c.metadata), by, c.correlation_id, c.trace, c.cause,
            None if c.deadline_s is None else int(c.deadline_s * 1_000_000),
            optional_text_of(c.context), labels=c.labels, priority=c.priority, tracestate=c.tracestate, alias=c.alias,
            stages=[self.stage(s, c.namespace, by, stages_end) for s in c.stages],
        )  # fmt: skip


def redacting_policy(tx: Tx, flow: int) -> int:
    """A policy with redaction of a flow or one of its tasks; 0 if there is none."""
    policies = [key for key, _ in tx.query("redacting_policies", mark=MARK)]
    found = tx.query("redacting_policy_of_flow", job=flow, policies=policies) if policies else ()
    return next((int(key) for (key,) in found), 0)


def write_flow(batch: BatchContext, draft: FlowDraft) -> tuple[FlowRow, list[StageRow], list[Spec]]:
    """Write a new flow with its stages and tasks. None of them is claimable until the flow is opened."""
    tx, now = batch.tx, batch.tx.now
    allocate_keys(tx, [draft])
    origin = draft.retry_of or draft.compensates
    if origin is not None:
        # So that it is redacted even after the original flow is pruned.
        draft.policy = redacting_policy(tx, origin)
    correlation = draft.correlation_id or draft.id
    context = tx.new_keys(1)[0] if draft.context is not None else None
    deadline_at = None if draft.deadline_us is None else now + draft.deadline_us
    chained = int(any(needs for stage in draft.stages for _, needs in stage.tasks))
    amends = int(any(stage.compensate is not None for stage in draft.stages))
    flow = FlowRow(
        draft.key, draft.ns, draft.kind, draft.id, CREATED, 1, draft.roll_up, draft.sealed, chained=chained,
        amends=amends, context=context, compensates=draft.compensates, correlation_id=correlation, trace=draft.trace,
        priority=draft.priority, seen_at=now,
    )  # fmt: skip
    tx.create("insert_flow", {
        "key": [flow.key], "ns": [flow.ns], "kind": [flow.kind], "sealed": [flow.sealed], "at": [now],
        "deadline_at": [deadline_at], "stages": [0], "chained": [chained], "amends": [amends], "state": [CREATED],
        "roll_up": [flow.roll_up], "context": [context], "retry_of": [draft.retry_of],
        "compensates": [draft.compensates], "policy": [draft.policy or None], "id": [flow.id],
        "correlation_id": [correlation], "trace": [draft.trace], "tracestate": [draft.tracestate],
        "priority": [draft.priority], "data": [draft.data], "metadata": [draft.metadata],
    }, _first_events([flow.key], flow, FLOW.submit.event, draft.actor, draft.cause, at=now))  # fmt: skip
    batch.locked.flows[flow.key] = flow
    if draft.labels:
        write_labels(tx, [(draft, draft.labels)])
    if origin is not None:
        tx.query("copy_labels", to=flow.key, of=origin)
    if context is not None:
        write_context(batch, flow, context, str(draft.context), "run", None, None, None)
    if deadline_at is not None:
        writes = PendingWrites(batch)
        writes.due(deadline_at, flow.key, FLOW_DEADLINE, 0)
        writes.flush()
    stages = add_stages(batch, flow, draft.stages, draft.actor, draft.cause)
    pairs = [(stage, member) for stage, d in zip(stages, draft.stages, strict=True) for member in d.tasks]
    specs = add_members(batch, flow, pairs)
    return batch.locked.flows[flow.key], [batch.locked.stages[s.key] for s in stages], specs


def _first_events(
    entities: list[int], flow: FlowRow, type_: str, by: str, cause: str | None, trace: str | None = None, *, at: int
) -> dict[str, Any]:
    """The events of a new flow, or of its new stages."""
    return {
        "entity": entities, "job": flow.key, "ts": at, "ns": flow.ns, "version": 1, "fence": 0, "attempts": 0,
        "type": type_, "was": None, "state": CREATED, "actor": by, "cause": cause, "trace": trace or flow.trace,
        "payload": None,
    }  # fmt: skip


def add_stages(
    batch: BatchContext, flow: FlowRow, drafts: list[StageDraft], by: str, cause: str | None, trace: str | None = None
) -> list[StageRow]:
    """Append stages to a flow. A stage that needs an approval and has no condition waits from the beginning."""
    if not drafts:
        return []
    locked, tx, now = batch.locked, batch.tx, batch.tx.now
    allocate_keys(tx, drafts)
    first = flow.stages + 1
    rows = [
        StageRow(
            d.key, flow.key, flow.ns, ord_, d.id, str(d.name), CREATED, 1, d.on_failure, d.sealed, d.takes_more, d.gate,
            conditional=int(d.control is not None), collect=d.collect, metrics=d.metrics,
            trace=d.trace or trace or flow.trace,
        )
        for ord_, d in enumerate(drafts, first)
    ]  # fmt: skip
    n = len(rows)
    locked.write_moves()
    tx.create("insert_stage", {
        "key": [r.key for r in rows], "job": [flow.key] * n, "ns": [flow.ns] * n, "ord": [r.ord for r in rows],
        "sealed": [d.sealed for d in drafts], "takes_more": [d.takes_more for d in drafts],
        "gate": [d.gate for d in drafts], "at": [now] * n, "carried_from": [d.carried_from for d in drafts],
        "total": [0] * n, "state": [CREATED] * n, "name": [d.name for d in drafts],
        "on_failure": [d.on_failure for d in drafts], "collect": [d.collect for d in drafts],
        "condition": [d.control for d in drafts], "compensate": [d.compensate for d in drafts],
        "approval": [d.approval for d in drafts], "id": [r.id for r in rows],
        "correlation_id": [flow.correlation_id] * n, "trace": [r.trace for r in rows],
        "tracestate": [d.tracestate for d in drafts], "type": [d.type for d in drafts],
        "data": [d.data for d in drafts], "metadata": [d.metadata for d in drafts],
        "result": [d.result for d in drafts], "metrics": [d.metrics for d in drafts],
    }, _first_events([r.key for r in rows], flow, STAGE.add.event, by, cause, trace, at=now))  # fmt: skip
    amends = int(flow.amends or any(d.compensate is not None for d in drafts))
    locked.change_flow(flow, stages=flow.stages + n, stages_open=flow.stages_open + n, amends=amends)
    for row, d in zip(rows, drafts, strict=True):
        locked.stages[row.key] = row
        if d.carried_as is not None:
            transition = STAGE.carry_over if d.carried_as == SUCCEEDED else STAGE.skip
            locked.move_stage(transition, row, cause="carried over", detail=event_detail(carried_from=d.carried_from))
            current = locked.flows[flow.key]
            count = getattr(current, transition.target) + 1
            locked.change_flow(current, stages_open=current.stages_open - 1, **{transition.target: count})
        elif d.gate and d.control is None:
            detail = event_detail(approval=orjson.Fragment(d.approval)) if d.approval else None
            locked.move_stage(STAGE.wait, row, approval=d.approval, detail=detail)
    return [locked.stages[r.key] for r in rows]


def add_members(batch: BatchContext, flow: FlowRow, members: list[tuple[StageRow, Member]]) -> list[Spec]:
    """Add tasks to stages of a flow, with their dependencies."""
    if not members:
        return []
    locked, tx = batch.locked, batch.tx
    specs = [spec for _, (spec, _) in members]
    flow = locked.flows[flow.key]
    known = known_members(batch, flow, [m for _, m in members])
    allocate_keys(tx, specs)
    needs, unrunnable = resolve([(stage.ord, member) for stage, member in members], known)
    for stage, (spec, _) in members:
        spec.job, spec.stage = flow.key, stage.key
        spec.context = flow.context if spec.context is None else spec.context
        spec.correlation_id, spec.trace = flow.correlation_id, spec.trace or stage.trace or flow.trace
        spec.priority = flow.priority if spec.priority is None else spec.priority
        spec.unmet = sum(1 for met in needs.get(spec.key, {}).values() if not met)
    counts: dict[int, int] = {}
    retried: dict[int, int] = {}
    for stage, (spec, _) in members:
        counts[stage.key] = counts.get(stage.key, 0) + 1
        retried[stage.key] = retried.get(stage.key, 0) + (spec.attempts > 0)
    for key, n in counts.items():
        current = locked.stages[key]
        retrying = current.retrying + retried[key]
        locked.change(current, total=current.total + n, open=current.open + n, retrying=retrying)
        locked.touch(current)
    locked.write_moves()
    write_tasks(batch, specs)
    pairs = [(other, task) for task, others in needs.items() for other in others]
    if pairs:
        tx.batch("insert_dependency", {"needs": [a for a, _ in pairs], "task": [b for _, b in pairs]})
        locked.change_flow(flow, chained=1)
    _cancel_unrunnable(batch, unrunnable)
    return specs


def _cancel_unrunnable(batch: BatchContext, unrunnable: dict[int, str]) -> None:
    """Cancel new tasks that depend on a failed one."""
    if not unrunnable:
        return
    writes = PendingWrites(batch)
    for row in batch.tx.lock(sorted(unrunnable)):
        writes.add(
            TASK.cancel, row, ENGINE, cause=DEPENDENCY_FAILED, detail=event_detail(dependency=unrunnable[row.key])
        )
    writes.flush()


def control_task(locked: LockedFlows, flow: FlowRow, stage: StageRow) -> None:
    """Write the task that decides whether a stage runs. Its payload has the flow's data and earlier results."""
    batch, tx = locked.batch, locked.batch.tx
    locked.write_moves()
    (specs,) = tx.query("specs_of_stage", key=stage.key)
    assert specs.condition is not None
    control = orjson.loads(specs.condition)
    ((config,),) = tx.query("data_of_flow", key=flow.key)
    ((size,),) = tx.query("size_before", job=flow.key, ord=stage.ord)
    # Its handler has to read results that are too large for a payload.
    results = "null"
    if size <= batch.limits.payload_bytes:
        rows = tx.query("results_before", job=flow.key, ord=stage.ord)
        results = "{" + ",".join(f"{as_json(name)}:{result or 'null'}" for name, result in rows) + "}"
    payload = as_json(control["payload"])
    body = f'{{"stage":{as_json(stage.name)},"config":{config},"results":{results},"payload":{payload}}}'
    priority = flow.priority if control["priority"] is None else control["priority"]
    spec = Spec(
        control["ns"], control["queue"], control["kind"], control["policy"], control["max_attempts"], priority, None,
        body, ENGINE, flow.correlation_id, flow.trace, "condition", job=flow.key, stage=stage.key, control=1,
        context=flow.context,
    )  # fmt: skip
    allocate_keys(tx, [spec])
    locked.change(stage, deciding=spec.key)
    write_tasks(batch, [spec])
