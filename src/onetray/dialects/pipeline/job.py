"""Flows as jobs of a pipeline. Owns the statuses, and what a job, a stage and a list show."""

from __future__ import annotations

from typing import Any

from onetray.dialects import kit
from onetray.domain import lifecycle as native
from onetray.domain.errors import NotFound
from onetray.domain.flow import Flow, FlowErrors, Progress, Stage
from onetray.domain.lifecycle import FLOW, STAGE
from onetray.domain.listing import JobStatus, JobSummary
from onetray.engine.api import EngineApi

PENDING, RUNNING, CANCELLED = "PENDING", "RUNNING", "CANCELLED"
# Stale jobs are cleaned up, and FAILED, in either open state.
TABLE = kit.StateTable.read(FLOW.entity, "job", """
    created = PENDING; pending, waiting, paused = PENDING/RUNNING; running = RUNNING; succeeded = COMPLETED
    partial = PARTIAL; failed = FAILED; cancelled = CANCELLED
    new → PENDING → RUNNING, CANCELLED
    RUNNING → COMPLETED, PARTIAL, FAILED, CANCELLED
    PENDING → FAILED
    PENDING → COMPLETED: all stages were skipped
    PENDING → PARTIAL: only stages of the retried job succeeded
""", second_after=("start",))  # fmt: skip
SUSPENDED = (native.WAITING, native.FLOW_PAUSED)
STAGE_STATUSES = {state: state for state in STAGE.states} | {
    native.CREATED: "pending", native.SUCCEEDED: "completed"
}  # fmt: skip
MAX_SUSPENDED = 1_000
"""How many paused and waiting flows a list reads, to count those that have started."""


def status_of(job: JobStatus | JobSummary | Flow) -> str:
    return TABLE.show(job)


def find_flow(engine: EngineApi, id_: str, namespace: str) -> JobStatus:
    job = kit.find_job(engine, id_, namespace)
    if job.entity != FLOW.entity:
        raise NotFound(f"there is no job {id_[:50]}")
    return job


def time(at: int | None) -> str | None:
    return None if at is None else kit.iso_time(at)


def summary(flow: Flow) -> dict[str, Any]:
    """A job in a list. `trace_id`: of the W3C trace that it was submitted in, otherwise its correlation id."""
    return {
        "job_id": flow.id, "pipeline": flow.name, "status": status_of(flow), "current_stage": flow.current_stage,
        "trace_id": flow.trace.split("-")[1] if flow.trace else flow.correlation_id,
        "created_at": time(flow.created_at), "started_at": time(flow.started_at),
        "finished_at": time(flow.finished_at), "cancel_requested": native.CANCELLED in (flow.ending, flow.state),
    }  # fmt: skip


def details(engine: EngineApi, id_: str, namespace: str) -> dict[str, Any]:
    flow = engine.flow(find_flow(engine, id_, namespace).id, namespace=namespace)
    progress = engine.progress(flow.id, namespace=namespace)
    reasons: dict[str, str | None] = {}
    if any(stage.state == native.SKIPPED for stage in progress.stages):
        events = engine.own_events(flow.id, namespace=namespace)
        reasons = {event.entity_id: event.cause for event in events if event.type == STAGE.skip.event}
    return {
        **summary(flow), "config": flow.data, "percentage": percentage_of_job(progress),
        "stage_progress": {s.name: {**stage_view(s), "reason": reasons.get(s.id)} for s in progress.stages},
        **error_list(engine.flow_errors(flow.id, namespace=namespace)),
    }  # fmt: skip


def percentage_of_stage(stage: Stage) -> int:
    """100 when it has ended, whatever its outcome: `status` says that."""
    return 100 if stage.state in STAGE.terminal else stage.percentage


def percentage_of_job(progress: Progress) -> int:
    if progress.state in FLOW.terminal:
        return 100
    return sum(map(percentage_of_stage, progress.stages)) // (len(progress.stages) or 1)


def error_list(found: FlowErrors) -> dict[str, Any]:
    errors = [{"stage": e.stage, "task": e.name or e.task, "message": e.message} for e in found.errors]
    return {"errors": errors, "error_count": found.total}


def stage_view(stage: Stage) -> dict[str, Any]:
    began, ended = stage.started_at, stage.finished_at
    return {
        "status": STAGE_STATUSES[stage.state], "percentage": percentage_of_stage(stage),
        "completed": stage.counts.succeeded, "failed": stage.counts.failed + stage.counts.dead_lettered,
        "total": stage.counts.total,
        "started_at": time(began), "finished_at": time(ended), "metrics": stage.metrics,
        "duration_ms": None if began is None or ended is None else (ended - began) // 1_000,
        **error_list(FlowErrors(list(stage.all_errors), stage.error_count)),
    }  # fmt: skip


def job_list(engine: EngineApi, namespace: str, status: str | None, limit: int) -> dict[str, Any]:
    """The newest jobs of a status, how many there are, and how many of all jobs run."""
    suspended, _ = kit.walk_jobs(engine, namespace, None, MAX_SUSPENDED, entity=FLOW.entity, states=SUSPENDED)
    of_suspended = [status_of(job) for job in suspended]

    def count(status: str | None) -> int:
        states = [state for state in TABLE.natives(status) if state not in SUSPENDED]
        page = engine.jobs(namespace=namespace, entity=FLOW.entity, states=states, limit=1, total=True)
        return (page.total or 0) + (of_suspended.count(status) if status else 0)

    keys = [job.key for job in _newest(engine, namespace, status, limit)]
    jobs = [each.job for each in engine.job_details(keys, lines=0, namespace=namespace)]
    listed = [summary(job) for job in jobs if isinstance(job, Flow)]
    return {"jobs": listed, "total": count(status), "running_count": count(RUNNING)}


def _newest(engine: EngineApi, namespace: str, status: str | None, limit: int) -> list[JobSummary]:
    found: list[JobSummary] = []
    before: int | None = None
    for _ in range(kit.READS):
        page, before = kit.walk_jobs(engine, namespace, before, limit, entity=FLOW.entity, states=TABLE.natives(status))
        found += [job for job in page if status in (None, status_of(job))]
        if len(found) >= limit or before is None:
            break
    return found[:limit]
