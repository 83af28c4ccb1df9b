"""What went wrong in a flow: on its stages, and as one list; what its tasks report while they run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Fail, ticket
from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.flow import FlowError, Placed, StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine
from onetray.engine.flows.stage_errors import KEPT, MESSAGE_CHARS
from tests.support.tasks import UNKNOWN_ID, settle, take


def wide(engine: Engine, tasks: int, **fields: object) -> Placed:
    members = [TaskSpec("x", name=f"t{i}") for i in range(tasks)]
    return engine.submit_flow(
        "f", [StageSpec("a", members, on_failure="continue"), StageSpec("b", [TaskSpec("y")])], roll_up="mixed",
        **fields,
    )  # fmt: skip


def test_a_partial_stage_names_the_tasks_that_failed_or_succeeded_in_part(engine: Engine) -> None:
    flow = wide(engine, 5)
    good, bad, dead, partly, vague = engine.claim(worker="w", limit=5)
    engine.succeed(good)
    engine.fail(bad, "no such file", retryable=False)
    engine.fail(dead, "x" * (MESSAGE_CHARS + 1), reason_code="parse_error")
    engine.succeed(partly, partial=True, errors=["one row", {"message": "another"}, {"row": 3}])
    engine.succeed(vague, partial=True)
    stage = engine.stage(flow.stages[0])
    assert (stage.state, stage.error) == ("partial", {"stage": "a", "message": "2 of 5 tasks failed"})
    assert [(e.name, e.message, e.cut) for e in stage.errors] == [
        ("t1", "no such file", False), ("t2", "x" * MESSAGE_CHARS, True), ("t3", "one row", False),
        ("t3", "another", False), ("t3", '{"row":3}', False), ("t4", "it succeeded in part", False),
    ]  # fmt: skip
    assert (stage.error_count, {e.stage for e in stage.errors}) == (6, {"a"})
    assert [e.task for e in stage.errors[:2]] == [bad.id, dead.id]
    engine.succeed(take(engine))
    assert engine.flow(flow.id).state == "partial"
    assert engine.flow_errors(flow.id) == (list(stage.errors), 6)
    assert engine.flow_errors(flow.id, limit=1) == ([stage.errors[0]], 6)
    assert [s.errors for s in engine.find_stages(states=["partial"]).stages] == [stage.errors]


def test_the_first_errors_of_a_large_stage_are_kept_and_all_are_counted(engine: Engine) -> None:
    flow = wide(engine, KEPT + 15)
    for size in (KEPT - 5, 10, 10):
        # Several batches: the list fills in the middle of one.
        claimed = engine.claim(worker="w", limit=size)
        engine.run([Fail(message=f"no {task.key}", retryable=False, **ticket(task)) for task in claimed])
    stage = engine.stage(flow.stages[0])
    assert (stage.error_count, len(stage.errors), stage.state) == (KEPT + 15, KEPT, "failed")
    assert [e.name for e in stage.errors] == [f"t{i}" for i in range(KEPT)]
    assert engine.flow_errors(flow.id).total == KEPT + 15


def test_a_task_that_is_run_again_takes_its_error_with_it(engine: Engine) -> None:
    flow = wide(engine, 3)
    first, second, _ = engine.claim(worker="w", limit=3)
    engine.fail(first, "first", retryable=False)
    engine.fail(second, "second", reason_code="parse_error")
    engine.redrive(second.id)
    stage = engine.stage(flow.stages[0])
    assert ([e.message for e in stage.errors], stage.error_count) == (["first"], 1)
    engine.fail(take(engine), "second again", retryable=False)
    stage = engine.stage(flow.stages[0])
    assert ([e.message for e in stage.errors], stage.error_count) == (["first", "second again"], 2)


def test_what_failed_besides_a_stages_tasks_is_listed_too(engine: Engine, clock: VirtualClock) -> None:
    undecided = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("decide"))])
    engine.fail(take(engine), "cannot decide", retryable=False)
    assert [(e.stage, e.message) for e in engine.flow_errors(undecided.id).errors] == [("a", "cannot decide")]
    rejected = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], start_as_waiting=True)])
    engine.reject_stage(rejected.stages[0], note="too dear")
    assert engine.flow_errors(rejected.id) == ([FlowError("a", None, None, "rejected by user:anonymous: too dear")], 1)
    late = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], deadline_s=1, start=False)
    good = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    assert engine.flow_errors(good.id) == engine.flow_errors(late.id) == ([], 0)
    clock.advance(2)
    settle(engine)
    ((error,), total) = engine.flow_errors(late.id)
    assert (error.stage, error.task, total, engine.flow(late.id).error) == (None, None, 1, {"message": error.message})
    for refused, expected in ((UNKNOWN_ID, NotFound), ("x", InvalidInput)):
        with pytest.raises(expected):
            engine.flow_errors(refused)
        with pytest.raises(expected):
            engine.member_reports(refused)
    with pytest.raises(InvalidInput):
        engine.flow_errors(good.id, limit=-1)


def test_an_error_shows_no_secret_of_the_flow(engine: Engine) -> None:
    engine.configure("x", Policy(redact=("password",)))
    members = [TaskSpec("x", {"password": "hunter22"})] * 2
    flow = engine.submit_flow("f", [StageSpec("a", members)], roll_up="mixed")
    one, two = engine.claim(worker="w", limit=2)
    engine.log(one, "with hunter22", ("info", "data", {"password": "x"}))
    engine.say_progress(one, 1, 2, "hunter22")
    engine.fail(one, "hunter22 is wrong", retryable=False)
    engine.fail(two, "x" * (MESSAGE_CHARS - 4) + "hunter22", retryable=False)
    expected = ["*** is wrong", "***"]
    assert [e.message for e in engine.redacted.flow_errors(flow.id).errors] == expected
    assert [e.message for e in engine.redacted.stage(flow.stages[0]).errors] == expected
    assert [e.message for e in engine.redacted.progress(flow.id).stages[0].errors] == expected
    reports = engine.redacted.member_reports(flow.id)
    assert [(r.line, r.data, r.message) for r in reports] == [
        ("with ***", None, None), ("data", {"password": "***"}, None), (None, None, "***"),
    ]  # fmt: skip
    assert engine.flow_errors(flow.id).errors[0].message == "hunter22 is wrong"


def test_reports_of_a_flows_tasks_have_one_order_and_progress_keeps_its_last_place(engine: Engine) -> None:
    flow, other = wide(engine, 3), wide(engine, 1)
    one, two, three, elsewhere = engine.claim(worker="w", limit=4)
    engine.log(one, "1", "2")
    engine.say_progress(two, 1, 4)
    engine.log(elsewhere, "elsewhere")
    engine.say_progress(one, 5, message="five")
    first = engine.member_reports(flow.id)
    assert [(r.cursor, r.name, r.line, r.done) for r in first] == [
        (1, "t0", "1", None), (2, "t0", "2", None), (3, "t1", None, 1.0), (4, "t0", None, 5.0),
    ]  # fmt: skip
    assert {(r.stage, r.attempt) for r in first} == {("a", 1)}
    engine.say_progress(two, 2, 4)
    engine.log(three, ("warning", "3", {"n": 1}))
    # Nothing twice, nothing lost: what was reported again is after the cursor.
    later = [(r.cursor, r.task, r.level, r.data, r.done, r.total) for r in engine.member_reports(flow.id, after=4)]
    assert later == [(5, two.id, None, None, 2.0, 4.0), (6, three.id, "warning", {"n": 1}, None, None)]
    assert [r.cursor for r in engine.member_reports(flow.id)] == [1, 2, 4, 5, 6]
    assert [r.cursor for r in engine.member_reports(flow.id, after=1, limit=2)] == [2, 4]
    assert [r.line for r in engine.member_reports(other.id)] == ["elsewhere"]
    # The log of a task itself counts as before.
    assert [line.cursor for line in engine.logs(three.id)] == [1]


def test_reports_that_come_at_once_are_numbered_without_a_gap(engine: Engine) -> None:
    flow = wide(engine, 4)

    def report(task: Assignment) -> None:
        for n in range(10):
            engine.log(task, str(n), "more")
            engine.say_progress(task, n)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(report, engine.claim(worker="w", limit=4)))
    found = engine.member_reports(flow.id)
    lines = [r.cursor for r in found if r.line is not None]
    assert (len(lines), len(found), found[-1].cursor) == (80, 84, 120)
    assert lines == sorted(set(lines))


def test_the_percentage_of_a_stage_includes_what_its_running_tasks_report(engine: Engine) -> None:
    flow = wide(engine, 4)
    done, half, over, open_ended = engine.claim(worker="w", limit=4)
    engine.succeed(done)
    engine.say_progress(half, 2, 4)
    engine.say_progress(over, 9, 8)
    engine.say_progress(open_ended, 7)
    progress = engine.progress(flow.id)
    assert [s.percentage for s in progress.stages] == [62, 0]
    assert (progress.percentage, progress.stages[0].reported_progress) == (31, 1.5)
    # What an attempt reported is gone with it.
    engine.fail(over, "again", retry_after_s=0)
    assert engine.progress(flow.id).stages[0].percentage == 37
    again = take(engine)
    assert (again.id, engine.progress(flow.id).stages[0].percentage) == (over.id, 37)
    engine.say_progress(again, 1, 2)
    assert engine.progress(flow.id).stages[0].percentage == 50
