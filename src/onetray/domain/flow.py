"""Public values about flows: the specs that flows are built from; flows, stages and progress as readers see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from typing import Annotated, Any, NamedTuple, Protocol

from onetray.domain import fields as f
from onetray.domain.actions import actions_by_state
from onetray.domain.lifecycle import FAILED, FLOW, STAGE
from onetray.domain.machine import USER
from onetray.domain.policy import Policy
from onetray.domain.progress import Counts as Counts
from onetray.domain.progress import counts_of_task, flow_percentage, stage_percentage, task_percentage
from onetray.domain.rollup import IGNORE, ON_FAILURE, STOP, goes_on
from onetray.domain.task import Task, TaskProgress, value_of
from onetray.domain.token import ANY_GROUP

COLLECT = ("list", "one", "none")
ANYBODY = "anybody"
"""The owner of an approval that everybody may answer."""
ON_DEADLINE = ("approve", "reject", "skip", "cancel")
SCOPES = ("run", "task")
LAST_KEY = 2**62
"""`opened_to` of a stage whose tasks have all been made claimable."""


@dataclass(slots=True)
class TaskSpec:
    """The spec of a task in a stage."""

    kind: f.Name
    payload: Annotated[Any, f.Json("payload_bytes")] = None
    queue: f.Name = field(default="default", kw_only=True)
    priority: f.Priority | None = field(default=None, kw_only=True)
    """None: the priority of its flow."""
    delay_s: f.Seconds | None = field(default=None, kw_only=True)
    run_at: f.Time | None = field(default=None, kw_only=True)
    """The earliest time to run. Set this or `delay_s`."""
    max_attempts: f.Attempts | None = field(default=None, kw_only=True)
    policy: Annotated[Policy, f.Spec(Policy)] | None = field(default=None, kw_only=True)
    name: f.Name | None = field(default=None, kw_only=True)
    """Unique in its flow; other tasks may depend on it by this name."""
    alias: f.AliasText | None = field(default=None, kw_only=True)
    """An id of your own: unique in the namespace among tasks, flows and contexts."""
    depends_on: Annotated[tuple[str, ...], f.Names("batch")] = field(default=(), kw_only=True)
    """Names or ids of tasks of the same flow that must succeed first."""
    context_id: f.Name | None = field(default=None, kw_only=True)
    """The snapshot of the flow's context that it gets, by its id or alias; by default the current one."""
    metadata: f.Metadata = field(default=None, kw_only=True)
    trace: f.Traceparent | None = field(default=None, kw_only=True)
    tracestate: f.Tracestate | None = field(default=None, kw_only=True)


@dataclass(slots=True, kw_only=True)
class More:
    """What a member of a flow may report besides its result, in the same transaction as its success."""

    partial: bool = False
    """It succeeded with errors: its stage is partial."""
    errors: Annotated[Any, f.Json("result_bytes")] = None
    metrics: Annotated[dict[str, Any], f.Spec(dict, by_hand=True)] | None = None
    """Numbers are summed over the stage's tasks; of other values the last one is kept."""
    spawn: Annotated[
        dict[str, tuple[TaskSpec, ...] | list[TaskSpec]], f.Spec(TaskSpec, many="batch", by_name=True, by_hand=True)
    ] = field(default_factory=dict)
    """New tasks for its own stage or later ones: a list of TaskSpecs by stage name."""
    context: Annotated[Any, f.Json("payload_bytes")] = None
    """The next context of the flow."""
    context_label: f.Name | None = None


@dataclass(slots=True, kw_only=True)
class Approval:
    """Who must approve a stage, the input that they enter, and what happens at the deadline."""

    owner: f.Name = ANYBODY
    """The only user who may answer, by name, or a group of users. By default anybody may."""
    reason: f.Reason = "waits for approval"
    form: Annotated[dict[str, Any], f.Spec(dict, by_hand=True)] | None = None
    """A JSON Schema that the approver's input must satisfy."""
    deadline_s: f.Seconds | None = None
    on_deadline: Annotated[str, f.Choice(ON_DEADLINE)] = "reject"


def may_answer(owner: str, name: str, groups: Sequence[str]) -> bool:
    """Whether an approval is for anybody, for this user, or for one of the user's groups."""
    return owner in (ANYBODY, name, *groups) or ANY_GROUP in groups


def not_approver(stage: str, owner: str, name: str) -> str:
    return f"the stage {stage!r} waits for {owner!r}, and {name!r} is neither that user nor in a group of that name"


@dataclass(slots=True)
class StageSpec:
    """The spec of a stage in a flow."""

    name: f.Name | None = None
    """Unique in its flow. A stage with a type needs none: it is named after its type."""
    tasks: Annotated[tuple[TaskSpec, ...] | list[TaskSpec], f.Spec(TaskSpec, many="batch", by_hand=True)] = ()
    on_failure: Annotated[str, f.Choice(ON_FAILURE)] = field(default=STOP, kw_only=True)
    start_as_waiting: bool = field(default=False, kw_only=True)
    approval: Annotated[Approval, f.Spec(Approval, by_hand=True)] | None = field(default=None, kw_only=True)
    when: Annotated[TaskSpec, f.Spec(TaskSpec, by_hand=True)] | None = field(default=None, kw_only=True)
    """A control task that runs before the stage: the stage is skipped unless its result is true."""
    compensate: Annotated[TaskSpec, f.Spec(TaskSpec, by_hand=True)] | None = field(default=None, kw_only=True)
    """A task that undoes this stage. It runs if the flow fails or is cancelled after a task of the stage succeeded."""
    takes_more: bool = field(default=True, kw_only=True)
    """Whether tasks may be added while the stage runs."""
    sealed: bool | None = field(default=None, kw_only=True)
    """True: the stage ends when its tasks have ended, even if it has none. False: only after it is sealed. None: as
    True in a flow that is submitted whole; in a growing flow the stage waits for at least one task."""
    collect: Annotated[str, f.Choice(COLLECT)] = field(default="list", kw_only=True)
    """The stage's result: a list of its tasks' results, the result of its one task, or none."""
    data: Annotated[Any, f.Json("payload_bytes")] = field(default=None, kw_only=True)
    metadata: f.Metadata = field(default=None, kw_only=True)
    type: f.Name | None = field(default=None, kw_only=True)
    """What sort of stage it is. A flow may have several of one type. By default its name."""
    trace: f.Traceparent | None = field(default=None, kw_only=True)
    tracestate: f.Tracestate | None = field(default=None, kw_only=True)


class Placed(NamedTuple):
    """The answer to a command about a flow or a stage: its state after it, and the ids of what was added."""

    id: str
    entity: str
    state: str
    version: int
    actor: str = USER
    repeated: bool = False
    stages: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    was: str | None = None
    """The state before the command; None for a new flow."""
    ending: str | None = None
    """The state in which it will end, if that takes more steps: a large flow is cancelled in parts."""
    not_now: tuple[str, ...] = ()
    """Actions of its state that the engine would refuse now. Internal."""

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(a for a in actions_by_state(self.entity, self.state, self.actor) if a not in self.not_now)


def message_of_error(error: Any) -> str:
    """The message of a stored error. A heavily redacted one is a text."""
    error = value_of(error)
    return str(error.get("message", "")) if isinstance(error, dict) else str(error)


@dataclass(frozen=True, slots=True)
class FlowError:
    """What went wrong in a flow, and where: in a task, in a stage as a whole, or in the flow as a whole."""

    stage: str | None
    """The stage's name."""
    task: str | None
    """The task's id."""
    name: str | None
    """The task's name, if it has one."""
    message: str
    cut: bool = False
    """Whether the message is only the beginning: read the whole at the task."""


class FlowErrors(NamedTuple):
    """The first errors of a flow, in the order of its stages, and how many there are."""

    errors: list[FlowError]
    total: int


def errors_of_task(task: Task) -> FlowErrors:
    """The error of a single task in the same form."""
    errors = [] if task.error is None else [FlowError(None, task.id, task.name, message_of_error(task.error))]
    return FlowErrors(errors, len(errors))


class WithErrors(Protocol):
    """A stage, or a row of one."""

    @property
    def state(self) -> str: ...
    @property
    def on_failure(self) -> str: ...
    @property
    def all_errors(self) -> tuple[FlowError, ...]: ...


def stages_failed(failed: int, stages: int) -> str:
    """The error of a flow that fails by itself: its stages have errors that say more."""
    return f"{failed} of {stages} stages failed"


def decisive_error(stages: Iterable[WithErrors]) -> FlowError | None:
    """Of the stages of a failed flow, in order, the error that made it fail: the first one of the stage that stopped
    it, else of the first stage that failed and was not to be ignored. None if no stage has errors, as after a deadline.
    """
    with_errors = [stage for stage in stages if stage.all_errors]
    failed = [stage for stage in with_errors if stage.state == FAILED and stage.on_failure != IGNORE]
    stopped = [stage for stage in failed if not goes_on(stage.state, stage.on_failure)]
    for stage in stopped or failed or with_errors:
        return stage.all_errors[0]
    return None


@dataclass(frozen=True, slots=True)
class MemberReport:
    """A log line, or the last progress, of a task of a flow. `cursor` counts those of the whole flow."""

    cursor: int
    ts: int
    stage: str
    task: str
    name: str | None
    attempt: int
    level: str | None
    """Set for a log line, like `line` and `data`."""
    line: str | None
    data: Any
    done: float | None
    """Set for progress, like `total` and `message`."""
    total: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage as readers see it."""

    key: int
    id: str
    flow_id: str
    namespace: str
    order: int
    name: str
    state: str
    version: int
    on_failure: str
    sealed: int
    takes_more: bool
    created_at: int
    updated_at: int
    started_at: int | None
    finished_at: int | None
    due_at: int | None
    ending: str | None
    """The state in which it will end, while its tasks are being cancelled. No task of it is claimable then."""
    ending_how: str | None
    """How a user ends it: `soft` waits for the tasks that workers hold, `hard` revokes them."""
    counts: Counts
    data: Any
    metadata: Any
    result: Any
    metrics: Any
    error: Any
    approval: Any
    answer: Any
    carried_from: str | None
    type: str
    trace: str | None
    tracestate: str | None
    error_count: int = 0
    """How many errors its tasks have ended with: one for each failed task, and those of tasks that are partial."""
    errors: tuple[FlowError, ...] = ()
    """The first of them."""
    reported_progress: float = 0.0
    """The progress that its running tasks have reported, each from 0 to 1, added up."""
    actor: str = USER
    not_now: tuple[str, ...] = ()
    """Actions of its state that the engine would refuse now. Internal."""

    @property
    def percentage(self) -> int:
        """How much of it is done: see domain/progress.py."""
        return stage_percentage(self.state, self.counts, self.reported_progress)

    @property
    def all_errors(self) -> tuple[FlowError, ...]:
        """The errors of its tasks or, if there are none, its own, such as a rejection."""
        if self.errors or self.error is None:
            return self.errors
        return (FlowError(self.name, None, None, message_of_error(self.error)),)

    @property
    def actions(self) -> tuple[str, ...]:
        """What the engine would accept now from the reading actor."""
        return tuple(a for a in actions_by_state(STAGE.entity, self.state, self.actor) if a not in self.not_now)


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow as readers see it."""

    key: int
    id: str
    namespace: str
    name: str
    state: str
    version: int
    roll_up: str
    sealed: int
    created_at: int
    updated_at: int
    started_at: int | None
    finished_at: int | None
    deadline_at: int | None
    ending: str | None
    """The state in which it will end, while its tasks are being cancelled. No task of it is claimable then."""
    ending_how: str | None
    """How it is ended: `soft` waits for the tasks that workers hold, `hard` revokes them."""
    current_stage: str | None
    stages: int
    stages_open: int
    succeeded: int
    partial: int
    failed: int
    cancelled: int
    skipped: int
    ignored: int
    retry_of: str | None
    compensates: str | None
    compensation: str | None
    correlation_id: str
    trace: str | None
    tracestate: str | None
    priority: int
    data: Any
    metadata: Any
    error: Any
    labels: dict[str, str] = field(default_factory=dict)
    alias: str | None = None
    """The id that its submitter has chosen. It follows a retry."""
    context_id: str | None = None
    """The current snapshot of its context."""
    actor: str = USER
    not_now: tuple[str, ...] = ()
    """Actions of its state that the engine would refuse now. Internal."""

    @property
    def actions(self) -> tuple[str, ...]:
        """What the engine would accept now from the reading actor."""
        return tuple(a for a in actions_by_state(FLOW.entity, self.state, self.actor) if a not in self.not_now)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job: of a flow and each of its stages, or of a single task."""

    state: str
    percentage: int
    """100 only if it succeeded, also in part. Of a task: the share that its handler reported, else 0."""
    current_stage: str | None
    counts: Counts
    """Its tasks by state. A single task counts as one."""
    stages: tuple[Stage, ...]
    """Of a task: none."""
    reported: TaskProgress | None = None
    """What the handler of a single task reported last, with its message. A flow has none."""

    @classmethod
    def of_flow(cls, flow: Flow, stages: Sequence[Stage]) -> Progress:
        percentage = flow_percentage(flow.state, [(stage.state, stage.percentage) for stage in stages])
        names = [count.name for count in dataclass_fields(Counts)]
        counts = Counts(**{name: sum(getattr(stage.counts, name) for stage in stages) for name in names})
        return cls(flow.state, percentage, flow.current_stage, counts, tuple(stages))

    @classmethod
    def of_task(cls, task: Task, reported: TaskProgress | None) -> Progress:
        percentage = task_percentage(task.state, task.attempts, reported) or 0
        return cls(task.state, percentage, None, counts_of_task(task), (), reported)


@dataclass(frozen=True, slots=True)
class Context:
    """A snapshot of a flow's context. Snapshots are appended, never changed."""

    key: int
    id: str
    flow_id: str
    task_id: str | None
    scope: str
    parent_id: str | None
    label: str | None
    payload: Any
    created_at: int
    alias: str | None = None
    """The id that its author has chosen for it."""


class StageResult(NamedTuple):
    """The result of a task of a stage, in a list."""

    key: int
    id: str
    name: str | None
    state: str
    result: Any
