"""The commands about flows and their stages, checked before any transaction begins.

Owns their fields and limits. engine/flows/verbs.py carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import orjson

from onetray.config import Limits
from onetray.domain import fields as f
from onetray.domain.checks import as_json, listed
from onetray.domain.declare import Command, command
from onetray.domain.errors import InvalidInput, TooLarge
from onetray.domain.flow import SCOPES, Approval, Placed, StageSpec, TaskSpec
from onetray.domain.flow_specs import check_aliases, check_approval, check_names, check_stage, check_tasks, name_stages
from onetray.domain.machine import USER
from onetray.domain.policy import Policy
from onetray.domain.rollup import ROLL_UPS, STRICT
from onetray.domain.task import RawJson
from onetray.domain.token import MAX_GROUPS, OPERATE, SUBMIT

SINGLETON = "singleton"
"""The unique key of a singleton that is submitted without one."""
Groups = Annotated[tuple[str, ...], f.Names(MAX_GROUPS), f.OWNED]
"""The groups of the actor, from its token."""
A_STAGE: dict[str, Any] = {"name": "resize", "tasks": [{"kind": "resize", "payload": {"width": 640}}]}


@dataclass(frozen=True, slots=True)
class Paths(f.Rule):
    """Paths of fields to redact, checked like those of a policy."""

    def check(self, value: Any, label: str, limits: Limits) -> tuple[str, ...]:
        try:
            return Policy(redact=value).redact
        except InvalidInput as e:
            raise InvalidInput(str(e), field=label) from None


@command(
    "submit_flow", scope=SUBMIT, summary="Submit a flow", answer=Placed, repeatable=True,
    example={"name": "thumbnails", "stages": [A_STAGE]},
)  # fmt: skip
class SubmitFlow(Command):
    """Submit a flow with its stages and their tasks. More can be added later unless it is sealed."""

    name: f.Name
    stages: Annotated[tuple[StageSpec, ...] | list[StageSpec], f.Spec(StageSpec, many="stages", by_hand=True)] = ()
    data: Annotated[Any, f.Json("payload_bytes", into="data_json")] = None
    metadata: f.Metadata = None
    priority: f.Priority = 0
    """For its tasks that have none of their own."""
    roll_up: Annotated[str, f.Choice(ROLL_UPS)] = STRICT
    sealed: bool | None = None
    """True: it ends when its stages have ended, even if it has none. False: only after it is sealed. None: when its
    stages, at least one, have ended."""
    start: bool = True
    deadline_s: f.Seconds | None = None
    context: Annotated[Any, f.Json("payload_bytes")] = None
    redact: Annotated[tuple[str, ...] | list[str], Paths()] = ()
    """Paths of fields of `data`, contexts and inputs of approvals that only handlers see."""
    namespace: f.Namespace = "default"
    idempotency_key: f.Key | None = None
    """The same as the header `Idempotency-Key`, for each job of a batch."""
    unique_key: f.Key | None = None
    """While a flow of this name with this key is open, a submit creates nothing and returns that flow."""
    alias: f.AliasText | None = None
    """An id of your own, unique in the namespace among tasks, flows and contexts. A second submit with it fails."""
    singleton: bool = False
    """While a flow of this name (and, if it has one, with this unique key) is open, a submit is rejected."""
    labels: f.LabelTexts | None = None
    correlation_id: f.Key | None = None
    trace: f.Traceparent | None = None
    tracestate: f.Tracestate | None = None
    cause: f.Reason | None = None
    actor: f.Actor = USER
    actor_name: f.ActorName = "anonymous"
    as_declared: Annotated[bool, f.FLAG, f.INTERNAL] = False
    """Whether its stages are those of a declared flow: a repeated submit need only repeat the config."""
    data_json: str = field(init=False, default="null")

    def check(self, limits: Limits) -> None:
        Command.check(self, limits)
        if self.singleton and self.unique_key is None:
            self.unique_key = SINGLETON
        size = [0]
        stages = listed(self.stages, "stages", 0, limits.stages)
        self.stages = tuple(check_stage(s, limits, "stages", size) for s in stages)
        name_stages(self.stages, limits.name_chars)
        tasks = sum(len(s.tasks) for s in self.stages)
        if tasks > limits.batch:
            raise TooLarge(
                f"a flow can be submitted with at most {limits.batch} tasks, not {tasks}: add the rest to its stages",
                field="stages",
                limit=limits.batch,
            )
        check_names([(ord_, stage.tasks) for ord_, stage in enumerate(self.stages, 1)], whole=True)
        check_aliases([self.alias, *(task.alias for stage in self.stages for task in stage.tasks)])
        if any(task.context_id is not None for stage in self.stages for task in stage.tasks):
            raise InvalidInput(
                "a new flow has no contexts yet: append one, then add the tasks that name it", field="context_id"
            )

    @property
    def body(self) -> object:
        """What a second submit with the same idempotency key must repeat."""
        alias = [] if self.alias is None else [self.alias]
        if self.as_declared:
            # Not its stages: they may have been declared anew since the first submit.
            return ["declared", self.start, orjson.loads(self.data_json), *alias]
        stages = [
            [
                *([s.name] if s.type is None else [s.name, s.type]),
                s.on_failure, s.start_as_waiting, s.takes_more, s.sealed, s.collect, s.approval,
                orjson.Fragment(as_json(s.data)),
                *([_body(t) for t in tasks if t] for tasks in (s.tasks, [s.when], [s.compensate])),
            ]
            for s in self.stages
        ]  # fmt: skip
        flow = [self.roll_up, self.sealed, self.start, self.deadline_s, orjson.Fragment(self.data_json)]
        return orjson.loads(orjson.dumps([flow, stages, *alias]))


@command(
    "submit_declared", scope=SUBMIT, summary="Submit a declared flow", answer=Placed, repeatable=True,
    example={"name": "thumbnails", "config": {"width": 640}},
)  # fmt: skip
class SubmitDeclared(Command):
    """Submit a flow that a worker has declared, by its name. Its code is not needed."""

    name: f.Name
    config: Annotated[Any, f.Json("payload_bytes")] = None
    """Checked against the schema of the flow's config; missing fields get their defaults."""
    metadata: f.Metadata = None
    priority: f.Priority = 0
    start: bool = True
    deadline_s: f.Seconds | None = None
    """In place of the declared one."""
    namespace: f.Namespace = "default"
    idempotency_key: f.Key | None = None
    unique_key: f.Key | None = None
    alias: f.AliasText | None = None
    labels: f.LabelTexts | None = None
    correlation_id: f.Key | None = None
    trace: f.Traceparent | None = None
    tracestate: f.Tracestate | None = None
    cause: f.Reason | None = None
    actor: f.Actor = USER
    actor_name: f.ActorName = "anonymous"


def _body(t: TaskSpec) -> list[object]:
    alias = [] if t.alias is None else [t.alias]
    payload = orjson.Fragment(as_json(t.payload))
    return [t.kind, t.queue, t.priority or 0, t.max_attempts, payload, t.name, t.depends_on, *alias]


@dataclass(slots=True)
class FlowCommand(Command):
    """A command about a flow, named by its id, or about one of its stages."""

    flow: Annotated[str, f.Id()]
    namespace: f.Namespace = "default"
    actor: f.Actor = USER
    actor_name: f.ActorName = "anonymous"
    cause: f.Why | None = None
    trace: f.Traceparent | None = None
    of_stage: ClassVar[bool] = False
    answers: ClassVar[Any] = Placed


@dataclass(slots=True)
class StageCommand(FlowCommand):
    """A command about a stage. Its field `flow` is the id of the stage."""

    flow: Annotated[str, f.Id("stage"), f.Public("stage")]
    of_stage: ClassVar[bool] = True


@command("add_stage", scope=SUBMIT, summary="Add a stage to a flow", example={"stage": A_STAGE})
class AddStage(FlowCommand):
    """Add a stage at the end of an open flow."""

    stage: Annotated[StageSpec, f.Spec(StageSpec, check_stage)]
    open: bool = False
    """Start the flow, too, if it was submitted with `start: false`."""

    def check(self, limits: Limits) -> None:
        Command.check(self, limits)
        check_names([(1, self.stage.tasks)])
        check_aliases(task.alias for task in self.stage.tasks)


@command(
    "add_tasks", scope=SUBMIT, summary="Add tasks to a stage",
    example={"tasks": [{"kind": "resize", "payload": {"w": 64}}]},
)  # fmt: skip
class AddTasks(StageCommand):
    """Add tasks to an open stage. A task of the same flow that does so names itself as `spawned_by`."""

    tasks: Annotated[tuple[TaskSpec, ...] | list[TaskSpec], f.Spec(TaskSpec, many="batch", least=1, by_hand=True)]
    spawned_by: Annotated[str, f.Id()] | None = None
    open: bool = False
    """Start the flow, too, if it was submitted with `start: false`."""

    def check(self, limits: Limits) -> None:
        Command.check(self, limits)
        self.tasks = check_tasks(self.tasks, limits, "tasks", 1)
        check_names([(1, self.tasks)])
        check_aliases(task.alias for task in self.tasks)


@command("open_flow", scope=SUBMIT, summary="Start a flow", path="/jobs/{id}/open")
class OpenFlow(FlowCommand):
    """Start a flow that was submitted with `start: false`."""


@command("pause_flow", scope=OPERATE, summary="Pause a flow")
class PauseFlow(FlowCommand):
    """Make its queued tasks unclaimable. Running tasks continue, and their reports count."""


@command("resume_flow", scope=OPERATE, summary="Resume a flow")
class ResumeFlow(FlowCommand):
    """Resume a paused flow."""


@command("cancel_flow", scope=OPERATE, summary="Cancel a flow")
class CancelFlow(FlowCommand):
    """Cancel all open tasks: softly (workers are asked to stop, within a grace period) or hard (leases are revoked)."""

    hard: bool = False


@command(
    "set_flow_metadata", scope=OPERATE, summary="Replace a flow's metadata", example={"metadata": {"ticket": "OPS-7"}}
)
class SetFlowMetadata(FlowCommand):
    """Replace the metadata of a flow, in any state."""

    metadata: f.Metadata


@command("set_flow_priority", scope=OPERATE, summary="Set a flow's priority", example={"priority": 10})
class SetFlowPriority(FlowCommand):
    """Set the priority of a flow, of all its queued tasks, and of those that are added later without one."""

    priority: f.Priority


@command("seal_flow", scope=SUBMIT, summary="Seal a flow: no more stages", path="/jobs/{id}/seal")
class SealFlow(FlowCommand):
    """Declare that no more stages will be added. The flow ends when its stages have ended."""


@command("retry_flow", scope=OPERATE, summary="Run an ended flow again", example={"from_stage": "resize"})
class RetryFlow(FlowCommand):
    """Submit an ended flow again, as a new flow, from the failed stage or from another one."""

    from_stage: f.Name | None = None
    """The first stage to run; by default the one that failed."""


@command(
    "append_context", scope=SUBMIT, summary="Append a snapshot of a flow's context", answer=str, answer_name="id",
    example={"payload": {"region": "eu"}},
)  # fmt: skip
class AppendContext(FlowCommand):
    """Append a snapshot of the flow's context. With the scope `run` it becomes the current one."""

    payload: Annotated[Any, f.Json("payload_bytes", into="payload_json")]
    scope: Annotated[str, f.Choice(SCOPES)] = "run"
    task: Annotated[str, f.Id()] | None = None
    parent: f.Name | None = None
    """The id or alias of another snapshot of the flow; by default the current one."""
    label: f.Name | None = None
    alias: f.AliasText | None = None
    """An id of your own for the snapshot, unique in the namespace."""
    payload_json: str = field(init=False, default="")


@command("seal_stage", scope=SUBMIT, summary="Seal a stage: no more tasks", path="/stages/{id}/seal")
class SealStage(StageCommand):
    """Declare that no more tasks will be added. The stage ends when its tasks have ended."""


@command(
    "set_stage_metadata", scope=OPERATE, summary="Replace a stage's metadata", path="/stages/{id}/metadata",
    example={"metadata": {"ticket": "OPS-7"}},
)  # fmt: skip
class SetStageMetadata(StageCommand):
    """Replace the metadata of a stage, in any state."""

    metadata: f.Metadata


@command(
    "cancel_stage", scope=OPERATE, summary="Cancel a stage", path="/stages/{id}/cancel",
    example={"hard": False, "reason": "not needed"},
)  # fmt: skip
class CancelStage(StageCommand):
    """Cancel the open tasks of a stage. The flow goes on, or ends, as the stage's `on_failure` says."""

    hard: bool = False
    """Revoke the leases of running tasks at once. Otherwise their workers are asked to stop and have a grace period."""


@command(
    "wait_stage", scope=OPERATE, summary="Hold a stage until it is approved", path="/stages/{id}/wait",
    example={"approval": {"owner": "ann", "reason": "look at the first results", "deadline_s": 3600}},
)  # fmt: skip
class WaitStage(StageCommand):
    """Hold a stage until it is approved. Running tasks continue, and their reports count.

    Only who may answer the approval of the stage can replace it by another one.
    """

    approval: Annotated[Approval, f.Spec(Approval, check_approval)] | None = None
    actor_groups: Groups = ()


@dataclass(slots=True, kw_only=True)
class Answer(StageCommand):
    """The answer to a waiting stage, of the user that its approval names or of a member of that group."""

    note: f.Reason | None = None
    actor_groups: Groups = ()


@command(
    "approve_stage", scope=OPERATE, summary="Approve a waiting stage", path="/stages/{id}/approve",
    example={"note": "go ahead", "input": {"budget": 100}},
)  # fmt: skip
class ApproveStage(Answer):
    """Approve a waiting stage, with the input that its form requires."""

    input: Annotated[Any, f.Json("payload_bytes")] = None
    """The input that the form of the approval requires."""

    def check(self, limits: Limits) -> None:
        Command.check(self, limits)
        if isinstance(self.input, RawJson):
            self.input = orjson.loads(bytes(self.input))


@command(
    "reject_stage", scope=OPERATE, summary="Reject a waiting stage", path="/stages/{id}/reject",
    example={"note": "not this week"},
)  # fmt: skip
class RejectStage(Answer):
    """Fail the stage and, depending on its `on_failure`, its flow."""


@command(
    "skip_stage", scope=OPERATE, summary="Skip a stage", path="/stages/{id}/skip",
    example={"note": "not this week"},
)  # fmt: skip
class SkipStage(Answer):
    """Skip a stage that waits or is not open yet. The next one opens."""
