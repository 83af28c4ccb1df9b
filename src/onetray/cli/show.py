"""The facts that `show` prints of a task and of a flow, in order, and the tables of stages and members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from onetray.cli.format import counted, moment, precise_clock
from onetray.cli.output import jsonable, print_json
from onetray.cli.tables import Lines, print_facts, print_table

if TYPE_CHECKING:
    from onetray.domain.flow import Flow, FlowErrors, Progress, Stage
    from onetray.domain.listing import JobSummary, MemberSummary
    from onetray.domain.past import PastJob, Timeline
    from onetray.domain.task import Task
    from onetray.engine.api import EngineApi

Facts = list[tuple[str, Any]]


def print_task(engine: EngineApi, id_: str, namespace: str, as_json: bool) -> None:
    """Print a task with all its fields and its progress."""
    task, progress = engine.task(id_, namespace=namespace), engine.task_progress(id_, namespace=namespace)
    if as_json:
        print_json({**jsonable(task), "progress": progress})
    else:
        print_facts(task_facts(task, progress, engine.now()))


def print_past(past: PastJob, now: int, as_json: bool) -> None:
    """Print a job as it was. Fields that the log does not tell are left out, and are listed at the end."""
    from onetray.domain.flow import Progress

    if as_json:
        print_json(past)
        return
    print_facts([("after event", past.event), ("type", past.type), ("at", moment(past.ts, now))])
    click.echo()
    if past.task is not None:
        print_facts(task_facts(past.task, Progress.of_task(past.task, None), now))
    elif past.flow is not None:
        print_facts(flow_facts(past.flow, Progress.of_flow(past.flow, past.stages), now))
        click.echo()
        print_stages(past.stages, now)
        _print_past_tasks(past)
    for id_, names in past.unknown.items():
        click.echo(f"The log does not tell of {id_}: {', '.join(names)}", err=True)


def _print_past_tasks(past: PastJob) -> None:
    if not past.tasks:
        return
    names = {stage.id: stage.name for stage in past.stages}
    click.echo()
    print_table(
        ("id", "stage", "task", "state", "attempts", "worker"),
        [
            (t.id, names.get(t.stage_id or ""), t.name or t.kind, t.state, f"{t.attempts} of {t.max_attempts}", t.owner)
            for t in past.tasks
        ],
    )
    if past.cut:
        click.echo("The flow had more tasks.", err=True)


def print_timeline(timeline: Timeline) -> None:
    from onetray.domain.clock import SECOND

    print_table(
        ("what", "state", "from", "for", "then", "attempt", "worker", "event"),
        [
            (
                f"{i.entity} {i.label}", i.state, precise_clock(i.from_at),
                f"{((i.until_at or timeline.now_at) - i.from_at) / SECOND:.3f} s", i.next_state, i.attempt, i.worker,
                i.event,
            )
            for i in timeline.intervals
        ],
    )  # fmt: skip
    if timeline.cut:
        click.echo("There are more tasks or states than these: --tasks sets the number of tasks.", err=True)


def task_facts(t: Task, p: Progress, now: int) -> Facts:
    in_flow = t.job_id != t.id
    return [
        ("task", t.id), ("alias", t.alias), ("kind", t.kind), ("name", t.name), ("state", t.state),
        ("progress", progress_text(p) if p.reported else None), ("queue", t.queue),
        ("namespace", t.namespace), ("flow", t.job_id if in_flow else None), ("stage", t.stage_id),
        ("attempts", f"{t.attempts} of {t.max_attempts}"), ("priority", t.priority or None), ("fence", t.fence),
        ("submitted", moment(t.created_at, now)), ("runs", moment(t.run_at, now) if t.run_at > now else None),
        ("started", moment(t.started_at, now)), ("finished", moment(t.finished_at, now)),
        ("worker", t.owner), ("lease ends", moment(t.lease_expires_at, now)),
        ("cancel requested", moment(t.cancel_requested_at, now)), ("held by", t.held_by), ("because", t.held_why),
        ("retry of", t.retry_of), ("correlation", t.correlation_id if t.correlation_id != t.id else None),
        ("trace", t.trace), ("trace state", t.tracestate), ("metadata", as_text(t.metadata)),
        ("payload", as_text(t.payload)), ("input", as_text(t.input)),
        ("result", as_text(t.result)), *error_facts(t.error), ("allowed", ", ".join(t.actions)),
    ]  # fmt: skip


def flow_facts(f: Flow, p: Progress, now: int) -> Facts:
    c = p.counts
    tasks = {
        "queued": c.queued, "held": c.held, "blocked": c.blocked, "waiting for input": c.waiting_input,
        "succeeded": c.succeeded, "failed": c.failed, "dead-lettered": c.dead_lettered, "cancelled": c.cancelled,
    }  # fmt: skip
    return [
        ("flow", f.id), ("alias", f.alias), ("name", f.name), ("state", state_of(f)), ("namespace", f.namespace),
        ("progress", f"{p.percentage} %"), ("at stage", f.current_stage), ("tasks", _cell(c.total, tasks)),
        ("roll-up", f.roll_up), ("submitted", moment(f.created_at, now)),
        ("started", moment(f.started_at, now)), ("finished", moment(f.finished_at, now)),
        ("deadline", moment(f.deadline_at, now)), ("retry of", f.retry_of),
        ("compensates", f.compensates), ("compensation", f.compensation),
        ("correlation", f.correlation_id if f.correlation_id != f.id else None), ("trace", f.trace),
        ("trace state", f.tracestate), ("priority", f.priority or None),
        ("data", as_text(f.data)), ("metadata", as_text(f.metadata)), *error_facts(f.error),
        ("allowed", ", ".join(f.actions)),
    ]  # fmt: skip


def progress_text(p: Progress) -> str:
    """How far a job is, in one line: "50 %, stage 2 of 3: summarize, 12 of 40 tasks" or "25 %, 2 of 8: page 2"."""
    parts = [f"{p.percentage} %"]
    if p.stages:
        current = [(i, s) for i, s in enumerate(p.stages, 1) if s.name == p.current_stage and s.finished_at is None]
        parts += [f"stage {i} of {len(p.stages)}: {stage.name}" for i, stage in current]
        parts.append(f"{p.counts.done:,} of {counted(p.counts.total, 'task')}")
    if p.reported is not None:
        total = "" if p.reported.total is None else f" of {p.reported.total:g}"
        message = f": {p.reported.message}" if p.reported.message else ""
        parts.append(f"{p.reported.done:g}{total}{message}")
    return ", ".join(parts)


def print_stages(stages: Sequence[Stage], now: int) -> None:
    print_table(
        ("stage", "name", "state", "done", "waits for", "id"),
        [(s.order, s.name, state_of(s), f"{_done(s):,} of {s.counts.total:,}", _waits(s, now), s.id) for s in stages],
    )


def _done(stage: Stage) -> int:
    """How many tasks of a stage count as done: after its end only those that succeeded."""
    return stage.counts.done if stage.finished_at is None else stage.counts.succeeded


def print_errors(errors: FlowErrors) -> None:
    if not errors.errors:
        return
    click.echo()
    print_table(("stage", "task", "error"), [(e.stage, e.name or e.task, e.message) for e in errors.errors])
    if errors.total > len(errors.errors):
        click.echo(f"These are the first of {errors.total:,} errors.", err=True)


def print_members(members: Sequence[MemberSummary], now: int) -> None:
    print_table(
        ("id", "stage", "task", "state", "attempts", "worker", "submitted", "error"),
        [
            (
                m.id, m.stage, m.name or m.kind, m.state, f"{m.attempts} of {m.max_attempts}", m.owner,
                moment(m.created_at, now), _message(m.error),
            )
            for m in members
        ],
    )  # fmt: skip


def error_facts(error: Any) -> Facts:
    """An error, and its traceback as the lines that Python would print."""
    detail = error.get("detail") if isinstance(error, dict) else None
    trace = detail.get("traceback") if isinstance(detail, dict) else None
    if not isinstance(detail, dict) or not isinstance(trace, str):
        return [("error", as_text(error))]
    rest = {name: value for name, value in detail.items() if name != "traceback"}
    short = {name: value for name, value in {**error, "detail": rest}.items() if value not in ({}, None)}
    return [("error", as_text(short)), ("traceback", Lines(trace))]


def _message(error: Any) -> str | None:
    """The message of an error. A heavily redacted error is the text `***` instead of an object."""
    return error.get("message") if isinstance(error, dict) else error


def state_of(entity: Flow | Stage | JobSummary) -> str:
    """The state, and the one in which the entity is about to end."""
    return entity.state if entity.ending is None else f"{entity.state}, ending as {entity.ending}"


def as_text(value: Any) -> str | None:
    import json

    return None if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _waits(s: Stage, now: int) -> str:
    from onetray.domain.lifecycle import WAITING

    if s.state != WAITING:
        return ""
    approval = s.approval or {}
    until = f", until {moment(s.due_at, now)}" if s.due_at is not None else ""
    return f"{approval.get('owner') or 'anybody'}: {approval.get('reason') or 'waits for approval'}{until}"


def _cell(total: int, parts: dict[str, int]) -> str:
    return ", ".join([f"{total:,}", *(f"{n:,} {name}" for name, n in parts.items() if n)])
