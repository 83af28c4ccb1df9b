"""Every error that onetray raises.

    OnetrayError
    ├── InvalidInput          a field is invalid; nothing was written
    │   ├── TooLarge          a field or a batch exceeds its limit
    │   │   └── BodyTooLarge  the request body exceeds its limit
    │   ├── TooDeep           the JSON is nested too deeply
    │   ├── NotJson           the request body is not JSON
    │   ├── SlowBody          the request body did not arrive in time
    │   └── UnknownVerb       there is no such command
    ├── Unauthorized          the token is missing or not valid
    ├── Forbidden             the token does not allow this
    │   ├── NotApprover       the approval names somebody else
    │   ├── NotLocal          a server without tokens accepts only requests from its own machine
    │   ├── WrongHost         the Host header does not name this server
    │   └── WrongOrigin       the Origin header names a page that this server does not allow
    ├── TooManyRequests       the token exceeds its requests per second
    │   └── TooManyStreams    too many streams are open
    ├── NotFound              no such job, stage or task in this namespace
    ├── Conflict              the command is valid, but not possible now
    │   ├── IllegalTransition the lifecycle has no such transition from this state
    │   ├── NoAttemptsLeft    the task has used up its attempts
    │   ├── LeaseLost         another attempt holds the task now
    │   ├── KeyReused         the idempotency key was used with another body
    │   ├── InProgress        an earlier request with this key is still running
    │   ├── AnswerNotKept     an earlier request with this key succeeded; its answer was too large to keep
    │   ├── DependencyCycle   these tasks could never run: each waits for the next
    │   ├── NameTaken         the flow already has a task or a stage of this name
    │   ├── AliasTaken        the namespace already has a task, a flow or a context with this alias
    │   ├── AlreadyOpen       another flow of this name is open, and only one may be
    │   └── DeclaredInCode    an app declares this schedule: it cannot be changed here
    ├── Unavailable           the database could not be reached; nothing was written
    │   ├── Busy              the server is at its limit; nothing was written
    │   ├── OutcomeUnknown    the answer to COMMIT was lost: the change may have been written
    │   └── DatabaseMoved     the SQLite file is no longer at its path
    │       └── DatabaseReplaced  another file is there, or its -wal or -shm is not the one that was opened
    ├── StoreError            the database cannot be used as configured: the message says what to do
    │   ├── NoDatabase        the SQLite file does not exist, and may not be created
    │   ├── MigrationNeeded   the schema is older or newer than this code
    │   └── MissingExtra      an optional dependency is not installed
    ├── JobFailed             the job ended without a result
    ├── NotYet                the job did not end within the timeout
    └── GuardFailed           a guarded UPDATE changed fewer rows than expected: a bug, rolled back

The class is the cause, the attributes are the facts, the message is the next step.

Handlers raise these to choose whether a failure is retried:

    TransientError            retry         PermanentError      no retry
    ValidationError           no retry      LeaseConflictError  retry: another holder has the resource

The worker raises these inside handlers, which must not swallow them; `except Exception` does not catch them:

    TaskCancelled             the handler should stop    WaitForInput    the task pauses until it is resumed
"""

from __future__ import annotations

from typing import Any, ClassVar


class OnetrayError(Exception):
    """The base class of onetray's errors."""

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
    """The first characters of a value's repr, for an error message. Never raises."""
    try:
        return f"{value!r:.80}"
    except Exception:  # An int of thousands of digits, or a user's __repr__.
        return f"a {type(value).__name__}"


def error_line(error: object) -> str:
    """The stored error of a task in one text: "ValueError: no such user". A heavily redacted error is a text."""
    if not isinstance(error, dict):
        return str(error)
    class_, message = error.get("class"), str(error.get("message", ""))
    return f"{class_}: {message}" if class_ else message


class InvalidInput(OnetrayError):
    """A field is invalid. Correct it and call again; nothing was written."""

    code, status = "invalid_input", 400


class TooLarge(InvalidInput):
    """A field exceeds its limit. Send less, or raise the limit."""

    code, status = "too_large", 413


class BodyTooLarge(TooLarge):
    """The request body exceeds its limit. Send it in parts, or raise `body_bytes`."""

    code = "body_too_large"


class TooDeep(InvalidInput):
    """The JSON is nested too deeply. Make it flatter."""

    code = "too_deep"


class NotJson(InvalidInput):
    """The body is not JSON. Send `Content-Type: application/json`."""

    code, status = "not_json", 415


class SlowBody(InvalidInput):
    """The request body did not arrive in time. Send it faster, or in parts."""

    code, status = "slow_body", 408


class UnknownVerb(InvalidInput):
    """There is no such command."""

    code = "unknown_verb"


class Unauthorized(OnetrayError):
    """The token is missing or not valid. Send one: `Authorization: Bearer …`."""

    code, status = "unauthorized", 401


class Forbidden(OnetrayError):
    """The token does not allow this."""

    code, status = "forbidden", 403


class NotApprover(Forbidden):
    """Only the user or the group that the approval names may answer it."""

    code = "not_approver"


class NotLocal(Forbidden):
    """A server without tokens accepts only requests from its own machine. Create one: `onetray token create`."""

    code = "not_local"


class WrongHost(Forbidden):
    """The Host header does not name this server."""

    code = "wrong_host"


class WrongOrigin(Forbidden):
    """The Origin header names a page that this server does not allow."""

    code = "wrong_origin"


class TooManyRequests(OnetrayError):
    """Too many requests in a short time. Wait for the seconds in `Retry-After`."""

    code, status = "too_many_requests", 429


class TooManyStreams(TooManyRequests):
    """Too many streams are open. Close one, or try again later."""

    code = "too_many_streams"


class NotFound(OnetrayError):
    """There is no such job, stage or task in this namespace."""

    code, status = "not_found", 404


class Conflict(OnetrayError):
    """The command is valid, but not possible now."""

    code, status = "conflict", 409


class IllegalTransition(Conflict):
    """The lifecycle has no such transition from this state. `allowed` lists those that it has."""

    code = "illegal_transition"


class NoAttemptsLeft(Conflict):
    """The task has used up its attempts, and they are to be kept. Redrive it with a new budget."""

    code = "no_attempts_left"


class LeaseLost(Conflict):
    """This attempt no longer holds the task: `cause` says why. Drop the work and claim again."""

    code = "lease_lost"


class KeyReused(Conflict):
    """The idempotency key was used with another body. Use a new key, or send the first body again."""

    code = "key_reused"


class InProgress(Conflict):
    """An earlier request with this key is still running. Send this one again in a moment."""

    code = "in_progress"


class AnswerNotKept(Conflict):
    """An earlier request with this key succeeded, but its answer was too large to keep. Read the current state."""

    code = "answer_not_kept"


class DependencyCycle(Conflict):
    """These tasks could never run: each waits for the next. `cycle` names them."""

    code = "dependency_cycle"


class NameTaken(Conflict):
    """The flow already has a task or a stage of this name. Use another name."""

    code = "name_taken"


class AliasTaken(Conflict):
    """The namespace already has a task, a flow or a context with this alias: `id` is its id. Use another alias."""

    code = "alias_taken"


class AlreadyOpen(Conflict):
    """Another flow of this name is open, and only one may be: `job` is its id. Wait for its end, or cancel it."""

    code = "already_open"


class DeclaredInCode(Conflict):
    """The schedule is in the code of an app. Change it there; it can be paused, resumed and triggered here."""

    code = "declared_in_code"


class Unavailable(OnetrayError):
    """The database could not be reached; nothing was written. Try again."""

    code, status = "unavailable", 503


class Busy(Unavailable):
    """The server is at its limit; nothing was written. Try again in a moment."""

    code = "busy"


class OutcomeUnknown(Unavailable):
    """The change may have been written. Check before calling again."""

    code = "outcome_unknown"


class DatabaseMoved(Unavailable):
    """The SQLite file was moved or deleted while it was open; nothing was written. Put the same file back."""

    code = "database_moved"


class DatabaseReplaced(DatabaseMoved):
    """The SQLite file was replaced while it was open; nothing was written. Restart the process."""

    code = "database_replaced"


class StoreError(OnetrayError):
    """The database cannot be used as configured."""

    code = "store_error"


class NoDatabase(StoreError):
    """The SQLite file does not exist, and this caller does not create one. Check the URL."""

    code = "no_database"


class MigrationNeeded(StoreError):
    """The schema is older or newer than this code. Run `onetray migrate`."""

    code = "migration_needed"


class MissingExtra(StoreError):
    """An optional dependency is not installed."""

    code = "missing_extra"


class JobFailed(OnetrayError):
    """The job ended without a result: see `state` and `error`.

    `task` is the id of the task that failed, if one did; `stage` is the name of its stage, if it is of a flow.
    `error_class` and `error_message` are those of its error. `error` is that of the job itself."""

    code, status = "job_failed", 409


class NotYet(OnetrayError):
    """The job has not ended yet. Wait longer, or call `explain` to see why."""

    code, status = "not_yet", 409


class GuardFailed(OnetrayError):
    """A guarded UPDATE changed fewer rows than expected. The batch was rolled back."""

    code = "guard_failed"


REASON_CODES = (
    "parse_error", "validation_failed", "dependency_unavailable", "timeout", "exhausted_retries", "policy_violation",
    "infrastructure_failure", "compensation_failed",
)  # fmt: skip
"""Why a task is a dead letter."""
DEAD_STAGES = ("input", "fetch", "exec", "output", "commit")
"""Where it went wrong."""


def _one_of(known: tuple[str, ...], word: str | None, name: str) -> str | None:
    if word is not None and word not in known:
        raise InvalidInput(f"{name} must be one of {', '.join(known)}, not {short_repr(word)}", field=name)
    return word


class TaskError(Exception):
    """Base of the errors by which a handler chooses whether it is retried, and after how long.

    `reason_code` and `stage` are those of its dead letter: an error that is not retried becomes one at once, any other
    when its attempts are used up.
    """

    retryable: ClassVar[bool] = True
    # For subclasses whose `__init__` does not call this one.
    retry_after_s: float | None = None
    reason_code: str | None = None
    stage: str | None = None

    def __init__(
        self,
        *args: object,
        retry_after_s: float | None = None,
        reason_code: str | None = None,
        stage: str | None = None,
    ) -> None:
        super().__init__(*args)
        self.retry_after_s = retry_after_s
        self.reason_code = _one_of(REASON_CODES, reason_code, "reason_code")
        self.stage = _one_of(DEAD_STAGES, stage, "stage")


class TransientError(TaskError):
    """The failure may be temporary: retry after the backoff."""


class PermanentError(TaskError):
    """The failure is permanent: do not retry."""

    retryable = False


class ValidationError(PermanentError):
    """The input is invalid: do not retry."""


class LeaseConflictError(TransientError):
    """Another holder has a resource that the handler needs: retry."""


class TaskCancelled(BaseException):
    """The handler should stop: the task was cancelled, its lease is lost, or the worker is stopping."""


class WaitForInput(BaseException):
    """The task pauses and gives up its lease until somebody resumes it with an input."""

    def __init__(self, owner: str, reason: str) -> None:
        super().__init__(owner, reason)
        self.owner, self.reason = owner, reason
