"""Explain what a flow or a stage waits for. A flow is explained by its current stage.

Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import Any

import orjson

from onetray.domain.lifecycle import CREATED, FLOW, FLOW_PAUSED, RUNNING, STAGE, WAITING, WAITING_INPUT
from onetray.domain.task import Blocker
from onetray.explain.endings import IsRefused, ended_flow, ended_stage
from onetray.explain.workers import RegisteredWorkers
from onetray.store.base import Store
from onetray.store.explain_rows import FlowFacts, StageFacts

SCANNED_TASKS = 200
"""Among how many of a stage's newest tasks those that wait are looked for."""
MAX_KINDS = 20
"""How many queues and kinds of a stage are compared with what workers claim."""


def explain_parent(store: Store, id_: str, namespace: str, is_refused: IsRefused) -> list[Blocker] | None:
    """The reasons why a flow or a stage has not ended; None if neither has this id."""
    flows = store.read("explain_flow", id=id_, namespace=namespace)
    if flows:
        return list(_flow(store, flows[0], is_refused))
    stages = store.read("explain_stage", id=id_, namespace=namespace)
    return list(_stage(store, stages[0])) if stages else None


def stage_waits(stage: str, name: str | None, approval: str | None, due_at: int | None) -> Blocker:
    """That a stage, which commands name as `stage`, waits for approval."""
    spec: dict[str, Any] = orjson.loads(approval) if approval else {}
    owner = spec.get("owner") or "anybody"
    reason = spec.get("reason") or "waits for approval"
    command = f"onetray stages approve {quote(stage)}{' --input JSON' if spec.get('form') else ''}"
    facts = {
        "stage": name, "reason": reason, "on_deadline": spec.get("on_deadline"), "form": spec.get("form"),
        "command": command,
    }  # fmt: skip
    message = f"stage {name!r} {reason}: {owner} has to approve it, `{command}`"
    return Blocker("stage_waiting", message, owner, due_at, facts)


def resume_command(task: str, state: str) -> str:
    return f"onetray jobs resume {task}{' --input JSON' if state == WAITING_INPUT else ''}"


def _flow(store: Store, f: FlowFacts, is_refused: IsRefused) -> Iterator[Blocker]:
    if f.state in FLOW.terminal:
        yield ended_flow(store, f, is_refused)
        return
    if f.state == CREATED:
        yield Blocker("flow_not_opened", "the flow was submitted with start=False: open it", held_by="the submitter")
        return
    if f.state == FLOW_PAUSED:
        ((by, at),) = store.read("paused_by", flow=f.key, type=FLOW.pause.event)
        command = f"onetray jobs resume {f.id}"
        message = f"the flow was paused by {by}: resume it, `{command}`"
        yield Blocker("flow_paused", message, held_by=by, facts={"since": at, "command": command})
    if f.ending is not None:
        yield Blocker("being_ended", f"the flow is ending ({f.ending}): {f.ending_why}", held_by="janitor")
    if not f.stages_open:
        message = "the flow has no open stage" if f.stages else "the flow has no stages"
        yield Blocker("open_ended", f"{message} and is not sealed: add a stage, or seal it", held_by="the submitter")
    elif f.current is not None:
        rows = store.read("explain_stage", id=f.current, namespace=f.namespace)
        yield from _stage(store, rows[0]) if rows else ()


def _stage(store: Store, s: StageFacts) -> Iterator[Blocker]:
    facts: dict[str, Any] = {"stage": s.name, "order": s.ord, "total": s.total, "open": s.open}
    if s.state in STAGE.terminal:
        yield ended_stage(store, s)
    elif s.ending is not None:
        message = f"stage {s.name!r} is ending ({s.ending}): {s.ending_why}"
        yield Blocker("being_ended", message, held_by="janitor", facts=facts)
    elif s.deciding is not None:
        message = f"control task {s.deciding} evaluates the condition of stage {s.name!r}"
        yield Blocker("condition", message, facts={**facts, "task": s.deciding})
        yield from _nobody_claims(store, s, control=1)
    elif not s.is_current:
        current = f"{s.current!r} is {s.current_state}" if s.current else "none has started"
        message = f"stage {s.name!r} opens when the stages before it have ended: {current}"
        yield Blocker("stage_not_open", message, facts=facts)
    elif s.state == WAITING:
        yield stage_waits(f"{s.flow}/{s.name}", s.name, s.approval, s.due_at)
    elif not s.open:
        message = f"stage {s.name!r} has no open task and is not sealed: add tasks, or seal it"
        yield Blocker("open_ended", message, held_by="the submitter", facts=facts)
    else:
        yield from _paused(store, s.key, s.name)
        if s.open > s.paused:
            message = f"stage {s.name!r} is {s.state}: {s.open - s.paused} of {s.total} tasks are queued or running"
            yield Blocker(s.state, message, facts=facts)
            yield from _nobody_claims(store, s, control=0)


def _nobody_claims(store: Store, s: StageFacts, control: int) -> Iterator[Blocker]:
    """For each queue and kind of the tasks that wait in the stage, why no registered worker claims them. Each reason
    once: most are the same for all kinds of a queue."""
    waiting = store.read("kinds_in_stage", stage=s.key, scan=SCANNED_TASKS, limit=MAX_KINDS)
    workers = RegisteredWorkers(store, s.namespace) if waiting else None
    found: dict[str, Blocker] = {}
    for row in waiting:
        if workers is not None and row.control == control:
            # Of a stage that has not begun: later, its own tasks may be what the workers are busy with.
            find = workers.all_blockers if s.state != RUNNING else workers.blockers
            for blocker in find(row.queue, row.kind, stage=s.name):
                found.setdefault(blocker.message, blocker)
    yield from found.values()


def _paused(store: Store, key: int, name: str) -> Iterator[Blocker]:
    for task in store.read("paused_in_stage", stage=key, limit=20):
        command = resume_command(task.id, task.state)
        message = (
            f"task {task.name or task.id} of stage {name!r} is {task.state}: {task.held_why}; "
            f"{task.held_by} has to resume it, `{command}`"
        )
        yield Blocker(task.state, message, held_by=task.held_by, facts={"task": task.id, "command": command})
