"""The request bodies about schedules."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from onetray.domain.schedule import MAX_SCHEDULES, ScheduleSpec
from onetray.http.schemas.base import FAIL_FAST, Moment, Name, Reason, Seconds, Strict
from onetray.http.schemas.bodies import Reasoned
from onetray.http.schemas.derive import body_of

EXAMPLE: dict[str, Any] = {
    "name": "nightly", "kind": "send_report", "cron": "0 7 * * mon-fri", "timezone": "Europe/Berlin",
}  # fmt: skip
ScheduleBody: Any = body_of(
    ScheduleSpec, "ScheduleBody", example=EXAMPLE, about="What a schedule submits, and when.",
    reason=(Reason | None, Field(None, description="Why; recorded in the event log.")),
)  # fmt: skip
DeclaredScheduleBody: Any = body_of(
    ScheduleSpec, "DeclaredScheduleBody", example=EXAMPLE, about="A schedule in the code of an app."
)


def _example(**body: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [body]})


class DeclareSchedulesBody(Strict):
    """All schedules in the code of an app."""

    model_config = _example(schedules=[EXAMPLE], app="shop", worker="worker-1")
    schedules: Annotated[tuple[DeclaredScheduleBody, ...], FAIL_FAST, Field(max_length=MAX_SCHEDULES)]
    app: Name = "default"
    """The name of the app."""
    worker: Name = "anonymous"
    """The worker that declares them."""
    renew: bool = False
    """Only report that these definitions are still in use."""


class PreviewBody(Strict):
    """A cron expression or an interval."""

    model_config = _example(cron="0 7 * * mon-fri", timezone="Europe/Berlin", limit=5)
    cron: Name | None = None
    every_s: Seconds | None = None
    timezone: Name = "UTC"
    starts_at: Moment | None = None
    since: Moment | None = None
    """After this time instead of now."""
    limit: Annotated[int, Field(ge=1, le=100)] = 10


class BackfillBody(Reasoned):
    """A range of time."""

    model_config = _example(since="2026-11-10T00:00:00Z", until="2026-11-17T00:00:00Z", preview=True)
    since: Moment
    until: Moment
    preview: bool = False
    """Whether to list the fire times without submitting them."""
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100
