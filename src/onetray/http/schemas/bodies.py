"""The request bodies of the native API: derived from commands, or written here where there is no single command.

A report must name the fence and the worker of its claim, so that it can only change a task that its worker holds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, Union

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter

from onetray.domain.commands import Claim, Redrive, Report, Resume, SetMetadata, SetPriority, Submit
from onetray.domain.declared_flow import FlowDeclaration
from onetray.domain.flow_commands import AddTasks, OpenFlow, SubmitDeclared, SubmitFlow
from onetray.domain.limits import LEAST_WEIGHT, MOST, MOST_WEIGHT
from onetray.domain.task import REASON_CODES
from onetray.domain.verbs import VERBS, sendable_verbs
from onetray.http.params import MAX_CHARS
from onetray.http.schemas.base import (
    FAIL_FAST,
    SOME_ID,
    Id,
    Moment,
    Name,
    PageSize,
    Reason,
    Seconds,
    Strict,
    limited_by,
    whole_number,
)
from onetray.http.schemas.derive import (
    OUTSIDE,
    TICKET,
    GeneratedBody,
    StageBody,
    body_of,
    command_body,
    command_example,
    create,
    route_body,
)

MAX_REDRIVEN = 1_000
MAX_WAIT_S = 30

TaskBody: Any = body_of(Submit, "TaskBody", without=OUTSIDE, example=command_example(Submit), about="A single task.")
FlowBody: Any = body_of(
    SubmitFlow, "FlowBody", without=(*OUTSIDE, "stages"), example=command_example(SubmitFlow),
    about="A flow of stages. An empty list of stages is allowed: add them later.",
    stages=(Annotated[tuple[StageBody, ...], FAIL_FAST, limited_by("stages")], ...),
)  # fmt: skip
"""Unlike in the command, `stages` is required: it distinguishes a flow from a task."""
SubmitDeclaredBody: Any = body_of(
    SubmitDeclared, "SubmitDeclaredBody", without=(*OUTSIDE, "name"), about="The config of a declared flow.",
    example={"config": {"width": 640}, "labels": {"tenant": "a"}},
)  # fmt: skip
DeclareFlowBody: Any = body_of(
    FlowDeclaration, "DeclareFlowBody",
    example={"name": "thumbnails", "stages": [{"name": "resize", "kind": "thumbnails.resize"}]},
    worker=(Name, Field("anonymous", description="The worker that declares it.")),
    renew=(bool, Field(False, description="Only report that this version is still in use.")),
)  # fmt: skip
MembersBody: Any = body_of(
    AddTasks, "MembersBody", without=(*OUTSIDE, "stage"), example=command_example(AddTasks),
    about="The tasks to add to a stage.",
)  # fmt: skip
ClaimBody: Any = body_of(
    Claim, "ClaimBody", example={**command_example(Claim), "wait_s": 20},
    wait_s=(float, Field(0, ge=0, le=MAX_WAIT_S, description="How long to wait if no task can be claimed.")),
)  # fmt: skip
ReasonBody: Any = route_body(OpenFlow)
ResumeBody: Any = route_body(Resume)
PriorityBody: Any = route_body(SetPriority)
MetadataBody: Any = route_body(SetMetadata)
RedriveBody: Any = route_body(Redrive)


def _entity(value: Any) -> str:
    is_flow = "stages" in value if isinstance(value, dict) else hasattr(value, "stages")
    return "flow" if is_flow else "task"


JobBody: TypeAlias = Annotated[
    Annotated[TaskBody, Tag("task")] | Annotated[FlowBody, Tag("flow")], Discriminator(_entity)
]  # fmt: skip
JOB: TypeAdapter[Any] = TypeAdapter(JobBody)


def _batch(name: str, field: str, item: Any, example: dict[str, Any], least: int | None = 1) -> Any:
    items: Any = Annotated[tuple[item, ...], FAIL_FAST, limited_by("batch")]
    about = f"A batch of {field}. The response has one verdict for each, in the same order."
    return create(name, GeneratedBody, about, {field: (items, Field(min_length=least))}, {field: [example]})


def _by_verb(kinds: list[Any]) -> Any:
    """Any of these commands, distinguished by the verb."""
    union: Any = Union[tuple(map(command_body, kinds))]  # noqa: UP007
    return Annotated[union, Field(discriminator="verb")]


def commands_body() -> Any:
    """Any commands that clients may send. Built late, so that all of them are declared."""
    item = _by_verb(list(sendable_verbs().values()))
    return _batch(COMMANDS_BODY, "commands", item, COMMANDS_EXAMPLE["commands"][0], least=None)


COMMANDS_BODY = "CommandsBody"
COMMANDS_EXAMPLE = {"commands": [{"verb": Submit.verb, **command_example(Submit)}]}


def _example(**body: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [body]})


BatchBody: Any = _batch("BatchBody", "jobs", JobBody, {"kind": "send_mail", "payload": {"to": "ann@example.com"}})
ReportsBody: Any = _batch(
    "ReportsBody", "reports", _by_verb([kind for kind in VERBS.values() if issubclass(kind, Report)]),
    {"verb": "succeed", "task": SOME_ID, **TICKET, "result": 1},
)  # fmt: skip


class Reasoned(Strict):
    """A body with a reason."""

    reason: Reason | None = None
    """Why; recorded in the event log."""


class CancelBody(Reasoned):
    """How to cancel a job."""

    model_config = _example(mode="soft", reason="the customer called")
    mode: Literal["soft", "hard"] = "soft"
    """A soft cancel asks running workers to stop within their grace. A hard one revokes their leases at once."""


class RetryBody(Reasoned):
    """How to retry a job."""

    model_config = _example(from_stage="resize")
    from_stage: Name | None = None
    """The stage at which a flow restarts. Default: the one that failed."""


class OpenBreakerBody(Reasoned):
    """How long to stop claims of a kind."""

    model_config = _example(for_s=600, reason="the mail server is down")
    for_s: Seconds = Field(ge=0.001)


class SetLimitBody(Reasoned):
    """A limit of a queue or of a kind: a concurrency or a rate."""

    model_config = _example(kind="send_mail", key="tenant", concurrency=3, reason="the mail server is slow")
    queue: Name | None = None
    kind: Name | None = None
    key: Name | None = None
    """For each value of this path in the payload. The kind declares it in code."""
    concurrency: Annotated[int, Field(ge=0, le=MOST), whole_number] | None = None
    """How many tasks run at once; 0 holds all back."""
    rate: Annotated[str, Field(min_length=3, max_length=50, examples=["100/m"])] | None = None
    """How many tasks start within a period: 10/s, 100/m, 1000/h, 50/5m."""
    smooth: bool = False
    """Whether to spread the starts of a rate over its period."""


class SetWeightBody(Reasoned):
    """The share of one value of what a kind is fair by."""

    model_config = _example(kind="send_mail", value="acme", weight=2)
    kind: Name
    value: Any
    weight: Annotated[float, Field(ge=LEAST_WEIGHT, le=MOST_WEIGHT)]


class RedriveManyBody(Reasoned):
    """Which dead letters to redrive: those with these ids, or a page of those that match the filters, or of all."""

    model_config = _example(kind="send_mail", reason_code="exhausted_retries", limit=100)
    delay_s: Seconds = 0.0
    """How long the new tasks wait before they can be claimed."""
    keep_attempts: bool = False
    """Whether the attempts of the old tasks count against the budgets of the new ones."""
    all: bool = False
    """Redrive all dead letters of the namespace, a page at a time."""
    ids: tuple[Id, ...] | None = Field(None, min_length=1, max_length=MAX_REDRIVEN)
    kind: Name | None = None
    reason_code: Literal[REASON_CODES] | None = None  # type: ignore[valid-type]
    error: Reason | None = None
    """A text that the error contains, as "Class: message"."""
    limit: PageSize = 100
    cursor: str | None = Field(None, max_length=MAX_CHARS)
    """`next` of the previous page."""

    @property
    def options(self) -> dict[str, Any]:
        return {"delay_s": self.delay_s, "keep_attempts": self.keep_attempts}


class BulkFilters(Strict):
    """Which jobs a bulk operation takes. A redrive has `kind`, `kinds`, `queue`, `reason`, `error`, `flow`, `alike` and
    `ids`; the other actions have all but `kinds`, `reason`, `error`, `flow` and `alike`."""

    model_config = _example(kind="send_mail")
    states: Annotated[list[Name], Field(max_length=20)] | None = None
    """Without it, a cancel and a change of priority take open jobs; a retry, those that ended without success."""
    kind: Name | None = None
    queue: Name | None = None
    correlation_id: Annotated[str, Field(min_length=1), limited_by("key_chars")] | None = None
    labels: Annotated[dict[str, Name], Field(max_length=20)] | None = None
    entity: Literal["task", "flow"] | None = None
    priority: Annotated[int, Field(ge=-(2**31) + 1, le=2**31 - 1)] | None = None
    since: Moment | None = None
    until: Moment | None = None
    text: Annotated[str, Field(min_length=1), limited_by("key_chars")] | None = None
    """A correlation id, an alias, the beginning of an id, or a part of the name of a kind or flow."""
    ids: Annotated[list[Id], Field(max_length=1_000)] | None = None
    kinds: Annotated[list[Name], Field(max_length=100)] | None = None
    reason: Literal[REASON_CODES] | None = None  # type: ignore[valid-type]
    error: Reason | None = None
    """A text that the error contains, as "Class: message"."""
    flow: Id | None = None
    """Only dead letters of this flow."""
    alike: Id | None = None
    """A task: only dead letters of the same group as its own."""

    @property
    def chosen(self) -> dict[str, Any]:
        return {name: value for name, value in self.sent_fields.items() if value is not None}


_Action = Literal["cancel", "retry", "redrive", "priority"]


class BulkPreviewBody(Strict):
    """The action and the filters of a bulk operation."""

    model_config = _example(action="cancel", filters={"kind": "send_mail"})
    action: _Action
    filters: BulkFilters = BulkFilters()
    limit: Annotated[int, Field(ge=1, le=100)] = 10
    """How many of the first ones to return."""


class BulkBody(Reasoned):
    """What to do with all jobs that match."""

    model_config = _example(action="redrive", canary=10, reason="the mail server is back")
    action: _Action
    filters: BulkFilters = BulkFilters()
    priority: Annotated[int, Field(ge=-(2**31) + 1, le=2**31 - 1)] | None = None
    """The priority to set."""
    hard: bool = False
    """Whether a cancel revokes leases at once."""
    delay_s: Seconds = 0.0
    """How long redriven tasks wait before they can be claimed."""
    keep_attempts: bool = False
    """Whether the attempts of the old tasks count against the budgets of the redriven ones."""
    limit: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """How many jobs are changed at most."""
    canary: Annotated[int, Field(ge=1, le=1_000)] | None = None
    """How many dead letters to redrive before it pauses."""

    @property
    def options(self) -> dict[str, Any]:
        names = ("priority", "hard", "delay_s", "keep_attempts", "limit", "canary", "reason")
        return {name: getattr(self, name) for name in names}
