"""The lifecycles, declared once.

These tables drive the engine, the SQL guards, the CHECK constraints, the errors, the `actions` lists, the diagrams in
the docs and the property tests. Owns no behaviour.
"""

from __future__ import annotations

from onetray.domain.machine import SYSTEM, USER, WORKER, Machine, Transition, WayOut

QUEUED, ASSIGNED, RUNNING = "queued", "assigned", "running"
BLOCKED, WAITING_INPUT = "blocked", "waiting_input"
SUCCEEDED, FAILED, CANCELLED, DEAD_LETTERED = "succeeded", "failed", "cancelled", "dead_lettered"

CREATED, PENDING, WAITING, PARTIAL, SKIPPED = "created", "pending", "waiting", "partial", "skipped"
FLOW_PAUSED = "paused"

HELD = (ASSIGNED, RUNNING)
PAUSED = (BLOCKED, WAITING_INPUT)
OPEN = (QUEUED, *HELD, *PAUSED)

_ANYONE = frozenset({USER, WORKER, SYSTEM})
_WORKER = frozenset({WORKER})
_SYSTEM = frozenset({SYSTEM})
_USER = frozenset({USER})

TASK = Machine(
    entity="task",
    ranks={
        QUEUED: 0,
        ASSIGNED: 1,
        RUNNING: 2,
        BLOCKED: 3,
        WAITING_INPUT: 3,
        SUCCEEDED: 4,
        FAILED: 4,
        CANCELLED: 4,
        DEAD_LETTERED: 4,
    },
    terminal=frozenset({SUCCEEDED, FAILED, CANCELLED, DEAD_LETTERED}),
    ways_out={
        QUEUED: WayOut("deadline", "queue_ttl_s or deadline_s; without either, the submitter can cancel"),
        ASSIGNED: WayOut("lease", "expires unless the worker renews it"),
        RUNNING: WayOut("lease", "expires unless the worker renews it; also timeout_s and deadline_s"),
        BLOCKED: WayOut("owner", "the owner named by the pause resumes or cancels; also deadline_s"),
        WAITING_INPUT: WayOut("owner", "the owner named by the pause resumes or cancels; also deadline_s"),
    },
    transitions=(
        Transition("submit", (), QUEUED, _ANYONE, "task.submitted"),
        Transition("claim", (QUEUED,), ASSIGNED, _WORKER, "task.claimed"),
        Transition("start", (ASSIGNED,), RUNNING, _WORKER, "task.started", fenced=True),
        Transition("succeed", (RUNNING,), SUCCEEDED, _WORKER, "task.succeeded", fenced=True, implies="start"),
        Transition("fail", HELD, FAILED, _WORKER | _SYSTEM, "task.failed", fenced=True),
        Transition("retry", (RUNNING,), QUEUED, _SYSTEM, "task.retried", fenced=True, reopens=True, implies="start"),
        Transition("release", HELD, QUEUED, _WORKER, "task.released", fenced=True, reopens=True),
        Transition("expire", HELD, QUEUED, _SYSTEM, "task.lease_expired", fenced=True, reopens=True),
        Transition("block", HELD, BLOCKED, _WORKER, "task.blocked", fenced=True),
        Transition("wait_for_input", HELD, WAITING_INPUT, _WORKER, "task.waiting_input", fenced=True),
        Transition("resume", PAUSED, QUEUED, _USER | _SYSTEM, "task.resumed", reopens=True),
        Transition("cancel", OPEN, CANCELLED, _USER | _SYSTEM, "task.cancelled"),
        Transition("time_out", (QUEUED, *PAUSED), FAILED, _SYSTEM, "task.timed_out"),
        Transition("dead_letter", (QUEUED, *HELD), DEAD_LETTERED, _SYSTEM, "task.dead_lettered"),
        Transition("carry_over", (QUEUED,), SUCCEEDED, _SYSTEM, "task.carried_over"),
        Transition("carry_over_failed", (QUEUED,), FAILED, _SYSTEM, "task.carried_over_failed"),
        Transition("carry_over_dead", (QUEUED,), DEAD_LETTERED, _SYSTEM, "task.carried_over_dead"),
    ),
)

STAGE = Machine(
    entity="stage",
    fenced=False,
    ranks={
        CREATED: 0,
        WAITING: 1,
        PENDING: 2,
        RUNNING: 3,
        SUCCEEDED: 4,
        PARTIAL: 4,
        FAILED: 4,
        SKIPPED: 4,
        CANCELLED: 4,
    },
    terminal=frozenset({SUCCEEDED, PARTIAL, FAILED, SKIPPED, CANCELLED}),
    ways_out={
        CREATED: WayOut(
            "owner", "opens when the previous stage ends well; the flow's owner can cancel; the flow's deadline_s"
        ),
        WAITING: WayOut("owner", "the owner named by the approval approves, rejects or skips; also its deadline_s"),
        PENDING: WayOut("deadline", "those of its tasks, and the flow's deadline_s; if empty, the flow's owner"),
        RUNNING: WayOut("lease", "the leases of its tasks expire, so each task ends; also the flow's deadline_s"),
    },
    transitions=(
        Transition("add", (), CREATED, _ANYONE, "stage.added"),
        Transition("open", (CREATED,), PENDING, _SYSTEM, "stage.opened"),
        Transition("wait", (CREATED, PENDING, RUNNING), WAITING, _ANYONE, "stage.waiting"),
        Transition("approve", (WAITING,), PENDING, _USER | _SYSTEM, "stage.approved"),
        Transition("start", (PENDING,), RUNNING, _SYSTEM, "stage.started"),
        Transition("succeed", (RUNNING,), SUCCEEDED, _SYSTEM, "stage.succeeded", implies="start"),
        Transition("end_partly", (RUNNING,), PARTIAL, _SYSTEM, "stage.partial", implies="start"),
        Transition("fail", (RUNNING, WAITING), FAILED, _SYSTEM, "stage.failed", implies="start"),
        Transition("reject", (WAITING,), FAILED, _USER | _SYSTEM, "stage.rejected"),
        Transition("skip", (CREATED, WAITING), SKIPPED, _USER | _SYSTEM, "stage.skipped"),
        Transition("carry_over", (CREATED,), SUCCEEDED, _SYSTEM, "stage.carried_over"),
        Transition("cancel", (CREATED, WAITING, PENDING, RUNNING), CANCELLED, _USER | _SYSTEM, "stage.cancelled"),
    ),
)

_GOING = (RUNNING, FLOW_PAUSED, WAITING)

FLOW = Machine(
    entity="flow",
    fenced=False,
    ranks={
        CREATED: 0,
        PENDING: 1,
        FLOW_PAUSED: 2,
        WAITING: 2,
        RUNNING: 3,
        SUCCEEDED: 4,
        PARTIAL: 4,
        FAILED: 4,
        CANCELLED: 4,
    },
    terminal=frozenset({SUCCEEDED, PARTIAL, FAILED, CANCELLED}),
    ways_out={
        CREATED: WayOut("owner", "the submitter, who asked to open it later; also deadline_s"),
        PENDING: WayOut("deadline", "deadline_s; without it, the submitter can cancel"),
        FLOW_PAUSED: WayOut("owner", "the actor that paused it resumes or cancels; also deadline_s"),
        WAITING: WayOut("owner", "the owner named by its waiting stage or tasks; also deadline_s"),
        RUNNING: WayOut("lease", "the leases of its tasks expire, so each task ends; also deadline_s"),
    },
    transitions=(
        Transition("submit", (), CREATED, _ANYONE, "flow.submitted"),
        Transition("open", (CREATED,), PENDING, _ANYONE, "flow.opened"),
        Transition("start", (PENDING,), RUNNING, _SYSTEM, "flow.started"),
        Transition("wait", (PENDING, RUNNING), WAITING, _SYSTEM, "flow.waiting"),
        Transition("proceed", (WAITING,), PENDING, _SYSTEM, "flow.proceeded"),
        Transition("pause", (PENDING, RUNNING, WAITING), FLOW_PAUSED, _USER | _SYSTEM, "flow.paused"),
        Transition("resume", (FLOW_PAUSED,), PENDING, _USER | _SYSTEM, "flow.resumed"),
        Transition("succeed", _GOING, SUCCEEDED, _SYSTEM, "flow.succeeded", implies="start"),
        Transition("end_partly", _GOING, PARTIAL, _SYSTEM, "flow.partial", implies="start"),
        Transition("fail", _GOING, FAILED, _SYSTEM, "flow.failed", implies="start"),
        Transition("time_out", (CREATED, PENDING, *_GOING), FAILED, _SYSTEM, "flow.timed_out"),
        Transition("cancel", (CREATED, PENDING, *_GOING), CANCELLED, _USER | _SYSTEM, "flow.cancelled"),
    ),
)

MACHINES = {m.entity: m for m in (TASK, STAGE, FLOW)}

# Events about what has no lifecycle. They have no entity: their payload names what has changed.
QUEUE_PAUSED, QUEUE_RESUMED = "queue.paused", "queue.resumed"
BREAKER_OPENED, BREAKER_CLOSED = "breaker.opened", "breaker.closed"
LIMIT_SET, LIMIT_RESET, LIMIT_REMOVED, WEIGHT_SET = ABOUT_LIMITS = (
    "limit.set", "limit.reset", "limit.removed", "weight.set",
)  # fmt: skip
TOKEN_CREATED, TOKEN_REVOKED = "token.created", "token.revoked"
BULK_STARTED, BULK_RESUMED, BULK_STOPPED, BULK_FINISHED = ABOUT_BULK = (
    "bulk.started", "bulk.resumed", "bulk.stopped", "bulk.finished",
)  # fmt: skip
(
    SCHEDULE_CREATED, SCHEDULE_CHANGED, SCHEDULE_PAUSED, SCHEDULE_RESUMED, SCHEDULE_TRIGGERED, SCHEDULE_BACKFILLED,
    SCHEDULE_REMOVED, SCHEDULE_ORPHANED,
) = ABOUT_SCHEDULES = (
    "schedule.created", "schedule.changed", "schedule.paused", "schedule.resumed", "schedule.triggered",
    "schedule.backfilled", "schedule.removed", "schedule.orphaned",
)  # fmt: skip
ABOUT_TOKENS = (TOKEN_CREATED, TOKEN_REVOKED)
"""Only administrators read these through a server."""
AUDIT_TYPES = (
    QUEUE_PAUSED, QUEUE_RESUMED, BREAKER_OPENED, BREAKER_CLOSED, *ABOUT_LIMITS, *ABOUT_BULK, *ABOUT_SCHEDULES,
    *ABOUT_TOKENS,
)  # fmt: skip
NO_ENTITY = 0
"""The key of their entity: no task, stage or flow has it."""
