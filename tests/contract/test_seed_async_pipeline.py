"""The async pipeline's job and stage statuses, its checks, cancellation and clean-up, one test or more for each row.

The pipeline is a mixed flow: COMPLETED is succeeded, the other statuses keep their names. A transition of the diagram
and its row in the table of triggers are one row here.
"""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import IllegalTransition
from onetray.domain.flow import Placed, StageSpec, TaskSpec
from onetray.domain.lifecycle import (
    CANCELLED,
    CREATED,
    FAILED,
    FLOW,
    PARTIAL,
    PENDING,
    RUNNING,
    SKIPPED,
    STAGE,
    SUCCEEDED,
)
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.drive import all_states, events_of, flow_state, run, stage_states, task_states
from tests.support.engines import engine_on
from tests.support.seeds import row, ticked_off
from tests.support.tasks import last, running, settle, state, take

STAGES = ("ingest", "classify", "neutralize", "brief", "summary", "evaluation", "optimization")
CONDITIONS = {"evaluation": "enable_evaluation", "optimization": "enable_auto_optimize"}
EVERYTHING = {"enable_evaluation": True, "enable_auto_optimize": True}

JOB = (
    "[*] → PENDING: start_job",
    "PENDING → RUNNING: the background task starts",
    "PENDING → CANCELLED: cancel_job before the task begins",
    "RUNNING → COMPLETED: all stages completed",
    "RUNNING → PARTIAL: some completed, others failed",
    "RUNNING → FAILED: all stages failed",
    "RUNNING → FAILED: the first stage failed",
    "RUNNING → FAILED: an exception in the orchestrator",
    "RUNNING → CANCELLED: cancel_job while a stage runs",
)
DESCRIPTIONS = {
    "status PENDING: not terminal": (PENDING, False),
    "status RUNNING: not terminal": (RUNNING, False),
    "status COMPLETED: terminal": (SUCCEEDED, True),
    "status PARTIAL: terminal": (PARTIAL, True),
    "status FAILED: terminal": (FAILED, True),
    "status CANCELLED: terminal": (CANCELLED, True),
}
ENDS = {
    "COMPLETED → [*]": SUCCEEDED,
    "PARTIAL → [*]": PARTIAL,
    "FAILED → [*]": FAILED,
    "CANCELLED → [*]": CANCELLED,
}
CHECKS = {
    "check 1: cancelled before ingest": "ingest",
    "check 2: cancelled before classify": "classify",
    "check 3: cancelled before neutralize": "neutralize",
    "check 4: cancelled before brief": "brief",
    "check 5: cancelled before evaluation": "evaluation",
    "check 6: cancelled before optimization": "optimization",
}
COURSE = (
    "course: the stages run in their order",
    "course: enable_evaluation is not set",
    "course: enable_evaluation is set",
    "course: enable_auto_optimize is not set",
    "course: enable_auto_optimize is set",
)
STAGE_STATUSES = ("stage completed", "stage partial", "stage failed", "stage skipped")
CANCELLATION = (
    "cancellation 1: the request is recorded",
    "cancellation 2: it is looked at between stages",
    "cancellation 3: the task receives the signal",
    "cancellation 4: the job is CANCELLED and finished_at is set",
)
STALE = ("stale: PENDING for more than 2 hours", "stale: RUNNING for more than 2 hours")
RULES = (
    "rule: a condition is decided from config and results",
    "rule: a skipped stage says why",
    "rule: on_failure stop, continue, ignore",
    "rule: a stage has a timeout",
    "rule: a stage has retries",
    "rule: results are passed on and are durable",
    "rule: a stage has a duration, errors and metrics",
    "rule: progress",
    "rule: after a crash the pipeline resumes at the first unfinished stage",
)
ROWS = (*JOB, *DESCRIPTIONS, *ENDS, *COURSE, *CHECKS, *STAGE_STATUSES, *CANCELLATION, *STALE, *RULES)


def pipeline(engine: Engine, config: dict[str, Any] | None = None, **fields: Any) -> Placed:
    """The whole pipeline. Without what it ingests there is nothing to do; every other stage may fail by itself."""
    stages = [
        StageSpec(
            name,
            [TaskSpec(name)],
            on_failure="stop" if name == "ingest" else "continue",
            when=TaskSpec(CONDITIONS[name]) if name in CONDITIONS else None,
            collect="one",
        )
        for name in STAGES
    ]
    return engine.submit_flow("pipeline", stages, roll_up="mixed", data=config or {}, **fields)


def evaluate(asked: Assignment) -> bool:
    return bool(asked.payload["config"].get("enable_evaluation"))


def optimize(asked: Assignment) -> bool:
    """Without an evaluation there is nothing to optimize."""
    config, results = asked.payload["config"], asked.payload["results"]
    return bool(config.get("enable_auto_optimize") and results.get("evaluation"))


ANSWERS = {
    **{name: {"from": name} for name in STAGES},
    "enable_evaluation": evaluate,
    "enable_auto_optimize": optimize,
}


def go(engine: Engine, **fields: Any) -> list[str]:
    return run(engine, answers=ANSWERS, **fields)


def go_to(engine: Engine, flow: Placed, name: str) -> None:
    """Run everything that comes before this stage."""
    while engine.flow(flow.id).current_stage != name:
        assert go(engine, most=1)


def ended(engine: Engine, status: str) -> Placed:
    """A pipeline that has ended in this way."""
    flow = pipeline(engine)
    if status == CANCELLED:
        engine.cancel_flow(flow.id)
    go(engine, fail={FAILED: ("ingest",), PARTIAL: ("classify",)}.get(status, ()))
    assert flow_state(engine, flow) == status
    return flow


@row("[*] → PENDING: start_job")
def test_job_is_pending_when_it_is_started(engine: Engine, clock: VirtualClock) -> None:
    flow = pipeline(engine)
    seen = engine.flow(flow.id)
    assert (flow.state, seen.created_at, seen.started_at, seen.finished_at) == (PENDING, clock.now(), None, None)


@row("PENDING → RUNNING: the background task starts")
def test_job_pending_to_running_sets_started_at(engine: Engine, clock: VirtualClock) -> None:
    flow = pipeline(engine)
    clock.advance(3)
    running(engine)
    assert (flow_state(engine, flow), engine.flow(flow.id).started_at) == (RUNNING, clock.now())


@row("PENDING → CANCELLED: cancel_job before the task begins")
def test_job_pending_to_cancelled_at_once(engine: Engine, clock: VirtualClock) -> None:
    flow = pipeline(engine)
    assert engine.cancel_flow(flow.id).state == CANCELLED
    seen = engine.flow(flow.id)
    assert (seen.started_at, seen.finished_at) == (None, clock.now())
    assert (set(stage_states(engine, flow)), go(engine)) == ({CANCELLED}, [])


@row("RUNNING → COMPLETED: all stages completed")
def test_job_running_to_completed_when_all_stages_completed(engine: Engine) -> None:
    flow = pipeline(engine, EVERYTHING)
    go(engine)
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (SUCCEEDED, [SUCCEEDED] * 7)


@row("RUNNING → PARTIAL: some completed, others failed")
@each_case("failed", STAGES[1:])
def test_job_running_to_partial_when_one_stage_failed(engine: Engine, failed: str) -> None:
    flow = pipeline(engine, EVERYTHING)
    go(engine, fail={failed})
    expected = [FAILED if name == failed else SUCCEEDED for name in STAGES]
    if failed == "evaluation":
        expected[-1] = SKIPPED
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (PARTIAL, expected)


@row("RUNNING → PARTIAL: some completed, others failed")
def test_job_running_to_partial_when_only_the_first_stage_completed(engine: Engine) -> None:
    flow = pipeline(engine)
    go(engine, fail=STAGES[1:])
    assert (flow_state(engine, flow), stage_states(engine, flow)[:5]) == (PARTIAL, [SUCCEEDED] + [FAILED] * 4)


@row("RUNNING → FAILED: all stages failed")
def test_job_running_to_failed_when_all_stages_failed(engine: Engine) -> None:
    stages = [StageSpec(name, [TaskSpec(name)], on_failure="continue") for name in STAGES]
    flow = engine.submit_flow("pipeline", stages, roll_up="mixed")
    assert run(engine, fail=STAGES) == list(STAGES)
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (FAILED, [FAILED] * 7)


@row("RUNNING → FAILED: the first stage failed")
def test_job_running_to_failed_when_the_first_stage_failed(engine: Engine) -> None:
    flow = pipeline(engine, EVERYTHING)
    assert go(engine, fail={"ingest"}) == ["ingest"]
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (FAILED, [FAILED] + [SKIPPED] * 6)


@row("RUNNING → FAILED: an exception in the orchestrator")
def test_job_running_to_failed_when_a_condition_cannot_be_decided_and_nothing_has_succeeded(engine: Engine) -> None:
    stages = [
        StageSpec("ingest", [TaskSpec("ingest")], when=TaskSpec("broken")),
        StageSpec("classify", [TaskSpec("x")]),
    ]
    flow = engine.submit_flow("pipeline", stages, roll_up="mixed")
    assert run(engine, fail={"broken"}) == ["broken"]
    assert all_states(engine, flow)[:2] == (FAILED, [FAILED, SKIPPED])
    assert engine.stage(flow.stages[0]).error["message"].startswith("its condition could not be decided")


@row("RUNNING → FAILED: an exception in the orchestrator")
def test_a_condition_that_cannot_be_decided_fails_its_stage_alone(engine: Engine) -> None:
    flow = pipeline(engine, EVERYTHING)
    go(engine, fail={"enable_evaluation"})
    assert stage_states(engine, flow) == [SUCCEEDED] * 5 + [FAILED, SKIPPED]
    assert flow_state(engine, flow) == PARTIAL


@row("RUNNING → CANCELLED: cancel_job while a stage runs")
@each_case("name", STAGES)
def test_job_running_to_cancelled_inside_a_stage(engine: Engine, clock: VirtualClock, name: str) -> None:
    flow = pipeline(engine, EVERYTHING)
    go_to(engine, flow, name)
    if name in CONDITIONS:
        go(engine, most=1)
    held = running(engine)
    assert held.kind == name
    engine.cancel_flow(flow.id)
    assert flow_state(engine, flow) == RUNNING
    engine.fail(held, "stopped")
    at = STAGES.index(name)
    assert stage_states(engine, flow) == [SUCCEEDED] * at + [CANCELLED] * (7 - at)
    assert (flow_state(engine, flow), engine.flow(flow.id).finished_at) == (CANCELLED, clock.now())
    assert go(engine) == []


@row(*DESCRIPTIONS)
@each_case("status", DESCRIPTIONS)
def test_status_is_terminal_or_not(status: str) -> None:
    name, terminal = DESCRIPTIONS[status]
    assert (name in FLOW.terminal) == terminal
    assert (name in FLOW.ways_out) == (not terminal)


@row(*ENDS)
@each_case("end", ENDS)
def test_nothing_leaves_the_end(engine: Engine, clock: VirtualClock, end: str) -> None:
    flow = ended(engine, ENDS[end])
    before = engine.flow_events(flow.id)
    for verb in ("open_flow", "pause_flow", "resume_flow", "cancel_flow", "seal_flow"):
        with pytest.raises(IllegalTransition):
            engine.do(verb, flow=flow.id)
    clock.advance(100_000)
    settle(engine)
    assert (flow_state(engine, flow), engine.flow_events(flow.id)) == (ENDS[end], before)


@row("course: the stages run in their order")
def test_course_the_stages_run_in_their_order(engine: Engine) -> None:
    flow = pipeline(engine, EVERYTHING)
    ran = go(engine)
    assert [kind for kind in ran if kind in STAGES] == list(STAGES)
    assert [kind for kind in ran if kind not in STAGES] == list(CONDITIONS.values())
    assert [s.name for s in engine.stages(flow.id)] == list(STAGES)


@row("course: enable_evaluation is not set")
def test_course_without_evaluation_the_status_is_determined_after_the_summary(engine: Engine) -> None:
    flow = pipeline(engine, {"enable_auto_optimize": True})
    assert [kind for kind in go(engine) if kind in STAGES] == list(STAGES[:5])
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (SUCCEEDED, [SUCCEEDED] * 5 + [SKIPPED] * 2)


@row("course: enable_evaluation is set", "course: enable_auto_optimize is not set")
def test_course_with_evaluation_and_without_optimization(engine: Engine) -> None:
    flow = pipeline(engine, {"enable_evaluation": True})
    assert [kind for kind in go(engine) if kind in STAGES] == list(STAGES[:6])
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (SUCCEEDED, [SUCCEEDED] * 6 + [SKIPPED])


@row("course: enable_auto_optimize is set")
def test_course_with_evaluation_and_optimization(engine: Engine) -> None:
    flow = pipeline(engine, EVERYTHING)
    assert [kind for kind in go(engine) if kind in STAGES] == list(STAGES)
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (SUCCEEDED, [SUCCEEDED] * 7)


@row(*CHECKS)
@each_case("check", CHECKS)
def test_cancelled_between_stages(engine: Engine, clock: VirtualClock, check: str) -> None:
    flow = pipeline(engine, EVERYTHING)
    go_to(engine, flow, CHECKS[check])
    clock.advance(1)
    assert engine.cancel_flow(flow.id).state == CANCELLED
    at = STAGES.index(CHECKS[check])
    assert stage_states(engine, flow) == [SUCCEEDED] * at + [CANCELLED] * (7 - at)
    assert (engine.flow(flow.id).finished_at, go(engine)) == (clock.now(), [])


@row("stage completed")
def test_stage_completed_has_finished_without_errors(engine: Engine) -> None:
    flow = pipeline(engine)
    go(engine, most=1)
    done = engine.stage(flow.stages[0])
    assert (done.state, done.error, done.result) == (SUCCEEDED, None, {"from": "ingest"})


@row("stage partial")
def test_stage_partial_has_finished_with_some_errors(engine: Engine) -> None:
    flow = pipeline(engine)
    go_to(engine, flow, "classify")
    errors = [{"stage": "classify", "message": "2 of 10 articles have no text"}]
    held = running(engine)
    engine.succeed(held, 8, partial=True, errors=errors, metrics={"classified": 8})
    assert (engine.stage(flow.stages[1]).state, last(engine, held.id).payload["errors"]) == (PARTIAL, errors)
    go(engine)
    assert (flow_state(engine, flow), stage_states(engine, flow)[:3]) == (PARTIAL, [SUCCEEDED, PARTIAL, SUCCEEDED])


@row("stage partial")
def test_stage_partial_when_some_of_its_tasks_failed(engine: Engine) -> None:
    stages = [
        StageSpec("classify", [TaskSpec("x"), TaskSpec("bad"), TaskSpec("x")]),
        StageSpec("brief", [TaskSpec("y")]),
    ]
    flow = engine.submit_flow("pipeline", stages, roll_up="mixed")
    assert run(engine, fail={"bad"}) == ["x", "bad", "x", "y"]
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (PARTIAL, [PARTIAL, SUCCEEDED])
    assert task_states(engine, flow.stages[0]) == [SUCCEEDED, FAILED, SUCCEEDED]


@row("stage failed")
def test_stage_failed_names_itself_in_its_error(engine: Engine) -> None:
    flow = pipeline(engine)
    go(engine, fail={"classify"}, most=2)
    broken = engine.stage(flow.stages[1])
    assert (broken.state, broken.error["stage"]) == (FAILED, "classify")
    assert "1 of 1 tasks failed" in broken.error["message"]
    (task,) = engine.stage_tasks(broken.id)
    assert (task.error or {})["message"] == "classify broke"


@row("stage skipped")
def test_stage_skipped_was_not_run(engine: Engine) -> None:
    flow = pipeline(engine, {"enable_auto_optimize": True})
    assert "optimization" not in go(engine)
    skipped = engine.stage(flow.stages[6])
    assert (skipped.state, skipped.started_at, state(engine, flow.tasks[6])) == (SKIPPED, None, CANCELLED)


@row("cancellation 1: the request is recorded")
def test_cancellation_is_recorded_before_it_is_done(engine: Engine) -> None:
    flow = pipeline(engine)
    running(engine)
    engine.cancel_flow(flow.id, actor_name="ann", cause="not needed")
    (note,) = [e for e in engine.flow_events(flow.id) if e.type == "flow.cancel_requested"]
    assert (note.actor, note.cause) == ("user:ann", "not needed")
    assert (engine.flow(flow.id).state, engine.flow(flow.id).ending) == (RUNNING, CANCELLED)


@row("cancellation 2: it is looked at between stages")
def test_cancellation_lets_no_further_stage_begin_when_the_running_one_succeeds(engine: Engine) -> None:
    flow = pipeline(engine)
    go_to(engine, flow, "classify")
    held = running(engine)
    engine.cancel_flow(flow.id)
    engine.succeed(held)
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (CANCELLED, [SUCCEEDED] * 2 + [CANCELLED] * 5)
    assert go(engine) == []


@row("cancellation 2: it is looked at between stages")
@each_case("answer", [True, False])
def test_cancellation_while_a_condition_is_being_decided(engine: Engine, answer: bool) -> None:
    flow = pipeline(engine, EVERYTHING)
    go_to(engine, flow, "evaluation")
    asked = running(engine)
    assert asked.kind == "enable_evaluation"
    engine.cancel_flow(flow.id)
    engine.succeed(asked, answer)
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (CANCELLED, [SUCCEEDED] * 5 + [CANCELLED] * 2)
    assert go(engine) == []


@row("cancellation 3: the task receives the signal")
def test_cancellation_is_told_to_the_worker_by_its_heartbeat(engine: Engine) -> None:
    flow = pipeline(engine)
    held = running(engine)
    assert engine.beat(held).cancel == ()
    engine.cancel_flow(flow.id)
    assert engine.beat(held).cancel == (held.id,)
    assert engine.release(held).state == CANCELLED


@row("cancellation 3: the task receives the signal")
def test_cancellation_takes_the_task_from_a_worker_that_does_not_stop(engine: Engine, clock: VirtualClock) -> None:
    flow = pipeline(engine)
    held = running(engine)
    engine.cancel_flow(flow.id)
    clock.advance(30)
    settle(engine)
    assert (flow_state(engine, flow), state(engine, held.id)) == (CANCELLED, CANCELLED)
    with pytest.raises(IllegalTransition):
        engine.succeed(held)


@row("cancellation 4: the job is CANCELLED and finished_at is set")
@each_case("hard", [False, True], ids=["soft", "hard"])
def test_cancellation_ends_the_job_and_records_when(engine: Engine, clock: VirtualClock, hard: bool) -> None:
    flow = pipeline(engine)
    held = running(engine)
    engine.cancel_flow(flow.id, hard=hard)
    if not hard:
        clock.advance(2)
        engine.fail(held, "stopped")
    assert (flow_state(engine, flow), engine.flow(flow.id).finished_at) == (CANCELLED, clock.now())
    assert events_of(engine, flow).count("flow.cancelled") == 1


def must_be_cleaned_up(engine: Engine, clock: VirtualClock, flow: Placed, done: int) -> None:
    clock.advance(7199.999999)
    settle(engine)
    assert flow_state(engine, flow) not in FLOW.terminal
    clock.advance(0.000001)
    settle(engine)
    seen = engine.flow(flow.id)
    assert (seen.state, seen.finished_at) == (FAILED, clock.now())
    assert "timed out or was orphaned" in seen.error["message"]
    assert all(s in STAGE.terminal for s in stage_states(engine, flow))
    assert stage_states(engine, flow)[:done] == [SUCCEEDED] * done
    assert go(engine) == []
    assert events_of(engine, flow).count("flow.timed_out") == 1


@row("stale: PENDING for more than 2 hours")
@each_case("start", [True, False], ids=["pending", "created"])
def test_stale_job_that_never_began_has_failed(engine: Engine, clock: VirtualClock, start: bool) -> None:
    flow = pipeline(engine, deadline_s=7200, start=start)
    assert flow.state == (PENDING if start else CREATED)
    must_be_cleaned_up(engine, clock, flow, 0)


@row("stale: RUNNING for more than 2 hours")
@each_case("at", ["classify", "evaluation", "optimization"])
def test_stale_job_that_is_running_has_failed(engine: Engine, clock: VirtualClock, at: str) -> None:
    flow = pipeline(engine, EVERYTHING, deadline_s=7200)
    go_to(engine, flow, at)
    held = take(engine, lease_s=10_000)
    engine.start(held)
    must_be_cleaned_up(engine, clock, flow, STAGES.index(at))
    assert state(engine, held.id) == CANCELLED
    with pytest.raises(IllegalTransition):
        engine.succeed(held)


@row("stale: RUNNING for more than 2 hours")
def test_stale_job_whose_worker_was_lost_has_failed(engine: Engine, clock: VirtualClock) -> None:
    flow = pipeline(engine, deadline_s=7200)
    go_to(engine, flow, "classify")
    running(engine)
    must_be_cleaned_up(engine, clock, flow, 1)


@row("rule: a condition is decided from config and results")
def test_rule_a_condition_gets_the_config_and_what_earlier_stages_gave(engine: Engine) -> None:
    flow = pipeline(engine, EVERYTHING)
    go_to(engine, flow, "evaluation")
    asked = take(engine)
    assert (asked.kind, asked.payload["stage"], asked.payload["config"]) == (
        "enable_evaluation",
        "evaluation",
        EVERYTHING,
    )
    assert asked.payload["results"] == {name: {"from": name} for name in STAGES[:5]}


@row("rule: a skipped stage says why")
def test_rule_a_skipped_stage_says_why(engine: Engine) -> None:
    flow = pipeline(engine)
    go(engine)
    skips = [e.cause for e in engine.flow_events(flow.id) if e.type == "stage.skipped"]
    assert skips == ["its condition is not met"] * 2


@row("rule: a skipped stage says why")
def test_rule_a_stage_that_is_skipped_because_of_another_names_it(engine: Engine) -> None:
    flow = pipeline(engine)
    go(engine, fail={"ingest"})
    skips = [e.cause for e in engine.flow_events(flow.id) if e.type == "stage.skipped"]
    assert skips == ["stage 'ingest' is failed"] * 6


@row("rule: on_failure stop, continue, ignore")
@each_case(
    ("on_failure", "later", "outcome"),
    [("stop", SKIPPED, PARTIAL), ("continue", SUCCEEDED, PARTIAL), ("ignore", SUCCEEDED, SUCCEEDED)],
)
def test_rule_what_follows_a_failed_stage_is_as_it_says(
    engine: Engine, on_failure: str, later: str, outcome: str
) -> None:
    stages = [
        StageSpec("ingest", [TaskSpec("x")]),
        StageSpec("classify", [TaskSpec("bad")], on_failure=on_failure),
        StageSpec("brief", [TaskSpec("y")]),
    ]
    flow = engine.submit_flow("pipeline", stages, roll_up="mixed")
    run(engine, fail={"bad"})
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (outcome, [SUCCEEDED, FAILED, later])


@row("rule: a stage has a timeout")
def test_rule_a_stage_that_takes_too_long_has_failed_and_the_next_one_runs(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(timeout_s=10, max_attempts=1, on_exhaustion="fail")
    stages = [
        StageSpec("ingest", [TaskSpec("x", policy=policy)], on_failure="continue"),
        StageSpec("brief", [TaskSpec("y")]),
    ]
    flow = engine.submit_flow("pipeline", stages, roll_up="mixed")
    running(engine)
    clock.advance(10)
    settle(engine)
    assert stage_states(engine, flow) == [FAILED, PENDING]
    assert run(engine) == ["y"]
    assert flow_state(engine, flow) == PARTIAL


@row("rule: a stage has retries")
def test_rule_a_stage_is_tried_again_as_often_as_its_policy_says(engine: Engine) -> None:
    policy = Policy(max_attempts=3, backoff_base_s=0)
    flow = engine.submit_flow("pipeline", [StageSpec("ingest", [TaskSpec("x", policy=policy)])], roll_up="mixed")
    for _ in range(2):
        engine.fail(running(engine), "not yet")
        assert stage_states(engine, flow) == [RUNNING]
    assert run(engine) == ["x"]
    assert (flow_state(engine, flow), engine.task(flow.tasks[0]).attempts) == (SUCCEEDED, 3)


@row("rule: results are passed on and are durable")
def test_rule_results_are_passed_on_also_to_an_engine_that_is_opened_later(
    database_url: str, clock: VirtualClock
) -> None:
    with engine_on(database_url, clock) as engine:
        flow = pipeline(engine)
        go_to(engine, flow, "neutralize")
    with engine_on(database_url, clock) as engine:
        held = take(engine)
        assert engine.inputs(held.id)["stages"] == {name: {"from": name} for name in STAGES[:2]}


@row("rule: a stage has a duration, errors and metrics")
def test_rule_a_stage_keeps_its_times_and_its_metrics(engine: Engine, clock: VirtualClock) -> None:
    flow = pipeline(engine)
    held = running(engine)
    began = clock.now()
    clock.advance(4)
    engine.succeed(held, metrics={"articles": 10, "source": "feed"})
    done = engine.stage(flow.stages[0])
    assert (done.started_at, done.finished_at) == (began, clock.now())
    assert done.metrics == {"articles": 10, "source": "feed"}


@row("rule: progress")
def test_rule_progress_names_the_current_stage_and_rises_to_the_end(engine: Engine) -> None:
    flow = pipeline(engine, EVERYTHING)
    seen = []
    for name in STAGES:
        go_to(engine, flow, name)
        now = engine.progress(flow.id)
        seen.append((now.current_stage, now.percentage, [s.percentage for s in now.stages].count(100)))
    go(engine)
    assert seen == [(name, n * 100 // 7, n) for n, name in enumerate(STAGES)]
    assert engine.progress(flow.id).percentage == 100


@row("rule: after a crash the pipeline resumes at the first unfinished stage")
@pytest.mark.parametrize("at", STAGES)
@pytest.mark.parametrize("lost", ["between stages", "inside"])
def test_rule_after_a_crash_it_resumes_at_the_first_unfinished_stage(
    database_url: str, clock: VirtualClock, at: str, lost: str
) -> None:
    with engine_on(database_url, clock) as engine:
        flow = pipeline(engine, EVERYTHING)
        go_to(engine, flow, at)
        if lost == "inside":
            running(engine)
    with engine_on(database_url, clock) as engine:
        clock.advance(120)
        settle(engine)
        clock.advance(120)
        settle(engine)
        assert [kind for kind in go(engine) if kind in STAGES] == list(STAGES[STAGES.index(at) :])
        assert (flow_state(engine, flow), stage_states(engine, flow)) == (SUCCEEDED, [SUCCEEDED] * 7)
        again = [engine.task(t).attempts for t in flow.tasks]
        assert again == [1 + (name == at and lost == "inside" and at not in CONDITIONS) for name in STAGES]


def test_every_row_has_a_test() -> None:
    assert ticked_off(globals()) == list(ROWS)
    assert len(ROWS) == 9 + 6 + 4 + 5 + 6 + 4 + 4 + 2 + 9
