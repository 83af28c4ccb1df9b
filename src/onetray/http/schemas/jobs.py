"""What is submitted: tasks, flows, their stages and their members."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter, create_model

from onetray.domain.commands import Command, Submit
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.policy import CLASS_CHARS, ON_EXHAUSTION, POLICY_BOUNDS, Policy
from onetray.domain.redactor import MOST_PATHS, PATH_CHARS
from onetray.http.schemas.base import FIRST, Attempts, Key, Moment, Name, Priority, Reason, Seconds, Strict, most

_HINTS = get_type_hints(Policy)

_TEXTS: Any = {"type": "string", "minLength": 1}
_BOUNDS: dict[str, Any] = {
    **{name: {"minimum": least, "maximum": most_} for name, (least, most_) in POLICY_BOUNDS.items()},
    **{name: {"items": {**_TEXTS, "maxLength": CLASS_CHARS}} for name in ("retry_on", "no_retry_on")},
    "redact": {"maxItems": MOST_PATHS, "items": {**_TEXTS, "maxLength": PATH_CHARS}},
    "on_exhaustion": {"enum": list(ON_EXHAUSTION)},
}
"""What the policy itself checks, for the description."""

PolicyBody = create_model(
    "PolicyBody",
    __base__=Strict,
    __doc__="How the task is run, instead of its kind's own policy.",
    **{f.name: (_HINTS[f.name], Field(f.default, json_schema_extra=_BOUNDS.get(f.name))) for f in fields(Policy)},
)  # type: ignore[call-overload]


class TaskFields(Strict):
    """What a single task and a member of a stage have in common."""

    kind: Name
    payload: Any = None
    queue: Name = "default"
    priority: Priority = 0
    delay_s: Seconds | None = None
    run_at: Moment | None = None
    """Not before this time. Give this or `delay_s`."""
    max_attempts: Attempts | None = None
    policy: PolicyBody | None = None  # type: ignore[valid-type]

    @property
    def work(self) -> dict[str, Any]:
        """The fields of a Submit or a TaskSpec."""
        given = self.sent_fields
        if given.get("policy") is not None:
            given["policy"] = Policy(**given["policy"].sent_fields)
        return given


class MemberBody(TaskFields):
    """A task of a stage."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"kind": "resize", "payload": {"width": 640}}]})
    name: Name | None = None
    depends_on: Annotated[tuple[Name, ...], most("batch")] = ()
    """Names or ids of tasks of the same flow that have to succeed first."""

    def spec(self) -> TaskSpec:
        return TaskSpec(**self.work)


class ApprovalBody(Strict):
    """Who has to approve, what they are asked for, and what happens when they do not answer."""

    owner: Name = "anybody"
    reason: Reason = "waits for approval"
    form: dict[str, Any] | None = None
    deadline_s: Seconds | None = None
    on_deadline: Literal["approve", "reject", "skip", "cancel"] = "reject"

    def spec(self) -> Approval:
        return Approval(**self.sent_fields)


_A_STAGE: Any = {"name": "resize", "tasks": [{"kind": "resize", "payload": {"width": 640}}]}


class StageBody(Strict):
    """A stage of a flow."""

    model_config = ConfigDict(json_schema_extra={"examples": [_A_STAGE]})
    name: Name
    tasks: Annotated[tuple[MemberBody, ...], FIRST, most("batch")] = ()
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
        return StageSpec(**{**self.sent_fields, **parts})


class KeyFields(Strict):
    """What every job may say about itself."""

    idempotency_key: Key | None = None
    """The same as the header `Idempotency-Key`, for each job of a batch."""
    unique_key: Key | None = None
    labels: Annotated[dict[str, Name], most("labels")] | None = None
    correlation_id: Key | None = None
    cause: Reason | None = None


class TaskBody(TaskFields, KeyFields):
    """A single task."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"kind": "send_mail", "payload": {"to": "ann@example.com"}, "labels": {"tenant": "a"}}]
        }
    )

    def command(self, **said: Any) -> Command:
        return Submit(**{**self.work, **said})


class FlowBody(KeyFields):
    """A flow: it has stages."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "thumbnails", "stages": [_A_STAGE]}]})
    name: Name
    stages: Annotated[tuple[StageBody, ...], FIRST, most("stages")]
    data: Any = None
    metadata: Any = None
    roll_up: Literal["strict", "drain", "mixed"] = "strict"
    sealed: bool | None = None
    start: bool = True
    deadline_s: Seconds | None = None
    context: Any = None
    redact: tuple[str, ...] = Field((), json_schema_extra=_BOUNDS["redact"])
    """Paths of what nobody is shown of `data`, of contexts and of the input of approvals but those who do the work."""

    def command(self, **said: Any) -> Command:
        return SubmitFlow(**{**self.sent_fields, "stages": [stage.spec() for stage in self.stages], **said})


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
    jobs: Annotated[tuple[JobBody, ...], FIRST, most("batch")] = Field(min_length=1)


class MembersBody(Strict):
    """Tasks that are to be added to a stage."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tasks": [{"kind": "resize", "payload": {"w": 64}}]}]})
    tasks: Annotated[tuple[MemberBody, ...], FIRST, most("batch")] = Field(min_length=1)
