"""Every response of the API, with its schema and an example.

Owns their names in the OpenAPI description. Their values come from the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from onetray.domain.bulk import BulkOperation, BulkOptions, Refusal
from onetray.domain.declare import Declaration
from onetray.domain.declared_flow import DeclaredFlow, DeclaredFlowSummary, DeclaredStage
from onetray.domain.fire_times import FireTime
from onetray.domain.flow import Approval, Counts, Flow, FlowError, Placed, Stage
from onetray.domain.limits import Concurrency, Limit, LimitDetails, LimitHolder, LimitValue, Rate, Weight
from onetray.domain.listing import Alias, DeadGroup, DeadLetterSummary, JobSummary, MemberSummary, QueueDepth
from onetray.domain.overview import (
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
from onetray.domain.task import Beaten, Blocker, DeadLetter, Event, LogLine, Receipt, Task, TaskProgress
from onetray.domain.verbs import sendable_verbs
from onetray.domain.worker import Breaker, WorkerInfo
from onetray.http import views
from onetray.http.json_answers import to_json
from onetray.http.openapi import examples as ex
from onetray.http.openapi.examples import example_of
from onetray.http.openapi.shapes import TIME, either, of_type, parts, record, ref, schema_of
from onetray.http.params import cursor_at
from onetray.http.schemas.base import SOME_ID
from onetray.http.views import LARGE

STRING, NULL = {"type": "string"}, {"type": "null"}
INTEGER, BOOLEAN = {"type": "integer"}, {"type": "boolean"}
ACTIONS = {"type": "array", "items": STRING}
NEXT_CURSOR = {"type": ["string", "null"], "description": "The cursor of the next page; null on the last page."}
RESUME_CURSOR = {"type": "string", "description": "Continue from here. After the last page it returns later entries."}
TOTAL = {"type": ["integer", "null"], "description": "The number of all that match; null unless it was requested."}
ANY_JOB = {"oneOf": [ref(Task), ref(Flow)]}


@dataclass(frozen=True)
class AnswerShape:
    """One response: title, schema, example."""

    title: str
    schema: dict[str, Any]
    example: Any
    media_type: str = "application/json"
    headers: dict[str, Any] = field(default_factory=dict)
    """Those that only this response may have."""

    @property
    def content(self) -> dict[str, Any]:
        return {self.media_type: {"schema": self.schema, "example": self.example}}


def _entity(name: str) -> dict[str, Any]:
    return {"type": "string", "const": name}


SCHEMAS: dict[str, dict[str, Any]] = {
    **{
        kind.__name__: schema_of(kind)
        for kind in (
            Stage, Counts, FlowError, Policy, Event, LogLine, Blocker, Beaten, JobSummary, MemberSummary, QueueDepth,
            DeadGroup, DeadLetterSummary, WorkerInfo, Breaker, TaskProgress, Approval, DeclaredFlow,
            DeclaredFlowSummary, DeclaredStage, Alias, Interval, Timeline, Statistics, StatisticsBucket, Overview,
            QueueOverview, WorkerOverview, HeldTask, NeedsHuman, Waiting, WaitingItem, MissingWorker, BulkOperation,
            BulkOptions, Refusal, Schedule, ScheduledFire, ScheduleExplanation, FireTime, Backfill,
            Concurrency, Rate, Limit, LimitDetails, LimitHolder, LimitValue, Weight,
        )
    },
    "Action": schema_of(Event, count=INTEGER),
    "StageLine": schema_of(Stage, without=LARGE),
    "Task": schema_of(Task, entity=_entity("task")),
    "Flow": schema_of(Flow, entity=_entity("flow")),
    "Past": record(
        {
            "event": INTEGER, "ts": TIME, "type": STRING, "stages": {"type": "array", "items": ref(Stage)},
            "tasks": {"type": "array", "items": ref(Task)}, "cut": BOOLEAN,
            "unknown": {"type": "object", "additionalProperties": {"type": "array", "items": STRING}},
        },
        title="Past",
        about="The event after which a job is shown; the stages and tasks of a flow at that time; and by their ids the "
        "fields of each that the log does not tell.",
    ),
    "Receipt": schema_of(Receipt, entity=_entity("task")),
    "Placed": schema_of(Placed),
    "DeadLetter": schema_of(DeadLetter, kind=STRING, payload={}),
    "Assignment": record(
        {
            **dict.fromkeys(("id", "kind", "queue", "namespace", "worker", "state", "idempotency_key",
                            "correlation_id"), STRING),
            "fence": INTEGER, "attempt": INTEGER, "lease_id": STRING, "lease_s": {"type": "number"},
            "lease_expires_at": TIME, "payload": {}, "input": {}, "trace": of_type(str | None), "policy": ref(Policy),
            "ticket": STRING, "actions": ACTIONS,
        },
        title="Assignment",
        about="A claimed task. Every report about it names its `fence` and its `worker`, and may name its `lease_id`; "
        "with its `ticket`, an opaque text, the server need not look the task up first.",
    ),
    "Problem": {
        **record(
            {"type": STRING, "title": STRING, "status": INTEGER, "code": STRING, "detail": STRING},
            title="Problem", about="An error as in RFC 9457: `code` is for programs, `detail` for people.",
        ),
        "additionalProperties": True,
    },
}  # fmt: skip
"""The schemas that responses refer to, by name."""
assert all(part.__name__ in SCHEMAS for kind in (Task, Flow, Stage) for part in parts(kind))


def _page(field: str, kind: type, next_: dict[str, Any] = NEXT_CURSOR) -> AnswerShape:
    return AnswerShape(
        f"A page of {field.replace('_', ' ')}",
        record({field: {"type": "array", "items": ref(kind)}, "next": next_}),
        {field: [example_of(kind)], "next": cursor_at(field, 12)},
    )


def _list(field: str, kind: type) -> AnswerShape:
    schema = record({field: {"type": "array", "items": ref(kind)}})
    return AnswerShape(f"The {field.replace('_', ' ')}", schema, {field: [example_of(kind)]})


def _verdicts(value: dict[str, Any], example: Any) -> AnswerShape:
    verdict = {"oneOf": [record({"value": value}), record({"error": ref("Problem")})]}
    schema = record({"verdicts": {"type": "array", "items": verdict}})
    return AnswerShape("One verdict per item, in request order", schema, {"verdicts": [{"value": example}]})


PAST = {"properties": {"past": ref("Past")}}
JOB = AnswerShape("The job; `past` only with `at`", {**ANY_JOB, **PAST}, ex.TASK_JSON)
TASK = AnswerShape("The task; `past` only with `at`", {"allOf": [ref(Task)], **PAST}, ex.TASK_JSON)
TIMELINE = AnswerShape("The states of the job over time", ref(Timeline), example_of(Timeline))
STAGE = AnswerShape("The stage", ref(Stage), example_of(Stage))
PLACED = AnswerShape("The current state", {"anyOf": [ref(Receipt), ref(Placed)]}, ex.RECEIPT_JSON)
WARNING = "Onetray-Warning"
_WARNING = {
    WARNING: {
        "description": "Names the kinds that no worker has declared and no job has had. Absent if all are known.",
        "schema": STRING,
    }
}
ACCEPTED = replace(PLACED, headers=_WARNING)
RECEIPT = AnswerShape("The task's current state", ref(Receipt), ex.RECEIPT_JSON)
FLOW_PLACED = AnswerShape("The flow's current state", ref(Placed), ex.PLACED_JSON)
JOBS = AnswerShape(
    "A page of jobs",
    record({"jobs": {"type": "array", "items": ref(JobSummary)}, "next": NEXT_CURSOR, "total": TOTAL}),
    {"jobs": [example_of(JobSummary)], "next": cursor_at("jobs", 12), "total": None},
)
EVENTS = _page("events", Event, RESUME_CURSOR)
FEED = AnswerShape(
    "Events, and the cursor to continue from",
    record({"events": {"type": "array", "items": ref(Event)}, "cursor": INTEGER}),
    {"events": [example_of(Event)], "cursor": 12},
)
STREAM = AnswerShape(
    "Server-sent events", STRING, 'id: e12.l3\nevent: status\ndata: {"state": "running"}\n\n', "text/event-stream"
)
METRICS = AnswerShape("Metrics", STRING, "onetray_up 1.0\n", "text/plain")
LOGS = _page("logs", LogLine, RESUME_CURSOR)
MEMBERS = _page("tasks", MemberSummary)
LETTERS = _page("dead_letters", DeadLetterSummary)
GROUPS = _list("groups", DeadGroup)
QUEUES = _list("queues", QueueDepth)
WORKERS = _list("workers", WorkerInfo)
BREAKERS = _list("breakers", Breaker)
LIMITS = _list("limits", LimitDetails)
LIMIT = AnswerShape("The limit", ref(LimitDetails), example_of(LimitDetails))
LIMIT_VALUES, LIMIT_HOLDERS = _page("values", LimitValue), _page("holders", LimitHolder)
LIMIT_REMOVED = AnswerShape("The limit is removed", record({"id": INTEGER, "removed": BOOLEAN}),
                            {"id": 12, "removed": True})  # fmt: skip
WEIGHTS = _list("weights", Weight)
WEIGHT = AnswerShape("The weight", ref(Weight), example_of(Weight))
STATISTICS = AnswerShape("The statistics", ref(Statistics), example_of(Statistics))
OVERVIEW = AnswerShape("The overview", ref(Overview), example_of(Overview))
AUDIT = AnswerShape(
    "A page of actions",
    record({"actions": {"type": "array", "items": ref("Action")}, "next": NEXT_CURSOR}),
    {"actions": [{"count": 1, **to_json(ex.AUDIT.events[0])}], "next": cursor_at("audit", 12)},
)
DECLARED_FLOWS = _list("flows", DeclaredFlowSummary)
DECLARED_FLOW = AnswerShape("The declared flow", ref(DeclaredFlow), example_of(DeclaredFlow))
ALIAS = AnswerShape("What has the alias", ref(Alias), example_of(Alias))
LETTER = AnswerShape("The dead letter", ref(DeadLetter), ex.LETTER_JSON)
SUBMITTED = replace(_verdicts(PLACED.schema, ex.RECEIPT_JSON), headers=_WARNING)
BEATEN = AnswerShape("The lease's expiry, and which of its tasks are cancelled or lost", ref(Beaten),
                example_of(Beaten))  # fmt: skip
LOGGED = AnswerShape("The cursor of the last log line", record({"cursor": INTEGER}), {"cursor": 3})
REPORTED = _verdicts({"anyOf": [ref(Receipt), ref(Beaten), LOGGED.schema]}, ex.RECEIPT_JSON)
OF_COMMANDS: dict[Any, AnswerShape] = {Receipt: RECEIPT, Placed: FLOW_PLACED, Beaten: BEATEN, int: LOGGED}
"""The answer of a command that has a route of its own, by its type."""


def _shape(declared: Declaration) -> dict[str, Any]:
    schema = of_type(declared.answer)
    return record({declared.answer_name: schema}) if declared.answer_name else schema


_SHAPES = {str(kind.declared.answer): _shape(kind.declared) for kind in sendable_verbs().values()}
CARRIED_OUT = _verdicts({"anyOf": list(_SHAPES.values())}, ex.RECEIPT_JSON)
CLAIMED = AnswerShape(
    "The claimed tasks; empty if none can be claimed",
    record({"tasks": {"type": "array", "items": ref("Assignment")}}), {"tasks": [ex.ASSIGNMENT_JSON]},
)  # fmt: skip
TREE = AnswerShape(
    "The job, its stages and the first tasks of each",
    record({"job": ANY_JOB, "stages": {"type": "array", "items": record({
        "stage": ref("StageLine"), "tasks": {"type": "array", "items": ref(MemberSummary)}, "next": NEXT_CURSOR,
    })}, "next": NEXT_CURSOR}),
    {"job": ex.FLOW_JSON, "next": None,
     "stages": [{"stage": views.stage_line(ex.STAGE), "tasks": [example_of(MemberSummary)], "next": None}]},
)  # fmt: skip
RESULT = AnswerShape(
    "The job's result; for a flow, the results of its stages by name",
    record({"id": STRING, "entity": STRING, "state": STRING, "result": {}}),
    {"id": SOME_ID, "entity": "task", "state": "succeeded", "result": {"sent": True}},
)
EXPLAINED = AnswerShape(
    "Why the job makes no progress; empty if it can be claimed now",
    record({"id": STRING, "entity": STRING, "reasons": {"type": "array", "items": ref(Blocker)},
            "before_it": of_type(int | None), "more_before_it": of_type(bool)}),
    {"id": SOME_ID, "entity": "task", "reasons": [example_of(Blocker)], "before_it": None, "more_before_it": False},
)  # fmt: skip
ALLOWED = AnswerShape(
    "The allowed actions",
    record({"id": STRING, "entity": STRING, "state": STRING, "actions": ACTIONS}),
    {"id": SOME_ID, "entity": "task", "state": "queued", "actions": ["cancel"]},
)
PROGRESS = AnswerShape(
    "Progress",
    record({"id": STRING, "entity": STRING, "state": STRING, "percentage": of_type(int | None),
            "current_stage": of_type(str | None), "counts": either(ref(Counts), NULL),
            "stages": {"type": "array", "items": record({"name": STRING, "state": STRING, "percentage": INTEGER})},
            "said": either(ref(TaskProgress), NULL)}),
    {"id": SOME_ID, "entity": "task", "state": "running", "percentage": None, "current_stage": None, "counts": None,
     "stages": [], "said": example_of(TaskProgress)},
)  # fmt: skip
ERRORS = AnswerShape(
    "The first errors, and how many there are",
    record({"errors": {"type": "array", "items": ref(FlowError)}, "total": INTEGER}),
    {"errors": [example_of(FlowError)], "total": 1},
)
RESULTS = AnswerShape(
    "The results of a stage's tasks",
    record({"results": {"type": "array", "items": record({"id": STRING, "name": of_type(str | None),
            "state": STRING, "result": {}})}, "next": NEXT_CURSOR}),
    {"results": [{"id": SOME_ID, "name": None, "state": "succeeded", "result": 42}], "next": None},
)  # fmt: skip
REDRIVEN = AnswerShape(
    "What was redriven, refused and skipped, and the cursor to continue with",
    record({"redriven": {"type": "array", "items": record({"task": STRING, "value": PLACED.schema})},
            "refused": {"type": "array", "items": record({"task": STRING, "error": ref("Problem")})},
            "left": {"type": "array", "items": record({"task": STRING, "flow": STRING})}, "next": NEXT_CURSOR}),
    {"redriven": [{"task": SOME_ID, "value": ex.RECEIPT_JSON}], "refused": [], "left": [], "next": None},
)  # fmt: skip
BULKS = _list("bulk_operations", BulkOperation)
BULK = AnswerShape("The bulk operation", ref(BulkOperation), example_of(BulkOperation))
BULK_PREVIEW = AnswerShape(
    "How many match, and the first ones",
    record({"count": INTEGER, "more": BOOLEAN, "jobs": {"type": "array", "items": ref(JobSummary)},
            "letters": {"type": "array", "items": ref(DeadLetterSummary)}}),
    {"count": 12, "more": False, "jobs": [example_of(JobSummary)], "letters": []},
)  # fmt: skip
SCHEDULES, FIRES, FIRE_TIMES = _list("schedules", Schedule), _list("fires", ScheduledFire), _list("times", FireTime)
SCHEDULE = AnswerShape("The schedule", ref(Schedule), example_of(Schedule))
FIRE = AnswerShape("What it has come to", ref(ScheduledFire), example_of(ScheduledFire))
BACKFILL = AnswerShape("The fire times and their jobs", ref(Backfill), example_of(Backfill))
SCHEDULE_EXPLAINED = AnswerShape("Why it fires or does not", ref(ScheduleExplanation), example_of(ScheduleExplanation))
SCHEDULES_REFUSED = AnswerShape(
    "The names that a person has added already", record({"refused": ACTIONS}), {"refused": []}
)
QUEUE_SET = AnswerShape("Whether the queue is paused", record({"queue": STRING, "paused": BOOLEAN}),
                   {"queue": "default", "paused": True})  # fmt: skip
DELETED = AnswerShape("The job is deleted", record({"id": STRING, "deleted": BOOLEAN}),
                 {"id": SOME_ID, "deleted": True})  # fmt: skip
BREAKER_SET = AnswerShape("Whether the breaker is open", record({"kind": STRING, "open": BOOLEAN}),
                     {"kind": "send_mail", "open": True})  # fmt: skip
WHOAMI = AnswerShape(
    "The token's identity, and the server's limits",
    record({"name": STRING, "namespace": STRING, "scopes": ACTIONS, "groups": ACTIONS, "version": STRING,
            "limits": {"type": "object", "additionalProperties": INTEGER}}),
    {"name": "ann", "namespace": "default", "scopes": ["read"], "groups": ["editor"], "version": "0.1.0",
     "limits": {"batch": 10_000}},
)  # fmt: skip
KEPT_PATHS = AnswerShape(
    "The paths that stay redacted, by kind",
    record({"kept": {"type": "object", "additionalProperties": ACTIONS}}),
    {"kept": {"send_mail": ["password"]}},
)
EMPTY = AnswerShape("An empty object", {"type": "object"}, {})
NEWS = AnswerShape(
    "Where the server is now",
    {**record({"boot": STRING, "heard": BOOLEAN, "full": BOOLEAN}), "additionalProperties": True},
    {"boot": "b7", "heard": True, "full": False, "generation": 12},
)
