"""The commands about flows and their stages, checked before any transaction begins.

Owns what they may say. Decides nothing about the flow: see engine/flows/verbs.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from onetray.config import Limits
from onetray.domain.checks import (
    as_json,
    check_actor,
    check_labels,
    choice,
    flag,
    json_text,
    listed,
    optional_json,
    optional_text,
    seconds,
    task_id,
    text,
    trace_text,
)
from onetray.domain.commands import Command
from onetray.domain.errors import InvalidInput, TooLarge
from onetray.domain.flow import SCOPES, Approval, StageSpec, TaskSpec
from onetray.domain.flow_specs import check_approval, check_names, check_stage, check_tasks
from onetray.domain.machine import USER
from onetray.domain.policy import Policy
from onetray.domain.rollup import ROLL_UPS, STRICT
from onetray.domain.task import RawJson


@dataclass(slots=True, kw_only=True)
class SubmitFlow(Command):
    """Submit a flow with its stages and their tasks, whole or to be grown."""

    verb: ClassVar[str] = "submit_flow"
    name: str
    stages: tuple[StageSpec, ...] | list[StageSpec] = ()
    data: Any = None
    metadata: Any = None
    roll_up: str = STRICT
    sealed: bool | None = None
    """True: it ends when its stages have, also with none. False: only once it is sealed. None: with one at least."""
    start: bool = True
    deadline_s: float | None = None
    context: Any = None
    redact: tuple[str, ...] | list[str] = ()
    """What of its data, its contexts and the input of approvals nobody is shown but its handlers: see Policy.redact."""
    namespace: str = "default"
    idempotency_key: str | None = None
    unique_key: str | None = None
    """While a flow of this name with this key has not ended, that flow is the answer, and nothing is submitted."""
    labels: dict[str, str] | None = None
    correlation_id: str | None = None
    trace: str | None = None
    cause: str | None = None
    actor: str = USER
    actor_name: str = "anonymous"
    data_json: str = ""

    def check(self, limits: Limits) -> None:
        text(self.name, "name", limits.name_chars)
        text(self.namespace, "namespace", limits.name_chars)
        choice(self.roll_up, "roll_up", ROLL_UPS)
        if self.sealed is not None:
            flag(self.sealed, "sealed")
        flag(self.start, "start")
        if self.deadline_s is not None:
            seconds(self.deadline_s, "deadline_s")
        self.redact = _paths(self.redact)
        size = [0]
        stages = listed(self.stages, "stages", 0, limits.stages)
        self.stages = tuple(check_stage(s, limits, "stages", size) for s in stages)
        names = [s.name for s in self.stages]
        for name in names:
            if names.count(name) > 1:
                raise InvalidInput(f"two stages are called {name!r}: names are unique in a flow", field="stages")
        tasks = sum(len(s.tasks) for s in self.stages)
        if tasks > limits.batch:
            raise TooLarge(
                f"a flow is submitted with {limits.batch} tasks at most, not {tasks}: add the rest to its stages",
                field="stages",
                limit=limits.batch,
            )
        check_names([(ord_, stage.tasks) for ord_, stage in enumerate(self.stages, 1)], whole=True)
        optional_text(self.idempotency_key, "idempotency_key", limits.key_chars)
        optional_text(self.unique_key, "unique_key", limits.key_chars)
        self.labels = check_labels(self.labels, limits)
        optional_text(self.correlation_id, "correlation_id", limits.key_chars)
        trace_text(self.trace)
        check_actor(self.actor, self.actor_name, self.cause, limits)
        self.data_json = json_text(self.data, "data", limits.payload_bytes)
        optional_json(self.metadata, "metadata", limits.payload_bytes)
        optional_json(self.context, "context", limits.payload_bytes)

    @property
    def body(self) -> object:
        """What a second submit under the same key must say again."""
        stages = [
            [
                s.name, s.on_failure, s.start_as_waiting, s.takes_more, s.sealed, s.collect, s.approval,
                orjson.Fragment(as_json(s.data)),
                *([_body(t) for t in some if t] for some in (s.tasks, [s.when], [s.compensate])),
            ]
            for s in self.stages
        ]  # fmt: skip
        flow = [self.roll_up, self.sealed, self.start, self.deadline_s, orjson.Fragment(self.data_json)]
        return orjson.loads(orjson.dumps([flow, stages]))


def _body(t: TaskSpec) -> list[object]:
    return [t.kind, t.queue, t.priority, t.max_attempts, orjson.Fragment(as_json(t.payload)), t.name, t.depends_on]


@dataclass(slots=True)
class FlowCommand(Command):
    """A command about a flow, named by its id, or about one of its stages."""

    flow: str
    namespace: str = "default"
    actor: str = USER
    actor_name: str = "anonymous"
    cause: str | None = None
    trace: str | None = None
    of_stage: ClassVar[bool] = False

    def check(self, limits: Limits) -> None:
        self.flow = task_id(self.flow, "stage" if self.of_stage else "flow")
        text(self.namespace, "namespace", limits.name_chars)
        check_actor(self.actor, self.actor_name, self.cause, limits)
        trace_text(self.trace)


@dataclass(slots=True)
class StageCommand(FlowCommand):
    """`flow` is the id of the stage here: its flow is found by it."""

    of_stage: ClassVar[bool] = True


@dataclass(slots=True, kw_only=True)
class AddStage(FlowCommand):
    verb: ClassVar[str] = "add_stage"
    stage: StageSpec

    def check(self, limits: Limits) -> None:
        FlowCommand.check(self, limits)
        check_stage(self.stage, limits)
        check_names([(1, self.stage.tasks)])


@dataclass(slots=True, kw_only=True)
class AddTasks(StageCommand):
    """Add tasks to a stage that has not ended. By a task of the same flow: it names itself as `spawned_by`."""

    verb: ClassVar[str] = "add_tasks"
    tasks: tuple[TaskSpec, ...] | list[TaskSpec]
    spawned_by: str | None = None

    def check(self, limits: Limits) -> None:
        StageCommand.check(self, limits)
        self.tasks = check_tasks(self.tasks, limits, "tasks", 1)
        check_names([(1, self.tasks)])
        if self.spawned_by is not None:
            self.spawned_by = task_id(self.spawned_by, "spawned_by")


@dataclass(slots=True, kw_only=True)
class OpenFlow(FlowCommand):
    """Start a flow that was submitted with start=False."""

    verb: ClassVar[str] = "open_flow"


@dataclass(slots=True, kw_only=True)
class PauseFlow(FlowCommand):
    """Let nothing more of it be claimed. What runs goes on, and its reports count."""

    verb: ClassVar[str] = "pause_flow"


@dataclass(slots=True, kw_only=True)
class ResumeFlow(FlowCommand):
    verb: ClassVar[str] = "resume_flow"


@dataclass(slots=True, kw_only=True)
class CancelFlow(FlowCommand):
    """Cancel all that is open: softly (running tasks are asked, and have their grace) or hard (leases are revoked)."""

    verb: ClassVar[str] = "cancel_flow"
    hard: bool = False

    def check(self, limits: Limits) -> None:
        FlowCommand.check(self, limits)
        flag(self.hard, "hard")


@dataclass(slots=True, kw_only=True)
class SealFlow(FlowCommand):
    """Say that no more stages come. It ends when those it has have ended."""

    verb: ClassVar[str] = "seal_flow"


@dataclass(slots=True, kw_only=True)
class RetryFlow(FlowCommand):
    """Submit a flow that has ended again, from the stage that failed or from another: a new flow."""

    verb: ClassVar[str] = "retry_flow"
    from_stage: str | None = None

    def check(self, limits: Limits) -> None:
        FlowCommand.check(self, limits)
        optional_text(self.from_stage, "from_stage", limits.name_chars)


@dataclass(slots=True, kw_only=True)
class AppendContext(FlowCommand):
    """Append a snapshot of what the flow knows. In the scope of the run it becomes the current one."""

    verb: ClassVar[str] = "append_context"
    payload: Any
    scope: str = "run"
    task: str | None = None
    parent: str | None = None
    label: str | None = None
    payload_json: str = ""

    def check(self, limits: Limits) -> None:
        FlowCommand.check(self, limits)
        choice(self.scope, "scope", SCOPES)
        if self.task is not None:
            self.task = task_id(self.task)
        if self.parent is not None:
            self.parent = task_id(self.parent, "parent")
        optional_text(self.label, "label", limits.name_chars)
        self.payload_json = json_text(self.payload, "payload", limits.payload_bytes)


@dataclass(slots=True, kw_only=True)
class SealStage(StageCommand):
    """Say that no more tasks come. It ends when those it has have ended."""

    verb: ClassVar[str] = "seal_stage"


@dataclass(slots=True, kw_only=True)
class WaitStage(StageCommand):
    """Hold a stage until somebody approves it. What runs goes on, and its reports count."""

    verb: ClassVar[str] = "wait_stage"
    approval: Approval | None = None

    def check(self, limits: Limits) -> None:
        StageCommand.check(self, limits)
        check_approval(self.approval, limits)


@dataclass(slots=True, kw_only=True)
class Answer(StageCommand):
    """What somebody says to a stage that waits."""

    note: str | None = None

    def check(self, limits: Limits) -> None:
        StageCommand.check(self, limits)
        optional_text(self.note, "note", limits.reason_chars)


@dataclass(slots=True, kw_only=True)
class ApproveStage(Answer):
    verb: ClassVar[str] = "approve_stage"
    input: Any = None

    def check(self, limits: Limits) -> None:
        Answer.check(self, limits)
        optional_json(self.input, "input", limits.payload_bytes)
        if isinstance(self.input, RawJson):
            self.input = orjson.loads(bytes(self.input))


@dataclass(slots=True, kw_only=True)
class RejectStage(Answer):
    verb: ClassVar[str] = "reject_stage"


@dataclass(slots=True, kw_only=True)
class SkipStage(Answer):
    verb: ClassVar[str] = "skip_stage"


FLOW_VERBS: dict[str, type[Command]] = {
    c.verb: c
    for c in (
        SubmitFlow, AddStage, AddTasks, OpenFlow, PauseFlow, ResumeFlow, CancelFlow, SealFlow, RetryFlow, AppendContext,
        SealStage, WaitStage, ApproveStage, RejectStage, SkipStage,
    )
}  # fmt: skip


def _paths(redact: object) -> tuple[str, ...]:
    """Checked as those of a policy are."""
    try:
        return Policy(redact=redact).redact  # type: ignore[arg-type]
    except InvalidInput as e:
        raise InvalidInput(str(e), field="redact") from None
