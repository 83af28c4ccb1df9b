"""The key that handlers pass to other systems, and checkpoints, outlive retries and redrives of a task."""

from __future__ import annotations

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Submit
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.verbs import SubmitMany
from onetray.engine import Engine
from tests.support.engines import must_verify
from tests.support.flows import run_all
from tests.support.tasks import submit, take

DEAD = {"reason_code": "dependency_unavailable"}


def redriven(engine: Engine, id_: str) -> str:
    """Let the task of this id die, and redrive it. Returns the new id."""
    task = take(engine)
    assert task.id == id_
    engine.fail(task, "no", **DEAD)
    return str(engine.redrive(id_).id)


def test_a_task_without_a_key_has_its_own_id_on_every_attempt(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    for _ in range(2):
        task = take(engine)
        assert task.idempotency_key == id_
        engine.release(task)


def test_the_key_of_the_submit_comes_first(engine: Engine) -> None:
    id_ = submit(engine, idempotency_key="order-7")
    assert take(engine).idempotency_key == "order-7"
    assert engine.task(id_).retry_of is None


def test_each_task_of_a_batch_has_its_own(engine: Engine) -> None:
    keys = ["a", None, "b", None]
    receipts = [v.unwrap() for v in engine.run([Submit(kind="mail", idempotency_key=key) for key in keys])]
    expected = [key or receipt.id for key, receipt in zip(keys, receipts, strict=True)]
    many = engine.call(SubmitMany(like=Submit(kind="mail"), payloads=[4, 5]))
    claimed = engine.claim(worker="w", limit=10)
    assert [task.idempotency_key for task in claimed] == [*expected, *many]


@pytest.mark.parametrize("key", [None, "order-7"])
def test_a_redriven_task_has_the_key_of_the_first_one(engine: Engine, key: str | None) -> None:
    first = submit(engine, idempotency_key=key)
    third = redriven(engine, redriven(engine, first))
    assert engine.delete_job(first) is None
    task = take(engine)
    assert (task.id, task.idempotency_key) == (third, key or first)
    must_verify(engine)


def test_a_retry_of_a_success_has_it_too(engine: Engine) -> None:
    first = submit(engine)
    engine.succeed(take(engine))
    engine.redrive(first)
    assert take(engine).idempotency_key == first


def test_a_repeated_claim_has_the_same_keys(engine: Engine) -> None:
    submit(engine, idempotency_key="order-7")
    submit(engine)
    first, again = (engine.claim(worker="w", limit=2, request_key="r") for _ in range(2))
    assert [task.idempotency_key for task in again] == [task.idempotency_key for task in first]
    assert first[0].idempotency_key == "order-7"


def test_a_task_that_is_redriven_in_its_stage_has_the_key_of_the_first(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], roll_up="drain", sealed=False)
    new = redriven(engine, flow.tasks[0])
    task = take(engine)
    assert (task.id, task.idempotency_key) == (new, flow.tasks[0])


def test_a_retried_flow_passes_on_the_keys_of_what_runs_again(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b", [TaskSpec("bad")])])
    run_all(engine, "bad")
    again = engine.retry_flow(flow.id)
    run_all(engine, "bad")
    engine.retry_flow(again.id)
    assert take(engine).idempotency_key == flow.tasks[1]


def test_what_was_undone_is_done_under_a_new_key(engine: Engine) -> None:
    pay = StageSpec("pay", [TaskSpec("pay")], compensate=TaskSpec("refund"))
    flow = engine.submit_flow("f", [pay, StageSpec("send", [TaskSpec("bad")])])
    held = take(engine)
    engine.checkpoint(held, "charged")
    engine.succeed(held)
    run_all(engine, "bad")
    again = engine.retry_flow(flow.id)
    task = take(engine)
    assert (task.kind, task.idempotency_key) == ("pay", again.tasks[0])
    assert engine.last_checkpoint(task.id) is None


def test_a_redriven_task_finds_the_checkpoint_of_the_one_before(engine: Engine) -> None:
    first = submit(engine)
    engine.checkpoint(task := take(engine), {"row": 5})
    engine.fail(task, "no", **DEAD)
    new = str(engine.redrive(first).id)
    engine.delete_job(first)
    assert engine.last_checkpoint(new) == {"row": 5}
    engine.checkpoint(task := take(engine), {"row": 9})
    assert engine.last_checkpoint(new) == {"row": 9}
    engine.fail(task, "no", **DEAD)
    assert engine.last_checkpoint(str(engine.redrive(new).id)) == {"row": 9}
    must_verify(engine)


def test_a_success_that_runs_again_begins_at_the_beginning(engine: Engine) -> None:
    first = submit(engine)
    engine.checkpoint(task := take(engine), "done")
    engine.succeed(task)
    assert engine.last_checkpoint(str(engine.redrive(first).id)) is None


def test_a_retried_flow_goes_on_from_the_last_checkpoint_of_a_chain(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x"), TaskSpec("y")])], roll_up="drain")
    x, y = sorted(engine.claim(worker="w", limit=2), key=lambda task: task.kind)
    engine.checkpoint(x, 1)
    engine.fail(x, "no", **DEAD)
    engine.redrive(x.id)
    engine.checkpoint(second := take(engine), 2)
    engine.fail(second, "no", **DEAD)
    engine.succeed(y)
    again = engine.retry_flow(flow.id)
    task = next(t for t in engine.claim(worker="w", limit=2) if t.kind == "x")
    assert (engine.last_checkpoint(task.id), task.idempotency_key) == (2, flow.tasks[0])
    assert task.id in again.tasks
    must_verify(engine)
