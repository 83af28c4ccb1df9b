"""The keywords of `@app.task`, `app.flow`, `@flow.stage`, `submit` and `app.worker`, for type checkers and at run time.

Owns their names and types; domain/ checks their values. `known` raises for a name that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Required, TypeAlias, TypedDict

from onetray.domain.errors import InvalidInput
from onetray.domain.limits import Concurrencies, Rates

if TYPE_CHECKING:
    from onetray.app.flows import StageDefinition
    from onetray.domain.flow import Approval

Errors: TypeAlias = Sequence[type[BaseException] | str]
"""Exception classes, each with its subclasses; or names of classes, which are compared exactly."""
Isolation: TypeAlias = Literal["async", "thread", "process"]
RollUp: TypeAlias = Literal["strict", "drain", "mixed"]
OnFailure: TypeAlias = Literal["stop", "continue", "ignore"]


class PolicyRules(TypedDict, total=False):
    """The fields of Policy, as rules of a task."""

    max_attempts: int
    backoff_base_s: float
    backoff_factor: float
    backoff_max_s: float
    jitter: bool
    retry_on: Errors
    no_retry_on: Errors
    lease_s: float
    heartbeat_s: float | None
    timeout_s: float | None
    queue_ttl_s: float | None
    deadline_s: float | None
    cancel_grace_s: float
    on_exhaustion: Literal["dead_letter", "fail"]
    record_heartbeats: bool
    durable_start: bool
    idempotency_ttl_s: float
    breaker_failures: int | None
    breaker_window_s: float
    breaker_open_s: float
    redact: Sequence[str]
    concurrency: Concurrencies
    """How many tasks of the kind run at once, over all workers: `5`, or `Concurrency(3, key="tenant")` for each
    value of a key in the payload; or a list of these."""
    rate: Rates
    """How many start within a period: `"100/m"`, or `Rate(100, per_s=60, key="tenant", smooth=True)`."""
    fair_by: str | None
    """The path of a value in the payload: tasks with different values take turns."""


class SharedRules(PolicyRules, total=False):
    """Rules of a task, of a stage, and of all stages of a flow."""

    queue: str
    retries: int
    """How often it is retried: `max_attempts` without the first one."""
    isolation: Isolation | None


class TaskRules(SharedRules, total=False):
    """Rules of `@app.task`."""

    debounce_s: float
    debounce_key: str
    """The argument, as a dotted path, that tells debounced submits apart. By default all submits of the task share one
    job."""
    debounce_max_s: float
    throttle_s: float
    throttle_key: str
    """The argument, as a dotted path, that tells throttled submits apart."""

    kind: str
    """The name of the task's type in the database; by default the function's name."""
    cron: str
    """Submit it at these times, without arguments: a schedule with the name of its kind. See `app.schedule`."""
    every_s: float
    timezone: str


class ScheduleRules(TypedDict, total=False):
    """Rules of `app.schedule`: see docs/schedules.md."""

    cron: str
    """A cron expression: minute, hour, day of the month, month, day of the week."""
    every_s: float
    """The seconds between two fire times. Set this or `cron`."""
    timezone: str
    """The time zone of the cron expression, as Europe/Berlin. Default: UTC."""
    catch_up: Literal["skip", "last", "all"]
    """What to do with fire times that have passed while no janitor ran."""
    catch_up_s: float
    """Fire times that are older than this are skipped."""
    overlap: Literal["allow", "skip", "queue_one", "cancel_running"]
    """What to do at a fire time while a job of an earlier one is open."""
    jitter_s: float
    """Delay each fire by up to this."""
    starts_at: datetime | int
    ends_at: datetime | int
    pause_after_failures: int
    """Pause the schedule after this many failed jobs in a row."""
    queue: str
    priority: int
    max_attempts: int
    labels: dict[str, str]


class BatchRules(TaskRules, total=False):
    """Rules of `@app.task` for a handler that gets many tasks at once."""

    batch: Required[int]
    """How many tasks one call gets at most."""
    batch_s: float
    """How long the first task of a call waits for others: 1 s by default."""


class StageRules(SharedRules, total=False):
    """Rules of `@flow.stage`."""

    name: str
    """By default the function's name."""
    each: str | StageDefinition[Any, Any] | Iterable[Any] | Callable[[Any], Iterable[Any]]
    """One task for each item: of a list, of an earlier stage's result, or of a function of the config."""
    when: Callable[..., Any]
    """The stage is skipped unless this returns true. Its parameters are those of a stage."""
    approve: Approval | str
    """Who must approve the stage before it runs."""
    compensate: Callable[..., Any]
    """Undoes the stage if the flow fails or is cancelled later."""
    on_failure: OnFailure


class FlowRules(SharedRules, total=False):
    """Rules of `app.flow`: of the flow itself, and for all its stages."""

    roll_up: RollUp
    singleton: bool
    """Reject a submit while another flow of this name is open."""


class Options(TypedDict, total=False):
    """Options of a submit."""

    queue: str
    priority: int
    delay_s: float
    run_at: datetime | int
    max_attempts: int
    idempotency_key: str
    unique_key: str
    debounce_s: float | None
    debounce_key: str
    debounce_max_s: float
    throttle_s: float | None
    throttle_key: str
    alias: str
    labels: dict[str, str]
    metadata: Any
    correlation_id: str
    trace: str
    tracestate: str
    cause: str
    connection: Any


class FlowOptions(TypedDict, total=False):
    """Options of the submit of a flow."""

    metadata: Any
    priority: int
    roll_up: RollUp
    sealed: bool | None
    start: bool
    deadline_s: float | None
    context: Any
    redact: Sequence[str]
    idempotency_key: str
    unique_key: str
    alias: str
    singleton: bool
    labels: dict[str, str]
    correlation_id: str
    trace: str
    tracestate: str
    cause: str
    actor: str
    actor_name: str


class WorkerRules(TypedDict, total=False):
    """Settings of a worker: see WorkerConfig."""

    concurrency: int
    queues: str | Iterable[str]
    name: str
    drain_s: float
    janitor: bool
    retention_s: float | None


OTHER_ENGINES = {
    "name": "kind", "max_retries": "retries", "autoretry_for": "retry_on", "dont_autoretry_for": "no_retry_on",
    "default_retry_delay": "backoff_base_s", "min_backoff": "backoff_base_s", "max_backoff": "backoff_max_s",
    "retry_backoff": "backoff_base_s", "retry_backoff_max": "backoff_max_s", "retry_jitter": "jitter",
    "time_limit": "timeout_s", "soft_time_limit": "timeout_s", "timeout": "timeout_s", "expires": "queue_ttl_s",
    "countdown": "delay_s", "delay": "delay_s", "schedule_in": "delay_s", "eta": "run_at", "schedule_at": "run_at",
    "queue_name": "queue", "lock": "unique_key", "queueing_lock": "unique_key", "job_id": "idempotency_key",
    "task_id": "idempotency_key",
}  # fmt: skip
"""What other engines call a rule or an option."""


def known(given: Iterable[str], rules: Any, what: str, of: str) -> None:
    """Raise InvalidInput for a name that the TypedDict does not have, with the one that was probably meant."""
    names = rules.__annotations__
    for name in given:
        if name not in names:
            raise InvalidInput(f"unknown {what} {name!r}{_hint(name, rules, what, of)}", field=name)


def _hint(name: str, rules: Any, what: str, of: str) -> str:
    from difflib import get_close_matches

    names, meant = rules.__annotations__, OTHER_ENGINES.get(name, name)
    if meant in names:
        return f": use {meant!r}"
    if rules in (TaskRules, BatchRules) and meant in Options.__annotations__:
        return f": it is an option of a submit: task.options({meant}=…).submit(…)"
    if rules in (StageRules, FlowRules) and meant in FlowOptions.__annotations__:
        return f": it is an option of a submit: flow.submit(config, {meant}=…)"
    if rules is Options and meant in BatchRules.__annotations__:
        return f": it is a setting of the task: @app.task({meant}=…)"
    if close := get_close_matches(name, names, 1):
        return f": did you mean {close[0]!r}?"
    return f"; {what}s of {of}: {', '.join(names)}"


def error_classes(rules: Mapping[str, Any], name: str) -> tuple[type[BaseException], ...]:
    """The classes among the errors of a rule."""
    return tuple(error for error in _errors(rules, name) if isinstance(error, type))


def error_names(rules: Mapping[str, Any], name: str) -> list[Any]:
    """The errors of a rule by name, as a policy has them."""
    return [error.__name__ if isinstance(error, type) else error for error in _errors(rules, name)]


def _errors(rules: Mapping[str, Any], name: str) -> Sequence[Any]:
    errors = rules.get(name, ())
    if isinstance(errors, str) or not isinstance(errors, Sequence):
        raise InvalidInput(f"{name} must be a list of exception classes, or of their names", field=name)
    for error in errors:
        if isinstance(error, type) and not issubclass(error, BaseException):
            raise InvalidInput(f"{name} has {error.__name__}, which is not an exception class", field=name)
    return errors
