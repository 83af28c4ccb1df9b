"""What workers say: claims, and reports about what they hold.

A report names the fence and the worker of its claim: without them it could touch what somebody else holds.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Union

from pydantic import ConfigDict, Field, create_model

from onetray.domain import commands as c
from onetray.domain.commands import MOST_KINDS
from onetray.domain.flow import More
from onetray.domain.task import DEAD_STAGES, REASON_CODES
from onetray.http.schemas.base import FIRST, SOME_ID, Count, Fence, Id, Key, Name, Reason, Seconds, Strict, most
from onetray.http.schemas.controls import example
from onetray.http.schemas.jobs import MemberBody

MOST_WAIT_S = 30
_TICKET: dict[str, Any] = {"fence": 1, "worker": "worker-1"}
Amount = Annotated[float, Field(ge=0, le=1e15)]
Line = Annotated[str, most("line_chars")]


class ClaimBody(Strict):
    model_config = example(queue="default", worker="worker-1", limit=10, wait_s=20)
    worker: Name
    queue: Name = "default"
    kinds: Annotated[tuple[Name, ...], Field(max_length=MOST_KINDS)] | None = None
    limit: Count = 1
    lease_s: Annotated[float, Field(ge=0.001, le=4e9)] | None = None
    request_key: Key | None = None
    """The same claim again gives the same tasks. The header `Idempotency-Key` says the same."""
    wait_s: float = Field(0, ge=0, le=MOST_WAIT_S)
    """How long to wait when there is nothing to claim."""

    def command(self, **said: Any) -> c.Claim:
        given = self.sent_fields
        given.pop("wait_s", None)
        return c.Claim(**{**given, **said})


class Ticket(Strict):
    """The ticket of a claim."""

    model_config = example(**_TICKET)
    of: ClassVar[type[c.Report]] = c.Start
    fence: Fence
    worker: Name

    @property
    def sent_fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.model_fields_set - {"verb", "task"}}

    def fields(self) -> dict[str, Any]:
        return self.sent_fields

    def report(self, task: str, **said: Any) -> c.Report:
        return self.of(task=task, **self.fields(), **said)


class StartBody(Ticket):
    """Its handler begins."""


class BeatBody(Ticket):
    """Renew the lease, with all tasks of the same claim."""

    model_config = example(**_TICKET, lease_s=60)
    of = c.Beat
    lease_s: Annotated[float, Field(ge=0.001, le=4e9)] | None = None


class SucceedBody(Ticket):
    """It is done. A member of a flow may say more."""

    model_config = example(**_TICKET, result={"sent": True})
    of = c.Succeed
    result: Any = None
    ran_s: Seconds = 0.0
    partial: bool = False
    errors: Any = None
    metrics: dict[str, Any] | None = None
    spawn: dict[str, Annotated[tuple[MemberBody, ...], FIRST, most("batch")]] = Field(default_factory=dict)
    context: Any = None
    context_label: Name | None = None

    def fields(self) -> dict[str, Any]:
        given = self.sent_fields
        more = {name: given.pop(name) for name in _MORE if name in given}
        if "spawn" in more:
            more["spawn"] = {stage: [task.spec() for task in tasks] for stage, tasks in self.spawn.items()}
        return {**given, "more": More(**more) if more else None}


_MORE = ("partial", "errors", "metrics", "spawn", "context", "context_label")


class FailBody(Ticket):
    """The attempt failed. The policy decides what follows, unless this says it."""

    model_config = example(**_TICKET, message="the mail server refused", error_class="SmtpError", retryable=True)
    of = c.Fail
    message: Annotated[str, most("error_chars")]
    error_class: Name = "Error"
    retryable: bool | None = None
    reason_code: Literal[REASON_CODES] | None = None  # type: ignore[valid-type]
    stage: Literal[DEAD_STAGES] = "exec"  # type: ignore[valid-type]
    detail: Any = None
    retry_after_s: Seconds | None = None
    ran_s: Seconds = 0.0


class ReleaseBody(Ticket):
    """Give the task back unharmed: it costs no attempt."""

    model_config = example(**_TICKET, reason="the worker stops")
    of = c.Release
    reason: Reason | None = None
    delay_s: Seconds = 0.0


class PauseBody(Ticket):
    """Give up the lease and wait for somebody."""

    model_config = example(**_TICKET, state="waiting_input", owner="ann", reason="which address?")
    of = c.Pause
    state: Literal["blocked", "waiting_input"] = "blocked"
    owner: Name
    reason: Reason


class LineBody(Strict):
    """A line with its level and data."""

    level: str = Field("info", min_length=1, max_length=20)
    line: Line
    data: Any = None


class LogBody(Ticket):
    """Lines for the task's log."""

    model_config = example(**_TICKET, lines=["connected", {"level": "warning", "line": "slow", "data": {"ms": 900}}])
    of = c.Log
    lines: Annotated[tuple[Line | LineBody, ...], FIRST, most("batch")] = Field(min_length=1)

    def fields(self) -> dict[str, Any]:
        lines = tuple(x if isinstance(x, str) else (x.level, x.line, x.data) for x in self.lines)
        return {**self.sent_fields, "lines": lines}


class ProgressBody(Ticket):
    """How far it is."""

    model_config = example(**_TICKET, done=30, total=100, message="a third")
    of = c.Progress
    done: Amount
    total: Amount | None = None
    message: Reason | None = None


REPORTS: dict[str, type[Ticket]] = {
    body.of.verb: body
    for body in (StartBody, BeatBody, SucceedBody, FailBody, ReleaseBody, PauseBody, LogBody, ProgressBody)
}
"""The verbs of whoever holds a task."""


def _named(verb: str, body: type[Ticket]) -> type[Ticket]:
    """The same report in a batch, where it has to say itself what it is about."""
    return create_model(
        f"{verb.title()}Report", __base__=body, __doc__=body.__doc__, task=(Id, ...),
        verb=(Literal[verb], ...),  # type: ignore[arg-type]
    )  # fmt: skip


AnyReport: Any = Union[tuple(_named(verb, body) for verb, body in REPORTS.items())]  # noqa: UP007


class ReportsBody(Strict):
    """Many reports at once. Each is answered in its place."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reports": [{"verb": "succeed", "task": SOME_ID, **_TICKET, "result": 1}]}]}
    )
    reports: Annotated[tuple[Annotated[AnyReport, Field(discriminator="verb")], ...], FIRST, most("batch")] = Field(
        min_length=1
    )
