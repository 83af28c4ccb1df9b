"""The tools that submit and control work: runs, their tasks and snapshots, requeue, expiry and pruning."""

from __future__ import annotations

from typing import Any

from uuid_utils import uuid7

from onetray.domain import commands as c
from onetray.domain import flow_commands as f
from onetray.domain.checks import MAX_ROWS, id_or_none
from onetray.domain.errors import (
    AliasTaken,
    DependencyCycle,
    Forbidden,
    IllegalTransition,
    InvalidInput,
    NameTaken,
    NotFound,
)
from onetray.domain.flow import Flow, StageSpec, TaskSpec
from onetray.domain.lifecycle import CANCELLED, DEAD_LETTERED, FLOW, TASK
from onetray.domain.policy import Policy
from onetray.domain.rollup import DRAIN
from onetray.domain.task import Task
from onetray.domain.token import ADMIN
from onetray.mcp.call import Call
from onetray.mcp.parallel import arguments as a
from onetray.mcp.parallel.records import (
    EXTERNAL_ID,
    NAMESPACE,
    REQUEUE,
    Record,
    names_of,
    run_records,
    snapshot_record,
    task_records,
)
from onetray.mcp.parallel.reports import LEASE_S, QUEUE
from onetray.mcp.parallel.words import RUN_STATES, RunTerminal, not_found

RUN, STAGE = "run", "tasks"
"""The name of a flow that is a run, and of its one stage."""
CONTEXT = "context"


def id_of(call: Call, entity: str, shown: str) -> str:
    """Our id of a run or a task. Raises NotFound."""
    for each in call.read(call.engine.find_aliases, [shown]):
        if each.entity == entity:
            return each.id
    id_ = id_or_none(shown)
    if id_ is None:
        raise not_found(RUN if entity == FLOW.entity else entity, shown)
    return id_


def find_run(call: Call, shown: str) -> Flow:
    try:
        return call.read(call.engine.flow, id_of(call, FLOW.entity, shown), raw=True)
    except NotFound:
        raise not_found(RUN, shown) from None


def find_task(call: Call, shown: str) -> Task:
    try:
        return call.read(call.engine.task, id_of(call, TASK.entity, shown), raw=True)
    except NotFound:
        raise not_found(TASK.entity, shown) from None


def run_view(call: Call, flow: Flow) -> Record:
    return {"run": run_records(call.engine, call.namespace, [flow])[0]}


def task_view(call: Call, task: Task) -> Record:
    return {"task": task_records(call.engine, call.namespace, [task])[0]}


def create_run(call: Call, wanted: a.CreateRun) -> Record:
    id_, labels = wanted.id or str(uuid7()), {NAMESPACE: wanted.namespace}
    if wanted.externalId is not None:
        labels[EXTERNAL_ID] = wanted.externalId
    try:
        # It opens with its first task, and ends with its last.
        placed = call.run(
            f.SubmitFlow, name=RUN, alias=id_, correlation_id=id_, roll_up=DRAIN, start=False, labels=labels,
            metadata=wanted.metadata, context=wanted.context,
        )  # fmt: skip
    except AliasTaken:
        raise _taken(id_) from None
    return run_view(call, call.read(call.engine.flow, placed.id, raw=True))


def _taken(id_: str) -> AliasTaken:
    return AliasTaken(f"the id {id_!r} belongs to another run, task or snapshot: use another one")


def enqueue_task(call: Call, wanted: a.EnqueueTask) -> Record:
    run = find_run(call, wanted.runId)
    if run.state in FLOW.terminal or run.ending is not None:
        raise _terminal(run)
    if wanted.id is not None and wanted.id in wanted.dependsOnTaskIds:
        raise DependencyCycle(f"the task {wanted.id} would wait for itself", cycle=[wanted.id, wanted.id])
    spec = TaskSpec(
        wanted.kind, wanted.input, queue=QUEUE, priority=wanted.priority, policy=_policy(wanted), name=wanted.key,
        alias=wanted.id or str(uuid7()), depends_on=_needed(call, wanted), context_id=wanted.contextSnapshotId,
        metadata=wanted.metadata,
    )  # fmt: skip
    try:
        placed = _add(call, run, spec)
    except NameTaken:
        raise NameTaken(f"the run {wanted.runId} has a task with the key {wanted.key!r} already") from None
    except AliasTaken:
        raise NameTaken(f"the id {wanted.id!r} belongs to another run, task or snapshot: use another one") from None
    except NotFound:
        raise not_found(CONTEXT, wanted.contextSnapshotId or "") from None
    except InvalidInput as e:
        if e.facts.get("field") != "depends_on":
            raise
        raise NotFound(
            f"the run {wanted.runId} does not have all of these tasks: {str(wanted.dependsOnTaskIds)[:200]}"
        ) from e
    except IllegalTransition:
        raise _terminal(call.read(call.engine.flow, run.id, raw=True)) from None
    return task_view(call, call.read(call.engine.task, placed.tasks[0], raw=True))


def _add(call: Call, run: Flow, spec: TaskSpec) -> Any:
    """Add a task to the run's stage, which its first task creates."""
    stages = call.read(call.engine.stages, run.id, raw=True)
    if not stages:
        try:
            return call.run(f.AddStage, run.id, stage=StageSpec(STAGE, [spec]), open=True)
        except NameTaken as e:
            # Another first task came meanwhile; a task key cannot be taken in a run without tasks.
            stages = call.read(call.engine.stages, run.id, raw=True)
            if not stages:
                raise e
    return call.run(f.AddTasks, stages[-1].id, tasks=[spec], open=True)


def _terminal(run: Flow) -> RunTerminal:
    status = RUN_STATES.show(run, run.ending)
    return RunTerminal(f"the run {run.alias or run.id} is {status} and accepts no more tasks: create another run")


def _needed(call: Call, wanted: a.EnqueueTask) -> tuple[str, ...]:
    shown = list(dict.fromkeys(wanted.dependsOnTaskIds))
    known = {each.alias: each.id for each in call.read(call.engine.find_aliases, shown)} if shown else {}
    for each in shown:
        if each not in known and id_or_none(each) is None:
            raise NotFound(f"the run {wanted.runId} has no task {each!r}, on which the new one depends")
    return tuple(known.get(each, each) for each in shown)


def _policy(wanted: a.EnqueueTask) -> Policy:
    retry = wanted.retry or a.Retry()
    most = retry.maxDelayMs or a.MAX_MS
    return Policy(
        max_attempts=wanted.maxAttempts or a.MAX_ATTEMPTS, backoff_base_s=min(retry.delayMs or 0, most) / 1000,
        backoff_factor=2.0 if retry.backoff == "exponential" else 1.0,
        backoff_max_s=most / 1000, jitter=False, lease_s=LEASE_S,
        timeout_s=None if wanted.timeoutMs is None else wanted.timeoutMs / 1000,
    )  # fmt: skip


def resume_task(call: Call, wanted: a.OfTask) -> Record:
    task = find_task(call, wanted.taskId)
    call.run(c.Resume, task.id)
    return task_view(call, call.read(call.engine.task, task.id, raw=True))


def requeue_dead_task(call: Call, wanted: a.RequeueDeadTask) -> Record:
    task = find_task(call, wanted.taskId)
    if task.state != DEAD_LETTERED:
        raise IllegalTransition(f"the task {wanted.taskId} is not dead: only a task without attempts left is requeued")
    cause = f"{REQUEUE} {wanted.taskId}" + (f"\n{wanted.reason}" if wanted.reason else "")
    receipt = call.run(c.Redrive, task.id, cause=cause, keep_attempts=not wanted.resetAttempts, run_at=wanted.notBefore)
    return task_view(call, call.read(call.engine.task, receipt.id, raw=True))


def cancel_run(call: Call, wanted: a.CancelRun) -> Record:
    run = find_run(call, wanted.runId)
    # As often as it is called, but never after another end.
    if CANCELLED not in (run.state, run.ending):
        call.run(f.CancelFlow, run.id, hard=True, cause=wanted.reason)
    return run_view(call, call.read(call.engine.flow, run.id, raw=True))


def append_context_snapshot(call: Call, wanted: a.AppendContextSnapshot) -> Record:
    run = find_run(call, wanted.runId)
    task = None if wanted.taskId is None else find_task(call, wanted.taskId).id
    try:
        id_ = call.run(
            f.AppendContext, run.id, payload=wanted.payload, scope=wanted.scope, task=task,
            parent=wanted.parentSnapshotId, label=wanted.label, alias=wanted.id,
        )  # fmt: skip
    except AliasTaken:
        raise _taken(wanted.id or "") from None
    except NotFound:
        raise NotFound(f"the run {wanted.runId} has no such task or snapshot") from None
    except IllegalTransition:
        raise _terminal(call.read(call.engine.flow, run.id, raw=True)) from None
    return {"snapshot": snapshot_record(call.engine, call.namespace, call.read(call.engine.context_by_id, id_))}


def expire_now(call: Call, wanted: a.ExpireLeases) -> Record:
    principal = call.principal
    is_admin = principal.token is None or principal.has(ADMIN)
    if wanted.now is not None and not is_admin and wanted.now > call.engine.now():
        raise Forbidden("now is in the future: this needs the scope admin, so leave it out")
    expired = call.read(call.engine.expire_tasks, now=wanted.now)
    shown = names_of(call.engine, call.namespace, expired)
    return {"expiredTaskIds": [shown.get(id_, id_) for id_ in expired], "count": len(expired)}


def prune_runs(call: Call, wanted: a.PruneRuns) -> Record:
    terminal = [state for state in FLOW.states if state in FLOW.terminal]
    states = [state for state in terminal if not wanted.statuses or RUN_STATES.state(state) in wanted.statuses]
    if not states:
        return {"prunedRunIds": [], "count": 0}
    of_runs: dict[str, Any] = {"kind": RUN, "entity": FLOW.entity, "states": states}
    # Read before: what is deleted has no names.
    ended = call.read(
        call.engine.sorted_jobs, **of_runs, aliased=True, order_by="created_at", descending=False, limit=MAX_ROWS
    )
    names = {job.id: job.alias for job in ended}
    pruned = call.read(
        call.engine.prune_jobs, **of_runs, ended_before=wanted.olderThan, limit=wanted.limit,
        by=call.principal.name,
    )  # fmt: skip
    # Without those that a requeue has copied: their ids belong to the copies.
    ids = [names[id_] for id_ in pruned if id_ in names]
    return {"prunedRunIds": ids, "count": len(ids)}
