"""Say why a task is not running: what stands in its way, who holds it, when that ends.

Owns the reasons. They come from the same rows that a claim goes by, read in one statement: the list is empty exactly
when a claim of the task's queue would hand it out now. Changes nothing. What a stage or a flow waits for is said by
explain/flows.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from onetray.domain.checks import task_id as checked_id
from onetray.domain.clock import SECOND
from onetray.domain.errors import NotFound
from onetray.domain.lifecycle import (
    CREATED,
    FLOW,
    FLOW_PAUSED,
    HELD,
    PAUSED,
    PENDING,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    TASK,
    WAITING,
)
from onetray.domain.task import Blocker
from onetray.explain.flows import explain_parent, stage_waits
from onetray.store.base import Store
from onetray.store.shown_rows import TaskFacts, UnmetRow

COUNTED = 1_000
"""So many tasks before another are counted. More are said to be more."""
RUN, RESCHEDULED, CANCEL_ASKED = "run", "task.rescheduled", "task.cancel_requested"
FAILED_ATTEMPT = (TASK.retry.event, TASK.expire.event)
"""What a task that is queued was brought back by, when its wait is a backoff."""


def explain(store: Store, task_id: str, namespace: str = "default") -> list[Blocker]:
    """Every reason why this task cannot be claimed now, the one nearest to the task first. None: it can."""
    rows = store.read(
        "explain", id=checked_id(task_id), namespace=namespace, run=RUN, rescheduled=RESCHEDULED, asked=CANCEL_ASKED,
        flow_paused=FLOW.pause.event,
    )  # fmt: skip
    if not rows:
        found = explain_parent(store, checked_id(task_id), namespace)
        if found is None:
            raise NotFound(f"there is no task, stage or flow {task_id}", task=task_id)
        return found
    facts = rows[0]
    needs = store.read("unmet_of", task=facts.key, met=SUCCEEDED, limit=20) if facts.unmet else []
    return list(_blockers(facts, needs))


def position(store: Store, task_id: str, namespace: str = "default", most: int = 1000) -> int | None:
    """How many tasks of its queue would be claimed before this one, counted up to `most`; None if it has no place."""
    rows = store.read("position", id=checked_id(task_id), namespace=namespace, most=most)
    return next((int(before) for (before,) in rows), None)


def _blockers(f: TaskFacts, needs: list[UnmetRow]) -> Iterator[Blocker]:
    if f.state in TASK.terminal:
        yield Blocker(f.state, f"it is over: the task is {f.state}", facts={"finished_at": f.finished_at})
        return
    if f.state in HELD:
        yield _held(f)
        if f.cancel_at is not None:
            yield _cancel_requested(f)
        return
    if f.state in PAUSED:
        yield _paused(f)
    elif not f.ready:
        held = list(_held_back(f, needs))
        yield from held
        if not held or f.run_at > f.now:
            yield _not_ready(f, bool(held))
    if f.paused_at is not None:
        yield Blocker(
            "queue_paused",
            f"the queue {f.queue} is paused by {f.paused_by}; nothing is claimed from it until somebody resumes it",
            held_by=f.paused_by,
            facts={"queue": f.queue, "since": f.paused_at},
        )
    if f.breaker_until is not None and f.now < f.breaker_until:
        yield _breaker_open(f)


def _breaker_open(f: TaskFacts) -> Blocker:
    """When its time is over one task is let through to try: until then, or while that one is out, none."""
    if f.breaker_probing:
        message = (
            f"one task of the kind {f.kind} is being tried, the others wait for what it says; before: {f.breaker_why}"
        )
    else:
        message = f"the breaker of the kind {f.kind} is open: {f.breaker_why}"
    facts = {"kind": f.kind, "since": f.breaker_opened_at, "probing": bool(f.breaker_probing), "why": f.breaker_why}
    return Blocker("breaker_open", message, held_by=f.breaker_by, ends_at=f.breaker_until, facts=facts)


def _held_back(f: TaskFacts, needs: list[UnmetRow]) -> Iterator[Blocker]:
    """What its flow or its stage keeps it from."""
    if f.stage is None:
        return
    if f.flow_state == CREATED:
        yield Blocker("flow_not_opened", "its flow was submitted to be opened later: open it", held_by="the submitter")
    if f.flow_state == FLOW_PAUSED:
        yield Blocker("flow_paused", f"its flow is paused by {f.flow_paused_by}: resume it", held_by=f.flow_paused_by)
    if f.flow_ending is not None or f.stage_ending is not None:
        why = f.flow_ending_why or f"its stage is about to be {f.stage_ending}"
        yield Blocker("being_ended", f"{why}; the janitor will cancel it", held_by="janitor")
    elif f.stage_state == CREATED and not f.control:
        yield _stage_not_open(f)
    elif f.stage_state == WAITING and not f.control:
        yield stage_waits(f.stage, f.approval, f.stage_due_at)
    if f.unmet:
        names = ", ".join(f"{needed.name or needed.id} ({needed.state})" for needed in needs)
        facts = {"dependencies": [needed._asdict() for needed in needs], "unmet": f.unmet}
        yield Blocker("dependency", f"it depends on {f.unmet} tasks that have not succeeded: {names}", facts=facts)
    elif f.stage_state in (PENDING, RUNNING) and f.key > (f.opened_to or 0) and f.flow_state != FLOW_PAUSED:
        yield Blocker(
            "stage_opening", "its stage is opened in steps, and the janitor has not come to it", held_by="janitor"
        )


def _stage_not_open(f: TaskFacts) -> Blocker:
    if f.deciding is not None:
        return Blocker("condition", f"the condition of stage {f.stage!r} is being decided by a control task")
    at = f"stage {f.current_ord}, {f.current!r}, is {f.current_state}" if f.current else "none has begun"
    return Blocker(
        "stage_not_open",
        f"its stage {f.stage_ord}, {f.stage!r}, opens when those before it have ended: {at}",
        facts={"stage": f.stage, "order": f.stage_ord, "current": f.current, "current_state": f.current_state},
    )


def _held(f: TaskFacts) -> Blocker:
    """A worker has it. A lease is good up to and including its expiry."""
    ran_out = f.lease_expires_at is None or f.now > f.lease_expires_at
    message = f"worker {f.owner} has it ({f.state}), attempt {f.attempts} of {f.max_attempts}"
    if ran_out:
        message += "; its lease has run out, and the janitor has not taken the task back yet"
    facts = {"attempt": f.attempts, "max_attempts": f.max_attempts, "fence": f.fence, "lease_expired": ran_out}
    return Blocker(f.state, message, held_by=f.owner, ends_at=f.lease_expires_at, facts=facts)


def _cancel_requested(f: TaskFacts) -> Blocker:
    assert f.cancel_at is not None
    # The note may have been pruned: then the policy's own grace is the best guess.
    grace_s = orjson.loads(f.asked)["grace_s"] if f.asked else f.policy.cancel_grace_s
    return Blocker(
        "cancel_requested",
        f"a cancel was asked for; worker {f.owner} may still finish, after the grace it is cancelled",
        held_by=f.owner,
        ends_at=f.cancel_at + int(grace_s * SECOND),
        facts={"since": f.cancel_at, "grace_s": grace_s},
    )


def _paused(f: TaskFacts) -> Blocker:
    deadline_s = f.policy.deadline_s
    ends_at = None if deadline_s is None else f.created_at + int(deadline_s * SECOND)
    facts: dict[str, Any] = {"reason": f.held_why}
    message = f"it is {f.state}: {f.held_why}; {f.held_by} has to resume it"
    if ends_at is not None and ends_at <= f.now:
        message += "; its deadline has passed, and the janitor has not ended it yet"
        facts["overdue"] = True
    return Blocker(f.state, message, held_by=f.held_by, ends_at=ends_at, facts=facts)


def _not_ready(f: TaskFacts, held: bool) -> Blocker:
    assert f.state == QUEUED
    facts = {"run_at": f.run_at, "attempts": f.attempts, "max_attempts": f.max_attempts}
    if not f.due and not held:
        return Blocker("held", "it is queued but neither ready nor due: run `onetray verify`", facts=facts)
    if f.run_at <= f.now:
        message = "its time has come, and the janitor has not made it claimable yet"
        return Blocker("not_promoted", message, held_by="janitor", facts=facts)
    if f.came_by in FAILED_ATTEMPT and not f.rescheduled:
        message = f"attempt {f.attempts} of {f.max_attempts} failed; it waits before the next"
        return Blocker("backing_off", message, ends_at=f.run_at, facts=facts)
    return Blocker("delayed", "it is to run later", ends_at=f.run_at, facts=facts)
