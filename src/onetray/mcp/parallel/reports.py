"""The tools of workers: claim a task, renew its lease, and report on it.

    request ─▶ gathered with those of other requests ─▶ ids ─▶ one engine.run ─▶ the tasks as they are then ─▶ records

Owns how claims and reports of concurrent requests share their statements.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from onetray.app.gather_submits import Gathering
from onetray.dialects.calls import single_flow
from onetray.domain import commands as c
from onetray.domain.checks import id_or_none
from onetray.domain.clock import SECOND
from onetray.domain.errors import IllegalTransition, InvalidInput, NotFound
from onetray.domain.flow import Flow, More
from onetray.domain.lifecycle import ASSIGNED, HELD, TASK
from onetray.domain.task import Assignment, Task, Verdict
from onetray.engine import Engine
from onetray.engine.api import EngineApi
from onetray.mcp.call import Backend, Call
from onetray.mcp.parallel import arguments as a
from onetray.mcp.parallel.records import (
    Record,
    attempt_record,
    claimed_at,
    lease_record,
    run_records,
    task_records,
)
from onetray.mcp.parallel.words import conflict, not_found, of_report

QUEUE = "runs"
"""Of the tasks of all runs."""
FENCE = re.compile(r"[1-9]\d{0,8}")
LEASE_S = 30.0
"""Unless the claim names its own length."""


@dataclass(slots=True)
class Item:
    """A claim or a report of one request."""

    command: Any
    shown: str = ""
    """The id of the task of a report, as the caller knows it."""
    claimed: Assignment | None = None
    record: Record | None = None
    """The answer: what was claimed, or the task, or the lease."""


async def claim_next_task(call: Call, wanted: a.ClaimNextTask) -> Record:
    command = call.command(
        c.Claim, worker=wanted.workerId, queue=QUEUE, kinds=tuple(wanted.kinds) or None, expiry_counts=True,
        lease_s=None if wanted.leaseMs is None else wanted.leaseMs / 1000, request_key=wanted.clientToken,
    )  # fmt: skip
    item, verdict = await _gathered(call, Item(command))
    verdict.unwrap()
    if item.claimed is not None and call.deliver is not None and not await call.deliver(command, [item.claimed]):
        return {"claim": None}
    return {"claim": item.record}


async def heartbeat_lease(call: Call, held: a.HeartbeatLease) -> Record:
    lease_s = None if held.leaseMs is None else held.leaseMs / 1000
    return {"lease": await _report(call, c.Beat, held, lease_s=lease_s)}


async def mark_task_running(call: Call, held: a.Leased) -> Record:
    return {"task": await _report(call, c.Start, held)}


async def pause_task(call: Call, held: a.PauseTask) -> Record:
    fields = {"state": held.status, "owner": "anybody", "reason": held.reason or held.status}
    return {"task": await _report(call, c.Pause, held, **fields)}


async def release_task(call: Call, held: a.ReleaseTask) -> Record:
    return {"task": await _report(call, c.Release, held, reason=held.reason)}


async def complete_task(call: Call, held: a.CompleteTask) -> Record:
    more = None
    if held.nextContext is not None:
        more = More(context=held.nextContext, context_label=held.nextContextLabel)
    fields = {"result": held.output, "metadata": held.metadata, "more": more}
    return {"task": await _report(call, c.Succeed, held, held.clientToken, **fields)}


async def fail_task(call: Call, held: a.FailTask) -> Record:
    # Final: only an expired lease and a timeout are followed by another attempt.
    fields = {"message": held.error, "retryable": False, "metadata": held.metadata}
    return {"task": await _report(call, c.Fail, held, held.clientToken, **fields)}


async def _report(call: Call, verb: Any, held: a.Leased, token: str | None = None, **fields: Any) -> Record:
    # The lease id begins with the fence, which a remote server requires. One that does not fits no lease.
    fence = held.leaseId.partition("-")[0]
    about = {"worker": held.workerId, "lease_id": held.leaseId, "fence": int(fence) if FENCE.fullmatch(fence) else 1}
    command = call.command(verb, held.taskId, **about, **fields)
    item, verdict = await _gathered(call, Item(command, held.taskId))
    if verdict.error is not None:
        raise of_report(verdict.error, held.taskId)
    if token is None and getattr(verdict.value, "repeated", False):
        # Only a token makes a report repeatable.
        if verb is c.Start:
            raise IllegalTransition(f"the task {held.taskId} is running already: it was marked before")
        raise conflict(held.taskId)
    if item.record is None:
        raise conflict(held.taskId)  # Lost, or deleted, since.
    return item.record


_BY_LOOP: WeakKeyDictionary[
    asyncio.AbstractEventLoop, WeakKeyDictionary[Backend, Gathering[Item, tuple[Item, Verdict]]]
] = WeakKeyDictionary()


async def _gathered(call: Call, item: Item) -> tuple[Item, Verdict]:
    # Claims and reports together: apart, on two connections to PostgreSQL, they were no faster and cost more CPU.
    by_backend = _BY_LOOP.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
    backend = call.backend
    if backend not in by_backend:
        by_backend[backend] = Gathering(partial(run_items, backend), backend.engine.config.limits.batch)
    return await by_backend[backend].call(item)


def run_items(backend: Backend, items: list[Item]) -> list[tuple[Item, Verdict]]:
    """Carry out claims and reports, and read what their callers get. It blocks."""
    engine = backend.unredacted
    if isinstance(engine, Engine) and not engine.has_janitor and any(isinstance(i.command, c.Claim) for i in items):
        # As the janitor may run elsewhere, or nowhere.
        engine.sweep()
    verdicts = _resolve(backend, items)
    known = [item for item, verdict in zip(items, verdicts, strict=True) if verdict.ok]
    found = iter(engine.run([item.command for item in known]))
    verdicts = [next(found) if verdict.ok else verdict for verdict in verdicts]
    accepted = [(item, verdict) for item, verdict in zip(items, verdicts, strict=True) if verdict.ok]
    for namespace in dict.fromkeys(item.command.namespace for item, _ in accepted):
        _answer(backend, namespace, [pair for pair in accepted if pair[0].command.namespace == namespace])
    return list(zip(items, verdicts, strict=True))


def _resolve(backend: Backend, items: list[Item]) -> list[Verdict]:
    """Put our ids into the reports. Returns an error for each that names no task."""
    shown: dict[str, list[str]] = {}
    for item in items:
        if item.shown:
            shown.setdefault(item.command.namespace, []).append(item.shown)
    ids = {
        (namespace, id_): task for namespace, wanted in shown.items() for id_, task in _ids(backend, namespace, wanted)
    }
    verdicts = []
    for item in items:
        id_ = ids.get((item.command.namespace, item.shown), id_or_none(item.shown)) if item.shown else ""
        if item.shown and id_ is not None:
            item.command.task = id_
        verdicts.append(Verdict() if id_ is not None else Verdict(error=not_found("task", item.shown)))
    return verdicts


def _ids(backend: Backend, namespace: str, shown: list[str]) -> list[tuple[str, str | None]]:
    """Our ids of tasks; None for an id of something else."""
    try:
        found = backend.unredacted.find_aliases(shown, namespace=namespace)
    except InvalidInput:
        # One of them can be nobody's id: the others must not suffer from it.
        if len(shown) == 1:
            return [(shown[0], None)]
        return [pair for each in shown for pair in _ids(backend, namespace, [each])]
    return [(each.alias, each.id if each.entity == TASK.entity else None) for each in found]


def _answer(backend: Backend, namespace: str, accepted: Sequence[tuple[Item, Verdict]]) -> None:
    """Set the records of accepted claims and reports."""
    claims = []
    for item, verdict in accepted:
        if isinstance(item.command, c.Claim) and verdict.value:
            (item.claimed,) = verdict.value
            claims.append((item, item.claimed))
    if claims:
        _answer_claims(backend.unredacted, namespace, claims)
    if reported := [item for item, _ in accepted if item.shown]:
        _answer_reports(backend.engine, namespace, reported)


def _answer_reports(engine: EngineApi, namespace: str, items: list[Item]) -> None:
    found = engine.tasks_by_id([item.command.task for item in items], namespace=namespace, raw=True)
    tasks = {task.id: task for task in found}
    records = dict(zip(tasks, task_records(engine, namespace, found), strict=True))
    now = engine.now() if any(isinstance(item.command, c.Beat) for item in items) else 0
    for item in items:
        task = tasks.get(item.command.task)
        if not isinstance(item.command, c.Beat):
            item.record = records.get(item.command.task)
        elif task is not None and task.state in HELD:
            item.record = lease_record(task, claimed_at(engine, task), now)


def _answer_claims(engine: EngineApi, namespace: str, claims: list[tuple[Item, Assignment]]) -> None:
    """Workers get whole inputs, not redacted ones."""
    found = engine.tasks_by_id([claimed.id for _, claimed in claims], namespace=namespace, raw=True)
    tasks = {task.id: task for task in found}
    held = [(item, _as_claimed(tasks[claimed.id], claimed)) for item, claimed in claims if claimed.id in tasks]
    flows = [_flow_of(engine, task) for task in {task.job_id: task for _, task in held}.values()]
    runs = dict(zip((flow.id for flow in flows), run_records(engine, namespace, flows), strict=True))
    records = task_records(engine, namespace, [task for _, task in held])
    for (item, task), record in zip(held, records, strict=True):
        claimed = claimed_at(engine, task)
        item.record = {
            "run": runs[task.job_id], "task": record, "attempt": attempt_record(task, claimed),
            "lease": lease_record(task, claimed, claimed, item.command.request_key),
        }  # fmt: skip


def _flow_of(engine: EngineApi, task: Task) -> Flow:
    """The run of a task. A native task without a flow is its own, so that nobody's claim fails because of it."""
    with suppress(NotFound):
        if task.stage_id is not None:
            return engine.flow(task.job_id, namespace=task.namespace, raw=True)
    return replace(single_flow(task), id=task.job_id)


def _as_claimed(task: Task, claimed: Assignment) -> Task:
    """The task as it was claimed, even if its lease, of a few milliseconds, has expired since."""
    if task.fence == claimed.fence and task.state in HELD:
        return task
    return replace(
        task, state=ASSIGNED, fence=claimed.fence, owner=claimed.worker, lease=claimed.lease,
        lease_expires_at=claimed.lease_expires_at, attempts=claimed.attempt, finished_at=None, error=None,
        updated_at=claimed.lease_expires_at - int(claimed.lease_s * SECOND),
    )  # fmt: skip
