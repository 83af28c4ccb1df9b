"""Redriving one task of a flow that has ended: what else runs again, what is carried over, and with which attempts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from onetray.domain import commands as c
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import IllegalTransition, InvalidInput, NoAttemptsLeft
from onetray.domain.flow import Approval, Placed, StageSpec, TaskSpec
from onetray.domain.task import Task
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.flows import history, how, run_all, tasks_of
from tests.support.tasks import submit, take, written

DEAD: Any = {"reason_code": "parse_error"}


def ended(engine: Engine, *kinds: str, roll_up: str = "drain", **fields: Any) -> Placed:
    """A flow of one stage with a task of each kind: `bad…` is set aside, `failed…` fails, the others succeed."""
    tasks = [TaskSpec(kind, {"n": n}, name=f"{kind}{n}") for n, kind in enumerate(kinds)]
    flow = engine.submit_flow("f", [StageSpec("a", tasks), StageSpec("b", [TaskSpec("z")])], roll_up=roll_up, **fields)
    while claimed := engine.claim(worker="w", limit=99):
        for task in claimed:
            if task.kind.startswith("bad"):
                engine.fail(task, f"{task.kind} is bad", **DEAD)
            elif task.kind.startswith("failed"):
                engine.fail(task, "no", retryable=False)
            else:
                engine.succeed(task, [task.kind, task.payload["n"]] if task.payload else task.kind)
    assert engine.flow(flow.id).state == "failed"
    return flow


def redriven(engine: Engine, task: str, **fields: Any) -> Task:
    receipt = engine.redrive(task, **fields)
    assert receipt.id is not None
    return engine.task(receipt.id)


def first_stage(engine: Engine, task: Task) -> str:
    return engine.stages(task.job_id)[0].id


@each_case("roll_up", ["strict", "drain", "mixed"])
def test_the_siblings_that_have_succeeded_do_not_run_again(engine: Engine, roll_up: str) -> None:
    flow = ended(engine, "x", "y", "bad", roll_up="drain") if roll_up == "drain" else None
    if flow is None:
        tasks = [TaskSpec(k, {"n": n}, name=f"{k}{n}") for n, k in enumerate(("x", "y", "bad"))]
        stages = [StageSpec("a", tasks), StageSpec("b", [TaskSpec("z")])]
        flow = engine.submit_flow("f", stages, roll_up=roll_up)
        x, y, bad = engine.claim(worker="w", limit=3)
        engine.succeed(x, ["x", 0])
        engine.succeed(y, ["y", 1])
        engine.fail(bad, "no", **DEAD)
        run_all(engine)
    before = history(engine, flow)
    new = redriven(engine, flow.tasks[2])
    stage = first_stage(engine, new)
    assert (new.retry_of, new.name, new.attempts, engine.flow(new.job_id).retry_of) == (
        flow.tasks[2], "bad2", 0, flow.id,
    )  # fmt: skip
    assert tasks_of(engine, stage) == ["succeeded", "succeeded", "queued"]
    carried = engine.stage_tasks(stage)[0]
    assert (carried.retry_of, carried.result, carried.attempts, carried.started_at) == (
        flow.tasks[0], ["x", 0], 1, None,
    )  # fmt: skip
    events = engine.events(carried.id)
    assert [e.type for e in events] == ["task.submitted", "task.carried_over"]
    assert (events[1].actor, events[1].cause, events[1].payload) == (
        "system:engine", "carried over", {"carried_from": flow.tasks[0]},
    )  # fmt: skip
    progress = engine.progress(new.job_id)
    assert (progress.counts.succeeded, progress.counts.queued, progress.stages[0].percentage) == (2, 2, 66)
    assert [job.kind for job in engine.claim(worker="w", limit=9)] == ["bad"]
    engine.succeed(new.id, "mended", worker="w")
    last = take(engine)
    assert engine.inputs(last.id)["stages"] == {"a": [["x", 0], ["y", 1], "mended"]}
    engine.succeed(last)
    assert how(engine, new.job_id) == ["succeeded"] * 3
    assert history(engine, flow) == before


@each_case("state", ["failed", "dead_lettered"])
def test_other_failures_stay_unless_the_stage_is_strict(engine: Engine, state: str) -> None:
    other = "bad_too" if state == "dead_lettered" else "failed"
    flow = ended(engine, "x", "bad", other)
    new = redriven(engine, flow.tasks[1])
    stage = first_stage(engine, new)
    assert tasks_of(engine, stage) == ["succeeded", "queued", state]
    kept = engine.stage_tasks(stage)[2]
    old = engine.task(flow.tasks[2])
    assert (kept.error, kept.attempts, kept.retry_of) == (old.error, old.attempts, old.id)
    assert engine.stage(stage).error_count == 1
    assert run_all(engine) == ["bad"]
    assert how(engine, new.job_id) == ["failed", "failed", "skipped"]
    if state == "dead_lettered":
        assert [letter.id for letter in engine.dead_lines()] == [kept.id]
        (letter,), (first,) = engine.dead_letters(kept.id), engine.dead_letters(old.id)
        assert (letter.last_error, letter.attempts, letter.last_owner) == (first.last_error, first.attempts, "w")
        assert first.successor_id == kept.id
    third = redriven(engine, kept.id)
    assert tasks_of(engine, first_stage(engine, third)) == ["succeeded", "succeeded", "queued"]
    assert run_all(engine) == [other, "z"]
    assert how(engine, third.job_id) == ["succeeded"] * 3


def test_two_dead_letters_of_an_open_flow_are_redriven_one_after_the_other(engine: Engine) -> None:
    flow = ended(engine, "bad", "bad")
    one = redriven(engine, flow.tasks[0])
    (other,) = engine.dead_lines()
    with pytest.raises(IllegalTransition, match=f"carried over to a new flow as {other.id}: redrive that one"):
        engine.redrive(flow.tasks[1])
    two = redriven(engine, other.id)
    assert two.job_id == one.job_id
    assert run_all(engine) == ["bad", "bad", "z"]
    assert how(engine, one.job_id) == ["succeeded"] * 3


def test_in_a_strict_stage_everything_that_did_not_succeed_runs_again(engine: Engine) -> None:
    tasks = [TaskSpec(kind) for kind in ("x", "bad", "bad_too", "late")]
    flow = engine.submit_flow("f", [StageSpec("a", tasks)])
    x, bad, too = engine.claim(worker="w", limit=3)
    engine.succeed(x)
    engine.fail(bad, "no", **DEAD)
    engine.fail(too, "no", **DEAD)
    assert tasks_of(engine, flow.stages[0]) == ["succeeded", "dead_lettered", "dead_lettered", "cancelled"]
    new = redriven(engine, bad.id)
    assert tasks_of(engine, first_stage(engine, new)) == ["succeeded", "queued", "queued", "queued"]
    assert engine.dead_lines() == []
    again = engine.redrive(too.id)
    assert (again.repeated, engine.task(again.id or "").job_id) == (True, new.job_id)
    assert len(engine.flows()) == 2
    assert run_all(engine) == ["bad", "bad_too", "late"]


def test_what_was_cancelled_because_of_the_task_runs_after_it_and_what_a_user_cancelled_does_not(
    engine: Engine,
) -> None:
    tasks = [
        TaskSpec("bad", name="bad"),
        TaskSpec("after", depends_on=("bad",), name="after"),
        TaskSpec("last", depends_on=("after", "x")),
        TaskSpec("x", name="x"),
        TaskSpec("unwanted"),
        TaskSpec("failed", name="failed"),
        TaskSpec("hopeless", depends_on=("failed",)),
    ]
    flow = engine.submit_flow("f", [StageSpec("a", tasks)], roll_up="drain")
    engine.cancel(flow.tasks[4], actor_name="ann")
    for task in engine.claim(worker="w", limit=9):
        if task.kind == "x":
            engine.succeed(task, "x")
        else:
            engine.fail(task, "no", **(DEAD if task.kind == "bad" else {"retryable": False}))
    states = ["dead_lettered", "cancelled", "cancelled", "succeeded", "cancelled", "failed", "cancelled"]
    assert tasks_of(engine, flow.stages[0]) == states
    new = redriven(engine, flow.tasks[0])
    stage = first_stage(engine, new)
    assert tasks_of(engine, stage) == ["queued", "queued", "queued", "succeeded", "cancelled", "failed", "cancelled"]
    assert [t.unmet for t in engine.stage_tasks(stage)[:3]] == [0, 1, 1]
    assert run_all(engine) == ["bad", "after", "last"]
    last = engine.stage_tasks(stage)[2]
    assert engine.inputs(last.id)["tasks"] == {"after": "after", "x": "x"}
    with pytest.raises(IllegalTransition, match="it needs 'failed', which is failed: redrive that first"):
        engine.redrive(flow.tasks[6])


def test_only_the_task_of_a_cancelled_flow_runs_again(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x"), TaskSpec("y"), TaskSpec("z")])])
    engine.succeed(take(engine))
    engine.cancel_flow(flow.id, actor_name="ann")
    new = redriven(engine, flow.tasks[1])
    assert tasks_of(engine, first_stage(engine, new)) == ["succeeded", "queued", "cancelled"]
    assert run_all(engine) == ["y"]
    assert how(engine, new.job_id) == ["succeeded", "succeeded"]


def test_a_task_that_has_succeeded_runs_again_alone(engine: Engine) -> None:
    flow = ended(engine, "x", "y", "bad")
    new = redriven(engine, flow.tasks[0])
    assert tasks_of(engine, first_stage(engine, new)) == ["queued", "succeeded", "dead_lettered"]
    assert run_all(engine) == ["x"]


def test_what_a_carried_over_task_has_spawned_is_there_too(engine: Engine) -> None:
    stages = [StageSpec("a", [TaskSpec("x")]), StageSpec("b", [TaskSpec("z")])]
    flow = engine.submit_flow("f", stages, roll_up="drain")
    spawn = {"a": [TaskSpec("y", 1), TaskSpec("y", 2)], "b": [TaskSpec("late")]}
    engine.succeed(take(engine), "x", spawn=spawn)
    one, two = engine.claim(worker="w", limit=2)
    engine.succeed(one, "y")
    engine.fail(two, "no", **DEAD)
    assert how(engine, flow) == ["failed", "failed", "skipped"]
    new = redriven(engine, two.id)
    assert tasks_of(engine, first_stage(engine, new)) == ["succeeded", "succeeded", "queued"]
    assert run_all(engine) == ["y", "z", "late"]
    assert engine.stages(new.job_id)[0].result == ["x", "y", "y"]


def test_the_condition_and_the_approval_of_the_stage_are_not_asked_for_again(engine: Engine) -> None:
    stage = StageSpec("a", [TaskSpec("x"), TaskSpec("bad")], when=TaskSpec("ask"), approval=Approval(owner="ann"))
    flow = engine.submit_flow("f", [stage], roll_up="drain")
    engine.succeed(take(engine), True)
    engine.approve_stage(flow.stages[0], input={"n": 1}, actor_name="ann")
    for task in engine.claim(worker="w", limit=2):
        engine.succeed(task) if task.kind == "x" else engine.fail(task, "no", **DEAD)
    new = redriven(engine, flow.tasks[1])
    answer = engine.stages(new.job_id)[0].answer
    assert (answer["by"], answer["input"]) == ("user:ann", {"n": 1})
    assert run_all(engine) == ["bad"]
    assert how(engine, new.job_id) == ["succeeded", "succeeded"]


def test_a_stage_that_was_rejected_after_it_had_begun_asks_again(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x"), TaskSpec("y")])])
    engine.succeed(take(engine))
    engine.wait_stage(flow.stages[0])
    engine.reject_stage(flow.stages[0])
    new = redriven(engine, flow.tasks[1])
    assert how(engine, new.job_id) == ["waiting", "waiting"]
    assert run_all(engine) == []
    engine.approve_stage(first_stage(engine, new))
    assert run_all(engine) == ["y"]
    assert how(engine, new.job_id) == ["succeeded", "succeeded"]


def test_a_stage_that_was_undone_runs_again_whole(engine: Engine) -> None:
    tasks = [TaskSpec("x"), TaskSpec("bad")]
    stages = [StageSpec("a", [TaskSpec("w")], compensate=TaskSpec("undo")), StageSpec("b", tasks)]
    flow = engine.submit_flow("f", stages, roll_up="drain")
    run_all(engine, bad={"bad"})
    new = redriven(engine, flow.tasks[2])
    assert how(engine, new.job_id) == ["pending", "pending", "created"]
    assert run_all(engine) == ["w", "x", "bad"]


def test_successes_in_part_and_metrics_are_carried_over(engine: Engine) -> None:
    tasks = [TaskSpec("x"), TaskSpec("y"), TaskSpec("bad")]
    engine.submit_flow("f", [StageSpec("a", tasks)], roll_up="drain")
    x, y, bad = engine.claim(worker="w", limit=3)
    engine.succeed(x, 1, partial=True, errors=["half", "quarter"], metrics={"rows": 2, "last": "x"})
    engine.succeed(y, 2, metrics={"rows": 3})
    engine.fail(bad, "no", **DEAD)
    for _ in range(2):
        new = redriven(engine, bad.id)
        stage = engine.stages(new.job_id)[0]
        assert (stage.counts.partly, stage.metrics, stage.error_count) == (1, {"rows": 5, "last": "x"}, 2)
        assert [e.message for e in stage.errors] == ["half", "quarter"]
        bad = take(engine)
        engine.fail(bad, "again", **DEAD)
    new = redriven(engine, bad.id)
    engine.succeed(take(engine), 3, metrics={"rows": 4})
    assert how(engine, new.job_id) == ["partial", "partial"]
    assert engine.stages(new.job_id)[0].metrics == {"rows": 9, "last": "x"}


def test_what_was_carried_over_stays_when_the_old_flow_is_deleted(engine: Engine) -> None:
    flow = ended(engine, "x", "bad", "bad")
    new = redriven(engine, flow.tasks[1])
    engine.delete_job(flow.id)
    carried = engine.stage_tasks(first_stage(engine, new))[0]
    assert (carried.result, carried.retry_of) == (["x", 0], None)
    assert run_all(engine) == ["bad"]
    third = redriven(engine, engine.dead_lines()[0].id)
    assert run_all(engine) == ["bad", "z"]
    assert engine.stages(third.job_id)[0].result == [["x", 0], "bad", "bad"]
    again = engine.retry_flow(third.job_id, from_stage="a")
    assert run_all(engine) == ["x", "bad", "bad", "z"]
    assert how(engine, again) == ["succeeded"] * 3


def test_aliases_follow_to_the_tasks_that_are_carried_over_too(engine: Engine) -> None:
    tasks = [TaskSpec("x", alias="x"), TaskSpec("bad", alias="bad"), TaskSpec("bad_too", alias="too")]
    flow = engine.submit_flow("f", [StageSpec("a", tasks)], roll_up="drain", alias="run")
    run_all(engine, bad={"bad", "bad_too"})
    new = redriven(engine, flow.tasks[1])
    found = {a.alias: a for a in engine.find_aliases(["run", "x", "bad", "too"])}
    assert found["run"].id == new.job_id
    assert {a.job_id for a in found.values()} == {new.job_id}
    assert [t.alias for t in engine.stage_tasks(first_stage(engine, new))] == ["x", "bad", "too"]


def test_a_delay_or_a_time_is_kept_wherever_the_task_runs(engine: Engine, clock: VirtualClock) -> None:
    single = submit(engine, "single")
    engine.fail(take(engine), "no", **DEAD)
    flow = ended(engine, "x", "bad")
    open_flow = engine.submit_flow("g", [StageSpec("a", [TaskSpec("bad")], sealed=False)], roll_up="drain")
    engine.fail(take(engine), "no", **DEAD)
    at = clock.now() + 60_000_000
    for task, fields in (
        (single, {"run_at": at}), (flow.tasks[1], {"run_at": at}), (open_flow.tasks[0], {"delay_s": 60}),
    ):  # fmt: skip
        assert redriven(engine, task, **fields).run_at == at
    assert run_all(engine) == []
    clock.advance(60)
    engine.sweep()
    assert sorted(run_all(engine)) == ["bad", "bad", "single", "z"]
    with pytest.raises(InvalidInput, match="delay_s or run_at, not both"):
        engine.redrive(single, delay_s=1, run_at=at)


@each_case("where", ["single", "open", "ended"])
def test_attempts_are_reset_or_kept(engine: Engine, where: str) -> None:
    def dead() -> str:
        if where == "single":
            id_ = submit(engine, "x", max_attempts=3)
        else:
            sealed = where == "ended"
            tasks = [TaskSpec("x", max_attempts=3)]
            id_ = engine.submit_flow("f", [StageSpec("a", tasks, sealed=sealed)], roll_up="drain").tasks[0]
        engine.fail(take(engine), "no", **DEAD)
        return id_

    assert redriven(engine, dead()).attempts == 0
    engine.succeed(take(engine))
    old = dead()
    new = redriven(engine, old, keep_attempts=True)
    assert (new.attempts, new.max_attempts) == (1, 3)
    if where != "single":
        assert engine.progress(new.job_id).counts.retrying == 1
    engine.fail(take(engine), "no", **DEAD)
    third = redriven(engine, new.id, keep_attempts=True)
    assert third.attempts == 2
    engine.fail(take(engine), "no")
    last = engine.task(third.id)
    assert (last.state, last.attempts) == ("dead_lettered", 3)
    before = written(engine)
    with pytest.raises(NoAttemptsLeft, match="3 of 3 attempts") as e:
        engine.redrive(third.id, keep_attempts=True)
    assert (e.value.attempts, e.value.max_attempts, e.value.status) == (3, 3, 409)
    assert written(engine) == before
    assert redriven(engine, third.id).attempts == 0


def test_a_refused_redrive_does_not_disturb_the_others_of_its_batch(engine: Engine) -> None:
    ids = [submit(engine, max_attempts=1) for _ in range(2)]
    for task in engine.claim(worker="w", limit=2):
        engine.fail(task, "no")
    one, two = engine.run([c.Redrive(task=ids[0], keep_attempts=True), c.Redrive(task=ids[1])])
    assert isinstance(one.error, NoAttemptsLeft)
    assert two.ok


def test_two_redrives_at_once_make_one_flow(engine: Engine) -> None:
    flow = ended(engine, "x", "bad", "bad")
    start = Barrier(6)

    def one(n: int) -> str | None:
        start.wait(30)
        (verdict,) = engine.run([c.Redrive(task=flow.tasks[1 + n % 2])])
        return verdict.value.id if verdict.ok else None

    with ThreadPoolExecutor(6) as pool:
        ids = list(pool.map(one, range(6)))
    assert len(set(ids)) == 2
    assert ids.count(None) == 3  # Those that wanted the other letter, which the first one has carried over.
    assert len(engine.flows()) == 2


def test_a_large_stage_is_carried_over(engine: Engine) -> None:
    tasks = [TaskSpec("x", n) for n in range(1200)]
    flow = engine.submit_flow("f", [StageSpec("a", [*tasks, TaskSpec("bad")])], roll_up="drain")
    while claimed := engine.claim(worker="w", limit=500):
        engine.run([c.Succeed(result=t.payload, **c.ticket(t)) for t in claimed if t.kind == "x"])
        engine.run([c.Fail(message="no", **DEAD, **c.ticket(t)) for t in claimed if t.kind == "bad"])
    new = redriven(engine, flow.tasks[-1])
    counts = engine.stages(new.job_id)[0].counts
    assert (counts.total, counts.succeeded, counts.queued) == (1201, 1200, 1)
    assert run_all(engine) == ["bad"]
    assert engine.all_results(first_stage(engine, new)) == [*range(1200), "bad"]
    assert how(engine, new.job_id) == ["succeeded", "succeeded"]
