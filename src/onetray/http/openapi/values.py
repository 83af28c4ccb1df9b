"""The responses of reads and acts by name, derived from their declared types.

Owns the outline and the example of each type. Examples are encoded like responses.
"""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin

import orjson

from onetray.domain.bulk import BulkPreview
from onetray.domain.flow import Context, Counts, FlowError, FlowErrors, Progress, StageResult
from onetray.domain.listing import JobCounts, JobDetails, JobPage, JobStatus, JobSummary, Located, StagePage, TaskPage
from onetray.domain.overview import AuditPage, WaitingEntry, WaitingPage
from onetray.domain.past import PastJob
from onetray.domain.policy import Policy
from onetray.domain.task import Event, Holding
from onetray.feed import Page
from onetray.http.openapi import examples as ex
from onetray.http.openapi.answers import AnswerShape
from onetray.http.openapi.shapes import either, record
from onetray.http.schemas.base import SOME_ID
from onetray.remote.value_codec import dumps

_VALUES: dict[Any, Any] = {
    type(value): value
    for value in (
        *ex.VALUES, ex.TASK, ex.FLOW, ex.LETTER, Policy(), Located("task", SOME_ID),
        Progress("running", 50, "resize", Counts(total=2, queued=1, held=1), (ex.STAGE,)),
        Context(1, SOME_ID, ex.FLOW_ID, None, "run", None, None, {"budget": 100}, ex.AT),
        StageResult(1, SOME_ID, None, "succeeded", {"sent": True}), Holding(1, SOME_ID, 7, None, "running"),
        JobStatus("task", SOME_ID, 1, "queued", "default", None, ("cancel",)),
        JobDetails.of(ex.TASK, [], [], ex.AT), PastJob(12, ex.AT, "task.claimed", "task", ex.TASK, None),
    )
} | {int: 12, str: SOME_ID, Any: {"sent": True}, type(None): None}  # fmt: skip
_VALUES[FlowErrors] = FlowErrors([_VALUES[FlowError]], 1)
_VALUES[Page] = Page([_VALUES[Event]], 12)
_VALUES[AuditPage] = ex.AUDIT
_VALUES[WaitingEntry] = WaitingEntry("stage", ex.STAGE_ID, ex.FLOW_ID, "news", "publish", ex.AT)
_VALUES[WaitingPage] = WaitingPage([_VALUES[WaitingEntry]], None, None)
_VALUES[JobPage] = JobPage([_VALUES[JobSummary]], None)
_VALUES[BulkPreview] = BulkPreview(12, False, [_VALUES[JobSummary]], [])
_VALUES[JobCounts] = JobCounts({"queued": 3, "succeeded": 17}, True)
_VALUES[StagePage], _VALUES[TaskPage] = StagePage([ex.STAGE], None), TaskPage([ex.TASK], None)
_PLAIN: dict[Any, dict[str, Any]] = {
    Any: {}, int: {"type": "integer"}, str: {"type": "string"}, type(None): {"type": "null"},
}  # fmt: skip


def answer_of(kind: Any) -> AnswerShape:
    """The response of a read or an act with this answer type."""
    kind = type(None) if kind is None else kind
    example = orjson.loads(dumps({"value": _example(kind)}))
    return AnswerShape(_title(kind), record({"value": _outline(kind)}), example)


def _outline(kind: Any) -> dict[str, Any]:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return either(*(_outline(part) for part in parts))
    if origin is list:
        return {"type": "array", "items": _outline(parts[0])}
    if kind in _PLAIN:
        return _PLAIN[kind]
    return {"type": "object", "title": getattr(kind, "__name__", "object")}


def _example(kind: Any) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _example(parts[0])
    if origin is list:
        return [_example(parts[0])]
    return {"resize": {"sent": True}} if origin is dict else _VALUES[kind]


def _title(kind: Any) -> str:
    return "Nothing" if kind is type(None) else getattr(kind, "__name__", None) or str(kind).rpartition(".")[2]
