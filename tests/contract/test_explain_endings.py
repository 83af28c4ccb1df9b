"""What explain says of a job that waits for its next attempt, is delayed, or has ended: why, and what can be done."""

from __future__ import annotations

import pytest

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.domain.task import Blocker
from onetray.engine import Engine
from tests.support.listening import register
from tests.support.situations import FLOWS, TASKS, Maker

PLAIN = Policy(jitter=False, backoff_base_s=10, lease_s=60, max_attempts=3)


@pytest.fixture
def engine(engine: Engine) -> Engine:
    register(engine)
    return engine


def only(blockers: list[Blocker]) -> Blocker:
    (blocker,) = blockers
    return blocker


def submitted(engine: Engine, policy: Policy = PLAIN, **fields: object) -> str:
    return engine.submit("mail", policy=policy, **fields).id or ""  # type: ignore[arg-type]


def failing(engine: Engine, message: str, **fields: object) -> None:
    engine.fail(engine.claim(worker="w")[0], message, error_class="SmtpError", **fields)  # type: ignore[arg-type]


def test_a_retry_says_what_failed_and_when_the_next_attempt_is_due(engine: Engine) -> None:
    task = submitted(engine)
    failing(engine, "refused")
    found = only(engine.explain(task))
    assert found.message == (
        "attempt 1 of 3 failed (SmtpError: refused); the next one is due at 2023-11-14 22:13:30 UTC, in 10 s (backoff)"
    )
    assert found.facts["error"] == {"class": "SmtpError", "message": "refused", "stage": "exec"}


def test_a_retry_after_an_expired_lease_says_so_and_not_the_error_before(engine: Engine, clock: VirtualClock) -> None:
    task = submitted(engine)
    failing(engine, "refused")
    clock.advance(10)
    engine.do_due()
    engine.start(engine.claim(worker="w")[0])
    clock.advance(61)
    engine.expire_leases()
    found = only(engine.explain(task))
    assert found.message.startswith("attempt 2 of 3 failed (the lease ran out); the next one is due at 2023-")
    assert "error" not in found.facts


def test_a_delayed_task_says_until_when_and_that_it_was_submitted_so(engine: Engine) -> None:
    found = only(engine.explain(submitted(engine, delay_s=7_200, cause="after lunch")))
    assert found.message == (
        "the task was submitted with a delay (after lunch): it may run at 2023-11-15 00:13:20 UTC, in 2 h"
    )


def test_a_rescheduled_task_says_by_whom_and_why(engine: Engine) -> None:
    task = submitted(engine)
    engine.reschedule(task, delay_s=5)
    engine.reschedule(task, delay_s=90, actor_name="ann", cause="the bank is closed")
    found = only(engine.explain(task))
    assert found.message.startswith("user:ann rescheduled the task (the bank is closed): it may run at 2023-11-14")


def test_a_released_task_says_by_whom_and_why(engine: Engine) -> None:
    task = submitted(engine)
    engine.release(engine.claim(worker="w7")[0], delay_s=30, reason="no disk")
    assert only(engine.explain(task)).message.startswith("worker:w7 released the task with a delay (no disk): it may")


def test_a_time_that_no_calendar_has_is_explained(engine: Engine) -> None:
    assert "a time after the year 9999" in only(engine.explain(submitted(engine, run_at=2**62))).message


def test_a_failed_task_says_its_error_and_how_to_run_it_again(engine: Engine) -> None:
    task = submitted(engine)
    failing(engine, "no such user", retryable=False)
    found = only(engine.explain(task))
    assert found.message == (
        f"the task has failed (attempt 1 of 3): SmtpError: no such user; to run it again: `onetray jobs retry {task}`"
    )
    assert found.facts["error"]["class"] == "SmtpError"


def test_a_dead_letter_says_its_reason_and_after_a_redrive_its_successor(engine: Engine) -> None:
    task = submitted(engine, PLAIN.with_(max_attempts=1))
    failing(engine, "refused")
    found = only(engine.explain(task))
    assert found.message == (
        "the task is a dead letter (exhausted_retries, attempt 1 of 1): SmtpError: refused; to run it again: "
        f"`onetray dead redrive {task}`"
    )
    successor = engine.redrive(task).id
    assert only(engine.explain(task)).message.endswith(f"it was redriven as {successor}")


def test_a_cancelled_task_says_by_whom_and_why(engine: Engine) -> None:
    task = submitted(engine)
    engine.cancel(task, actor_name="ann", cause="not needed")
    assert only(engine.explain(task)).message.startswith("the task was cancelled by user:ann: not needed; to run it")


def test_a_failed_flow_names_the_task_and_the_stage_that_stopped_it(engine: Engine) -> None:
    stages = [
        StageSpec("soft", [TaskSpec("x", name="first")], on_failure="ignore"),
        StageSpec("hard", [TaskSpec("x", name="second")]),
        StageSpec("never", [TaskSpec("x")]),
    ]
    flow = engine.submit_flow("f", stages)
    failing(engine, "unimportant", retryable=False)
    failing(engine, "the disk is full " * 100, retryable=False)
    found = only(engine.explain(flow.id))
    assert found.code == "failed"
    assert found.message.startswith("the flow has ended: failed: task second of stage 'hard': SmtpError: the disk is")
    assert found.message.endswith(
        f"to run it again from the stage that did not end well: `onetray jobs retry {flow.id}`"
    )
    assert (found.facts["task"], found.facts["stage"]) == (flow.tasks[1], "hard")
    # A stage keeps only the beginning of it.
    assert found.facts["error"]["message"] == "the disk is full " * 100
    of_stage = only(engine.explain(flow.stages[1]))
    assert of_stage.message.startswith("stage 'hard' has ended: failed: task second of stage 'hard': SmtpError: the")
    assert of_stage.facts["task"] == flow.tasks[1]


def test_a_rejected_stage_says_by_whom(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("gate", [TaskSpec("x")], approval=Approval(owner="ann"))])
    engine.reject_stage(flow.stages[0], actor_name="ann", note="too risky")
    for id_ in (flow.id, flow.stages[0]):
        assert "rejected by user:ann: too risky" in only(engine.explain(id_)).message


def test_a_cancelled_flow_says_why(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    engine.cancel_flow(flow.id, actor_name="ann", cause="wrong customer")
    for id_ in (flow.id, flow.stages[0]):
        found = only(engine.explain(id_))
        assert (found.code, "wrong customer" in found.message) == ("cancelled", True)
        assert f"`onetray jobs retry {flow.id}`" in found.message


def test_a_flow_that_missed_its_deadline_says_so(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], deadline_s=5)
    clock.advance(6)
    engine.sweep()
    found = only(engine.explain(flow.id))
    assert (found.code, "deadline" in found.message) == ("failed", True)
    assert found.facts["finished_at"] == clock.now() - clock.now() % SECOND


def test_what_cannot_run_again_is_not_offered(engine: Engine) -> None:
    """The message follows `actions`."""
    for make in TASKS.values():
        task = engine.task(make(Maker(engine)).id)
        if task.finished_at is not None:
            assert ("command" in only(engine.explain(task.id)).facts) == ("redrive" in task.actions), task
    for make_flow in FLOWS.values():
        flow = engine.flow(make_flow(Maker(engine)).id)
        if flow.finished_at is not None:
            assert ("command" in only(engine.explain(flow.id)).facts) == ("retry" in flow.actions), flow
