"""The values of flows: what a flow is made from, and how it, its stages and its progress are seen.

Owns their shape. Knows no SQL and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from onetray.domain import fields as f
from onetray.domain.lifecycle import FLOW, MACHINES, STAGE
from onetray.domain.machine import USER
from onetray.domain.policy import Policy
from onetray.domain.rollup import ON_FAILURE, STOP

COLLECT = ("list", "one", "none")
ON_DEADLINE = ("approve", "reject", "skip", "cancel")
SCOPES = ("run", "task")
LAST_KEY = 2**62
"""A stage whose tasks have all been let go is opened up to here."""


@dataclass(slots=True)
class TaskSpec:
    """A task of a stage."""

    kind: f.Name
    payload: Annotated[Any, f.Json("payload_bytes")] = None
    queue: f.Name = field(default="default", kw_only=True)
    priority: f.Priority = field(default=0, kw_only=True)
    delay_s: f.Seconds | None = field(default=None, kw_only=True)
    run_at: f.Time | None = field(default=None, kw_only=True)
    """Not before this time. Give this or `delay_s`."""
    max_attempts: f.Attempts | None = field(default=None, kw_only=True)
    policy: Annotated[Policy, f.Spec(Policy)] | None = field(default=None, kw_only=True)
    name: f.Name | None = field(default=None, kw_only=True)
    """Unique in its flow: others may depend on it by this name."""
    depends_on: Annotated[tuple[str, ...], f.Names("batch")] = field(default=(), kw_only=True)
    """Names or ids of tasks of the same flow that have to succeed first."""


@dataclass(slots=True, kw_only=True)
class More:
    """What a member of a flow may say besides its result, in the same transaction as its success."""

    partial: bool = False
    """It succeeded with errors: its stage is partial."""
    errors: Annotated[Any, f.Json("result_bytes")] = None
    metrics: Annotated[dict[str, Any], f.Spec(dict, by_hand=True)] | None = None
    """Numbers are added up over the stage's tasks; of other values the last one counts."""
    spawn: Annotated[
        dict[str, tuple[TaskSpec, ...] | list[TaskSpec]], f.Spec(TaskSpec, many="batch", by_name=True, by_hand=True)
    ] = field(default_factory=dict)
    """Tasks for later stages, or its own: a list of them for each stage's name."""
    context: Annotated[Any, f.Json("payload_bytes")] = None
    """The next context of the flow."""
    context_label: f.Name | None = None


@dataclass(slots=True, kw_only=True)
class Approval:
    """Who has to approve, what they are asked for, and what happens when they do not answer."""

    owner: f.Name = "anybody"
    reason: f.Reason = "waits for approval"
    form: Annotated[dict[str, Any], f.Spec(dict, by_hand=True)] | None = None
    """A JSON Schema that the input of whoever approves must satisfy."""
    deadline_s: f.Seconds | None = None
    on_deadline: Annotated[str, f.Choice(ON_DEADLINE)] = "reject"


@dataclass(slots=True)
class StageSpec:
    """A stage of a flow."""

    name: f.Name
    tasks: Annotated[tuple[TaskSpec, ...] | list[TaskSpec], f.Spec(TaskSpec, many="batch", by_hand=True)] = ()
    on_failure: Annotated[str, f.Choice(ON_FAILURE)] = field(default=STOP, kw_only=True)
    start_as_waiting: bool = field(default=False, kw_only=True)
    approval: Annotated[Approval, f.Spec(Approval, by_hand=True)] | None = field(default=None, kw_only=True)
    when: Annotated[TaskSpec, f.Spec(TaskSpec, by_hand=True)] | None = field(default=None, kw_only=True)
    """A control task: it is run before the stage, and the stage is skipped unless its result is true."""
    compensate: Annotated[TaskSpec, f.Spec(TaskSpec, by_hand=True)] | None = field(default=None, kw_only=True)
    """What undoes this stage. It is run if the flow fails or is cancelled after a task of the stage has succeeded."""
    takes_more: bool = field(default=True, kw_only=True)
    """Whether tasks may be added while it is running."""
    sealed: bool | None = field(default=None, kw_only=True)
    """True: it ends when its tasks have, also with none. False: only once it is sealed. None: as its flow was meant,
    sealed in one that is submitted whole; in one that grows it waits for one task at least."""
    collect: Annotated[str, f.Choice(COLLECT)] = field(default="list", kw_only=True)
    """What its result is: a list of its tasks' results, the one task's result, or nothing."""
    data: Annotated[Any, f.Json("payload_bytes")] = field(default=None, kw_only=True)
    metadata: Annotated[Any, f.Json("payload_bytes")] = field(default=None, kw_only=True)


class Placed(NamedTuple):
    """The answer to a command about a flow or a stage: where it stands now, and what was added."""

    id: str
    entity: str
    state: str
    version: int
    actor: str = USER
    repeated: bool = False
    stages: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()

    @property
    def actions(self) -> tuple[str, ...]:
        return MACHINES[self.entity].actions(self.state, self.actor)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many tasks of a stage, or of a whole flow, are where."""

    total: int = 0
    queued: int = 0
    held: int = 0
    blocked: int = 0
    waiting_input: int = 0
    succeeded: int = 0
    partly: int = 0
    failed: int = 0
    dead_lettered: int = 0
    cancelled: int = 0
    redriven: int = 0

    @property
    def done(self) -> int:
        return self.succeeded + self.failed + self.dead_lettered + self.cancelled + self.redriven


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage as anybody may see it."""

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
    counts: Counts
    data: Any
    metadata: Any
    result: Any
    metrics: Any
    error: Any
    approval: Any
    answer: Any
    carried_from: str | None
    actor: str = USER

    @property
    def percentage(self) -> int:
        if self.state in STAGE.terminal:
            return 100
        return self.counts.done * 100 // self.counts.total if self.counts.total else 0

    @property
    def actions(self) -> tuple[str, ...]:
        return STAGE.actions(self.state, self.actor)


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow as anybody may see it."""

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
    data: Any
    metadata: Any
    error: Any
    labels: dict[str, str] = field(default_factory=dict)
    actor: str = USER

    @property
    def actions(self) -> tuple[str, ...]:
        return FLOW.actions(self.state, self.actor)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a flow is."""

    state: str
    percentage: int
    current_stage: str | None
    counts: Counts
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """A snapshot of what a flow knows, as it was appended."""

    key: int
    id: str
    flow_id: str
    task_id: str | None
    scope: str
    parent_id: str | None
    label: str | None
    payload: Any
    created_at: int
