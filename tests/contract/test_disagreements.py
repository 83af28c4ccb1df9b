"""Where the systems that onetray serves disagree, and what it does: every row of the table, in native terms."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import IllegalTransition, InvalidInput, KeyReused, LeaseLost
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.lifecycle import (
    ASSIGNED,
    CANCELLED,
    DEAD_LETTERED,
    FAILED,
    FLOW_PAUSED,
    PARTIAL,
    QUEUED,
    RUNNING,
    SKIPPED,
    SUCCEEDED,
    TASK,
)
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.drive import all_states, begun, events_of, flow_state, run, stage, stage_states, task_states
from tests.support.seeds import row, ticked_off
from tests.support.tasks import in_state, last, running, settle, state, submit, take, types

ROWS = (
    "retry: a new job, or the same task again",
    "no backward transition, or back to the queue when the lease expires",
    "terminal absorbs, or a dead letter is queued again",
    "fail is final, or tried again while attempts last",
    "attempts are counted at the claim, or at the failure",
    "RETRIED is a state",
    "success from running only, or from leased too",
    "cancel: before the start, while running, cooperative, immediate",
    "abort names stages only",
    "what becomes of a failed task's siblings and of later stages",
    "PAUSED",
    "FAILED: the first stage, any stage, all stages",
    "a dependency that failed",
    "two missed heartbeats, or the lease's expiry",
    "stuck for two hours becomes FAILED",
    "compensation",
    "one event for each transition, or two on a dead letter and none on a cancel",
    "heartbeats are events",
    "logs never change, or are pruned",
    "a duplicate key: an error, a no-op, or a conflict",
)
NO_WAIT = Policy(backoff_base_s=0, jitter=False)


@row("retry: a new job, or the same task again")
def test_an_automatic_retry_is_a_new_attempt_of_the_same_task(engine: Engine) -> None:
    id_ = submit(engine, policy=NO_WAIT)
    engine.fail(running(engine), "not yet")
    again = take(engine)
    assert (again.id, again.attempt, again.fence) == (id_, 2, 2)
    assert engine.task(id_).retry_of is None


@row("retry: a new job, or the same task again")
@each_case("ended", [SUCCEEDED, FAILED, CANCELLED, DEAD_LETTERED])
def test_retrying_what_has_ended_is_a_new_job_that_names_the_old_one(engine: Engine, ended: str) -> None:
    old = in_state(engine, ended).id
    new = engine.redrive(old).id or ""
    assert (engine.task(new).retry_of, state(engine, new), state(engine, old)) == (old, QUEUED, ended)


@row("retry: a new job, or the same task again")
def test_retrying_a_flow_is_a_new_flow_that_names_the_old_one(engine: Engine) -> None:
    old = engine.submit_flow("f", [stage("a", "x"), stage("b", "bad")])
    run(engine, fail={"bad"})
    new = engine.retry_flow(old.id)
    assert engine.flow(new.id).retry_of == old.id
    assert run(engine) == ["bad"]
    assert (flow_state(engine, old), flow_state(engine, new)) == (FAILED, SUCCEEDED)


@row("retry: a new job, or the same task again")
def test_with_one_attempt_there_is_no_automatic_retry(engine: Engine) -> None:
    id_ = submit(engine, max_attempts=1, policy=Policy(on_exhaustion="fail"))
    assert engine.fail(running(engine), "no").state == FAILED
    assert engine.claim(worker="w") == []
    assert engine.task(id_).attempts == 1


@row("no backward transition, or back to the queue when the lease expires")
def test_an_expired_lease_opens_the_next_attempt_and_nothing_moves_backwards(
    engine: Engine, clock: VirtualClock
) -> None:
    id_ = submit(engine, policy=NO_WAIT)
    running(engine)
    clock.advance(61)
    settle(engine)
    engine.succeed(take(engine))
    places = [(e.fence, TASK.ranks[e.state]) for e in engine.events(id_) if e.state is not None]
    assert places == sorted(places)
    assert [e.version for e in engine.events(id_)] == list(range(1, 8))


@row("no backward transition, or back to the queue when the lease expires")
def test_only_the_system_takes_a_running_task_back_because_of_its_lease(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    held = running(engine)
    assert not {"expire", "retry"} & {*TASK.actions(RUNNING, "user"), *TASK.actions(RUNNING, "worker")}
    clock.advance(61)
    settle(engine)
    expired = last(engine, id_)
    assert (expired.type, expired.actor) == ("task.lease_expired", "system:janitor")
    with pytest.raises(LeaseLost):
        engine.succeed(held)


@row("terminal absorbs, or a dead letter is queued again")
def test_a_dead_letter_stays_where_it_is_and_its_successor_is_linked(engine: Engine) -> None:
    old = in_state(engine, DEAD_LETTERED).id
    new = engine.redrive(old).id
    assert engine.dead_letters(old)[0].successor_id == new
    assert state(engine, old) == DEAD_LETTERED
    assert engine.redrive(old).id == new
    assert types(engine, old)[-1] == "dead_lettered"


@row("terminal absorbs, or a dead letter is queued again")
def test_a_dead_letter_of_an_open_flow_has_its_successor_in_the_same_stage(engine: Engine) -> None:
    flow = engine.submit_flow("f", [stage("a", "bad", "x")], roll_up="drain")
    engine.fail(running(engine), "not readable", reason_code="parse_error")
    new = engine.redrive(flow.tasks[0]).id or ""
    assert (engine.task(new).stage_id, engine.task(new).retry_of) == (flow.stages[0], flow.tasks[0])
    run(engine)
    assert all_states(engine, flow) == (SUCCEEDED, [SUCCEEDED], [DEAD_LETTERED, SUCCEEDED, SUCCEEDED])


@row("fail is final, or tried again while attempts last")
@each_case(
    ("said", "outcome"),
    [
        pytest.param({"retryable": False}, FAILED, id="said to be final"),
        pytest.param({"retryable": True, "error_class": "ValidationError"}, QUEUED, id="said to be tried again"),
        pytest.param({"error_class": "ValidationError"}, FAILED, id="a class that is final"),
        pytest.param({"error_class": "TransientError"}, QUEUED, id="a class that is tried again"),
        pytest.param({}, QUEUED, id="nothing said"),
    ],
)
def test_a_failure_is_final_or_tried_again_as_its_report_says(
    engine: Engine, said: dict[str, Any], outcome: str
) -> None:
    submit(engine)
    assert engine.fail(running(engine), "no", **said).state == outcome


@row("attempts are counted at the claim, or at the failure")
def test_attempts_are_counted_at_the_claim(engine: Engine) -> None:
    id_ = submit(engine, policy=NO_WAIT)
    assert engine.task(id_).attempts == 0
    held = take(engine)
    assert (held.attempt, engine.task(id_).attempts) == (1, 1)
    engine.fail(held, "no")
    assert engine.task(id_).attempts == 1
    assert take(engine).attempt == 2


@row("attempts are counted at the claim, or at the failure")
def test_the_number_of_failed_attempts_can_be_read_from_the_events(engine: Engine) -> None:
    id_ = submit(engine, policy=NO_WAIT)
    engine.fail(running(engine), "no")
    engine.release(take(engine))
    running(engine)
    assert engine.task(id_).attempts == 2
    assert types(engine, id_).count("retried") == 1


@row("RETRIED is a state")
def test_a_task_that_is_tried_again_is_queued_and_says_why(engine: Engine) -> None:
    fresh, retried = submit(engine, policy=NO_WAIT), submit(engine, policy=NO_WAIT, priority=1)
    engine.fail(running(engine), "no", error_class="TransientError")
    assert "retried" not in TASK.states
    seen = {id_: engine.task(id_) for id_ in (fresh, retried)}
    assert [seen[fresh].state, seen[retried].state] == [QUEUED, QUEUED]
    assert [seen[fresh].attempts, seen[retried].attempts] == [0, 1]
    assert (seen[fresh].error, (seen[retried].error or {})["message"]) == (None, "no")


@row("success from running only, or from leased too")
@each_case("start", [ASSIGNED, RUNNING])
def test_a_success_from_assigned_records_the_start_in_the_same_transaction(engine: Engine, start: str) -> None:
    made = in_state(engine, start)
    engine.succeed(**made.ticket)
    assert types(engine, made.id) == ["submitted", "claimed", "started", "succeeded"]
    assert engine.task(made.id).started_at is not None


@row("cancel: before the start, while running, cooperative, immediate")
@each_case("start", ["queued", "assigned", "running", "blocked", "waiting_input"])
def test_a_hard_cancel_ends_any_open_task_at_once(engine: Engine, start: str) -> None:
    made = in_state(engine, start)
    assert engine.cancel(made.id, hard=True).state == CANCELLED
    assert (engine.task(made.id).owner, engine.task(made.id).lease) == (None, None)


@row("cancel: before the start, while running, cooperative, immediate")
def test_a_soft_cancel_is_told_with_the_heartbeat_and_becomes_hard_after_the_grace(
    engine: Engine, clock: VirtualClock
) -> None:
    id_ = submit(engine, policy=Policy(cancel_grace_s=10))
    held = running(engine)
    engine.cancel(id_)
    assert engine.beat(held).cancel == (id_,)
    assert state(engine, id_) == RUNNING
    clock.advance(10)
    settle(engine)
    assert state(engine, id_) == CANCELLED


@row("cancel: before the start, while running, cooperative, immediate")
@each_case("hard", [False, True], ids=["soft", "hard"])
@each_case("ended", [SUCCEEDED, FAILED, CANCELLED, DEAD_LETTERED])
def test_cancelling_what_has_ended_is_a_conflict(engine: Engine, ended: str, hard: bool) -> None:
    made = in_state(engine, ended)
    with pytest.raises(IllegalTransition) as refused:
        engine.cancel(made.id, hard=hard)
    assert (refused.value.status, state(engine, made.id)) == (409, ended)


@row("cancel: before the start, while running, cooperative, immediate")
def test_a_soft_cancel_of_a_flow_waits_for_its_workers_and_a_hard_one_does_not(
    engine: Engine, clock: VirtualClock
) -> None:
    soft, held = begun(engine, stage("a", "x", "x"), stage("b", "y"))
    engine.cancel_flow(soft.id)
    assert all_states(engine, soft) == (RUNNING, [RUNNING, CANCELLED], [RUNNING, CANCELLED, CANCELLED])
    assert engine.beat(held).cancel == (held.id,)
    clock.advance(30)
    settle(engine)
    assert all_states(engine, soft) == (CANCELLED, [CANCELLED] * 2, [CANCELLED] * 3)
    hard, _ = begun(engine, stage("a", "x", "x"), stage("b", "y"))
    engine.cancel_flow(hard.id, hard=True)
    assert all_states(engine, hard) == (CANCELLED, [CANCELLED] * 2, [CANCELLED] * 3)


@row("abort names stages only")
def test_an_abort_reaches_every_task_with_one_event_each_and_revokes_the_leases(engine: Engine) -> None:
    flow, held = begun(engine, stage("a", "x", "x"), stage("b", "y"))
    engine.cancel_flow(flow.id, hard=True, actor_name="ann")
    assert all_states(engine, flow) == (CANCELLED, [CANCELLED] * 2, [CANCELLED] * 3)
    for task in flow.tasks:
        assert types(engine, task).count("cancelled") == 1
    for one in flow.stages:
        assert events_of(engine, flow, one).count("stage.cancelled") == 1
    assert (engine.task(held.id).owner, engine.task(held.id).lease) == (None, None)


@row("abort names stages only")
@each_case("report", ["succeed", "fail", "release", "beat"])
def test_a_late_report_after_an_abort_is_answered_clearly_and_changes_nothing(engine: Engine, report: str) -> None:
    flow, held = begun(engine, stage("a", "x"), stage("b", "y"))
    engine.cancel_flow(flow.id, hard=True)
    before = [e.id for e in engine.flow_events(flow.id)]
    with pytest.raises(IllegalTransition, match="the task has been cancelled already and cannot be"):
        engine.do(report, task=held.id, fence=held.fence, worker="w", **({"message": "m"} if report == "fail" else {}))
    assert [e.id for e in engine.flow_events(flow.id)] == before


@row("what becomes of a failed task's siblings and of later stages")
def test_under_strict_queued_siblings_are_cancelled_and_running_ones_finish_without_effect(engine: Engine) -> None:
    flow = engine.submit_flow("f", [stage("a", "bad", "x", "x"), stage("b", "y")], roll_up="strict")
    bad, sibling = running(engine), running(engine)
    engine.fail(bad, "no", retryable=False)
    assert all_states(engine, flow) == (FAILED, [FAILED, SKIPPED], [FAILED, RUNNING, CANCELLED, CANCELLED])
    version = engine.flow(flow.id).version
    engine.succeed(sibling)
    assert all_states(engine, flow) == (FAILED, [FAILED, SKIPPED], [FAILED, SUCCEEDED, CANCELLED, CANCELLED])
    assert engine.flow(flow.id).version == version


@row("what becomes of a failed task's siblings and of later stages")
def test_under_strict_a_running_sibling_that_fails_is_not_queued_again(engine: Engine) -> None:
    flow = engine.submit_flow("f", [stage("a", "bad", "x")], roll_up="strict")
    bad, sibling = running(engine), running(engine)
    engine.fail(bad, "no", retryable=False)
    assert engine.fail(sibling, "not yet", retryable=True).state == CANCELLED
    assert flow_state(engine, flow) == FAILED
    assert engine.claim(worker="w") == []


@row("what becomes of a failed task's siblings and of later stages")
def test_under_drain_everything_runs_to_its_end_then_the_flow_has_failed(engine: Engine) -> None:
    flow = engine.submit_flow("f", [stage("a", "bad", "x", "x")], roll_up="drain")
    assert run(engine, fail={"bad"}, most=2) == ["bad", "x"]
    assert all_states(engine, flow) == (RUNNING, [RUNNING], [FAILED, SUCCEEDED, QUEUED])
    run(engine)
    assert all_states(engine, flow) == (FAILED, [FAILED], [FAILED, SUCCEEDED, SUCCEEDED])


@row("PAUSED")
def test_a_pause_stops_claims_and_nothing_else(engine: Engine) -> None:
    flow, held = begun(engine, stage("a", "x", "x"))
    engine.pause_flow(flow.id)
    assert engine.claim(worker="w") == []
    engine.beat(held)
    engine.succeed(held)
    assert all_states(engine, flow) == (FLOW_PAUSED, [RUNNING], [SUCCEEDED, QUEUED])
    engine.resume_flow(flow.id)
    assert run(engine) == ["x"]
    assert flow_state(engine, flow) == SUCCEEDED


@row("PAUSED")
def test_a_report_during_a_pause_may_complete_the_flow(engine: Engine) -> None:
    flow, held = begun(engine, stage("a", "x"))
    engine.pause_flow(flow.id)
    engine.succeed(held)
    assert all_states(engine, flow) == (SUCCEEDED, [SUCCEEDED], [SUCCEEDED])


FAILURES = [
    pytest.param((), SUCCEEDED, id="none failed"),
    pytest.param(("a",), PARTIAL, id="the first failed"),
    pytest.param(("c",), PARTIAL, id="the last failed"),
    pytest.param(("a", "b"), PARTIAL, id="one succeeded"),
    pytest.param(("a", "b", "c"), FAILED, id="all failed"),
]


@row("FAILED: the first stage, any stage, all stages")
@each_case(("failed", "outcome"), FAILURES)
def test_a_mixed_flow_ends_by_how_many_of_its_stages_failed(
    engine: Engine, failed: tuple[str, ...], outcome: str
) -> None:
    flow = engine.submit_flow("f", [stage(n, n, on_failure="continue") for n in "abc"], roll_up="mixed")
    run(engine, fail=failed)
    assert stage_states(engine, flow) == [FAILED if n in failed else SUCCEEDED for n in "abc"]
    assert flow_state(engine, flow) == outcome


@row("FAILED: the first stage, any stage, all stages")
def test_a_stage_that_is_skipped_by_its_condition_does_not_spoil_success(engine: Engine) -> None:
    flow = engine.submit_flow("f", [stage("a", "x"), stage("b", "y", when=TaskSpec("ask"))], roll_up="mixed")
    assert run(engine, answers={"ask": False}) == ["x", "ask"]
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (SUCCEEDED, [SUCCEEDED, SKIPPED])


@row("FAILED: the first stage, any stage, all stages")
def test_a_mixed_flow_whose_first_stage_stops_it_has_failed(engine: Engine) -> None:
    flow = engine.submit_flow("f", [stage("a", "bad"), stage("b", "y")], roll_up="mixed")
    run(engine, fail={"bad"})
    assert (flow_state(engine, flow), stage_states(engine, flow)) == (FAILED, [FAILED, SKIPPED])


@row("a dependency that failed")
@each_case("how", [FAILED, CANCELLED, DEAD_LETTERED])
def test_what_depends_on_a_task_that_did_not_succeed_is_cancelled_and_says_so(engine: Engine, how: str) -> None:
    tasks = [
        TaskSpec("x", name="first"),
        TaskSpec("x", name="second", depends_on=("first",)),
        TaskSpec("x", name="third", depends_on=("second",)),
        TaskSpec("x", name="apart"),
    ]
    flow = engine.submit_flow("f", [StageSpec("a", tasks)], roll_up="drain")
    held = running(engine)
    if how == CANCELLED:
        engine.cancel(held.id, hard=True)
    else:
        engine.fail(held, "no", retryable=False, reason_code="parse_error" if how == DEAD_LETTERED else None)
    assert task_states(engine, flow.stages[0]) == [how, CANCELLED, CANCELLED, QUEUED]
    assert [last(engine, t).cause for t in flow.tasks[1:3]] == ["dependency_failed"] * 2
    run(engine)
    assert flow_state(engine, flow) == (SUCCEEDED if how == CANCELLED else FAILED)


@row("two missed heartbeats, or the lease's expiry")
def test_a_lease_is_at_most_two_heartbeats_long(engine: Engine) -> None:
    assert Policy(lease_s=60).heartbeat_s == 30
    engine.configure("mail", Policy(lease_s=20, heartbeat_s=10))
    with pytest.raises(InvalidInput, match="twice"):
        Policy(lease_s=21, heartbeat_s=10)
    submit(engine)
    assert take(engine).lease_s == 20


@row("two missed heartbeats, or the lease's expiry")
def test_two_missed_heartbeats_are_the_expiry_of_the_lease(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(lease_s=20, heartbeat_s=10))
    held = running(engine)
    clock.advance(10)
    engine.beat(held)
    clock.advance(20)
    settle(engine)
    assert state(engine, id_) == RUNNING
    clock.advance(0.000001)
    settle(engine)
    assert state(engine, id_) == QUEUED


@row("stuck for two hours becomes FAILED")
@each_case(("start", "limit"), [("queued", "queue_ttl"), ("queued", "deadline"), ("running", "deadline")])
def test_a_task_that_is_stuck_has_failed_with_the_reason_timeout(
    engine: Engine, clock: VirtualClock, start: str, limit: str
) -> None:
    made = in_state(engine, start, policy=Policy(lease_s=10_000).with_(**{f"{limit}_s": 7200}))
    clock.advance(7200)
    settle(engine)
    task = engine.task(made.id)
    assert (task.state, last(engine, made.id).payload["reason"]) == (FAILED, "timeout")
    assert task.error is not None
    assert task.error["message"].startswith("timed out or was orphaned")


@row("stuck for two hours becomes FAILED")
def test_a_flow_that_is_stuck_has_failed_and_says_that_it_was_orphaned(engine: Engine, clock: VirtualClock) -> None:
    flow, _ = begun(engine, stage("a", "x"), stage("b", "y"), deadline_s=7200)
    clock.advance(7200)
    settle(engine)
    assert all_states(engine, flow) == (FAILED, [FAILED, SKIPPED], [CANCELLED, CANCELLED])
    assert "timed out or was orphaned" in engine.flow(flow.id).error["message"]


@row("compensation")
def test_compensation_is_a_new_linked_flow_of_the_transaction_that_ends_the_failed_one(
    engine: Engine, clock: VirtualClock
) -> None:
    stages = [stage(n, n, compensate=TaskSpec(f"undo {n}")) for n in "ab"]
    flow = engine.submit_flow("f", [*stages, stage("c", "bad")])
    run(engine, fail={"bad"}, most=3)
    undoing = engine.flow(engine.flow(flow.id).compensation or "")
    assert (undoing.compensates, undoing.created_at) == (flow.id, engine.flow(flow.id).finished_at)
    assert run(engine) == ["undo b", "undo a"]
    assert engine.flow(undoing.id).state == SUCCEEDED
    assert flow_state(engine, flow) == FAILED
    assert events_of(engine, flow, flow.id)[-2:] == ["flow.compensation_submitted", "flow.compensated"]


ONCE = {
    SUCCEEDED: ["submitted", "claimed", "started", "succeeded"],
    FAILED: ["submitted", "claimed", "started", "failed"],
    CANCELLED: ["submitted", "claimed", "started", "cancelled"],
    DEAD_LETTERED: ["submitted", "claimed", "started", "dead_lettered"],
}


@row("one event for each transition, or two on a dead letter and none on a cancel")
@each_case("ended", ONCE)
def test_every_transition_has_exactly_one_event(engine: Engine, ended: str) -> None:
    id_ = in_state(engine, ended).id
    assert types(engine, id_) == ONCE[ended]
    assert engine.task(id_).version == len(ONCE[ended])


@row("one event for each transition, or two on a dead letter and none on a cancel")
def test_a_cancelled_flow_has_exactly_one_event_for_each_transition_of_everything_in_it(engine: Engine) -> None:
    flow, _ = begun(engine, stage("a", "x", "x"), stage("b", "y", approval=Approval(owner="ann")))
    engine.cancel_flow(flow.id, hard=True)
    events = [e for e in engine.flow_events(flow.id) if e.version is not None]
    versions = {engine.flow(flow.id).id: engine.flow(flow.id).version}
    versions |= {s.id: s.version for s in engine.stages(flow.id)}
    versions |= {t: engine.task(t).version for t in flow.tasks}
    for entity, version in versions.items():
        assert [e.version for e in events if e.entity_id == entity] == list(range(1, version + 1))
    assert len(events) == sum(versions.values())


@row("heartbeats are events")
@each_case("asked", [False, True], ids=["by default", "asked for"])
def test_a_heartbeat_is_recorded_only_where_the_kind_asks_for_it(engine: Engine, asked: bool) -> None:
    id_ = submit(engine, policy=Policy(record_heartbeats=asked))
    engine.beat(running(engine))
    assert types(engine, id_).count("heartbeat") == asked


@row("logs never change, or are pruned")
def test_log_and_events_are_only_appended_to_and_outlive_the_end_of_the_task(engine: Engine) -> None:
    id_ = submit(engine, policy=NO_WAIT)
    held = running(engine)
    engine.log(held, "first")
    engine.fail(held, "no")
    before = engine.events(id_), engine.logs(id_)
    held = running(engine)
    engine.log(held, "second")
    engine.succeed(held)
    events, lines = engine.events(id_), engine.logs(id_)
    assert (events[: len(before[0])], lines[: len(before[1])]) == before
    assert [line.line for line in lines] == ["first", "second"]


@row("logs never change, or are pruned")
def test_retention_removes_whole_jobs_that_have_ended_and_no_others(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [stage("a", "x")])
    run(engine)
    going, ended = begun(engine, stage("a", "x", "y"))
    engine.succeed(ended)
    clock.advance(3601)
    key, before = engine.flow(flow.id).key, len(engine.flow_events(going.id))
    assert engine.prune(3600) == [key]
    assert [f.id for f in engine.flows()] == [going.id]
    assert len(engine.flow_events(going.id)) == before
    assert {e.job_id for e in engine.feed.read(0).events} == {going.id}


@row("logs never change, or are pruned")
def test_notes_may_be_removed_by_age_and_transitions_stay(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(record_heartbeats=True))
    held = running(engine)
    engine.beat(held)
    engine.succeed(held)
    clock.advance(11)
    engine.prune_notes(["task.heartbeat"], 10)
    assert types(engine, id_) == ["submitted", "claimed", "started", "succeeded"]


@row("a duplicate key: an error, a no-op, or a conflict")
def test_the_same_key_and_body_name_the_same_job(engine: Engine) -> None:
    first = engine.submit("mail", {"to": "ann"}, idempotency_key="k")
    again = engine.submit("mail", {"to": "ann"}, idempotency_key="k")
    assert (again.id, again.repeated) == (first.id, True)
    assert len(engine.tasks()) == 1


@row("a duplicate key: an error, a no-op, or a conflict")
def test_the_same_key_with_another_body_is_a_conflict(engine: Engine) -> None:
    engine.submit("mail", {"to": "ann"}, idempotency_key="k")
    with pytest.raises(KeyReused) as refused:
        engine.submit("mail", {"to": "bob"}, idempotency_key="k")
    assert refused.value.status == 409
    assert len(engine.tasks()) == 1


@row("a duplicate key: an error, a no-op, or a conflict")
def test_the_same_holds_for_flows(engine: Engine) -> None:
    first = engine.submit_flow("f", [stage("a", "x")], idempotency_key="k")
    again = engine.submit_flow("f", [stage("a", "x")], idempotency_key="k")
    assert (again.id, again.repeated) == (first.id, True)
    with pytest.raises(KeyReused):
        engine.submit_flow("f", [stage("a", "y")], idempotency_key="k")
    assert len(engine.flows()) == 1


def test_every_row_has_a_test() -> None:
    assert ticked_off(globals()) == list(ROWS)
    assert len(ROWS) == 20
