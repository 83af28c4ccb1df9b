"""Explain why a task is not running: what blocks it, who can act, and until when.

The reasons come from the rows that a claim uses: apart from those about workers and about turns, the list is empty
exactly if a claim from the task's queue would return the task now. Reads only. Stages and flows are explained in
explain/flows.py, limits in explain/limits.py, missing workers in explain/workers.py, and what has ended in
explain/endings.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote
from typing import Any

import orjson

from onetray.domain.checks import task_id as checked_id
from onetray.domain.clock import SECOND, duration, utc_text
from onetray.domain.errors import NotFound, error_line
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
from onetray.domain.task import Blocker, json_of
from onetray.explain.endings import IsRefused, ended_task
from onetray.explain.flows import explain_parent, resume_command, stage_waits
from onetray.explain.limits import TAKES_TURNS, limit_blockers
from onetray.explain.workers import CODES as ABOUT_WORKERS
from onetray.explain.workers import RegisteredWorkers
from onetray.store.base import Store
from onetray.store.explain_rows import TaskFacts, UnmetRow

COUNTED = 1_000
"""How many tasks ahead of another are counted at most."""
SAY_WHEN = frozenset({"backing_off", "delayed", "debounced"})
"""The reasons whose messages say when they end."""
BEING_ENDED = "being_ended"
RUN, RESCHEDULED, CANCEL_ASKED, DEBOUNCE = "run", "task.rescheduled", "task.cancel_requested", "debounce"
FAILED_ATTEMPT = (TASK.retry.event, TASK.expire.event)
"""The events after which a queued task with a later run_at is backing off."""


def explain(store: Store, task_id: str, namespace: str, is_refused: IsRefused) -> list[Blocker]:
    """Every reason why nobody runs this task now, the most specific first. An empty list: a worker may claim it."""
    rows = store.read(
        "explain", id=checked_id(task_id), namespace=namespace, run=RUN, rescheduled=RESCHEDULED,
        cancel_requested=CANCEL_ASKED, flow_paused=FLOW.pause.event,
    )  # fmt: skip
    if not rows:
        found = explain_parent(store, checked_id(task_id), namespace, is_refused)
        if found is None:
            raise NotFound(f"there is no task, stage or flow {task_id}", task=task_id)
        return found
    facts = rows[0]
    needs = store.read("unmet_of", task=facts.key, met=SUCCEEDED, limit=20) if facts.unmet else []
    found = list(_blockers(facts, needs, is_refused))
    if any(reason.code == "delayed" for reason in found):
        found = [_debounced(store, facts) or reason if reason.code == "delayed" else reason for reason in found]
    if facts.state == QUEUED and facts.ready:
        found += limit_blockers(store, facts.key)
    is_lost = facts.state in HELD and _lease_is_over(facts)
    if is_lost or (facts.state == QUEUED and not any(reason.code == BEING_ENDED for reason in found)):
        workers = RegisteredWorkers(store, namespace)
        found += workers.blockers(facts.queue, facts.kind) if found else workers.all_blockers(facts.queue, facts.kind)
    return found


def is_claimable(reasons: Iterable[Blocker]) -> bool:
    """Whether a claim would return the task: if something is missing, it is only a worker."""
    return all(reason.code in ABOUT_WORKERS or reason.code == TAKES_TURNS for reason in reasons)


def position(store: Store, task_id: str, namespace: str = "default", most: int = 1000) -> int | None:
    """How many tasks of its queue are claimed before this one, at most `most`; None if it is not claimable."""
    rows = store.read("position", id=checked_id(task_id), namespace=namespace, most=most)
    return next((int(before) for (before,) in rows), None)


def _blockers(f: TaskFacts, needs: list[UnmetRow], is_refused: IsRefused) -> Iterator[Blocker]:
    if f.state in TASK.terminal:
        yield ended_task(f, is_refused)
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
        command = f"onetray queues resume {quote(f.queue)}"
        yield Blocker(
            "queue_paused",
            f"the queue {f.queue} was paused by {f.paused_by}: resume it, `{command}`",
            held_by=f.paused_by,
            facts={"queue": f.queue, "since": f.paused_at, "command": command},
        )
    if f.breaker_until is not None and f.now < f.breaker_until:
        yield _breaker_open(f)


def _breaker_open(f: TaskFacts) -> Blocker:
    """An open breaker lets no task through until its time is over, then a single one as a probe."""
    command = f"onetray breakers close {quote(f.kind)}"
    if f.breaker_probing:
        message = f"the breaker of kind {f.kind} is half-open, and a probe runs; it opened because: {f.breaker_why}"
    else:
        message = f"the breaker of kind {f.kind} is open: {f.breaker_why}"
    message += f"; to close it now, `{command}`"
    facts = {
        "kind": f.kind, "since": f.breaker_opened_at, "probing": bool(f.breaker_probing), "why": f.breaker_why,
        "command": command,
    }  # fmt: skip
    return Blocker("breaker_open", message, held_by=f.breaker_by, ends_at=f.breaker_until, facts=facts)


def _held_back(f: TaskFacts, needs: list[UnmetRow]) -> Iterator[Blocker]:
    """The reasons in its flow and its stage."""
    if f.stage is None:
        return
    if f.flow_state == CREATED:
        yield Blocker("flow_not_opened", "its flow was submitted with start=False: open it", held_by="the submitter")
    if f.flow_state == FLOW_PAUSED:
        command = f"onetray jobs resume {f.flow}"
        message = f"its flow was paused by {f.flow_paused_by}: resume it, `{command}`"
        yield Blocker("flow_paused", message, held_by=f.flow_paused_by, facts={"command": command})
    if f.flow_ending is not None or f.stage_ending is not None:
        reason = f.flow_ending_why or f"its stage is ending ({f.stage_ending})"
        yield Blocker(BEING_ENDED, f"{reason}; the janitor will cancel it", held_by="janitor")
    elif f.stage_state == CREATED and not f.control:
        yield _stage_not_open(f)
    elif f.stage_state == WAITING and not f.control:
        yield stage_waits(f"{f.flow}/{f.stage}", f.stage, f.approval, f.stage_due_at)
    if f.unmet:
        names = ", ".join(f"{needed.name or needed.id} ({needed.state})" for needed in needs)
        facts = {"dependencies": [needed._asdict() for needed in needs], "unmet": f.unmet}
        yield Blocker("dependency", f"it depends on {f.unmet} tasks that have not succeeded: {names}", facts=facts)
    elif f.stage_state in (PENDING, RUNNING) and f.key > (f.opened_to or 0) and f.flow_state != FLOW_PAUSED:
        yield Blocker("stage_opening", "its large stage opens in steps, and its step is pending", held_by="janitor")


def _stage_not_open(f: TaskFacts) -> Blocker:
    if f.deciding is not None:
        return Blocker("condition", f"a control task evaluates the condition of stage {f.stage!r}")
    current = f"stage {f.current_ord}, {f.current!r}, is {f.current_state}" if f.current else "none has started"
    return Blocker(
        "stage_not_open",
        f"its stage {f.stage_ord}, {f.stage!r}, opens when the stages before it have ended: {current}",
        facts={"stage": f.stage, "order": f.stage_ord, "current": f.current, "current_state": f.current_state},
    )


def _held(f: TaskFacts) -> Blocker:
    is_expired = _lease_is_over(f)
    message = f"worker {f.owner} holds it ({f.state}), attempt {f.attempts} of {f.max_attempts}"
    if is_expired:
        message += "; its lease has expired, and the next worker, or a server, requeues it"
    else:
        message += "; the worker renews its lease while it runs"
    facts = {"attempt": f.attempts, "max_attempts": f.max_attempts, "fence": f.fence, "lease_expired": is_expired}
    return Blocker(f.state, message, held_by=f.owner, ends_at=f.lease_expires_at, facts=facts)


def _lease_is_over(f: TaskFacts) -> bool:
    # A lease holds up to and including its expiry.
    return f.lease_expires_at is None or f.now > f.lease_expires_at


def _cancel_requested(f: TaskFacts) -> Blocker:
    assert f.cancel_at is not None
    # The note may have been deleted: then assume the grace of the policy.
    grace_s = orjson.loads(f.cancel_request)["grace_s"] if f.cancel_request else f.policy.cancel_grace_s
    return Blocker(
        "cancel_requested",
        f"its cancel was requested; worker {f.owner} may still finish it before the grace period ends",
        held_by=f.owner,
        ends_at=f.cancel_at + int(grace_s * SECOND),
        facts={"since": f.cancel_at, "grace_s": grace_s},
    )


def _paused(f: TaskFacts) -> Blocker:
    deadline_s = f.policy.deadline_s
    ends_at = None if deadline_s is None else f.created_at + int(deadline_s * SECOND)
    facts: dict[str, Any] = {"reason": f.held_why, "command": resume_command(f.id, f.state)}
    message = f"the task is {f.state}: {f.held_why}; {f.held_by} has to resume it, `{facts['command']}`"
    if ends_at is not None and ends_at <= f.now:
        message += "; its deadline has passed, and the janitor has not ended it yet"
        facts["overdue"] = True
    return Blocker(f.state, message, held_by=f.held_by, ends_at=ends_at, facts=facts)


def _not_ready(f: TaskFacts, held: bool) -> Blocker:
    assert f.state == QUEUED
    facts = {"run_at": f.run_at, "attempts": f.attempts, "max_attempts": f.max_attempts}
    if not f.due and not held:
        return Blocker("held", "the task is queued but neither ready nor due: run `onetray verify`", facts=facts)
    if f.run_at <= f.now:
        message = "its run_at has passed, and the janitor has not made it claimable yet"
        return Blocker("not_promoted", message, held_by="janitor", facts=facts)
    when = f"at {utc_text(f.run_at)}, in {duration(f.run_at - f.now)}"
    if f.last_event in FAILED_ATTEMPT and f.rescheduled_by is None:
        return _backing_off(f, facts, when)
    return Blocker("delayed", f"{_why_delayed(f)}: it may run {when}", ends_at=f.run_at, facts=facts)


def _debounced(store: Store, f: TaskFacts) -> Blocker | None:
    """Why a task is delayed, if it waits for the end of its debounce window."""
    windows = store.read("debounced_job", job=f.key, mode=DEBOUNCE)
    window = next((window for window in windows if window.until_at == f.run_at), None)
    if window is None or f.fence != 1:
        return None
    count = f"{window.replaced} submit{'' if window.replaced == 1 else 's'}"
    message = (
        f"it is debounced: it waits for quiet until {utc_text(f.run_at)}, in {duration(f.run_at - f.now)}; "
        f"{count} replaced its payload"
    )
    facts = {"run_at": f.run_at, "replaced": window.replaced}
    return Blocker("debounced", message, ends_at=f.run_at, facts=facts)


def _backing_off(f: TaskFacts, facts: dict[str, Any], when: str) -> Blocker:
    """An attempt has failed: with the error of a report, or because its lease ran out."""
    error = json_of(f.error) if f.last_event == TASK.retry.event else None
    why = f.last_cause if error is None else error_line(error)
    if error is not None:
        facts["error"] = error
    message = f"attempt {f.attempts} of {f.max_attempts} failed ({why}); the next one is due {when} (backoff)"
    return Blocker("backing_off", message, ends_at=f.run_at, facts=facts)


def _why_delayed(f: TaskFacts) -> str:
    if f.rescheduled_by is not None:
        what, why = f"{f.rescheduled_by} rescheduled the task", f.rescheduled_why
    elif f.last_event == TASK.release.event:
        what, why = f"{f.last_actor} released the task with a delay", f.last_cause
    else:
        what, why = "the task was submitted with a delay", f.last_cause
    return f"{what} ({why})" if why else what
