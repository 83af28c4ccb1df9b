"""The errors of parallel-mcp: the class that its clients look for, and our message."""

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

NAMES: dict[type[OnetrayError], str] = {
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


NAMES |= {RunTerminal: "RunTerminalError", LeaseExpired: "LeaseExpiredError"}


def error_text(error: OnetrayError) -> str:
    return f"{NAMES.get(type(error), type(error).__name__)}: {error}"


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
        return LeaseLost(f"the lease of the task {task} has expired, and the task was taken back: claim again")
    if isinstance(error, LeaseLost | IllegalTransition):
        return conflict(task)
    return error


def conflict(task: str) -> LeaseLost:
    return LeaseLost(f"the task {task} is not held by this worker with this lease: drop the work and claim again")


def not_found(entity: str, id_: str) -> NotFound:
    return NotFound(f"there is no {entity} {id_[:200]!r}")
