"""The lifecycles, declared once.

The engine, the SQL guards, the CHECK constraints, the refusals, the `actions` lists, the diagrams in the docs
and the property tests are all driven by these tables. Owns no behaviour.
"""

from __future__ import annotations

from onetray.machine import SYSTEM, USER, WORKER, Machine, Transition, WayOut

QUEUED, ASSIGNED, RUNNING = "queued", "assigned", "running"
BLOCKED, WAITING_INPUT = "blocked", "waiting_input"
SUCCEEDED, FAILED, CANCELLED, DEAD_LETTERED = "succeeded", "failed", "cancelled", "dead_lettered"

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
        QUEUED: WayOut("deadline", "queue_ttl_s or deadline_s; without either, the submitter, who may cancel"),
        ASSIGNED: WayOut("lease", "expires unless the worker renews it"),
        RUNNING: WayOut("lease", "expires unless the worker renews it; timeout_s and deadline_s besides"),
        BLOCKED: WayOut("owner", "whom the pause names, may resume or cancel; deadline_s besides"),
        WAITING_INPUT: WayOut("owner", "whom the pause names, may resume or cancel; deadline_s besides"),
    },
    transitions=(
        Transition("submit", (), QUEUED, _ANYONE, "task.submitted"),
        Transition("claim", (QUEUED,), ASSIGNED, _WORKER, "task.claimed"),
        Transition("start", (ASSIGNED,), RUNNING, _WORKER, "task.started", fenced=True),
        Transition("succeed", (RUNNING,), SUCCEEDED, _WORKER, "task.succeeded", fenced=True, implies="start"),
        Transition("fail", (RUNNING,), FAILED, _WORKER | _SYSTEM, "task.failed", fenced=True, implies="start"),
        Transition("retry", (RUNNING,), QUEUED, _SYSTEM, "task.retried", fenced=True, reopens=True, implies="start"),
        Transition("release", HELD, QUEUED, _WORKER, "task.released", fenced=True, reopens=True),
        Transition("expire", HELD, QUEUED, _SYSTEM, "task.lease_expired", fenced=True, reopens=True),
        Transition("block", HELD, BLOCKED, _WORKER, "task.blocked", fenced=True),
        Transition("wait_for_input", HELD, WAITING_INPUT, _WORKER, "task.waiting_input", fenced=True),
        Transition("resume", PAUSED, QUEUED, _USER | _SYSTEM, "task.resumed", reopens=True),
        Transition("cancel", OPEN, CANCELLED, _USER | _SYSTEM, "task.cancelled"),
        Transition("time_out", (QUEUED, *PAUSED), FAILED, _SYSTEM, "task.timed_out"),
        Transition("dead_letter", (QUEUED, *HELD), DEAD_LETTERED, _SYSTEM, "task.dead_lettered"),
    ),
)

MACHINES = {TASK.entity: TASK}
