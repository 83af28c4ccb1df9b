"""Schedules: what is submitted at which times, and the values that readers see.

Owns the fields of a schedule, their checks, and the command that a fire submits. fire_times.py has the calendar,
schedule_plan.py decides what happens at a fire time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Annotated, Any

import orjson

from onetray.config import Limits
from onetray.domain import fields as f
from onetray.domain.checks import check_labels
from onetray.domain.clock import SECOND, duration
from onetray.domain.commands import Command, Submit
from onetray.domain.errors import InvalidInput
from onetray.domain.fields import check_of
from onetray.domain.fire_times import Calendar, FireTime
from onetray.domain.flow_commands import SubmitDeclared
from onetray.domain.machine import SYSTEM

SKIP, LAST, ALL = CATCH_UP = ("skip", "last", "all")
"""What to do with fire times that have passed while no janitor ran."""
ALLOW, SKIP_NEW, QUEUE_ONE, CANCEL_RUNNING = OVERLAP = ("allow", "skip", "queue_one", "cancel_running")
"""What to do at a fire time while a job of an earlier one is still open."""
SUBMITTED, QUEUED, SKIPPED_OVERLAP, SKIPPED_MISSED, REFUSED = OUTCOMES = (
    "submitted", "queued", "skipped_overlap", "skipped_missed", "refused",
)  # fmt: skip
"""What a fire time has come to."""
ACTIVE, PAUSED, ORPHANED, ENDED = SCHEDULE_STATES = ("active", "paused", "orphaned", "ended")
OPERATOR, CODE = SOURCES = ("operator", "code")
LABEL = "schedule"
"""The label of every job of a schedule: its name."""
ACTOR_NAME = "schedule"
MAX_SCHEDULES = 1_000
"""How many schedules an app can declare, and a namespace can have."""
_PREFIX = "schedule:"


@dataclass(slots=True, kw_only=True)
class ScheduleSpec:
    """What a schedule submits, and when."""

    name: f.Name
    kind: f.Name | None = None
    """The kind of task to submit. Set this or `flow`."""
    flow: f.Name | None = None
    """The declared flow to submit."""
    payload: Annotated[Any, f.Json("payload_bytes")] = None
    """The payload of the task, or the config of the flow."""
    cron: f.Name | None = None
    """A cron expression: minute, hour, day of the month, month, day of the week; with six fields, seconds first."""
    every_s: f.Seconds | None = None
    """The seconds between two fire times. Set this or `cron`."""
    timezone: f.Name = "UTC"
    """The time zone of the cron expression, by its name in the IANA database."""
    queue: f.Name = "default"
    priority: f.Priority = 0
    max_attempts: f.Attempts | None = None
    labels: f.LabelTexts | None = None
    catch_up: Annotated[str, f.Choice(CATCH_UP)] = LAST
    """What to do with fire times that have passed while nobody could fire: `skip` them, submit the `last` one, or
    `all`."""
    catch_up_s: f.Seconds = 86_400.0
    """Fire times that are older than this are skipped."""
    overlap: Annotated[str, f.Choice(OVERLAP)] = ALLOW
    """What to do at a fire time while a job of an earlier one is open: `allow`, `skip`, `queue_one`,
    `cancel_running`."""
    jitter_s: f.Seconds = 0.0
    """Delay each fire by up to this, always by the same for the same fire time."""
    starts_at: f.Time | None = None
    """The first possible fire time. Intervals count from it."""
    ends_at: f.Time | None = None
    """The last possible fire time."""
    pause_after_failures: Annotated[int, f.Whole(1, 1_000)] | None = None
    """Pause the schedule after this many failed jobs in a row."""

    @property
    def calendar(self) -> Calendar:
        return Calendar(self.cron, self.every_s, self.timezone, self.starts_at, self.ends_at)

    @property
    def body(self) -> str:
        """The definition as JSON; equal definitions have equal texts."""
        return orjson.dumps(self, option=orjson.OPT_SORT_KEYS).decode()

    @property
    def watches_jobs(self) -> bool:
        """Whether it has to know when its jobs end."""
        return self.overlap != ALLOW or self.pause_after_failures is not None

    def delay_us(self, fire_at: int) -> int:
        """How much later than its time a fire happens."""
        if not self.jitter_s:
            return 0
        digest = hashlib.blake2b(f"{self.name} {fire_at}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) % (int(self.jitter_s * SECOND) + 1)

    def check(self, limits: Limits) -> None:
        """Raises InvalidInput for a schedule that could not fire."""
        check_of(ScheduleSpec)(self, limits)
        if (self.kind is None) == (self.flow is None):
            raise InvalidInput("set either kind or flow: the task or the declared flow to submit", field="kind")
        if self.flow is not None and (self.max_attempts is not None or self.queue != "default"):
            raise InvalidInput(
                "a flow takes no queue and no max_attempts: its stages have their own", field="max_attempts"
            )
        try:
            check_labels({LABEL: self.name}, limits)
        except InvalidInput as e:
            raise InvalidInput(f"the name of a schedule is a label of its jobs: {e}", field="name") from None
        if self.labels is not None and LABEL in self.labels:
            raise InvalidInput(f"the label {LABEL!r} is the name of the schedule: choose another", field="labels")
        if self.labels is not None and len(self.labels) >= limits.labels:
            raise InvalidInput(f"a schedule takes at most {limits.labels - 1} labels of its own", field="labels")
        if self.cron is not None:
            self.cron = " ".join(self.cron.split())
        self.calendar.check()


def spec_of(body: str) -> ScheduleSpec:
    """Read a definition that any version has written; ignores fields that this version does not know."""
    sent = orjson.loads(body)
    return ScheduleSpec(**{field.name: sent[field.name] for field in fields(ScheduleSpec) if field.name in sent})


def version_of_spec(spec: ScheduleSpec) -> str:
    return hashlib.sha256(spec.body.encode()).hexdigest()[:16]


def correlation_of(name: str, fire_at: int) -> str:
    """The correlation id of the jobs of a fire: handlers read the fire time from it, after a redrive, too."""
    at = datetime.fromtimestamp(fire_at // SECOND, UTC)
    return f"{_PREFIX}{at:%Y-%m-%dT%H:%M:%S}.{fire_at % SECOND:06}Z:{name}"


def fire_time_of(correlation_id: str) -> datetime | None:
    """The fire time of a job of a schedule, by its correlation id; None for other jobs."""
    if not correlation_id.startswith(_PREFIX):
        return None
    try:
        return datetime.strptime(correlation_id[len(_PREFIX) :][:27], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def submit_command(spec: ScheduleSpec, fire_at: int, namespace: str, cause: str) -> Command:
    """The command that a fire of the schedule submits."""
    shared: dict[str, Any] = {
        "namespace": namespace, "priority": spec.priority, "labels": {**(spec.labels or {}), LABEL: spec.name},
        "correlation_id": correlation_of(spec.name, fire_at), "cause": cause, "actor": SYSTEM,
        "actor_name": ACTOR_NAME,
    }  # fmt: skip
    if spec.flow is not None:
        return SubmitDeclared(name=spec.flow, config=spec.payload, **shared)
    return Submit(
        kind=spec.kind or "", payload=spec.payload, queue=spec.queue, max_attempts=spec.max_attempts, **shared
    )


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as readers see it."""

    namespace: str
    name: str
    kind: str | None
    flow: str | None
    payload: Any
    cron: str | None
    every_s: float | None
    timezone: str
    queue: str
    priority: int
    max_attempts: int | None
    labels: dict[str, str]
    catch_up: str
    catch_up_s: float
    overlap: str
    jitter_s: float
    starts_at: int | None
    ends_at: int | None
    pause_after_failures: int | None
    state: str
    """`active`, `paused`, `orphaned` (its app no longer declares it) or `ended`."""
    source: str
    """`code` if an app declares it, else `operator`."""
    app: str | None
    """The name of the app that declares it."""
    next_fire_at: int | None
    last_fire_at: int | None
    last_outcome: str | None
    """What the last fire time has come to: `submitted`, `queued`, `skipped_overlap`, `skipped_missed`, `refused`."""
    last_job: str | None
    """The id of its job."""
    last_job_state: str | None
    failures_in_row: int
    fires: int
    """How many fire times it has had."""
    paused_at: int | None
    paused_by: str | None
    paused_why: str | None
    orphaned_at: int | None
    seen_in_code_at: int | None
    """When an instance of its app last declared it, to about a minute."""
    created_at: int
    created_by: str
    updated_at: int

    @property
    def when(self) -> str:
        """Its calendar, for people."""
        return (
            f"{self.cron} {self.timezone}" if self.every_s is None else f"every {duration(int(self.every_s * SECOND))}"
        )


@dataclass(frozen=True, slots=True)
class ScheduledFire:
    """What a fire time of a schedule has come to."""

    fire_at: int
    outcome: str
    job: str | None
    job_state: str | None
    """None if it has no job, or the job is deleted."""
    by: str
    """The actor: `system:schedule`, or the person who has triggered or backfilled it."""
    at: int
    """When it was decided."""
    why: str | None
    missed: int
    """How many fire times after this one it stands for, with the same outcome."""
    is_triggered: bool
    """Whether somebody has triggered it outside of the calendar."""


@dataclass(frozen=True, slots=True)
class ScheduleExplanation:
    """Why a schedule fires or does not, its next fire times, and its last ones."""

    schedule: Schedule
    reasons: list[str]
    """Sentences, the most important one first."""
    upcoming: list[FireTime]
    last: list[ScheduledFire]
    """Newest first."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """The fire times of a backfill: those that were not submitted before."""

    name: str
    times: list[FireTime]
    submitted: int
    """How many were submitted: 0 in a preview."""
    refused: int
    more: bool
    """Whether there are more in the range: call it again."""
    jobs: list[str] = field(default_factory=list)
