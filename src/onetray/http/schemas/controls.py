"""What somebody says who does not hold the task: cancel, pause, resume, retry, approve, redrive."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from onetray.domain.task import REASON_CODES
from onetray.http.params import MOST_CHARS
from onetray.http.schemas.base import FewerCount, Id, Name, Priority, Reason, Seconds, Strict
from onetray.http.schemas.jobs import ApprovalBody

MOST_LETTERS = 1_000


def example(**body: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [body]})


class Why(Strict):
    """Nothing has to be said; `reason` stands in the log."""

    model_config = example(reason="the customer called")
    reason: Reason | None = None


class CancelBody(Why):
    model_config = example(mode="soft", reason="the customer called")
    mode: Literal["soft", "hard"] = "soft"
    """Soft asks running workers to stop and gives them their grace. Hard revokes their leases at once."""


class ResumeBody(Why):
    model_config = example(input={"approved": True})
    input: Any = None
    """What a task that waits for input is given. A flow takes none."""


class RetryBody(Why):
    model_config = example(from_stage="resize")
    from_stage: Name | None = None
    """Of a flow: from this stage on. Otherwise from the one that failed."""


class PriorityBody(Why):
    model_config = example(priority=10)
    priority: Priority


class AnswerBody(Why):
    """What somebody says to a stage that waits."""

    model_config = example(note="not this week")
    note: Reason | None = None


class ApproveBody(AnswerBody):
    model_config = example(note="go ahead", input={"budget": 100})
    input: Any = None
    """What the form of the approval asks for."""


class WaitBody(Why):
    model_config = example(approval={"owner": "ann", "reason": "look at the first results", "deadline_s": 3600})
    approval: ApprovalBody | None = None


class OpenBreakerBody(Why):
    model_config = example(for_s=600, reason="the mail server is down")
    for_s: Seconds = Field(ge=0.001)


class RedriveBody(Why):
    model_config = example(delay_s=0)
    delay_s: Seconds = 0.0


class RedriveManyBody(RedriveBody):
    """Letters by their ids, those that the filters leave, or all; oldest first, a page at a time."""

    model_config = example(kind="send_mail", reason_code="exhausted_retries", limit=100)
    all: bool = False
    """Every letter of the namespace: without ids and filters nothing less is taken for it."""
    ids: tuple[Id, ...] | None = Field(None, min_length=1, max_length=MOST_LETTERS)
    kind: Name | None = None
    reason_code: Literal[REASON_CODES] | None = None  # type: ignore[valid-type]
    error: Reason | None = None
    """A part of "Class: message"."""
    limit: FewerCount = 100
    cursor: str | None = Field(None, max_length=MOST_CHARS)
