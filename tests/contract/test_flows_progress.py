"""How far a flow is, what may be done to it, how the feed tells it, and how it is pruned."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.flow import Counts, Placed, Progress, StageSpec, TaskSpec
from onetray.domain.lifecycle import FLOW, STAGE
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.engines import must_verify
from tests.support.flows import history, how, run_all
from tests.support.tasks import UNKNOWN_ID, counts, settle, submit, take, written

DAY = 86_400


def four(engine: Engine) -> Placed:
    return engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 4), StageSpec("b", [TaskSpec("y")])])


def test_progress_counts_what_is_done_and_names_the_current_stage(engine: Engine) -> None:
    flow = four(engine)
    seen = []
    for _ in range(5):
        progress = engine.progress(flow.id)
        seen.append((progress.percentage, progress.current_stage, progress.counts.done))
        engine.succeed(take(engine))
    assert seen == [(0, "a", 0), (12, "a", 1), (25, "a", 2), (37, "a", 3), (50, "b", 4)]
    end = engine.progress(flow.id)
    assert (end.state, end.percentage, end.counts.done, end.counts.total) == ("succeeded", 100, 5, 5)
    assert [s.percentage for s in end.stages] == [100, 100]


def test_the_state_of_a_progress_is_as_new_as_its_counts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends between the read of the state and the read of the counts is in both, or in neither."""
    flow, task = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])]), submit(engine, queue="other")
    held = {"stages_of": take(engine), "progress_of": take(engine, queue="other")}
    read = engine.store.read

    def after_a_success(name: str, /, **fields: Any) -> Any:
        if name in held:
            engine.succeed(held.pop(name))
        return read(name, **fields)

    monkeypatch.setattr(engine.store, "read", after_a_success)
    assert engine.task_progress(task).state == "succeeded"
    progress = engine.progress(flow.id)
    assert (progress.state, progress.counts.succeeded, held) == ("succeeded", 1, {})


def test_tasks_are_counted_by_where_they_are(engine: Engine, clock: VirtualClock) -> None:
    tasks = [TaskSpec("x") for _ in range(9)]
    flow = engine.submit_flow("f", [StageSpec("a", tasks)], roll_up="drain")
    held = engine.claim(worker="w", limit=8)
    engine.start(held[0])
    engine.succeed(held[1])
    engine.succeed(held[2], partial=True)
    engine.fail(held[3], "no", retryable=False)
    engine.fail(held[4], "no", reason_code="parse_error")
    engine.pause(held[5], owner="ann", reason="a question")
    engine.pause(held[6], owner="ann", reason="a question", state="waiting_input")
    engine.cancel(held[7].id, hard=True)
    expected = Counts(
        total=9, queued=1, held=1, blocked=1, waiting_input=1, succeeded=2, partly=1, failed=1, dead_lettered=1,
        cancelled=1, pending=3,
    )  # fmt: skip
    progress = engine.progress(flow.id)
    assert progress.counts == engine.stage(flow.stages[0]).counts == expected
    assert progress.percentage == 55
    clock.advance(10_000)
    engine.expire_leases()
    now = engine.progress(flow.id).counts
    assert (now.held, now.queued) == (0, 2)


def test_a_condition_is_not_counted_among_the_tasks_of_its_stage(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("decide"))])
    take(engine)
    assert engine.progress(flow.id).counts == Counts(total=1, queued=1, created=1)


def test_a_flow_without_stages_has_made_no_progress(engine: Engine) -> None:
    flow = engine.submit_flow("f", sealed=False)
    progress = engine.progress(flow.id)
    assert (progress.percentage, progress.current_stage, progress.counts, progress.stages) == (0, None, Counts(), ())


def percents(engine: Engine, flow: Placed) -> tuple[int, list[int]]:
    """The percentage of a flow, which lists have, too, and those of its stages."""
    progress = engine.progress(flow.id)
    assert engine.percentages([flow.id]) == {flow.id: progress.percentage}
    return progress.percentage, [stage.percentage for stage in progress.stages]


def test_a_skipped_stage_is_no_work_that_was_done(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec(name, [TaskSpec(name)]) for name in "abc"])
    engine.skip_stage(flow.stages[1])
    assert percents(engine, flow) == (0, [0, 0, 0])
    engine.succeed(take(engine))
    assert percents(engine, flow) == (50, [100, 0, 0])
    engine.succeed(take(engine))
    assert percents(engine, flow) == (100, [100, 0, 100])


def test_a_failed_flow_is_as_far_as_it_got(engine: Engine) -> None:
    stages = [StageSpec("a", [TaskSpec("x")]), StageSpec("b", [TaskSpec("y")] * 4), StageSpec("c", [TaskSpec("z")])]
    flow = engine.submit_flow("f", [*stages, StageSpec("d", [TaskSpec("z")])])
    engine.succeed(take(engine))
    first, second, *_ = engine.claim(worker="w", limit=4)
    engine.succeed(first)
    engine.fail(second, "no", retryable=False)
    assert how(engine, flow) == ["failed", "succeeded", "failed", "skipped", "skipped"]
    assert percents(engine, flow) == (31, [100, 25, 0, 0])


@pytest.mark.parametrize("roll_up", ["drain", "mixed"])
def test_a_stage_that_failed_counts_what_succeeded_and_a_partial_one_is_done(engine: Engine, roll_up: str) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x"), TaskSpec("y")])], roll_up=roll_up)
    run_all(engine, bad={"y"})
    assert percents(engine, flow) == ((50, [50]) if roll_up == "drain" else (100, [100]))


def test_a_cancelled_flow_is_never_whole(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], sealed=False)
    run_all(engine)
    assert percents(engine, flow) == (100, [100])
    engine.cancel_flow(flow.id)
    assert (engine.flow(flow.id).state, percents(engine, flow)) == ("cancelled", (99, [100]))


def test_a_single_task_has_the_share_that_its_handler_reported(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    assert engine.task_progress(id_) == Progress("queued", 0, None, Counts(total=1, queued=1, pending=1), ())
    held = take(engine)
    engine.start(held)
    engine.say_progress(held, 2, 8, "page 2")
    progress = engine.task_progress(id_)
    assert (progress.state, progress.percentage, progress.counts) == ("running", 25, Counts(total=1, held=1))
    assert progress.reported is not None
    assert (progress.reported.message, engine.percentages([id_])) == ("page 2", {id_: 25})
    engine.fail(held, "no")
    again = engine.task_progress(id_)
    assert (again.percentage, again.counts) == (0, Counts(total=1, queued=1, retrying=1, retried=1))
    assert engine.percentages([id_]) == {}
    clock.advance(100)
    settle(engine)
    engine.succeed(take(engine))
    assert (engine.task_progress(id_).percentage, engine.percentages([id_])) == (100, {id_: 100})


@pytest.mark.parametrize(("done", "total", "expected"), [(8, 8, 99), (9, 8, 99), (1, None, 0), (1, 3, 33)])
def test_a_failed_task_is_as_far_as_it_said(engine: Engine, done: float, total: float | None, expected: int) -> None:
    id_ = submit(engine)
    held = take(engine)
    engine.start(held)
    engine.say_progress(held, done, total)
    engine.fail(held, "no", retryable=False)
    assert engine.task_progress(id_).percentage == expected
    assert engine.percentages([id_]) == ({} if total is None else {id_: expected})


def test_percentages_of_a_list_are_those_of_its_jobs_alone(engine: Engine) -> None:
    flows = [four(engine), engine.submit_flow("f", [StageSpec("a")]), engine.submit_flow("f", sealed=False)]
    id_, elsewhere = submit(engine), submit(engine, namespace="elsewhere")
    for held in engine.claim(worker="w", limit=10):
        if held.id != id_:
            engine.start(held)
            engine.say_progress(held, 1, 2)
    found = engine.percentages([*(flow.id for flow in flows), id_, elsewhere, UNKNOWN_ID])
    assert found == {flow.id: percentage for flow, percentage in zip(flows, (25, 100, 0), strict=True)}
    assert engine.percentages([]) == {}
    with pytest.raises(InvalidInput, match="ids"):
        engine.percentages(["nonsense"])


@each_case("actor", ["user", "worker", "system"])
def test_the_actions_of_flows_and_stages_are_those_of_the_table(engine: Engine, actor: str) -> None:
    flow = four(engine)
    for act in (
        lambda: None, lambda: engine.start(take(engine)), lambda: engine.pause_flow(flow.id),
        lambda: engine.cancel_flow(flow.id, hard=True),
    ):  # fmt: skip
        act()
        seen, stage = engine.flow(flow.id, actor=actor), engine.stage(flow.stages[0], actor=actor)
        assert seen.actions == (FLOW.actions(seen.state, actor) or (("retry",) if seen.finished_at else ()))
        assert stage.actions == STAGE.actions(stage.state, actor)
    assert engine.flow(flow.id, actor=actor).actions == ("retry",)


def test_what_a_user_may_do_next_is_in_every_answer(engine: Engine) -> None:
    flow = four(engine)
    assert set(flow.actions) == {"pause", "cancel"}
    assert set(engine.pause_flow(flow.id).actions) == {"resume", "cancel"}
    assert set(engine.resume_flow(flow.id).actions) == {"pause", "cancel"}
    assert set(engine.wait_stage(flow.stages[0]).actions) == {"approve", "reject", "skip", "cancel"}


def test_flows_are_listed_newest_first_in_pages(engine: Engine) -> None:
    made = [four(engine).id for _ in range(5)]
    found = engine.flows(limit=2)
    assert [f.id for f in found] == made[:-3:-1]
    assert [f.id for f in engine.flows(before=found[-1].key)] == made[2::-1]


def test_the_feed_tells_everything_about_a_flow_in_order(engine: Engine) -> None:
    flow = four(engine)
    other = four(engine)
    run_all(engine)
    cursor, told = 0, []
    while (page := engine.feed.read(cursor, limit=7)).events:
        told += page.events
        cursor = page.next_cursor
    for one in (flow, other):
        of_flow = [e for e in told if e.job_id == one.id]
        assert [e.id for e in of_flow] == [e.id for e in history(engine, one)]
        own = [e.type for e in of_flow if not e.type.startswith("task.")]
        assert own == [
            "flow.submitted", "stage.added", "stage.added", "flow.opened", "stage.opened", "stage.started",
            "flow.started", "stage.succeeded", "stage.opened", "stage.started", "stage.succeeded", "flow.succeeded",
        ]  # fmt: skip
    assert len({e.id for e in told}) == len(told)


def test_events_of_a_flow_can_be_read_in_pages_and_by_correlation(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], correlation_id="order-7")
    run_all(engine)
    whole = history(engine, flow)
    paged, after = [], 0
    while page := engine.flow_events(flow.id, after=after, limit=3):
        paged += page
        after = page[-1].id
    assert paged == whole == engine.events_by_correlation("order-7")


def newer(engine: Engine) -> str:
    """Another job with the newest event, which is never removed."""
    return submit(engine, "newer", delay_s=1000 * DAY)


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
def test_a_flow_that_has_ended_is_pruned_whole(engine: Engine, clock: VirtualClock, end: str) -> None:
    tasks = [TaskSpec("x", name="n"), TaskSpec("y", depends_on=("n",))]
    flow = engine.submit_flow("f", [StageSpec("a", tasks), StageSpec("b", [TaskSpec("z")])], context=1, deadline_s=DAY)
    if end == "cancelled":
        engine.cancel_flow(flow.id)
    run_all(engine, bad={"z"} if end == "failed" else ())
    assert how(engine, flow)[0] == end
    newer(engine)
    clock.advance(99)
    assert engine.prune(100) == []
    clock.advance(2 * DAY)
    while engine.sweep():
        pass
    key = engine.flow(flow.id).key
    assert engine.prune(100) == [key]
    for ask in (engine.flow, engine.stages, engine.progress, engine.flow_events, engine.contexts):
        with pytest.raises(NotFound):
            ask(flow.id)
    left = written(engine)
    assert [len(left[t]) for t in ("flow", "stage", "dependency", "context")] == [0, 0, 0, 0]
    assert {t: n for t, n in counts(engine).items() if t in ("task", "event", "dead_letter", "log", "due")} == {
        "task": 1, "event": 1, "dead_letter": 0, "log": 0, "due": 1,
    }  # fmt: skip


@pytest.mark.parametrize("where", ["created", "pending", "running", "paused", "waiting"])
def test_an_open_flow_and_its_tasks_are_never_pruned(engine: Engine, clock: VirtualClock, where: str) -> None:
    stages = [StageSpec("a", [TaskSpec("x")] * 2), StageSpec("b", [TaskSpec("y")], start_as_waiting=where == "waiting")]
    flow = engine.submit_flow("f", stages, start=where != "created")
    if where in ("running", "paused"):
        engine.succeed(take(engine))
    if where == "paused":
        engine.pause_flow(flow.id)
    if where == "waiting":
        run_all(engine)
    assert how(engine, flow)[0] == where
    newer(engine)
    clock.advance(1000 * DAY)
    before = written(engine)
    assert engine.prune(0) == []
    assert written(engine) == before


def test_a_flow_stays_while_a_task_of_it_still_runs(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 2)])
    bad, slow = engine.claim(worker="w", limit=2, lease_s=10 * DAY)
    engine.fail(bad, "no", retryable=False)
    newer(engine)
    clock.advance(DAY)
    assert engine.prune(0) == []
    engine.succeed(slow)
    newer(engine)
    assert len(engine.prune(0)) == 1
    with pytest.raises(NotFound):
        engine.flow(flow.id)


def test_a_flow_stays_until_its_compensation_has_ended(engine: Engine, clock: VirtualClock) -> None:
    stages = [StageSpec("a", [TaskSpec("x")], compensate=TaskSpec("undo")), StageSpec("b", [TaskSpec("bad")])]
    flow = engine.submit_flow("f", stages)
    for _ in range(2):
        held = take(engine)
        engine.succeed(held) if held.kind == "x" else engine.fail(held, "no", retryable=False)
    newer(engine)
    clock.advance(DAY)
    assert engine.prune(0) == []
    run_all(engine)
    newer(engine)
    clock.advance(DAY)
    assert len(engine.prune(0)) == 2
    with pytest.raises(NotFound):
        engine.flow(flow.id)


def test_what_is_left_of_a_retried_flow_stands_without_the_first(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b", [TaskSpec("bad")])], context=1)
    run_all(engine, bad={"bad"})
    clock.advance(DAY)
    again = engine.retry_flow(flow.id)
    newer(engine)
    assert len(engine.prune(DAY)) == 1
    must_verify(engine)
    left = engine.flow(again.id)
    assert (left.retry_of, engine.stage(again.stages[0]).carried_from) == (None, None)
    assert engine.inputs(again.tasks[0])["stages"] == {"a": ["x"]}
    assert run_all(engine) == ["bad"]
    assert how(engine, again)[0] == "succeeded"


def test_pruning_takes_a_bounded_number_of_one_namespace(engine: Engine, clock: VirtualClock) -> None:
    for namespace in ("mine", "mine", "mine", "other"):
        engine.submit_flow("f", [StageSpec("a")], namespace=namespace)
    newer(engine)
    clock.advance(DAY)
    assert len(engine.prune(0, namespace="mine", limit=2)) == 2
    assert len(engine.prune(0, namespace="mine", limit=2)) == 1
    assert engine.prune(0, namespace="mine") == []
    assert len(engine.flows(namespace="other")) == 1
