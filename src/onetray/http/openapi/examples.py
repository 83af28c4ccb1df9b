"""An example of each value in the API's responses.

Owns the examples. They are real values, serialized like any response, so a new field appears in them automatically.
"""

from __future__ import annotations

from typing import Any

from onetray.domain.bulk import BulkOperation, BulkOptions
from onetray.domain.declared_flow import DeclaredFlow, DeclaredFlowSummary, DeclaredStage
from onetray.domain.fire_times import FireTime
from onetray.domain.flow import Counts, Flow, FlowError, MemberReport, Placed, Stage
from onetray.domain.limits import Limit, LimitDetails, LimitHolder, LimitValue, Weight
from onetray.domain.listing import (
    Alias,
    DeadGroup,
    DeadLetterSummary,
    Dependency,
    JobLabel,
    JobSummary,
    MemberSummary,
    QueueDepth,
)
from onetray.domain.overview import (
    AuditPage,
    HeldTask,
    MissingWorker,
    NeedsHuman,
    Overview,
    QueueOverview,
    Statistics,
    StatisticsBucket,
    Waiting,
    WaitingItem,
    WorkerOverview,
)
from onetray.domain.past import Interval, Timeline
from onetray.domain.policy import Policy
from onetray.domain.schedule import Backfill, Schedule, ScheduledFire, ScheduleExplanation
from onetray.domain.task import Assignment, Beaten, Blocker, DeadLetter, Event, LogLine, Receipt, Task, TaskProgress
from onetray.domain.worker import Breaker, WorkerInfo
from onetray.http import views
from onetray.http.json_answers import to_json
from onetray.http.schemas.base import SOME_ID

FLOW_ID = "019a8c3e-6d02-7a11-8c44-0b9d5e7f1234"
STAGE_ID = "019a8c3e-6d02-7a12-9b10-5c3a2d1e4f60"
AT = 1_763_285_400_000_000
SOON = AT + 60_000_000
_MAIL: Any = {"to": "ann@example.com"}
_ERROR = {"class": "SmtpError", "message": "the mail server refused", "stage": "exec"}

TASK = Task(
    key=1, id=SOME_ID, job_id=SOME_ID, namespace="default", queue="default", kind="send_mail", state="running",
    version=3, fence=1, priority=0, attempts=1, max_attempts=3, created_at=AT, updated_at=AT, run_at=AT,
    started_at=AT, finished_at=None, owner="worker-1", lease=7, lease_expires_at=SOON, cancel_requested_at=None,
    held_by=None, held_why=None, retry_of=None, correlation_id=SOME_ID, trace=None, payload=_MAIL, input=None,
    result=None, error=None, policy=Policy(), labels={"tenant": "a"},
)  # fmt: skip
FLOW = Flow(
    key=2, id=FLOW_ID, namespace="default", name="thumbnails", state="running", version=3, roll_up="strict", sealed=1,
    created_at=AT, updated_at=AT, started_at=AT, finished_at=None, deadline_at=None, ending=None, ending_how=None,
    current_stage="resize", stages=2, stages_open=2, succeeded=0, partial=0, failed=0, cancelled=0, skipped=0,
    ignored=0, retry_of=None, compensates=None, compensation=None, correlation_id=FLOW_ID, trace=None,
    tracestate=None, priority=0, data=None, metadata=None, error=None,
)  # fmt: skip
STAGE = Stage(
    key=3, id=STAGE_ID, flow_id=FLOW_ID, namespace="default", order=1, name="resize", state="running", version=3,
    on_failure="stop", sealed=1, takes_more=True, created_at=AT, updated_at=AT, started_at=AT, finished_at=None,
    due_at=None, ending=None, ending_how=None, counts=Counts(total=2, queued=1, held=1),
    data=None, metadata=None, result=None,
    metrics=None, error=None, approval=None, answer=None, carried_from=None, type="resize", trace=None, tracestate=None,
)  # fmt: skip
_NONE_WAITS = Waiting(0, False, None, [])
_BUCKET = StatisticsBucket(
    AT, 120, 118, 110, 3, 1, 0, 4, 0, 0.012, 0.3, 1.2, 4.0, {"task.submitted": 120, "task.succeeded": 110}
)
_HELD = HeldTask(SOME_ID, "send_mail", "default", "running", AT)
_PAUSED = Event(
    id=12, job_id=SOME_ID, entity_id=SOME_ID, type="queue.paused", ts=AT, actor="user:ann", correlation_id=SOME_ID,
    cause="maintenance", trace=None, payload={"id": SOME_ID, "queue": "default"}, version=None, was=None, state=None,
    fence=0, attempts=0, namespace="default",
)  # fmt: skip
_SCHEDULE = Schedule(
    namespace="default", name="nightly", kind="send_report", flow=None, payload=None, cron="0 7 * * mon-fri",
    every_s=None, timezone="Europe/Berlin", queue="default", priority=0, max_attempts=None, labels={}, catch_up="last",
    catch_up_s=86_400.0, overlap="skip", jitter_s=0.0, starts_at=None, ends_at=None, pause_after_failures=3,
    state="active", source="code", app="shop", next_fire_at=SOON, last_fire_at=AT, last_outcome="submitted",
    last_job=SOME_ID, last_job_state="succeeded", failures_in_row=0, fires=12, paused_at=None, paused_by=None,
    paused_why=None, orphaned_at=None, seen_in_code_at=AT, created_at=AT, created_by="worker:worker-1", updated_at=AT,
)  # fmt: skip
_FIRE_TIME = FireTime(SOON, "2025-11-16T10:31:00+01:00", None)
_FIRE = ScheduledFire(AT, "submitted", SOME_ID, "succeeded", "system:schedule", AT, None, 0, False)
AUDIT = AuditPage([_PAUSED], [1], None)
VALUES: tuple[Any, ...] = (
    STAGE,
    Statistics(AT, SOON, 60, [_BUCKET], _BUCKET, True),
    Overview(
        AT,
        [QueueOverview("default", 10_000, 3, 2, 8, ("ready",), AT, None, None, None, 1, None, 5)],
        [WorkerOverview("worker-1", "running", "host-a", 4711, "0.1.0", ("default",), ("send_mail",), 10, 9, [_HELD],
                        AT, AT)],
        NeedsHuman(
            Waiting(1, False, AT, [WaitingItem(STAGE_ID, FLOW_ID, "resize", AT)]), _NONE_WAITS, _NONE_WAITS,
            _NONE_WAITS,
            [MissingWorker("mail", "send_mail", "no_worker_on_queue", "no registered worker claims from queue 'mail'",
                           "start one, `onetray worker --app MODULE:APP --queues mail`")],
        ),
    ),
    Receipt(SOME_ID, "queued", 1, 1),
    Placed(FLOW_ID, "flow", "pending", 1, stages=(STAGE_ID,), tasks=(SOME_ID,)),
    Beaten(SOON, (), ()),
    Blocker("delayed", "the task may run at 09:31", None, SOON),
    TaskProgress(AT, 1, 30.0, 100.0, "a third"),
    LogLine(1, AT, 1, "info", "connected", None),
    FlowError("resize", SOME_ID, None, "the file is no image"),
    MemberReport(1, AT, "resize", SOME_ID, None, 1, "info", "connected", None, None, None, None),
    Event(
        id=12, job_id=SOME_ID, entity_id=SOME_ID, type="task.claimed", ts=AT, actor="worker:worker-1",
        correlation_id=SOME_ID, cause=None, trace=None, payload=None, version=2, was="queued", state="assigned",
        fence=1, attempts=1, namespace="default",
    ),
    JobSummary(
        key=1, entity="task", id=SOME_ID, namespace="default", kind="send_mail", queue="default", state="running",
        attempts=1, max_attempts=3, stages=0, stages_open=0, created_at=AT, updated_at=AT, started_at=AT,
        finished_at=None, owner="worker-1", correlation_id=SOME_ID, priority=0,
    ),
    Alias("order-17", "task", SOME_ID, SOME_ID),
    JobLabel(SOME_ID, "tenant", "a"),
    Dependency(SOME_ID, FLOW_ID, None),
    MemberSummary(
        key=1, id=SOME_ID, stage="resize", name=None, kind="resize", queue="default", state="running", attempts=1,
        max_attempts=3, created_at=AT, started_at=AT, finished_at=None, owner="worker-1", error=None,
    ),
    QueueDepth("default", None, None, 12, 3, 4, AT, 5),
    DeadGroup("send_mail", "exhausted_retries", "SmtpError", "the mail server refused", 17, AT, SOON, 2, SOME_ID),
    DeadLetterSummary(
        key=1, id=SOME_ID, kind="send_mail", reason_code="exhausted_retries", error_class="SmtpError",
        message="the mail server refused", attempts=3, created_at=AT, successor_id=None, flow_id=None,
        flow_finished_at=None,
    ),
    BulkOperation(
        id=SOME_ID, namespace="default", action="redrive", filters={"kind": "send_mail"}, options=BulkOptions(),
        reason="the mail server is back", state="paused", created_at=AT, created_by="ann", updated_at=SOON,
        finished_at=None, limit=None, canary=1, done=1, repeated=0, refused=0, skipped=0, refusals=[],
        canary_ids=[SOME_ID], canary_states={"running": 1},
    ),
    WorkerInfo(
        "worker-1", "host-a", 4711, "0.1.0", AT, AT, SOON, 10, 4, 5, ("default",), ("send_mail",), "running", True,
    ),
    DeclaredFlowSummary("thumbnails", "9f86d081884c7d65", 1, AT, "worker-1", AT, None, None),
    DeclaredFlow(
        "default", "thumbnails", "9f86d081884c7d65", AT, "worker-1", AT, None, None, "strict", False, 7200.0, (),
        {"type": "object", "properties": {"width": {"type": "integer", "default": 640}}},
        (DeclaredStage("resize", "thumbnails.resize", "default", "config", None, None, "stop", None, None, None,
                       Policy()),),
    ),
    _SCHEDULE, _FIRE_TIME, _FIRE, Backfill("nightly", [_FIRE_TIME], 1, 0, False, [SOME_ID]),
    ScheduleExplanation(_SCHEDULE, ["it fires next at 2025-11-16 09:31:00 UTC, in 60 s"], [_FIRE_TIME], [_FIRE]),
    LimitDetails(
        id=12, what="concurrency", queue=None, kind="send_mail", key="tenant", most=3, per_s=None, smooth=False,
        declared=Limit(5, kind="send_mail", key="tenant"), set_by="ann", set_at=AT, counting=False, running=7,
        blocked=1, waiting=40, next_start_at=None,
    ),
    LimitValue(31, "acme", 3, 1, AT, None),
    LimitHolder(SOME_ID, SOME_ID, "send_mail", "default", "worker-1", "running", AT, SOON),
    Weight("send_mail", "acme", 2.0),
    Breaker("send_mail", "open", 5, AT, SOON, "5 failures in 60 s", None),
    *(_INTERVAL := (
        Interval("task", SOME_ID, "send_mail", None, "running", AT, SOON, 1, "worker-1", 12, "succeeded"),
    )),
    Timeline("task", SOME_ID, AT, SOON, SOON, _INTERVAL, False),
)  # fmt: skip
LETTER = DeadLetter(
    task_id=SOME_ID, created_at=AT, reason_code="exhausted_retries", stage="exec", last_error=_ERROR, attempts=3,
    last_owner="worker-1", last_lease_expires_at=SOON, correlation_id=SOME_ID, trace_id=None,
    payload_hash="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", successor_id=None,
)  # fmt: skip
ASSIGNMENT = Assignment(
    key=1, id=SOME_ID, kind="send_mail", queue="default", namespace="default", worker="worker-1", fence=1, attempt=1,
    lease=7, lease_expires_at=SOON, payload_json='{"to":"ann@example.com"}', input_json=None, correlation_id=SOME_ID,
    trace=None, policy=Policy(), lease_s=60.0,
)  # fmt: skip

_BY_KIND = {type(value): to_json(value) for value in VALUES}


def example_of(kind: type) -> Any:
    """An example of this class, as serialized in a response."""
    return _BY_KIND[kind]


TASK_JSON, FLOW_JSON = views.job(TASK), views.job(FLOW)
RECEIPT_JSON, PLACED_JSON = (views.placed_view(v) for v in VALUES if isinstance(v, Receipt | Placed))
ASSIGNMENT_JSON = {**views.assignment(ASSIGNMENT), "payload": _MAIL, "policy": to_json(Policy())}
LETTER_JSON = views.dead_letter_view(LETTER, TASK)
