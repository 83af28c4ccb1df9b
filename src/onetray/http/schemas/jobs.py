"""What is submitted: tasks, flows, their stages and their members."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter, create_model

from onetray.commands import Command, Submit
from onetray.flowcommands import SubmitFlow
from onetray.flowmodel import Approval, StageSpec, TaskSpec
from onetray.http.schemas.base import Attempts, Moment, Priority, Seconds, Strict, Text
from onetray.model import Policy

_HINTS = get_type_hints(Policy)

PolicyBody = create_model(
    "PolicyBody",
    __base__=Strict,
    __doc__="How the task is run, instead of its kind's own policy.",
    **{f.name: (_HINTS[f.name], f.default) for f in fields(Policy)},
)  # type: ignore[call-overload]


class Work(Strict):
    """What a single task and a member of a stage have in common."""

    kind: Text
    payload: Any = None
    queue: Text = "default"
    priority: Priority = 0
    delay_s: Seconds | None = None
    run_at: Moment | None = None
    """Not before this time. Give this or `delay_s`."""
    max_attempts: Attempts | None = None
    policy: PolicyBody | None = None  # type: ignore[valid-type]

    @property
    def work(self) -> dict[str, Any]:
        """The fields of a Submit or a TaskSpec."""
        given = self.given
        if given.get("policy") is not None:
            given["policy"] = Policy(**given["policy"].given)
        return given


class MemberBody(Work):
    """A task of a stage."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"kind": "resize", "payload": {"width": 640}}]})
    name: Text | None = None
    depends_on: tuple[Text, ...] = ()
    """Names or ids of tasks of the same flow that have to succeed first."""

    def spec(self) -> TaskSpec:
        return TaskSpec(**self.work)


class ApprovalBody(Strict):
    """Who has to approve, what they are asked for, and what happens when they do not answer."""

    owner: Text = "anybody"
    reason: Text = "waits for approval"
    form: dict[str, Any] | None = None
    deadline_s: Seconds | None = None
    on_deadline: Literal["approve", "reject", "skip", "cancel"] = "reject"

    def spec(self) -> Approval:
        return Approval(**self.given)


_A_STAGE: Any = {"name": "resize", "tasks": [{"kind": "resize", "payload": {"width": 640}}]}


class StageBody(Strict):
    """A stage of a flow."""

    model_config = ConfigDict(json_schema_extra={"examples": [_A_STAGE]})
    name: Text
    tasks: tuple[MemberBody, ...] = ()
    on_failure: Literal["stop", "continue", "ignore"] = "stop"
    start_as_waiting: bool = False
    approval: ApprovalBody | None = None
    when: MemberBody | None = None
    compensate: MemberBody | None = None
    takes_more: bool = True
    sealed: bool | None = None
    collect: Literal["list", "one", "none"] = "list"
    data: Any = None
    metadata: Any = None

    def spec(self) -> StageSpec:
        parts: dict[str, Any] = {"tasks": tuple(task.spec() for task in self.tasks)}
        for name in ("approval", "when", "compensate"):
            part = getattr(self, name)
            parts[name] = None if part is None else part.spec()
        return StageSpec(**{**self.given, **parts})


class Keyed(Strict):
    """What every job may say about itself."""

    idempotency_key: Text | None = None
    """The same as the header `Idempotency-Key`, for each job of a batch."""
    unique_key: Text | None = None
    labels: dict[str, str] | None = None
    correlation_id: Text | None = None
    cause: Text | None = None


class TaskBody(Work, Keyed):
    """A single task."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"kind": "send_mail", "payload": {"to": "ann@example.com"}, "labels": {"tenant": "a"}}]
        }
    )

    def command(self, **said: Any) -> Command:
        return Submit(**{**self.work, **said})


class FlowBody(Keyed):
    """A flow: it has stages."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "thumbnails", "stages": [_A_STAGE]}]})
    name: Text
    stages: tuple[StageBody, ...]
    data: Any = None
    metadata: Any = None
    roll_up: Literal["strict", "drain", "mixed"] = "strict"
    sealed: bool | None = None
    start: bool = True
    deadline_s: Seconds | None = None
    context: Any = None
    redact: tuple[Text, ...] = ()
    """Paths of what nobody is shown of `data`, of contexts and of the input of approvals but those who do the work."""

    def command(self, **said: Any) -> Command:
        return SubmitFlow(**{**self.given, "stages": [stage.spec() for stage in self.stages], **said})


def _which(value: Any) -> str:
    has = "stages" in value if isinstance(value, dict) else hasattr(value, "stages")
    return "flow" if has else "task"


JobBody: TypeAlias = Annotated[
    Annotated[TaskBody, Tag("task")] | Annotated[FlowBody, Tag("flow")], Discriminator(_which)
]  # fmt: skip
"""A task, or a flow when it has stages."""
JOB: TypeAdapter[TaskBody | FlowBody] = TypeAdapter(JobBody)


class BatchBody(Strict):
    """Many jobs at once. Each is answered in its place."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"jobs": [{"kind": "send_mail", "payload": {"to": "ann@example.com"}}]}]}
    )
    jobs: tuple[JobBody, ...] = Field(min_length=1)


class MembersBody(Strict):
    """Tasks that are to be added to a stage."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tasks": [{"kind": "resize", "payload": {"w": 64}}]}]})
    tasks: tuple[MemberBody, ...] = Field(min_length=1)
