"""Jobnik's transitions, cascades and rules, one test or more for each row, in native terms.

A Jobnik job is a strict flow that grows: CREATED, PENDING, PAUSED, WAITING keep their names, IN_PROGRESS is running,
COMPLETED succeeded, ABORTED cancelled. A task that is PENDING or RETRIED is queued, IN_PROGRESS assigned or running.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import Conflict, IllegalTransition, InvalidInput, LeaseLost, UnknownVerb
from onetray.domain.flow import Placed, StageSpec, TaskSpec
from onetray.domain.lifecycle import (
    ASSIGNED,
    CANCELLED,
    CREATED,
    DEAD_LETTERED,
    FAILED,
    FLOW,
    FLOW_PAUSED,
    PARTIAL,
    PENDING,
    QUEUED,
    RUNNING,
    SKIPPED,
    STAGE,
    SUCCEEDED,
    TASK,
    WAITING,
)
from onetray.domain.machine import SYSTEM, USER, WORKER
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.drive import all_states, begun, events_of, flow_state, run, stage, stage_states, task_states
from tests.support.listening import register
from tests.support.seeds import row, ticked_off
from tests.support.tasks import last, running, settle, state, take

ROWS = (
    "job, by a user: PENDING resumes a paused job",
    "job, by a user: PENDING starts a created job",
    "job, by a user: PAUSED",
    "job, by a user: ABORTED",
    "job, by the system: CREATED → PENDING",
    "job, by the system: PENDING → IN_PROGRESS",
    "job, by the system: IN_PROGRESS → COMPLETED",
    "job, by the system: IN_PROGRESS → FAILED",
    "job, illegal: IN_PROGRESS, COMPLETED and FAILED by hand",
    "stage, by a user: WAITING → PENDING",
    "stage, by the system: CREATED → PENDING, the first",
    "stage, by the system: CREATED → PENDING, the previous is COMPLETED",
    "stage, by the system: CREATED, PENDING, IN_PROGRESS → WAITING",
    "stage, by the system: PENDING → IN_PROGRESS",
    "stage, by the system: IN_PROGRESS → COMPLETED",
    "stage, by the system: IN_PROGRESS → FAILED",
    "stage, by the system: any → ABORTED",
    "stage, order: the second waits for the first to be COMPLETED",
    "stage, illegal: IN_PROGRESS, COMPLETED, FAILED and ABORTED by hand",
    "stage, illegal: PENDING while the previous is not COMPLETED",
    "task, by a worker: IN_PROGRESS → COMPLETED",
    "task, by a worker: IN_PROGRESS → FAILED",
    "task, by the system: CREATED → PENDING",
    "task, by the system: PENDING → IN_PROGRESS",
    "task, by the system: IN_PROGRESS → RETRIED",
    "task, by the system: RETRIED → IN_PROGRESS",
    "task, illegal: PENDING and IN_PROGRESS by hand",
    "cascade up 1: all tasks complete, the stage is COMPLETED",
    "cascade up 2: all stages complete, the job is COMPLETED",
    "cascade up 3: a task fails for good, stage and job are FAILED",
    "cascade down 1: an aborted job is ABORTED",
    "cascade down 2: all its stages are ABORTED",
    "summary: job",
    "summary: stage",
    "summary: task",
    "rule: one attempt fails the task",
    "rule: RETRIED can be dequeued at once",
    "rule: dequeued by priority, then by age",
    "rule: tasks are added to CREATED, PENDING and WAITING stages",
    "rule: stages are added to any job that is not final",
    "rule: a WAITING stage stays so when the one before completes",
    "rule: an empty stage does not complete by itself",
    "rule: failed, dead-lettered and cancelled tasks all fail or end what they are in",
    "rule: a report without a fence means the current attempt",
    "rule: a report counts only while the task is IN_PROGRESS",
    "rule: dequeue takes an implicit lease",
    "fault: an abort that does not cascade",
    "fault: a resumed job that can never complete",
    "fault: completing the last task while PAUSED is refused",
    "fault: duplicate orders under concurrent addStage",
    "fault: an error of the server on an empty list of tasks",
)


def job(engine: Engine, **fields: Any) -> Placed:
    """A job as it is created: stages and tasks come later."""
    return engine.submit_flow("job", **fields)


def by_whom(machine: Any, name: str) -> frozenset[str]:
    by: frozenset[str] = machine.by_name[name].by
    return by


@row("job, by a user: PENDING resumes a paused job")
def test_job_paused_to_pending_by_resume(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x")])
    engine.pause_flow(flow.id)
    assert engine.resume_flow(flow.id, actor_name="ann").state == PENDING
    assert run(engine) == ["x"]


@row("job, by a user: PENDING resumes a paused job")
def test_job_that_was_in_progress_is_in_progress_again_when_resumed(engine: Engine) -> None:
    flow, _ = begun(engine, stage("a", "x", "x"))
    engine.pause_flow(flow.id)
    assert engine.resume_flow(flow.id).state == RUNNING
    assert events_of(engine, flow, flow.id)[-3:] == ["flow.paused", "flow.resumed", "flow.started"]


@row("job, by a user: PENDING starts a created job")
def test_job_created_to_pending_by_open(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x")], start=False)
    assert (flow.state, engine.claim(worker="w")) == (CREATED, [])
    assert engine.open_flow(flow.id).state == PENDING
    assert run(engine) == ["x"]


@row("job, by a user: PAUSED")
@each_case("before", [PENDING, RUNNING])
def test_job_to_paused_suspends_what_is_not_yet_running(engine: Engine, before: str) -> None:
    flow = engine.submit_flow("job", [stage("a", "x", "x")])
    if before == RUNNING:
        running(engine)
    assert engine.pause_flow(flow.id).state == FLOW_PAUSED
    assert engine.claim(worker="w") == []


@row("job, by a user: ABORTED")
@each_case("before", [CREATED, PENDING, RUNNING, FLOW_PAUSED, WAITING])
def test_job_to_aborted_is_for_good(engine: Engine, before: str) -> None:
    flow = engine.submit_flow("job", [stage("a", "x", start_as_waiting=before == WAITING)], start=before != CREATED)
    if before == RUNNING:
        running(engine)
    elif before == FLOW_PAUSED:
        engine.pause_flow(flow.id)
    assert flow_state(engine, flow) == before
    assert engine.cancel_flow(flow.id, hard=True).state == CANCELLED
    for verb in ("open_flow", "pause_flow", "resume_flow", "cancel_flow"):
        with pytest.raises(IllegalTransition):
            engine.do(verb, flow=flow.id)
    assert engine.claim(worker="w") == []


@row("job, by the system: CREATED → PENDING")
def test_job_created_to_pending_with_its_creation(engine: Engine) -> None:
    flow = job(engine)
    assert flow.state == PENDING
    assert events_of(engine, flow) == ["flow.submitted", "flow.opened"]


@row("job, by the system: PENDING → IN_PROGRESS")
def test_job_pending_to_in_progress_with_the_start_of_its_first_task(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x", "x")])
    held = take(engine)
    assert flow_state(engine, flow) == PENDING
    engine.start(held)
    assert flow_state(engine, flow) == RUNNING
    running(engine)
    assert events_of(engine, flow).count("flow.started") == 1


@row("job, by the system: IN_PROGRESS → COMPLETED")
def test_job_in_progress_to_completed_with_its_last_stage(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("job", [stage("a", "x"), stage("b", "y")])
    run(engine, most=1)
    assert flow_state(engine, flow) == RUNNING
    clock.advance(5)
    run(engine)
    assert (flow_state(engine, flow), engine.flow(flow.id).finished_at) == (SUCCEEDED, clock.now())
    assert last_of(engine, flow).actor == "system:engine"


def last_of(engine: Engine, flow: Placed) -> Any:
    return [e for e in engine.flow_events(flow.id) if e.entity_id == flow.id][-1]


@row("job, by the system: IN_PROGRESS → FAILED")
def test_job_in_progress_to_failed_with_a_failed_stage(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x"), stage("b", "bad"), stage("c", "y")])
    run(engine, fail={"bad"})
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (FAILED, [SUCCEEDED, FAILED, SKIPPED])
    assert last_of(engine, flow).actor == "system:engine"


@row("job, illegal: IN_PROGRESS, COMPLETED and FAILED by hand")
@each_case("verb", ["start_flow", "succeed_flow", "fail_flow"])
def test_job_cannot_be_set_in_progress_completed_or_failed_by_hand(engine: Engine, verb: str) -> None:
    flow = engine.submit_flow("job", [stage("a", "x")])
    with pytest.raises(UnknownVerb):
        engine.do(verb, flow=flow.id)
    by_hand = {FLOW.by_name[name].target for s in FLOW.states for name in FLOW.actions(s, USER)}
    assert by_hand == {PENDING, FLOW_PAUSED, CANCELLED}


@row("stage, by a user: WAITING → PENDING")
def test_stage_waiting_to_pending_by_approval(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x", start_as_waiting=True)])
    assert (stage_states(engine, flow), engine.claim(worker="w")) == ([WAITING], [])
    assert engine.approve_stage(flow.stages[0], actor_name="ann").state == PENDING
    assert run(engine) == ["x"]
    assert flow_state(engine, flow) == SUCCEEDED


@row("stage, by the system: CREATED → PENDING, the first")
def test_stage_created_to_pending_when_it_is_the_first(engine: Engine) -> None:
    flow = job(engine)
    added = engine.add_stage(flow.id, StageSpec("a"))
    assert added.state == PENDING
    assert events_of(engine, flow, added.id) == ["stage.added", "stage.opened"]


@row("stage, by the system: CREATED → PENDING, the previous is COMPLETED")
def test_stage_created_to_pending_when_the_previous_completes(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x"), stage("b", "y")])
    assert stage_states(engine, flow) == [PENDING, CREATED]
    run(engine, most=1)
    assert stage_states(engine, flow) == [SUCCEEDED, PENDING]


@row("stage, by the system: CREATED → PENDING, the previous is COMPLETED")
def test_stage_is_pending_at_once_when_it_is_added_after_a_completed_one(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x")], sealed=False)
    run(engine)
    assert engine.add_stage(flow.id, stage("b", "y")).state == PENDING


@row("stage, by the system: CREATED, PENDING, IN_PROGRESS → WAITING")
@each_case("before", [CREATED, PENDING, RUNNING])
@each_case("who", [SYSTEM, USER])
def test_stage_to_waiting_holds_its_tasks(engine: Engine, before: str, who: str) -> None:
    flow = engine.submit_flow("job", [stage("a", "x", "x"), stage("b", "y")])
    if before == RUNNING:
        running(engine)
    which = 1 if before == CREATED else 0
    assert stage_states(engine, flow)[which] == before
    assert engine.wait_stage(flow.stages[which], actor=who).state == WAITING
    assert len(engine.claim(worker="w", limit=9)) == (2 if before == CREATED else 0)


@row("stage, by the system: PENDING → IN_PROGRESS")
def test_stage_pending_to_in_progress_with_the_start_of_its_first_task(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x", "x")])
    held = take(engine)
    assert stage_states(engine, flow) == [PENDING]
    engine.start(held)
    assert stage_states(engine, flow) == [RUNNING]
    running(engine)
    assert events_of(engine, flow).count("stage.started") == 1


@row("stage, by the system: IN_PROGRESS → COMPLETED")
def test_stage_in_progress_to_completed_with_its_last_task(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x", "x")])
    run(engine, most=1)
    assert stage_states(engine, flow) == [RUNNING]
    run(engine)
    assert stage_states(engine, flow) == [SUCCEEDED]


@row("stage, by the system: IN_PROGRESS → FAILED")
def test_stage_in_progress_to_failed_when_a_task_has_no_attempt_left(engine: Engine) -> None:
    task = TaskSpec("x", max_attempts=2, policy=Policy(backoff_base_s=0))
    flow = engine.submit_flow("job", [StageSpec("a", [task])])
    engine.fail(running(engine), "once")
    assert stage_states(engine, flow) == [RUNNING]
    engine.fail(running(engine), "twice")
    assert stage_states(engine, flow) == [FAILED]


@row("stage, by the system: any → ABORTED")
@each_case("before", [CREATED, WAITING, PENDING, RUNNING])
def test_stage_of_any_open_state_to_aborted_with_its_job(engine: Engine, before: str) -> None:
    if before == CREATED:
        flow = engine.submit_flow("job", [stage("z", "z"), stage("a", "x")])
    else:
        flow = engine.submit_flow("job", [stage("a", "x", start_as_waiting=before == WAITING)])
    if before == RUNNING:
        running(engine)
    assert engine.stage(flow.stages[-1]).state == before
    engine.cancel_flow(flow.id, hard=True)
    assert engine.stage(flow.stages[-1]).state == CANCELLED


@row("stage, order: the second waits for the first to be COMPLETED")
def test_stage_of_order_two_opens_only_after_the_last_task_of_order_one(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x", "x"), stage("b", "y")])
    assert [s.order for s in engine.stages(flow.id)] == [1, 2]
    first, second = engine.claim(worker="w", limit=9)
    engine.succeed(first)
    assert (engine.claim(worker="w"), stage_states(engine, flow)) == ([], [RUNNING, CREATED])
    engine.succeed(second)
    assert [a.kind for a in engine.claim(worker="w", limit=9)] == ["y"]


@row("stage, illegal: IN_PROGRESS, COMPLETED, FAILED and ABORTED by hand")
@each_case("verb", ["start_stage", "succeed_stage", "fail_stage", "abort_stage", "open_stage"])
def test_stage_cannot_be_set_in_progress_completed_failed_or_aborted_by_hand(engine: Engine, verb: str) -> None:
    flow = engine.submit_flow("job", [stage("a", "x")])
    with pytest.raises(UnknownVerb):
        engine.do(verb, flow=flow.stages[0])
    assert not {"open", "start", "succeed", "end_partly", "fail"} & {
        name for s in STAGE.states for name in STAGE.actions(s, USER)
    }


@row("stage, illegal: PENDING while the previous is not COMPLETED")
def test_stage_cannot_be_approved_before_its_turn(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x"), stage("b", "y", start_as_waiting=True)])
    with pytest.raises(Conflict, match="the stage before it has not ended"):
        engine.approve_stage(flow.stages[1])
    assert stage_states(engine, flow) == [PENDING, WAITING]
    run(engine)
    assert engine.approve_stage(flow.stages[1]).state == PENDING


@row("stage, illegal: PENDING while the previous is not COMPLETED")
def test_stage_that_is_created_cannot_be_set_pending(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x"), stage("b", "y")])
    with pytest.raises(IllegalTransition):
        engine.approve_stage(flow.stages[1])
    assert stage_states(engine, flow) == [PENDING, CREATED]


@row("task, by a worker: IN_PROGRESS → COMPLETED")
@each_case("before", [ASSIGNED, RUNNING])
def test_task_in_progress_to_completed_by_its_worker(engine: Engine, before: str) -> None:
    flow = engine.submit_flow("job", [stage("a", "x")])
    held = take(engine) if before == ASSIGNED else running(engine)
    assert engine.succeed(held, {"ok": 1}).state == SUCCEEDED
    assert last(engine, flow.tasks[0]).actor == "worker:w"


@row("task, by a worker: IN_PROGRESS → FAILED")
@each_case("exhausted", [FAILED, DEAD_LETTERED])
def test_task_in_progress_to_failed_when_attempts_are_exhausted(engine: Engine, exhausted: str) -> None:
    policy = Policy(max_attempts=2, backoff_base_s=0, on_exhaustion="fail" if exhausted == FAILED else "dead_letter")
    flow = engine.submit_flow("job", [StageSpec("a", [TaskSpec("x", policy=policy)])])
    assert engine.fail(running(engine), "once").state == QUEUED
    assert engine.fail(running(engine), "twice").state == exhausted
    assert flow_state(engine, flow) == FAILED


@row("task, by the system: CREATED → PENDING")
def test_task_is_pending_when_it_is_created(engine: Engine) -> None:
    register(engine)
    flow = job(engine)
    added = engine.add_stage(flow.id, StageSpec("a"))
    (task,) = engine.add_tasks(added.id, [TaskSpec("x")]).tasks
    assert (state(engine, task), engine.explain(task)) == (QUEUED, [])


@row("task, by the system: PENDING → IN_PROGRESS")
def test_task_pending_to_in_progress_goes_to_one_worker_only(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x")])
    (held,) = engine.claim(worker="one", limit=9)
    assert engine.claim(worker="two", limit=9) == []
    task = engine.task(flow.tasks[0])
    assert (task.id, task.state, task.owner) == (held.id, ASSIGNED, "one")


@row("task, by the system: IN_PROGRESS → RETRIED")
def test_task_in_progress_to_retried_while_attempts_are_left(engine: Engine) -> None:
    flow = engine.submit_flow("job", [StageSpec("a", [TaskSpec("x", max_attempts=2)])])
    assert engine.fail(running(engine), "not yet").state == QUEUED
    task, event = engine.task(flow.tasks[0]), last(engine, flow.tasks[0])
    assert (task.attempts, (task.error or {})["message"]) == (1, "not yet")
    assert (event.type, event.actor) == ("task.retried", "system:engine")
    assert all_states(engine, flow) == (RUNNING, [RUNNING], [QUEUED])


@row("task, by the system: RETRIED → IN_PROGRESS")
def test_task_retried_to_in_progress_by_the_next_dequeue(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("job", [StageSpec("a", [TaskSpec("x", max_attempts=2)])])
    engine.fail(running(engine), "not yet")
    clock.advance(60)
    settle(engine)
    again = running(engine)
    assert (again.id, again.attempt) == (flow.tasks[0], 2)
    engine.succeed(again)
    assert flow_state(engine, flow) == SUCCEEDED


@row("task, illegal: PENDING and IN_PROGRESS by hand")
@each_case("verb", ["retry", "requeue", "assign"])
def test_task_cannot_be_set_pending_or_in_progress_by_hand(engine: Engine, verb: str) -> None:
    flow = engine.submit_flow("job", [stage("a", "x")])
    with pytest.raises(UnknownVerb):
        engine.do(verb, task=flow.tasks[0])
    with pytest.raises(IllegalTransition):
        engine.start(flow.tasks[0])
    assert state(engine, flow.tasks[0]) == QUEUED


@row("cascade up 1: all tasks complete, the stage is COMPLETED")
def test_cascade_all_tasks_of_a_stage_complete_it_in_the_same_transaction(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("job", [stage("a", "x", "x"), stage("b", "y")])
    for held in engine.claim(worker="w", limit=2):
        clock.advance(1)
        engine.succeed(held)
    done = engine.stage(flow.stages[0])
    assert (done.state, done.finished_at, done.percentage) == (SUCCEEDED, clock.now(), 100)
    assert flow_state(engine, flow) == RUNNING


@row("cascade up 2: all stages complete, the job is COMPLETED")
def test_cascade_all_stages_complete_the_job(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x"), stage("b", "y"), stage("c", "z")])
    assert run(engine) == ["x", "y", "z"]
    assert all_states(engine, flow) == (SUCCEEDED, [SUCCEEDED] * 3, [SUCCEEDED] * 3)
    assert events_of(engine, flow)[-2:] == ["stage.succeeded", "flow.succeeded"]


@row("cascade up 3: a task fails for good, stage and job are FAILED")
def test_cascade_a_permanent_failure_fails_stage_and_job(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x", "bad", "x"), stage("b", "y")])
    run(engine, fail={"bad"})
    assert all_states(engine, flow) == (FAILED, [FAILED, SKIPPED], [SUCCEEDED, FAILED, CANCELLED, CANCELLED])
    moved = [t for t in events_of(engine, flow) if t in ("task.failed", "stage.failed", "flow.failed")]
    assert moved == ["task.failed", "stage.failed", "flow.failed"]


@row("cascade down 1: an aborted job is ABORTED")
def test_cascade_an_abort_ends_the_job_at_once(engine: Engine, clock: VirtualClock) -> None:
    flow, _ = begun(engine, stage("a", "x"))
    assert engine.cancel_flow(flow.id, hard=True, actor_name="ann").state == CANCELLED
    assert engine.flow(flow.id).finished_at == clock.now()
    assert last_of(engine, flow).actor == "user:ann"


@row("cascade down 2: all its stages are ABORTED")
def test_cascade_an_abort_ends_every_stage_that_has_not_ended(engine: Engine) -> None:
    stages = [stage("a", "x"), stage("b", "y", "y"), stage("c", "z", start_as_waiting=True), stage("d", "z")]
    flow = engine.submit_flow("job", stages)
    run(engine, most=2)
    assert stage_states(engine, flow) == [SUCCEEDED, RUNNING, WAITING, CREATED]
    engine.cancel_flow(flow.id, hard=True)
    assert stage_states(engine, flow) == [SUCCEEDED, CANCELLED, CANCELLED, CANCELLED]


@row("summary: job")
def test_summary_which_states_of_a_job_a_user_may_ask_for() -> None:
    for name in ("open", "pause", "resume", "cancel"):
        assert USER in by_whom(FLOW, name)
    for name in ("start", "succeed", "end_partly", "fail", "time_out"):
        assert by_whom(FLOW, name) == {SYSTEM}
    assert {FLOW.by_name[n].target for n in ("open", "pause", "resume", "cancel")} == {PENDING, FLOW_PAUSED, CANCELLED}
    assert FLOW.submit.target == CREATED


@row("summary: stage")
def test_summary_a_user_makes_a_stage_pending_from_waiting_only() -> None:
    to_pending = [t for t in STAGE.transitions if t.target == PENDING and USER in t.by]
    assert [(t.name, t.sources) for t in to_pending] == [("approve", (WAITING,))]
    for name in ("start", "succeed", "fail", "open"):
        assert by_whom(STAGE, name) == {SYSTEM}


@row("summary: task")
def test_summary_a_worker_reports_outcomes_and_the_system_does_the_rest() -> None:
    assert WORKER in by_whom(TASK, "succeed")
    assert WORKER in by_whom(TASK, "fail")
    assert by_whom(TASK, "retry") == {SYSTEM}
    assert not {"claim", "start", "succeed", "fail", "retry", "release", "expire"} & {
        name for s in TASK.states for name in TASK.actions(s, USER)
    }


@row("rule: one attempt fails the task")
def test_rule_with_one_attempt_the_first_failure_is_final(engine: Engine) -> None:
    policy = Policy(max_attempts=1, on_exhaustion="fail")
    flow = engine.submit_flow("job", [StageSpec("a", [TaskSpec("x", policy=policy)])])
    assert engine.fail(running(engine), "no").state == FAILED
    assert flow_state(engine, flow) == FAILED


@row("rule: RETRIED can be dequeued at once")
def test_rule_without_backoff_a_retried_task_is_dequeued_at_once(engine: Engine) -> None:
    flow = engine.submit_flow("job", [StageSpec("a", [TaskSpec("x", policy=Policy(backoff_base_s=0))])])
    engine.fail(running(engine), "not yet")
    assert take(engine).id == flow.tasks[0]


@row("rule: dequeued by priority, then by age")
def test_rule_dequeue_takes_the_highest_priority_then_the_oldest(engine: Engine, clock: VirtualClock) -> None:
    wanted: list[tuple[int, int, str]] = []
    for priority in (0, 2, 1, 2, 0):
        task = TaskSpec("x", priority=priority)
        wanted.append((-priority, len(wanted), engine.submit_flow("job", [StageSpec("a", [task])]).tasks[0]))
        clock.advance(1)
    assert [take(engine).id for _ in wanted] == [id_ for *_, id_ in sorted(wanted)]


@row("rule: tasks are added to CREATED, PENDING and WAITING stages")
@each_case("before", [CREATED, PENDING, WAITING])
def test_rule_tasks_are_added_to_a_stage_that_has_not_begun(engine: Engine, before: str) -> None:
    flow = engine.submit_flow("job", [stage("z", "z")] if before == CREATED else ())
    added = engine.add_stage(flow.id, StageSpec("a", takes_more=False, start_as_waiting=before == WAITING))
    assert added.state == before
    assert len(engine.add_tasks(added.id, [TaskSpec("x"), TaskSpec("x")]).tasks) == 2
    assert engine.stage(added.id).counts.total == 2


@row("rule: tasks are added to CREATED, PENDING and WAITING stages")
@each_case("before", [RUNNING, SUCCEEDED, FAILED, CANCELLED])
def test_rule_tasks_are_not_added_to_a_stage_that_has_begun_or_ended(engine: Engine, before: str) -> None:
    flow = engine.submit_flow("job", [stage("a", "x", takes_more=False)])
    held = running(engine)
    if before == SUCCEEDED:
        engine.succeed(held)
    elif before == FAILED:
        engine.fail(held, "no", retryable=False)
    elif before == CANCELLED:
        engine.cancel_flow(flow.id, hard=True)
    assert stage_states(engine, flow) == [before]
    with pytest.raises(IllegalTransition):
        engine.add_tasks(flow.stages[0], [TaskSpec("x")])
    assert engine.stage(flow.stages[0]).counts.total == 1


@row("rule: stages are added to any job that is not final")
@each_case("before", [CREATED, PENDING, RUNNING, FLOW_PAUSED, WAITING])
def test_rule_a_stage_is_added_to_a_job_that_is_not_final(engine: Engine, before: str) -> None:
    flow = engine.submit_flow("job", [stage("a", "x", start_as_waiting=before == WAITING)], start=before != CREATED)
    if before == RUNNING:
        running(engine)
    elif before == FLOW_PAUSED:
        engine.pause_flow(flow.id)
    assert flow_state(engine, flow) == before
    added = engine.add_stage(flow.id, stage("b", "y"))
    assert (engine.stage(added.id).order, added.state) == (2, CREATED)


@row("rule: stages are added to any job that is not final")
@each_case("before", [SUCCEEDED, PARTIAL, FAILED, CANCELLED])
def test_rule_a_stage_is_not_added_to_a_job_that_is_final(engine: Engine, before: str) -> None:
    flow, held = begun(engine, stage("a", "x"))
    if before == FAILED:
        engine.fail(held, "no", retryable=False)
    elif before == CANCELLED:
        engine.cancel_flow(flow.id, hard=True)
    else:
        engine.succeed(held, partial=before == PARTIAL)
    assert flow_state(engine, flow) == before
    with pytest.raises(IllegalTransition):
        engine.add_stage(flow.id, stage("b", "y"))
    assert len(engine.stages(flow.id)) == 1


@row("rule: a WAITING stage stays so when the one before completes")
def test_rule_a_waiting_stage_is_not_opened_by_the_end_of_the_one_before(engine: Engine) -> None:
    flow = engine.submit_flow("job", [stage("a", "x"), stage("b", "y", start_as_waiting=True)])
    assert run(engine) == ["x"]
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (WAITING, [SUCCEEDED, WAITING])


@row("rule: an empty stage does not complete by itself")
def test_rule_an_empty_stage_waits_for_its_first_task(engine: Engine) -> None:
    flow = job(engine)
    empty = engine.add_stage(flow.id, StageSpec("a"))
    engine.add_stage(flow.id, stage("b", "y"))
    settle(engine)
    assert (engine.claim(worker="w"), flow_state(engine, flow), stage_states(engine, flow)) == (
        [],
        PENDING,
        [PENDING, CREATED],
    )
    engine.add_tasks(empty.id, [TaskSpec("x")])
    assert run(engine) == ["x", "y"]
    assert flow_state(engine, flow) == SUCCEEDED


@row("rule: failed, dead-lettered and cancelled tasks all fail or end what they are in")
@each_case(("ended", "outcome"), [(FAILED, FAILED), (DEAD_LETTERED, FAILED), (CANCELLED, CANCELLED)])
def test_rule_a_task_that_did_not_succeed_ends_its_stage_and_job(engine: Engine, ended: str, outcome: str) -> None:
    flow, held = begun(engine, stage("a", "x"), stage("b", "y"))
    if ended == CANCELLED:
        engine.cancel(held.id, hard=True)
    else:
        engine.fail(held, "no", retryable=False, reason_code="parse_error" if ended == DEAD_LETTERED else None)
    assert all_states(engine, flow) == (outcome, [outcome, SKIPPED], [ended, CANCELLED])


@row("rule: a report without a fence means the current attempt")
def test_rule_a_report_without_a_fence_is_about_the_current_attempt(engine: Engine) -> None:
    policy = Policy(backoff_base_s=0)
    flow = engine.submit_flow("job", [StageSpec("a", [TaskSpec("x", policy=policy)])])
    assert engine.fail(running(engine).id, "not yet").fence == 2
    running(engine)
    assert engine.succeed(flow.tasks[0]).state == SUCCEEDED


@row("rule: a report counts only while the task is IN_PROGRESS")
@each_case("before", [QUEUED, SUCCEEDED, FAILED, CANCELLED])
def test_rule_a_report_about_a_task_that_nobody_holds_is_refused(engine: Engine, before: str) -> None:
    flow = engine.submit_flow("job", [stage("a", "x")], roll_up="drain")
    if before != QUEUED:
        held = running(engine)
        if before == SUCCEEDED:
            engine.succeed(held)
        elif before == FAILED:
            engine.fail(held, "no", retryable=False)
        else:
            engine.cancel(held.id, hard=True)
    count = len(engine.flow_events(flow.id))
    report: dict[str, Any] = {"verb": "fail", "message": "late"} if before == SUCCEEDED else {"verb": "succeed"}
    with pytest.raises(IllegalTransition):
        engine.do(task=flow.tasks[0], **report)
    assert (state(engine, flow.tasks[0]), len(engine.flow_events(flow.id))) == (before, count)


@row("rule: dequeue takes an implicit lease")
def test_rule_a_dequeue_has_a_lease_as_long_as_the_stale_threshold(engine: Engine, clock: VirtualClock) -> None:
    task = TaskSpec("x", policy=Policy(backoff_base_s=0))
    flow = engine.submit_flow("job", [StageSpec("a", [task])])
    held = take(engine, lease_s=1800)
    engine.start(held)
    clock.advance(1800)
    settle(engine)
    assert state(engine, flow.tasks[0]) == RUNNING
    clock.advance(1)
    settle(engine)
    assert state(engine, flow.tasks[0]) == QUEUED
    with pytest.raises(LeaseLost):
        engine.succeed(held)


@row("fault: an abort that does not cascade")
def test_fault_an_abort_leaves_nothing_open_below_it(engine: Engine) -> None:
    flow, held = begun(engine, stage("a", "x", "x"), stage("b", "y"), stage("c", "z", start_as_waiting=True))
    engine.cancel_flow(flow.id, hard=True)
    assert all_states(engine, flow) == (CANCELLED, [CANCELLED] * 3, [CANCELLED] * 4)
    assert engine.claim(worker="w", limit=9) == []
    with pytest.raises(IllegalTransition):
        engine.succeed(held)


@row("fault: a resumed job that can never complete")
@each_case("paused_while", ["pending", "running", "between stages", "a stage was added"])
def test_fault_a_resumed_job_completes(engine: Engine, paused_while: str) -> None:
    flow = engine.submit_flow("job", [stage("a", "x"), stage("b", "y")])
    ran = 2
    if paused_while == "running":
        held = running(engine)
        engine.pause_flow(flow.id)
        engine.succeed(held)
        ran = 1
    elif paused_while == "between stages":
        run(engine, most=1)
        engine.pause_flow(flow.id)
        ran = 1
    else:
        engine.pause_flow(flow.id)
        if paused_while == "a stage was added":
            engine.add_stage(flow.id, stage("c", "z"))
            ran = 3
    assert engine.claim(worker="w") == []
    engine.resume_flow(flow.id)
    assert len(run(engine)) == ran
    assert flow_state(engine, flow) == SUCCEEDED


@row("fault: completing the last task while PAUSED is refused")
@each_case("outcome", [SUCCEEDED, FAILED])
def test_fault_the_last_task_may_end_while_the_job_is_paused(engine: Engine, outcome: str) -> None:
    flow, held = begun(engine, stage("a", "x"))
    engine.pause_flow(flow.id)
    if outcome == SUCCEEDED:
        engine.succeed(held)
    else:
        engine.fail(held, "no", retryable=False)
    assert all_states(engine, flow) == (outcome, [outcome], [outcome])


@row("fault: completing the last task while PAUSED is refused")
def test_fault_the_last_task_of_a_stage_may_end_while_the_job_is_paused(engine: Engine) -> None:
    flow, held = begun(engine, stage("a", "x"), stage("b", "y"))
    engine.pause_flow(flow.id)
    engine.succeed(held)
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (FLOW_PAUSED, [SUCCEEDED, PENDING])
    assert engine.claim(worker="w") == []


@row("fault: duplicate orders under concurrent addStage")
def test_fault_stages_that_are_added_at_the_same_time_get_different_orders(engine: Engine) -> None:
    flow, together = job(engine), threading.Barrier(8)

    def add(n: int) -> None:
        together.wait()
        engine.add_stage(flow.id, stage(f"stage {n}", "x"))

    threads = [threading.Thread(target=add, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [s.order for s in engine.stages(flow.id)] == list(range(1, 9))
    assert len(run(engine)) == 8
    assert flow_state(engine, flow) == SUCCEEDED


@row("fault: an error of the server on an empty list of tasks")
def test_fault_an_empty_list_of_tasks_is_refused_as_wrong_input(engine: Engine) -> None:
    flow = job(engine)
    added = engine.add_stage(flow.id, StageSpec("a"))
    with pytest.raises(InvalidInput) as refused:
        engine.add_tasks(added.id, [])
    assert (refused.value.status, task_states(engine, added.id)) == (400, [])


def test_every_row_has_a_test() -> None:
    assert ticked_off(globals()) == list(ROWS)
    assert len(ROWS) == 51
