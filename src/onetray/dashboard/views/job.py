"""A job's page: what it does or why it does not run, its states over time, its events, log, input and result.

Owns what the page reads: a bounded number of rows, however large the job is. job_actions.py has its forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from onetray.dashboard.gantt import Gantt, gantt_of
from onetray.dashboard.job_history import LAST, attempts_of, event_page, failure_of, path_of_states
from onetray.dashboard.log_pages import MAX_SEARCH, page_of_log
from onetray.dashboard.pages import PAGES, page
from onetray.dashboard.payloads import Shown, pretty, prose, size_text
from onetray.dashboard.state_diagram import lifecycle_svg
from onetray.dashboard.view import View
from onetray.domain.errors import InvalidInput, NotFound, error_line
from onetray.domain.flow import Flow, Progress, Stage
from onetray.domain.lifecycle import (
    CANCELLED,
    DEAD_LETTERED,
    FAILED,
    FLOW,
    HELD,
    MACHINES,
    PAUSED,
    QUEUED,
    SUCCEEDED,
    TASK,
)
from onetray.domain.listing import JobSummary, MemberSummary
from onetray.domain.past import PastJob
from onetray.domain.task import Blocker, Event, Task, value_of
from onetray.domain.token import OPERATE, SUBMIT
from onetray.explain.tasks import COUNTED, SAY_WHEN, is_claimable

TIMED_TASKS = 200
"""The largest flow whose timeline is drawn from the events of its tasks."""
SUMMARIES = 1_000
"""Of a larger flow: among how many tasks the slowest are looked for."""
MEMBERS, RELATED, MAX_RESULTS = 25, 10, 20
PATH_EVENTS = 500
STATES_OF_TAB = {
    "queued": (QUEUED,), "running": HELD, "waiting": PAUSED, "succeeded": (SUCCEEDED,),
    "failed": (FAILED, DEAD_LETTERED), "cancelled": (CANCELLED,),
}  # fmt: skip
COUNTS_OF_TAB = {
    "queued": ("queued",), "running": ("held",), "waiting": ("blocked", "waiting_input"), "succeeded": ("succeeded",),
    "failed": ("failed", "dead_lettered"), "cancelled": ("cancelled",),
}  # fmt: skip
PARTS = ("input", "result", "answer", "metadata", "context", "error")


@page("/jobs/{id}", title="Job")
def job(view: View) -> dict[str, Any]:
    at = view.query.whole("at", 0)
    found = job_of_view(view)
    past = view.engine.at(found.id, at, tasks=MEMBERS) if at else None
    shown_job: Task | Flow = past.job if past else found
    common = {
        "job": shown_job, "is_flow": isinstance(shown_job, Flow), "past": past,
        "name": shown_job.kind if isinstance(shown_job, Task) else shown_job.name,
        "is_ended": shown_job.state in MACHINES[_entity(shown_job)].terminal,
        "unknown": past.unknown.get(found.id, []) if past else [], "size_text": size_text,
        "prose": prose, "events": _events(view, found, past), "log": None if past else _log(view, found),
        "related": [] if past else _related(view, found), "search": view.query.text("q")[:MAX_SEARCH],
        "has_page": PAGES.__contains__, "shown_text": _shown_text, "error_line": error_line, "value_of": value_of,
    }  # fmt: skip
    if isinstance(shown_job, Task):
        return {**common, **_task_page(view, shown_job, past)}
    return {**common, **_flow_page(view, shown_job, past)}


def job_of_view(view: View) -> Task | Flow:
    """The task or the flow of the URL. Of another namespace, or deleted: there is none."""
    id_ = view.path["id"]
    for read in (view.engine.task, view.engine.flow):
        try:
            found: Task | Flow = read(id_, raw=True)
            return found
        except (NotFound, InvalidInput):
            pass
    raise NotFound(
        f"There is no job {id_[:50]!r} in the namespace {view.namespace!r}. It may have been deleted, by hand or after "
        "its retention, or the id is not complete: look for it in the list of jobs, or with `onetray jobs list`."
    )


def _entity(found: Task | Flow) -> str:
    return TASK.entity if isinstance(found, Task) else FLOW.entity


def _task_page(view: View, task: Task, past: PastJob | None) -> dict[str, Any]:
    events: list[Event] = view.engine.events(task.id, before=LAST, limit=PATH_EVENTS)
    known = [event for event in events if past is None or event.id <= past.event]
    first = events[0] if len(events) < PATH_EVENTS else view.engine.events(task.id, limit=1)[0]
    reported = None if past else view.engine.progress_of(task.id)
    percentages = {} if past else view.engine.percentages([task.id])
    timeline = view.engine.timeline(task.id)
    reasons = [] if past else view.engine.explain(task.id)
    return {
        "submitted_by": first.actor, "reported": reported, "percentage": percentages.get(task.id),
        "gantt": gantt_of(timeline, (), upto=past.ts if past else None), "attempts": attempts_of(known, task.error),
        "path": lifecycle_svg(TASK, path_of_states(known, task.id)), "why": _why(view, task, reasons),
        "failure": failure_of(task.error), "values": _values_of_task(task), "actions": _actions(view, task, past),
        "needs": view.engine.dependencies([task.id])[:MEMBERS] if task.stage_id else [],
        "parent": view.engine.flow(task.job_id, raw=True) if task.stage_id else None,
        "successors": [] if past else _successors(view, task, reasons),
    }  # fmt: skip


def _flow_page(view: View, flow: Flow, past: PastJob | None) -> dict[str, Any]:
    own = view.engine.own_events(flow.id, limit=PATH_EVENTS)
    known = [event for event in own if past is None or event.id <= past.event]
    progress: Progress | None = None if past else view.engine.progress(flow.id)
    stages: Sequence[Stage] = past.stages if past else progress.stages if progress else ()
    reasons = [] if past else view.engine.explain(flow.id)
    return {
        "submitted_by": own[0].actor, "progress": progress, "percentage": progress.percentage if progress else None,
        "stages": stages, "gantt": _gantt_of_flow(view, flow, stages, past),
        "path": lifecycle_svg(FLOW, path_of_states(known, flow.id)), "why": _why(view, flow, reasons),
        "failure": failure_of(flow.error), "values": _values_of_flow(view, flow, stages, past),
        "actions": _actions(view, flow, past), "errors": None if past else view.engine.flow_errors(flow.id, limit=10),
        "members": _members_page(view, flow, past), "tabs": _tabs(view, progress) if progress else [],
        "stage_name": next((s.name for s in stages if s.id == view.query.text("stage")), None),
        "successors": [] if past else _successors(view, flow, reasons),
        "stage_actions": {} if past or not view.may(OPERATE) else {stage.id: stage.actions for stage in stages},
    }  # fmt: skip


def _gantt_of_flow(view: View, flow: Flow, stages: Sequence[Stage], past: PastJob | None) -> Gantt:
    total = sum(stage.counts.total for stage in stages)
    upto = past.ts if past else None
    if total <= TIMED_TASKS:
        return gantt_of(view.engine.timeline(flow.id, tasks=TIMED_TASKS), stages, upto=upto)
    members = [] if past else view.engine.members(flow.id, limit=SUMMARIES)
    return gantt_of(view.engine.timeline(flow.id, tasks=0), stages, members, upto=upto)


def _why(view: View, found: Task | Flow, reasons: Sequence[Blocker]) -> dict[str, Any]:
    """Why the job does not run, how it runs, or how it has ended."""
    ahead = None
    if isinstance(found, Task) and found.state == QUEUED and is_claimable(reasons):
        ahead = view.engine.position(found.id, most=COUNTED + 1)
    return {"reasons": reasons, "ahead": ahead, "counted": COUNTED, "say_when": SAY_WHEN}


def _actions(view: View, found: Task | Flow, past: PastJob | None) -> frozenset[str]:
    """What the caller may do now, by the names of the forms."""
    if past:
        return frozenset()
    actions = {name for name in found.actions if view.may(SUBMIT if name == FLOW.open.name else OPERATE)}
    if not view.may(OPERATE):
        return frozenset(actions)
    if "cancel" in actions:
        is_asked = found.ending is not None if isinstance(found, Flow) else found.cancel_requested_at is not None
        actions -= {"cancel"} if is_asked else set()
        actions |= {"hard_cancel"} if isinstance(found, Flow) or found.state in HELD else set()
    is_ending = isinstance(found, Flow) and found.ending is not None
    if found.state not in MACHINES[_entity(found)].terminal and not is_ending:
        actions.add("priority")
    if isinstance(found, Task) and found.state == QUEUED and found.run_at > view.now:
        actions.add("run_now")
    return frozenset(actions - {"redrive"})


def _values_of_task(task: Task) -> list[tuple[str, str, Shown | None]]:
    """The parts that are shown as JSON: the name of the part, its title, and its value."""
    found = [("input", "Input", pretty(task.payload))]
    if task.input is not None:
        found.append(("answer", "Input that was given later", pretty(task.input)))
    if task.result is not None or task.state == SUCCEEDED:
        found.append(("result", "Result", pretty(task.result)))
    if task.metadata is not None:
        found.append(("metadata", "Metadata", pretty(task.metadata)))
    return found


def _values_of_flow(
    view: View, flow: Flow, stages: Sequence[Stage], past: PastJob | None
) -> list[tuple[str, str, Shown | None]]:
    found = [("input", "Data", pretty(flow.data))]
    if flow.metadata is not None:
        found.append(("metadata", "Metadata", pretty(flow.metadata)))
    if flow.context_id is not None and past is None and (context := view.engine.context(flow.id)) is not None:
        found.append(("context", "Context", pretty(context.payload)))
    results = [stage for stage in stages if stage.result is not None][-MAX_RESULTS:]
    return [*found, *((f"result:{s.id}", f"Result of {s.name}", pretty(s.result)) for s in results)]


def _events(view: View, found: Task | Flow, past: PastJob | None) -> Any:
    read = partial(view.engine.events if isinstance(found, Task) else view.engine.flow_events, found.id)
    after, before = (view.query.whole(name, 0, most=LAST) or None for name in ("events_after", "events_before"))
    if past and after is None and before is None:
        before = past.event + 1
    return event_page(read, after=after, before=before, oldest=view.query.text("order") == "oldest")


def _shown_text(value: Any) -> str:
    """The beginning of a JSON value."""
    found = pretty(value)
    return "" if found is None else f"{found.text}\n…" if found.is_cut else found.text


def _log(view: View, found: Task | Flow) -> Any:
    read = partial(view.engine.logs if isinstance(found, Task) else view.engine.member_reports, found.id, raw=True)
    return page_of_log(
        read, view.query.whole("log_before", 0, most=LAST) or None, view.query.text("q")[:MAX_SEARCH]
    )  # fmt: skip


def _related(view: View, found: Task | Flow) -> list[JobSummary]:
    """Other jobs with the same correlation id."""
    jobs: list[JobSummary] = view.engine.jobs(correlation_id=found.correlation_id, limit=RELATED + 1).jobs
    own = found.job_id if isinstance(found, Task) else found.id
    return [each for each in jobs if each.id != own][:RELATED]


def _successors(view: View, found: Task | Flow, reasons: Sequence[Blocker]) -> list[str]:
    """The jobs that have run this one again."""
    told = [str(reason.facts["successor"]) for reason in reasons if "successor" in reason.facts]
    if told or found.state not in MACHINES[_entity(found)].terminal or not view.engine.retried([found.id]):
        return told
    jobs = view.engine.jobs(correlation_id=found.correlation_id, entity=_entity(found), limit=RELATED + 1).jobs
    ids = [each.id for each in jobs if each.id != found.id]
    others = view.engine.tasks_by_id(ids, raw=True) if isinstance(found, Task) else map(view.engine.flow, ids)
    return [other.id for other in others if other.retry_of == found.id]


def _members_page(view: View, flow: Flow, past: PastJob | None) -> dict[str, Any]:
    """A page of the tasks of a flow."""
    if past:
        return {"tasks": past.tasks, "more": None, "cut": past.cut, "names": {s.id: s.name for s in past.stages}}
    states = STATES_OF_TAB.get(view.query.text("state"), ())
    stage, after = (view.query.text(name) or None for name in ("stage", "after"))
    found: list[MemberSummary] = view.engine.members(
        flow.id, stage=stage, states=states, after=after, limit=MEMBERS + 1
    )
    return {"tasks": found[:MEMBERS], "more": found[MEMBERS - 1].id if len(found) > MEMBERS else None, "cut": False}


def _tabs(view: View, progress: Progress) -> list[dict[str, Any]]:
    """The tasks by state, those that occur."""
    chosen = view.query.text("state")
    tabs = [
        {"name": f"All {progress.counts.total:,}", "href": _tab(view, None), "current": chosen not in STATES_OF_TAB}
    ]
    for name, counted in COUNTS_OF_TAB.items():
        count = sum(getattr(progress.counts, each) for each in counted)
        if count or chosen == name:
            tabs.append({"name": f"{name} {count:,}", "href": _tab(view, name), "current": chosen == name})
    return tabs


def _tab(view: View, state: str | None) -> str:
    return view.url(state=state, after=None) + "#tasks"


@page("/jobs/{id}/json/{part}", title="Content of a job")
def job_json(view: View) -> dict[str, Any]:
    """The whole of what the job's page shows only the beginning of."""
    found, part = job_of_view(view), view.path["part"]
    name, _, stage = part.partition(":")
    if name not in PARTS:
        raise NotFound(f"a job has no {part[:50]!r}: go back to its page, and follow a link there")
    if name == "result" and isinstance(found, Flow):
        value = next((s.result for s in view.engine.stages(found.id, raw=True) if s.id == stage), None)
    elif name == "context":
        context = view.engine.context(found.id) if isinstance(found, Flow) else None
        value = context.payload if context else None
    else:
        field = {"input": "payload", "answer": "input"}.get(name, name) if isinstance(found, Task) else _of_flow(name)
        value = getattr(found, field, None)
    content = pretty(value, whole=True)
    return {"job": found, "part": name, "content": content, "size_text": size_text}


def _of_flow(name: str) -> str:
    return "data" if name == "input" else name
