"""Successes that are written without a look at their tasks: the same answers as with one."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain import commands as c
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import IllegalTransition, LeaseLost, NotFound
from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment, Verdict
from onetray.engine import Engine, batch, fast_succeed


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[list[Verdict] | None]:
    """What became of each attempt to write without a look: None when a look was needed."""
    answers: list[list[Verdict] | None] = []
    unseen = batch._run_plain_successes

    def noted(*given: Any) -> list[Verdict] | None:
        answers.append(unseen(*given))
        return answers[-1]

    monkeypatch.setattr(batch, "_run_plain_successes", noted)
    return answers


def claimed(engine: Engine, count: int = 1, **fields: Any) -> list[Assignment]:
    engine.run([c.Submit(kind="k", **fields) for _ in range(count)])
    return engine.claim(worker="w", limit=count)


def succeed(engine: Engine, *tasks: Assignment, **fields: Any) -> list[Verdict]:
    return engine.run([c.Succeed(**{**c.ticket(a), **fields}) for a in tasks])


def test_many_successes_take_one_write_and_keep_their_order(
    engine: Engine, clock: VirtualClock, looks: list[Any]
) -> None:
    tasks = claimed(engine, 3)
    clock.advance(1)
    verdicts = engine.run([c.Succeed(result=a.id, ran_s=0.5, **c.ticket(a)) for a in reversed(tasks)])
    assert [v.unwrap()[1:4] for v in verdicts] == [("succeeded", 1, 4)] * 3
    assert len(looks) == 1
    assert looks[0] == verdicts
    for a in tasks:
        assert engine.task(a.id).result == a.id
        assert [e.type.partition(".")[2] for e in engine.events(a.id)] == [
            "submitted",
            "claimed",
            "started",
            "succeeded",
        ]


def test_one_whose_start_was_reported_is_written_too(engine: Engine, looks: list[Any]) -> None:
    one, two = claimed(engine, 2)
    engine.start(one)
    verdicts = engine.run([c.Succeed(started=True, **c.ticket(one)), c.Succeed(**c.ticket(two))])
    assert looks == [verdicts]
    assert [v.unwrap().version for v in verdicts] == [4, 4]


@pytest.mark.parametrize(("started", "said"), [(True, False), (False, True)])
def test_what_is_said_wrongly_of_the_start_is_looked_up(
    engine: Engine, looks: list[Any], started: bool, said: bool
) -> None:
    (task,) = claimed(engine)
    if started:
        engine.start(task)
    assert succeed(engine, task, started=said)[0].unwrap().version == 4
    assert looks == [None]


def test_said_again_it_is_accepted_without_an_event(engine: Engine, looks: list[Any]) -> None:
    (task,) = claimed(engine)
    succeed(engine, task)
    assert succeed(engine, task)[0].unwrap().repeated
    assert looks[1:] == [None]


@pytest.mark.parametrize(
    "said",
    [{"worker": "thief"}, {"fence": 2}, {"lease": 99, "worker": "thief"}, {"version": 1, "worker": "thief"}],
    ids=str,
)
def test_whoever_does_not_hold_the_task_is_refused(engine: Engine, looks: list[Any], said: dict[str, Any]) -> None:
    (task,) = claimed(engine)
    assert isinstance(succeed(engine, task, **said)[0].error, LeaseLost)
    assert engine.task(task.id).state == "assigned"
    assert looks == [None]


def test_another_namespace_finds_no_task(engine: Engine, looks: list[Any]) -> None:
    (task,) = claimed(engine)
    engine.submit("k", namespace="other")
    assert isinstance(succeed(engine, task, namespace="other")[0].error, NotFound)
    assert isinstance(succeed(engine, task, namespace="nowhere")[0].error, NotFound)


def test_a_lease_that_has_run_out_is_refused_also_before_the_janitor_comes(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("k", Policy(lease_s=10))
    (task,) = claimed(engine)
    clock.advance(11)
    assert isinstance(succeed(engine, task)[0].error, LeaseLost)


def test_one_that_is_lost_does_not_keep_the_others_from_being_written(engine: Engine, looks: list[Any]) -> None:
    one, two, three = claimed(engine, 3)
    engine.cancel(two.id, hard=True)
    verdicts = succeed(engine, one, two, three)
    assert [type(v.error) for v in verdicts] == [type(None), IllegalTransition, type(None)]
    assert looks == [None]


def test_the_same_task_twice_in_a_batch_is_looked_at(engine: Engine, looks: list[Any]) -> None:
    (task,) = claimed(engine)
    first, second = succeed(engine, task, task)
    assert not first.unwrap().repeated
    assert second.unwrap().repeated
    assert looks == []


def test_a_success_of_a_kind_with_a_breaker_is_looked_at(engine: Engine, looks: list[Any]) -> None:
    (task,) = claimed(engine, policy=Policy(breaker_failures=3))
    assert task.version == 0
    assert succeed(engine, task)[0].ok
    assert looks == []


def test_successes_under_limits_give_their_slots_back(engine: Engine, looks: list[Any]) -> None:
    engine.configure("k", Policy(concurrency=(Concurrency(2, key="tenant"), Concurrency(9))))
    engine.run([c.Submit(kind="k", payload={"tenant": n % 2}) for n in range(6)])
    engine.submit("other")
    tasks = engine.claim(worker="w", limit=10)
    assert sum(limit.running for limit in engine.limits()) == 8
    verdicts = engine.run([*(c.Succeed(**c.ticket(a)) for a in tasks), c.Claim(worker="w", limit=10)])
    assert looks == [verdicts]
    assert len(verdicts[-1].unwrap()) == 2
    succeed(engine, *verdicts[-1].unwrap())
    assert looks[1:] != [None]
    assert [limit.running for limit in engine.limits()] == [0, 0]


def test_slots_of_a_limit_that_is_newer_than_the_claim_are_given_back(engine: Engine, looks: list[Any]) -> None:
    engine.set_limit(kind="k", concurrency=5)
    tasks = claimed(engine, 2)
    engine.set_limit(queue="default", concurrency=5)
    assert [limit.running for limit in engine.limits()] == [2, 2]
    assert looks == []
    verdicts = succeed(engine, *tasks)
    assert looks == [verdicts]
    assert [limit.running for limit in engine.limits()] == [0, 0]


def test_slots_that_change_after_they_were_read_are_looked_up(
    engine: Engine, looks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a new limit were counted between the read and the write."""
    engine.set_limit(kind="k", concurrency=5)
    (task,) = claimed(engine)
    run = fast_succeed.succeed_without_reading

    def with_old_slots(tx: Any, *given: Any) -> None:
        read = tx.query_later
        tx.query_later = lambda name, **of: [(task.key, ",77,")] if name == "slots_of_tasks" else read(name, **of)
        try:
            run(tx, *given)
        finally:
            tx.query_later = read

    monkeypatch.setattr(batch, "succeed_without_reading", with_old_slots)
    assert succeed(engine, task)[0].unwrap().state == "succeeded"
    assert looks == [None]
    assert [limit.running for limit in engine.limits()] == [0]


def test_a_process_that_does_not_know_the_limits_looks_once(engine: Engine, looks: list[Any]) -> None:
    engine.set_limit(kind="k", concurrency=5)
    one, two = claimed(engine, 2)
    engine.store.limited.discard(engine.store.names.queue(1, "default") or 0)
    verdicts = [*succeed(engine, one), *succeed(engine, two)]
    assert looks == [None, verdicts[1:]]
    assert [limit.running for limit in engine.limits()] == [0]
