"""How a stage ends from its tasks, and a flow from its stages, under every policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import IllegalTransition
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.flows import history, how, last, run_all, tasks_of, types
from tests.support.tasks import settle, take

SOME, ALL = ("bad", "x"), ("bad", "bad")
ENDS: dict[tuple[str, str, tuple[str, str]], list[str]] = {
    # What comes of the flow, of the stage with these tasks, and of the one after it.
    ("strict", "stop", SOME): ["failed", "failed", "skipped"],
    ("strict", "continue", SOME): ["failed", "failed", "succeeded"],
    ("strict", "ignore", SOME): ["succeeded", "failed", "succeeded"],
    ("strict", "stop", ALL): ["failed", "failed", "skipped"],
    ("strict", "continue", ALL): ["failed", "failed", "succeeded"],
    ("strict", "ignore", ALL): ["succeeded", "failed", "succeeded"],
    ("drain", "stop", SOME): ["failed", "failed", "skipped"],
    ("drain", "continue", SOME): ["failed", "failed", "succeeded"],
    ("drain", "ignore", SOME): ["succeeded", "failed", "succeeded"],
    ("drain", "stop", ALL): ["failed", "failed", "skipped"],
    ("drain", "continue", ALL): ["failed", "failed", "succeeded"],
    ("drain", "ignore", ALL): ["succeeded", "failed", "succeeded"],
    ("mixed", "stop", SOME): ["partial", "partial", "succeeded"],
    ("mixed", "continue", SOME): ["partial", "partial", "succeeded"],
    ("mixed", "ignore", SOME): ["partial", "partial", "succeeded"],
    ("mixed", "stop", ALL): ["failed", "failed", "skipped"],
    ("mixed", "continue", ALL): ["partial", "failed", "succeeded"],
    ("mixed", "ignore", ALL): ["succeeded", "failed", "succeeded"],
}


@each_case(("policy", "on_failure", "kinds"), ENDS, ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_failures_end_a_stage_and_its_flow_as_the_policies_say(
    engine: Engine, policy: str, on_failure: str, kinds: tuple[str, str]
) -> None:
    stages = [StageSpec("a", [TaskSpec(k) for k in kinds], on_failure=on_failure), StageSpec("b", [TaskSpec("y")])]
    flow = engine.submit_flow("f", stages, roll_up=policy)
    ran = run_all(engine, bad={"bad"})
    expected = ENDS[policy, on_failure, kinds]
    assert how(engine, flow) == expected
    assert ran == [*(kinds[:1] if policy == "strict" else kinds), *(["y"] if expected[2] == "succeeded" else [])]
    decision = last(engine, flow, flow.stages[0]).payload
    facts = (decision["policy"], decision["on_failure"], decision["outcome"], decision["total"], decision["open"])
    assert facts == (policy, on_failure, expected[1], 2, 0)
    assert decision["failed"] == ran.count("bad")
    assert decision["succeeded"] == ran.count("x")
    end = last(engine, flow, flow.id).payload
    assert (end["policy"], end["outcome"], end["stages"]) == (policy, expected[0], 2)
    assert (end["ignored"], end["skipped"]) == (
        int(on_failure == "ignore" and expected[1] == "failed"), int(expected[2] == "skipped"),
    )  # fmt: skip


def test_a_strict_stage_fails_at_once_and_what_runs_may_finish_without_effect(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 4), StageSpec("b", [TaskSpec("y")])])
    bad, good, late = engine.claim(worker="w", limit=3)
    engine.fail(bad, "no", retryable=False)
    assert how(engine, flow) == ["failed", "failed", "skipped"]
    assert tasks_of(engine, flow.stages[0]) == ["failed", "assigned", "assigned", "cancelled"]
    assert engine.stage(flow.stages[0]).error == {"stage": "a", "message": "a task failed for good"}
    before = [e for e in history(engine, flow) if not e.type.startswith("task.")]
    assert engine.succeed(good).state == "succeeded"
    assert engine.fail(late, "try again").state == "cancelled"
    assert tasks_of(engine, flow.stages[0]) == ["failed", "succeeded", "cancelled", "cancelled"]
    counts = engine.stage(flow.stages[0]).counts
    assert (counts.total, counts.held, counts.succeeded, counts.failed, counts.cancelled) == (4, 0, 1, 1, 2)
    assert [e for e in history(engine, flow) if not e.type.startswith("task.")] == before


def test_what_runs_in_a_failed_stage_is_never_queued_again(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 5)])
    bad, released, paused, lost, timed = engine.claim(worker="w", limit=5)
    engine.fail(bad, "no", retryable=False)
    engine.release(released)
    engine.pause(paused, owner="ann", reason="a question")
    engine.start(lost)
    clock.advance(10_000)
    settle(engine)
    assert tasks_of(engine, flow.stages[0]) == ["failed", *["cancelled"] * 4]
    assert {e.cause for e in engine.events(timed.id) if e.type == "task.cancelled"} == {"its stage has ended"}
    assert run_all(engine) == []


def test_a_failure_that_is_tried_again_decides_nothing(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x", max_attempts=2)])])
    engine.fail(take(engine), "later")
    assert how(engine, flow) == ["running", "running"]
    clock.advance(3600)
    settle(engine)
    engine.fail(take(engine), "no")
    assert how(engine, flow) == ["failed", "failed"]
    assert engine.flow(flow.id).error == {"message": "1 of 1 stages failed"}


@each_case("policy", ["strict", "drain", "mixed"])
def test_a_dead_letter_counts_as_a_failure(engine: Engine, policy: str) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], roll_up=policy)
    engine.fail(take(engine), "not readable", reason_code="parse_error")
    assert how(engine, flow) == ["failed", "failed"]
    assert last(engine, flow, flow.stages[0]).payload["dead_lettered"] == 1


def test_a_task_that_timed_out_in_the_queue_counts_as_a_failure(engine: Engine, clock: VirtualClock) -> None:
    tasks = [TaskSpec("x", policy=Policy(queue_ttl_s=10)), TaskSpec("x")]
    flow = engine.submit_flow("f", [StageSpec("a", tasks)], roll_up="mixed")
    clock.advance(11)
    settle(engine)
    run_all(engine)
    assert how(engine, flow) == ["partial", "partial"]


def test_time_in_the_queue_begins_when_the_stage_opens(engine: Engine, clock: VirtualClock) -> None:
    late = StageSpec("b", [TaskSpec("y", policy=Policy(queue_ttl_s=10))])
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), late])
    clock.advance(100)
    settle(engine)
    engine.succeed(take(engine))
    clock.advance(9)
    settle(engine)
    assert how(engine, flow) == ["running", "succeeded", "pending"]
    clock.advance(2)
    settle(engine)
    assert how(engine, flow) == ["failed", "succeeded", "failed"]


@each_case("policy", ["strict", "drain", "mixed"])
def test_a_partial_success_makes_its_stage_and_flow_partial_and_goes_on(engine: Engine, policy: str) -> None:
    flow = engine.submit_flow(
        "f", [StageSpec("a", [TaskSpec("x")] * 2), StageSpec("b", [TaskSpec("y")])], roll_up=policy
    )
    first, second = engine.claim(worker="w", limit=2)
    engine.succeed(first, 1, partial=True, errors=["one row was unreadable"])
    engine.succeed(second, 2)
    assert run_all(engine) == ["y"]
    assert how(engine, flow) == ["partial", "partial", "succeeded"]
    assert engine.stage(flow.stages[0]).counts.partly == 1
    assert last(engine, flow, first.id).payload == {"partial": True, "errors": ["one row was unreadable"]}
    assert last(engine, flow, flow.stages[0]).payload["partly"] == 1


CANCELLED: dict[str, tuple[str, list[str]]] = {
    "one of two": ("strict", ["succeeded", "succeeded", "succeeded"]),
    "all": ("strict", ["cancelled", "cancelled", "skipped"]),
    "all, drained": ("drain", ["cancelled", "cancelled", "skipped"]),
    "all, mixed": ("mixed", ["cancelled", "cancelled", "skipped"]),
}


@each_case("case", CANCELLED)
def test_cancelled_tasks_are_no_failures(engine: Engine, case: str) -> None:
    policy, expected = CANCELLED[case]
    flow = engine.submit_flow(
        "f", [StageSpec("a", [TaskSpec("x")] * 2), StageSpec("b", [TaskSpec("y")])], roll_up=policy
    )
    for id_ in flow.tasks[: 1 if case == "one of two" else 2]:
        engine.cancel(id_)
    run_all(engine)
    assert how(engine, flow) == expected


@each_case(
    ("policy", "on_failure", "expected"),
    [
        ("strict", "continue", ["cancelled", "cancelled", "succeeded"]),
        ("mixed", "continue", ["partial", "cancelled", "succeeded"]),
        ("strict", "ignore", ["succeeded", "cancelled", "succeeded"]),
    ],
)
def test_a_cancelled_stage_is_passed_as_its_policy_says(
    engine: Engine, policy: str, on_failure: str, expected: list[str]
) -> None:
    stages = [StageSpec("a", [TaskSpec("x")], on_failure=on_failure), StageSpec("b", [TaskSpec("y")])]
    flow = engine.submit_flow("f", stages, roll_up=policy)
    engine.cancel(flow.tasks[0])
    assert run_all(engine) == ["y"]
    assert how(engine, flow) == expected


def test_a_stage_that_was_skipped_does_not_spoil_success(engine: Engine) -> None:
    stages = [StageSpec(name, [TaskSpec(name)]) for name in ("a", "b", "c")]
    flow = engine.submit_flow("f", stages)
    skipped = engine.skip_stage(flow.stages[1], note="not today", actor_name="ann")
    assert skipped.state == "skipped"
    assert run_all(engine) == ["a", "c"]
    assert how(engine, flow) == ["succeeded", "succeeded", "skipped", "succeeded"]
    assert tasks_of(engine, flow.stages[1]) == ["cancelled"]
    assert last(engine, flow, flow.stages[1]).actor == "user:ann"
    with pytest.raises(IllegalTransition):
        engine.skip_stage(flow.stages[1])


def test_a_condition_decides_whether_a_stage_runs(engine: Engine) -> None:
    def answer(task: object) -> object:
        return {"over": 3} if getattr(task, "payload", None) == {
            "stage": "b", "config": {"k": 1}, "results": {"a": [None]}, "payload": "why",
        } else None  # fmt: skip

    stages = [
        StageSpec("a", [TaskSpec("x")]),
        StageSpec("b", [TaskSpec("y")], when=TaskSpec("decide", "why")),
        StageSpec("c", [TaskSpec("z")], when=TaskSpec("decide", "why")),
    ]
    flow = engine.submit_flow("f", stages, data={"k": 1})
    assert run_all(engine, answer=answer) == ["x", "decide", "y", "decide"]
    assert how(engine, flow) == ["succeeded", "succeeded", "succeeded", "skipped"]
    opened = [e for e in history(engine, flow) if e.type == "stage.opened" and e.entity_id == flow.stages[1]]
    assert [e.payload for e in opened] == [{"condition": {"over": 3}}]
    assert last(engine, flow, flow.stages[2]).cause == "its condition is not met"
    assert engine.stage(flow.stages[1]).counts.total == 1


def test_a_condition_that_cannot_be_decided_fails_its_stage(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("bad")), StageSpec("b")])
    run_all(engine, bad={"bad"})
    assert how(engine, flow) == ["failed", "failed", "skipped"]
    assert "could not be decided" in engine.stage(flow.stages[0]).error["message"]


ENDINGS: dict[str, Callable[[Engine], object]] = {
    "flow.succeeded": lambda e: run_all(e),
    "flow.failed": lambda e: run_all(e, bad={"x"}),
    "flow.cancelled": lambda e: [e.cancel_flow(f.id) for f in e.flows()],
}


@pytest.mark.parametrize("end", ENDINGS)
def test_every_transition_has_one_event_and_one_ends_the_flow(engine: Engine, end: str) -> None:
    flow = engine.submit_flow("f", [StageSpec(n, [TaskSpec("x")] * 3) for n in "abc"])
    ENDINGS[end](engine)
    assert types(engine, flow, flow.id)[-1] == end
    ids = [e.id for e in history(engine, flow)]
    assert ids == sorted(set(ids))


def test_a_batch_of_reports_ends_many_flows_each_in_its_own_order(engine: Engine) -> None:
    from onetray.domain.commands import Succeed, ticket

    flows = [engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 3)]) for _ in range(5)]
    held = engine.claim(worker="w", limit=100)
    verdicts = engine.run([Succeed(**ticket(task)) for task in held])
    assert all(v.ok for v in verdicts)
    for flow in flows:
        assert how(engine, flow) == ["succeeded", "succeeded"]
        own = [e.type for e in history(engine, flow) if not e.type.startswith("task.")]
        assert own[-4:] == ["stage.started", "flow.started", "stage.succeeded", "flow.succeeded"]
