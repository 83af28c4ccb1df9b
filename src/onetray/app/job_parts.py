"""The parts of a job: its stages, its tasks, the jobs that its handlers submitted; and which of them wait for a person.

A handler's submit passes its correlation id on, and names its task as the cause: that is how its jobs are found.
"""

from __future__ import annotations

from dataclasses import dataclass

from onetray.domain.checks import MAX_ROWS, id_or_none, whole
from onetray.domain.errors import Conflict, InvalidInput, NotFound
from onetray.domain.flow import Flow, Stage
from onetray.domain.lifecycle import STAGE, WAITING, WAITING_INPUT
from onetray.domain.listing import JobSummary, MemberSummary
from onetray.domain.task import Task
from onetray.engine.api import EngineApi

PAGE = 1_000
SHOWN = 20
"""How many names an error lists."""
CAUSE = "task "
"""Before the id of the handler's task, in the cause of a submit: see `inherit` of app/tasks.py."""


@dataclass(frozen=True, slots=True)
class Children:
    """What belongs to a job, each in the order of its creation."""

    stages: list[Stage]
    """The stages of a flow. A task has none."""
    tasks: list[MemberSummary]
    """The tasks of a flow, stage by stage. A task has none."""
    jobs: list[JobSummary]
    """The jobs that its handlers submitted, unless with a correlation id or a cause of their own."""


def children_of(engine: EngineApi, job: Task | Flow, limit: int) -> Children:
    """The children of a job: all its stages, and up to `limit` tasks and jobs."""
    whole(limit, "limit", 0, MAX_ROWS)
    if isinstance(job, Task):
        return Children([], [], _submitted_by(engine, job, limit))
    stages = engine.stages(job.id, namespace=job.namespace)
    return Children(stages, _tasks_of(engine, job, limit), _submitted_by(engine, job, limit))


def _tasks_of(engine: EngineApi, flow: Flow, limit: int) -> list[MemberSummary]:
    tasks: list[MemberSummary] = []
    while len(tasks) < limit:
        after = tasks[-1].id if tasks else None
        page = engine.members(flow.id, after=after, limit=min(PAGE, limit - len(tasks)), namespace=flow.namespace)
        if not page:
            break
        tasks += page
    return tasks


def _submitted_by(engine: EngineApi, job: Task | Flow, limit: int) -> list[JobSummary]:
    related = [other for other in _related(engine, job) if other.id != job.id]
    causes = {other.id: _parent_task(engine, other) for other in related}
    parents = {job.id} if isinstance(job, Task) else _members_among(engine, job, sorted({*causes.values()} - {""}))
    return [other for other in reversed(related) if causes[other.id] in parents][:limit]


def _related(engine: EngineApi, job: Task | Flow) -> list[JobSummary]:
    """The jobs with its correlation id that are not older, newest first."""
    found: list[JobSummary] = []
    before: int | None = None
    while True:
        page = engine.jobs(
            correlation_id=job.correlation_id, since=job.created_at, before=before, limit=PAGE, namespace=job.namespace
        )
        found += page.jobs
        before = page.before
        if before is None:
            return found


def _parent_task(engine: EngineApi, job: JobSummary) -> str:
    """The id of the task whose handler submitted it; empty if none did."""
    read = engine.events if job.entity == "task" else engine.flow_events
    cause = next((event.cause or "" for event in read(job.id, limit=1, namespace=job.namespace)), "")
    return cause.removeprefix(CAUSE) if cause.startswith(CAUSE) else ""


def _members_among(engine: EngineApi, flow: Flow, ids: list[str]) -> set[str]:
    valid = [id_ for id_ in ids if id_or_none(id_) is not None]
    pages = [valid[start : start + PAGE] for start in range(0, len(valid), PAGE)]
    found = [task for page in pages for task in engine.tasks_by_id(page, namespace=flow.namespace, raw=True)]
    return {task.id for task in found if task.job_id == flow.id}


def waiting_stage(engine: EngineApi, flow: str, name: str | None, namespace: str) -> str:
    """The id of the stage of this name or id; without a name, of the one whose turn it is, if it waits for approval."""
    stages = engine.stages(flow, namespace=namespace)
    if name is not None:
        return _named_stage(stages, flow, name)
    # Later stages that need approval are waiting, too, but cannot be approved before their turn.
    current = next((stage for stage in stages if stage.state not in STAGE.terminal), None)
    if current is not None and current.state == WAITING:
        return current.id
    state = engine.flow(flow, namespace=namespace).state
    raise Conflict(f"no stage of flow {flow} waits for approval: the flow is {state}", flow=flow, state=state)


def _named_stage(stages: list[Stage], flow: str, name: str) -> str:
    for stage in stages:
        if name in (stage.name, stage.id):
            return stage.id
    names = ", ".join(stage.name for stage in stages[:SHOWN])
    raise NotFound(f"flow {flow} has no stage {name!r}; it has: {names}", flow=flow, stage=name)


def waiting_task(engine: EngineApi, flow: str, name: str | None, namespace: str) -> str:
    """The id of the flow's task of this name or id that waits for input; without a name, of the only one that does."""
    waiting = engine.members(flow, states=[WAITING_INPUT], limit=MAX_ROWS, namespace=namespace)
    found = [task for task in waiting if name is None or name in (task.name, task.id)]
    if len(found) == 1:
        return found[0].id
    tasks = ", ".join(map(_label, waiting[:SHOWN]))
    if found:
        raise InvalidInput(f"several tasks of flow {flow} wait for input: pass task=, one of {tasks}", field="task")
    if waiting:
        raise NotFound(f"no task {name!r} of flow {flow} waits for input; these do: {tasks}", flow=flow, task=name)
    state = engine.flow(flow, namespace=namespace).state
    raise Conflict(f"no task of flow {flow} waits for input: the flow is {state}", flow=flow, state=state)


def _label(task: MemberSummary) -> str:
    return task.id if task.name is None else task.name
