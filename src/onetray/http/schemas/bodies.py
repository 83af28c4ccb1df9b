"""The bodies of requests. Most are derived from commands; those that stand for no single command are written out here.

A report names the fence and the worker of its claim: without them it could touch what somebody else holds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, Union

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter

from onetray.domain.commands import Claim, Redrive, Report, Resume, SetPriority, Submit
from onetray.domain.flow_commands import AddTasks, OpenFlow, SubmitFlow
from onetray.domain.task import REASON_CODES
from onetray.domain.verbs import VERBS, sendable_verbs
from onetray.http.params import MAX_CHARS
from onetray.http.schemas.base import FIRST, SOME_ID, FewerCount, Id, Name, Reason, Seconds, Strict, most
from onetray.http.schemas.derive import (
    OUTSIDE,
    TICKET,
    Made,
    StageBody,
    body_of,
    command_body,
    command_example,
    made_model,
    route_body,
)

MAX_LETTERS = 1_000
MAX_WAIT_S = 30

TaskBody: Any = body_of(Submit, "TaskBody", without=OUTSIDE, example=command_example(Submit), about="A single task.")
FlowBody: Any = body_of(
    SubmitFlow, "FlowBody", without=(*OUTSIDE, "stages"), example=command_example(SubmitFlow),
    about="A flow: it has stages.",
    stages=(Annotated[tuple[StageBody, ...], FIRST, most("stages")], ...),
)  # fmt: skip
"""Unlike the command it always says its stages, be it none: by them it is known for a flow."""
MembersBody: Any = body_of(
    AddTasks, "MembersBody", without=(*OUTSIDE, "stage"), example=command_example(AddTasks),
    about="Tasks that are to be added to a stage.",
)  # fmt: skip
ClaimBody: Any = body_of(
    Claim, "ClaimBody", example={**command_example(Claim), "wait_s": 20},
    wait_s=(float, Field(0, ge=0, le=MAX_WAIT_S, description="How long to wait when there is nothing to claim.")),
)  # fmt: skip
Why: Any = route_body(OpenFlow)
ResumeBody: Any = route_body(Resume)
PriorityBody: Any = route_body(SetPriority)
RedriveBody: Any = route_body(Redrive)


def _which(value: Any) -> str:
    has = "stages" in value if isinstance(value, dict) else hasattr(value, "stages")
    return "flow" if has else "task"


JobBody: TypeAlias = Annotated[
    Annotated[TaskBody, Tag("task")] | Annotated[FlowBody, Tag("flow")], Discriminator(_which)
]  # fmt: skip
"""A task, or a flow when it has stages."""
JOB: TypeAdapter[Any] = TypeAdapter(JobBody)


def _batch(name: str, field: str, one: Any, about: str, example: dict[str, Any], least: int | None = 1) -> Any:
    """A body with many of something."""
    many: Any = Annotated[tuple[one, ...], FIRST, most("batch")]
    doc = f"{about} at once. Each is answered in its place."
    return made_model(name, Made, doc, {field: (many, Field(min_length=least))}, {field: [example]})


def _by_verb(kinds: list[Any]) -> Any:
    """Any of these commands, known by its verb."""
    one: Any = Union[tuple(map(command_body, kinds))]  # noqa: UP007
    return Annotated[one, Field(discriminator="verb")]


def commands_body() -> Any:
    """Any commands that may be sent: all that are declared by now."""
    kinds = _by_verb(list(sendable_verbs().values()))
    return _batch(COMMANDS_BODY, "commands", kinds, "Many commands", COMMANDS_EXAMPLE["commands"][0], least=None)


COMMANDS_BODY = "CommandsBody"
COMMANDS_EXAMPLE = {"commands": [{"verb": Submit.verb, **command_example(Submit)}]}


def _example(**body: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [body]})


BatchBody: Any = _batch(
    "BatchBody", "jobs", JobBody, "Many jobs", {"kind": "send_mail", "payload": {"to": "ann@example.com"}}
)
ReportsBody: Any = _batch(
    "ReportsBody", "reports", _by_verb([kind for kind in VERBS.values() if issubclass(kind, Report)]), "Many reports",
    {"verb": "succeed", "task": SOME_ID, **TICKET, "result": 1},
)  # fmt: skip


class Reasoned(Strict):
    """What may say why; `reason` stands in the log."""

    reason: Reason | None = None


class CancelBody(Reasoned):
    model_config = _example(mode="soft", reason="the customer called")
    mode: Literal["soft", "hard"] = "soft"
    """Soft asks running workers to stop and gives them their grace. Hard revokes their leases at once."""


class RetryBody(Reasoned):
    model_config = _example(from_stage="resize")
    from_stage: Name | None = None
    """Of a flow: from this stage on. Otherwise from the one that failed."""


class OpenBreakerBody(Reasoned):
    model_config = _example(for_s=600, reason="the mail server is down")
    for_s: Seconds = Field(ge=0.001)


class RedriveManyBody(Reasoned):
    """Letters by their ids, those that the filters leave, or all; oldest first, a page at a time."""

    model_config = _example(kind="send_mail", reason_code="exhausted_retries", limit=100)
    delay_s: Seconds = 0.0
    all: bool = False
    """Every letter of the namespace: without ids and filters nothing less is taken for it."""
    ids: tuple[Id, ...] | None = Field(None, min_length=1, max_length=MAX_LETTERS)
    kind: Name | None = None
    reason_code: Literal[REASON_CODES] | None = None  # type: ignore[valid-type]
    error: Reason | None = None
    """A part of "Class: message"."""
    limit: FewerCount = 100
    cursor: str | None = Field(None, max_length=MAX_CHARS)
