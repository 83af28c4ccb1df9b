"""Every error that onetray raises.

    OnetrayError
    ├── InvalidInput          a field is wrong: nothing was written
    │   ├── TooLarge          a field or a batch is past its limit
    │   │   └── BodyTooLarge  the body of a request is past its limit
    │   ├── TooDeep           JSON inside JSON inside JSON
    │   ├── NotJson           the body of a request is something else
    │   ├── SlowBody          the body of a request did not come in time
    │   └── UnknownVerb       there is no such command
    ├── Unauthorized          no token, or one that is not known
    ├── Forbidden             the token does not allow this
    │   ├── NotLocal          a server without tokens answers its own machine alone
    │   ├── WrongHost         the request names a host that the server is not
    │   └── WrongOrigin       the page of a browser that the server does not know
    ├── TooManyRequests       more in a second than the token may
    │   └── TooManyStreams    more open streams than there is room for
    ├── NotFound              no such task in this namespace
    ├── Conflict              the command was understood and refused
    │   ├── IllegalTransition the lifecycle has no such move from here
    │   ├── LeaseLost         another attempt holds the task now
    │   ├── KeyReused         the idempotency key belongs to another body
    │   ├── InProgress        a request under this key has not been answered yet
    │   ├── AnswerNotKept     a request under this key was carried out, its answer was too large to keep
    │   ├── DependencyCycle   these tasks could never run: each waits for the next
    │   └── NameTaken         the flow has a task or a stage of this name
    ├── Unavailable           the database could not be reached; nothing was written
    │   ├── Busy              the server has no room for the request now; nothing was written
    │   ├── OutcomeUnknown    perhaps it was written: the answer to COMMIT was lost, and nobody could be asked
    │   └── DatabaseMoved     the SQLite file is not at its path any more
    │       └── DatabaseReplaced  another file is there, or its -wal or -shm is not the one that was opened
    ├── StoreError            the database refused the set-up: the message says what to do
    │   ├── MigrationNeeded   the schema is older or newer than this code
    │   └── MissingExtra      a part that is not installed
    ├── JobFailed             a job whose result was asked for has ended in another way
    ├── NotYet                a job has not ended in the time that was given
    └── GuardFailed           a guarded UPDATE moved fewer rows than were decided: a bug, rolled back

The class is the cause, the attributes are the facts, the message is the next step.

Handlers raise the classes of the second tree to say how a failure is to be treated:

    TransientError            try again        PermanentError    never try again
    ValidationError           never try again  LeaseConflictError  the task is somebody else's

Two are raised into handlers and are to be let through. `except Exception` does not catch them:

    TaskCancelled             the handler should stop    WaitForInput    the task is given up until somebody resumes it
"""

from __future__ import annotations

from typing import Any, ClassVar


class OnetrayError(Exception):
    """The root of everything that onetray raises on purpose."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)

    def as_dict(self) -> dict[str, Any]:
        return {"code": self.code, "message": str(self), **self.facts}


def short_repr(value: object) -> str:
    """The beginning of a value, for a message that refuses it. Never fails, whatever the value is."""
    try:
        return f"{value!r:.80}"
    except Exception:  # A number of thousands of digits, or somebody's __repr__.
        return f"a {type(value).__name__}"


class InvalidInput(OnetrayError):
    """A field is wrong. Mend it and call again; nothing was written."""

    code, status = "invalid_input", 400


class TooLarge(InvalidInput):
    """A field is past its limit. Send less, or raise the limit."""

    code, status = "too_large", 413


class BodyTooLarge(TooLarge):
    """The body of the request is past its limit. Send it in parts, or raise `body_bytes`."""

    code = "body_too_large"


class TooDeep(InvalidInput):
    """The JSON is nested too deeply. Make it flatter."""

    code = "too_deep"


class NotJson(InvalidInput):
    """The body is not JSON. Send `Content-Type: application/json`."""

    code, status = "not_json", 415


class SlowBody(InvalidInput):
    """The body did not come in time. Send it at once, or in parts."""

    code, status = "slow_body", 408


class UnknownVerb(InvalidInput):
    """There is no such command."""

    code = "unknown_verb"


class Unauthorized(OnetrayError):
    """Who asks is not known. Send a token: `Authorization: Bearer …`."""

    code, status = "unauthorized", 401


class Forbidden(OnetrayError):
    """The token does not allow this."""

    code, status = "forbidden", 403


class NotLocal(Forbidden):
    """A server without tokens answers callers of its own machine alone. Create a token: `onetray token create`."""

    code = "not_local"


class WrongHost(Forbidden):
    """The request names a host that this server is not."""

    code = "wrong_host"


class WrongOrigin(Forbidden):
    """The request comes from a browser's page that this server does not know."""

    code = "wrong_origin"


class TooManyRequests(OnetrayError):
    """Too many requests in too short a time. Wait for as long as `Retry-After` says."""

    code, status = "too_many_requests", 429


class TooManyStreams(TooManyRequests):
    """There is no room for another stream. Close one, or come back later."""

    code = "too_many_streams"


class NotFound(OnetrayError):
    """No such task in this namespace."""

    code, status = "not_found", 404


class Conflict(OnetrayError):
    """The command was understood and refused."""

    code, status = "conflict", 409


class IllegalTransition(Conflict):
    """The lifecycle has no such move from here. `allowed` names the moves that it has."""

    code = "illegal_transition"


class LeaseLost(Conflict):
    """This attempt no longer holds the task. Drop the work and claim again."""

    code = "lease_lost"


class KeyReused(Conflict):
    """The idempotency key was used with another body. Use a new key, or send the first body again."""

    code = "key_reused"


class InProgress(Conflict):
    """A request under this key is still being carried out. Send it again in a moment."""

    code = "in_progress"


class AnswerNotKept(Conflict):
    """A request under this key was carried out, and its answer was too large to be kept. Look how things stand."""

    code = "answer_not_kept"


class DependencyCycle(Conflict):
    """These tasks could never run: each waits for the next. `cycle` names them."""

    code = "dependency_cycle"


class NameTaken(Conflict):
    """The flow has a task or a stage of this name already. Use another name."""

    code = "name_taken"


class Unavailable(OnetrayError):
    """The database could not be reached; nothing was written. Try again."""

    code, status = "unavailable", 503


class Busy(Unavailable):
    """The server has no room for this request now; nothing was written. Try again in a moment."""

    code = "busy"


class OutcomeUnknown(Unavailable):
    """Perhaps this was written. Look whether it is there before calling again."""

    code = "outcome_unknown"


class DatabaseMoved(Unavailable):
    """The SQLite file was moved away or deleted while it was open; nothing was written. Bring the same file back."""

    code = "database_moved"


class DatabaseReplaced(DatabaseMoved):
    """The SQLite file was replaced while it was open; nothing was written. Start the process again."""

    code = "database_replaced"


class StoreError(OnetrayError):
    """The database cannot be used as it is."""

    code = "store_error"


class MigrationNeeded(StoreError):
    """The schema does not fit this code. Run `onetray migrate`."""

    code = "migration_needed"


class MissingExtra(StoreError):
    """A part of onetray is not installed."""

    code = "missing_extra"


class JobFailed(OnetrayError):
    """The job has ended without a result: see `state` and `error`."""

    code, status = "job_failed", 409


class NotYet(OnetrayError):
    """The job has not ended yet. Wait longer, or ask `explain` why."""

    code, status = "not_yet", 409


class GuardFailed(OnetrayError):
    """A guarded write moved fewer rows than were decided. The batch was rolled back."""

    code = "guard_failed"


class TaskError(Exception):
    """What a handler raises to say how its failure is to be treated, and how long to wait before the next attempt."""

    retryable: ClassVar[bool] = True

    def __init__(self, *args: object, retry_after_s: float | None = None) -> None:
        super().__init__(*args)
        self.retry_after_s = retry_after_s


class TransientError(TaskError):
    """It may work next time: try again after a pause."""


class PermanentError(TaskError):
    """It will never work: do not try again."""

    retryable = False


class ValidationError(PermanentError):
    """The input is wrong: do not try again."""


class LeaseConflictError(TransientError):
    """Somebody else holds what the handler needs."""


class TaskCancelled(BaseException):
    """The handler should stop: a cancel was asked for, the lease is lost, or the worker stops."""


class WaitForInput(BaseException):
    """The handler gives its task up until somebody resumes it with an input."""

    def __init__(self, owner: str, reason: str) -> None:
        super().__init__(owner, reason)
        self.owner, self.reason = owner, reason
