"""What somebody says who does not hold the task. Those that stand for one command are derived from it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from onetray.domain.commands import Redrive, Resume, SetPriority
from onetray.domain.flow_commands import OpenFlow
from onetray.domain.task import REASON_CODES
from onetray.http.params import MOST_CHARS
from onetray.http.schemas.base import FewerCount, Id, Name, Reason, Seconds, Strict
from onetray.http.schemas.derive import route_body

MOST_LETTERS = 1_000


def example(**body: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [body]})


Why: Any = route_body(OpenFlow)
ResumeBody: Any = route_body(Resume)
PriorityBody: Any = route_body(SetPriority)
RedriveBody: Any = route_body(Redrive)


class Reasoned(Strict):
    """What may say why; `reason` stands in the log."""

    reason: Reason | None = None


class CancelBody(Reasoned):
    model_config = example(mode="soft", reason="the customer called")
    mode: Literal["soft", "hard"] = "soft"
    """Soft asks running workers to stop and gives them their grace. Hard revokes their leases at once."""


class RetryBody(Reasoned):
    model_config = example(from_stage="resize")
    from_stage: Name | None = None
    """Of a flow: from this stage on. Otherwise from the one that failed."""


class OpenBreakerBody(Reasoned):
    model_config = example(for_s=600, reason="the mail server is down")
    for_s: Seconds = Field(ge=0.001)


class RedriveManyBody(Reasoned):
    """Letters by their ids, those that the filters leave, or all; oldest first, a page at a time."""

    model_config = example(kind="send_mail", reason_code="exhausted_retries", limit=100)
    delay_s: Seconds = 0.0
    all: bool = False
    """Every letter of the namespace: without ids and filters nothing less is taken for it."""
    ids: tuple[Id, ...] | None = Field(None, min_length=1, max_length=MOST_LETTERS)
    kind: Name | None = None
    reason_code: Literal[REASON_CODES] | None = None  # type: ignore[valid-type]
    error: Reason | None = None
    """A part of "Class: message"."""
    limit: FewerCount = 100
    cursor: str | None = Field(None, max_length=MOST_CHARS)
