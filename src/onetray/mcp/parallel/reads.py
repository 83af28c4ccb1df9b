"""The tools that read: runs, tasks, snapshots and events."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from onetray.domain.checks import MAX_ROWS
from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.flow import Flow
from onetray.domain.lifecycle import FLOW, TASK
from onetray.domain.task import Event, Task
from onetray.mcp.call import Call
from onetray.mcp.parallel import arguments as a
from onetray.mcp.parallel.records import (
    EXTERNAL_ID,
    NAMESPACE,
    Record,
    event_record,
    names_of,
    run_records,
    snapshot_record,
    task_records,
)
from onetray.mcp.parallel.reports import QUEUE
from onetray.mcp.parallel.runs import RUN, find_run, find_task, id_of, run_view, task_view
from onetray.mcp.parallel.words import EVENT_NAMES, RUN_STATES

PAGE = 100
"""Of `job_details`."""
MAX_HINTS = 10_000


def read_run(call: Call, wanted: a.OfRun) -> Record:
    try:
        return run_view(call, find_run(call, wanted.runId))
    except NotFound:
        return {"run": None}


def read_task(call: Call, wanted: a.OfTask) -> Record:
    try:
        return task_view(call, find_task(call, wanted.taskId))
    except NotFound:
        return {"task": None}


def get_current_context_snapshot(call: Call, wanted: a.OfRun) -> Record:
    try:
        current = call.read(call.engine.context, id_of(call, FLOW.entity, wanted.runId))
    except NotFound:
        current = None
    return {"snapshot": None if current is None else snapshot_record(call.engine, call.namespace, current)}


def list_runs(call: Call, wanted: a.ListRuns) -> Record:
    labels = {NAMESPACE: wanted.namespace, EXTERNAL_ID: wanted.externalId}
    # A run without an id of its own is an old one: a requeue has copied it.
    found = call.read(
        call.engine.sorted_jobs, entity=FLOW.entity, kind=RUN, aliased=True,
        labels={name: value for name, value in labels.items() if value is not None},
        states=[state for status in dict.fromkeys(wanted.statuses) for state in RUN_STATES.natives(status)],
        updated_since=wanted.updatedAfter or 0, updated_until=wanted.updatedBefore, order_by=wanted.orderBy,
        descending=wanted.orderDir == "desc", limit=wanted.limit, offset=wanted.offset,
    )  # fmt: skip
    keys, flows = [job.key for job in found], dict[int, Flow]()
    for first in range(0, len(keys), PAGE):
        for each in call.read(call.engine.job_details, keys[first : first + PAGE], lines=0):
            assert each.flow is not None
            flows[each.flow.key] = each.flow
    return {"runs": run_records(call.engine, call.namespace, [flows[key] for key in keys if key in flows])}


def list_run_tasks(call: Call, wanted: a.OfRun) -> Record:
    tasks = _tasks_of(call, find_run(call, wanted.runId))
    requeued = {task.retry_of for task in tasks}
    current = sorted((task for task in tasks if task.id not in requeued), key=lambda task: (-task.priority, task.key))
    return {"tasks": task_records(call.engine, call.namespace, current)}


def _tasks_of(call: Call, run: Flow) -> list[Task]:
    stages = call.read(call.engine.stages, run.id, raw=True)
    tasks = call.read(call.engine.tasks_of_stages, [stage.key for stage in stages], limit=MAX_ROWS) if stages else []
    if len(tasks) == MAX_ROWS:
        raise InvalidInput(
            f"the run has {MAX_ROWS:,} tasks or more: read them by list_pending_tasks, list_dead_tasks and get_task",
            field="runId",
        )
    return tasks


def list_pending_tasks(call: Call, wanted: a.ListPendingTasks) -> Record:
    flow = None if wanted.runId is None else find_run(call, wanted.runId).id
    filters: dict[str, Any] = {"flow": flow, "kinds": wanted.kinds, "limit": wanted.limit, "queue": QUEUE}
    tasks = call.read(call.engine.pending_tasks, ready_by=wanted.readyBy, **filters)
    return {"tasks": task_records(call.engine, call.namespace, tasks)}


def list_dead_tasks(call: Call, wanted: a.ListDeadTasks) -> Record:
    flow = None if wanted.runId is None else find_run(call, wanted.runId).id
    filters: dict[str, Any] = {"flow": flow, "kinds": wanted.kinds, "limit": wanted.limit, "offset": wanted.offset}
    lines = call.read(call.engine.dead_lines, queue=QUEUE, **filters)
    tasks = call.read(call.engine.tasks_by_id, [line.id for line in lines], raw=True)
    return {"tasks": task_records(call.engine, call.namespace, tasks)}


def list_run_events(call: Call, wanted: a.OfRun) -> Record:
    runs = _with_origins(call, find_run(call, wanted.runId))
    events, after = list[Event](), 0
    while page := _events_of(call, runs, after, list(EVENT_NAMES), 1_000):
        events += page
        after = events[-1].id
        if len(events) > MAX_ROWS:
            raise InvalidInput(
                f"the run has more than {MAX_ROWS:,} events: read them by list_events_since", field="runId"
            )
    return {"events": _event_records(call, events)}


def list_events_since(call: Call, wanted: a.ListEventsSince) -> Record:
    types = [type_ for type_, name in EVENT_NAMES.items() if not wanted.eventTypes or name in _named(wanted)]
    if not types:
        return {"events": [], "nextCursor": wanted.afterId}
    if wanted.runId is not None:
        runs = _with_origins(call, find_run(call, wanted.runId))
        events = _events_of(call, runs, wanted.afterId, types, wanted.limit)
    else:
        events = _events_of_all(call, wanted.afterId, types, wanted.limit)
    records = [each for each in _event_records(call, events) if not wanted.eventTypes or _is_wanted(each, wanted)]
    return {"events": records, "nextCursor": events[-1].id if events else wanted.afterId}


def _named(wanted: a.ListEventsSince) -> set[str]:
    """The wanted names. What is requeued is submitted, too."""
    return {*wanted.eventTypes, *(("task.enqueued",) if "task.requeued_from_dlq" in wanted.eventTypes else ())}


def _is_wanted(record: Record, wanted: a.ListEventsSince) -> bool:
    return record["eventType"] in wanted.eventTypes


def _with_origins(call: Call, run: Flow) -> list[Flow]:
    """The flow of a run, after those that it was copied from by requeues. The first may be deleted."""
    flows = [run]
    while flows[0].retry_of is not None:
        try:
            flows.insert(0, call.read(call.engine.flow, flows[0].retry_of, raw=True))
        except NotFound:
            break
    return flows


def _events_of(call: Call, runs: list[Flow], after: int, types: list[str], limit: int) -> list[Event]:
    """The next events of a run. An older flow has none after it was copied."""
    events: list[Event] = []
    for flow in runs:
        if len(events) < limit:
            left = limit - len(events)
            events += call.read(call.engine.events_since, flow=flow.id, after=after, types=types, limit=left).events
    return events


_HINTS: OrderedDict[tuple[str, int, tuple[str, ...]], int] = OrderedDict()
"""Up to where there is no event for a namespace, after a cursor. The cursor that callers get stays the same, so that it
does not tell what others do; without a hint, each call of an idle caller would read the events of all."""


def _events_of_all(call: Call, after: int, types: list[str], limit: int) -> list[Event]:
    key = (call.namespace, after, tuple(types))
    at = max(after, _HINTS.pop(key, 0))
    while True:
        page = call.read(call.engine.events_since, after=at, types=types, limit=limit)
        if page.events:
            return page.events
        if page.next_cursor == at:
            break
        at = page.next_cursor
    _HINTS[key] = at
    if len(_HINTS) > MAX_HINTS:
        _HINTS.popitem(last=False)
    return []


def _event_records(call: Call, events: list[Event]) -> list[Record]:
    tasks = {event.entity_id for event in events if event.type.startswith(f"{TASK.entity}.")}
    contexts = {
        event.payload["context"] for event in events if isinstance(event.payload, dict) and "context" in event.payload
    }
    names = names_of(call.engine, call.namespace, sorted(tasks | contexts))
    # A task of a run without an id of its own was requeued: the id belongs to its successor.
    nameless = [event for event in events if event.entity_id in tasks - names.keys()]
    for run in {event.correlation_id for event in nameless if event.correlation_id != event.job_id}:
        names |= _names_before_requeue(call, run)
    return [each for event in events if (each := event_record(event, names)) is not None]


def _names_before_requeue(call: Call, run_id: str) -> dict[str, str]:
    names: dict[str, str] = {}
    try:
        runs = _with_origins(call, find_run(call, run_id))
    except NotFound:
        return names
    for flow in reversed(runs):
        for task in sorted(_all_tasks_of(call, flow), key=lambda task: -task.key):
            shown = task.alias or names.get(task.id)
            if shown is not None:
                names[task.id] = shown
                if task.retry_of is not None:
                    names[task.retry_of] = shown
    return names


def _all_tasks_of(call: Call, run: Flow) -> Iterator[Task]:
    for stage in call.read(call.engine.stages, run.id, raw=True):
        after = 0
        while page := call.read(call.engine.stage_tasks, stage.id, after=after, limit=1_000):
            yield from page
            after = page[-1].key
