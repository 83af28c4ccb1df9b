"""The words of parallel-mcp: its statuses, events and errors, and the native ones that they stand for.

It is data: the lifecycle decides what a task may do. Owns which native errors its clients can distinguish.
"""

from __future__ import annotations

from onetray.domain.errors import (
    AliasTaken,
    Conflict,
    DependencyCycle,
    IllegalTransition,
    LeaseLost,
    NameTaken,
    NoAttemptsLeft,
    NotFound,
    OnetrayError,
)
from onetray.domain.lifecycle import FLOW, TASK
from onetray.domain.state_table import StateTable

RUN_STATES = StateTable.read("flow", "run", """
    created = pending; pending, running = active; waiting, paused = waiting; succeeded, partial = completed
    failed = failed; cancelled = cancelled
    new → pending → active → waiting → active → completed, failed, cancelled
    pending, waiting → cancelled
    waiting → completed, failed: a user cancelled the last task that waited, or the deadline of a native flow
    pending → failed: the deadline of a native flow
""")  # fmt: skip
TASK_STATES = StateTable.read("task", "task", """
    queued = queued; assigned = leased; running = running; blocked = blocked; waiting_input = waiting_input
    succeeded = completed; failed, dead_lettered = failed; cancelled = cancelled
    new → queued → leased → running
    leased, running → queued, blocked, waiting_input, completed, failed
    blocked, waiting_input → queued
    queued, leased, running, blocked, waiting_input → cancelled
    queued → completed: a requeue of another task of an ended run continues in a copy of the run
    queued → failed: the same; or the deadline of a native task
    blocked, waiting_input → failed: the deadline of a native task
""")  # fmt: skip

STATUS_CHANGED, ENQUEUED, REQUEUED, PAUSED = (
    "run.status.changed",
    "task.enqueued",
    "task.requeued_from_dlq",
    "task.paused",
)
EVENT_NAMES = {
    FLOW.submit.event: "run.created",
    FLOW.cancel.event: "run.cancelled",
    **{
        t.event: STATUS_CHANGED
        for t in FLOW.transitions
        if t.sources and t is not FLOW.cancel
        and any(RUN_STATES.state(source) != RUN_STATES.state(t.target) for source in t.sources)
    },
    TASK.submit.event: ENQUEUED,
    TASK.claim.event: "task.claimed",
    TASK.start.event: "task.running",
    TASK.release.event: "task.released",
    TASK.succeed.event: "task.completed",
    TASK.fail.event: "task.failed",
    TASK.time_out.event: "task.failed",
    TASK.cancel.event: "task.cancelled",
    TASK.block.event: PAUSED,
    TASK.wait_for_input.event: PAUSED,
    TASK.resume.event: "task.resumed",
    TASK.expire.event: "task.lease_expired",
    TASK.retry.event: "task.lease_expired",
    TASK.dead_letter.event: "task.dead_lettered",
    "task.heartbeat": "task.heartbeat",
    "flow.context_appended": "context_snapshot.appended",
}  # fmt: skip
"""The name of each of our events that its clients see. They see no others."""

ERROR_NAMES: dict[type[OnetrayError], str] = {
    NotFound: "RecordNotFoundError",
    IllegalTransition: "InvalidTransitionError",
    LeaseLost: "LeaseConflictError",
    NameTaken: "DuplicateTaskKeyError",
    AliasTaken: "DuplicateIdError",
    DependencyCycle: "DependencyCycleError",
    NoAttemptsLeft: "MaxAttemptsExceededError",
}


class RunTerminal(Conflict):
    """The run has ended and takes no more tasks. Create another run."""

    code = "run_terminal"


class LeaseExpired(LeaseLost):
    """The lease has expired. Drop the work and claim again."""

    code = "lease_expired"


ERROR_NAMES |= {RunTerminal: "RunTerminalError", LeaseExpired: "LeaseExpiredError"}


def text_of_error(error: OnetrayError) -> str:
    return f"{ERROR_NAMES.get(type(error), type(error).__name__)}: {error}"


def of_report(error: OnetrayError, task: str) -> OnetrayError:
    """The error of a report about a task, as its clients tell them apart.

    A lease that has expired is LeaseExpired until the task is taken from its worker. From then on, and whenever the
    task is not held by this lease, it is a conflict.
    """
    if isinstance(error, NotFound):
        return not_found("task", task)
    if isinstance(error, LeaseLost) and error.facts.get("cause") == "expired":
        if error.facts.get("fence") == error.facts.get("current_fence"):
            return LeaseExpired(f"the lease of the task {task} has expired: drop the work and claim again")
        return LeaseLost(f"the lease of the task {task} has expired, and the task is in the queue again: claim again")
    if isinstance(error, LeaseLost | IllegalTransition):
        return conflict(task)
    return error


def conflict(task: str) -> LeaseLost:
    return LeaseLost(f"the task {task} is not held by this worker with this lease: drop the work and claim again")


def not_found(entity: str, id_: str) -> NotFound:
    return NotFound(f"there is no {entity} {id_[:200]!r}")
