"""Unique keys: at most one job that has not ended for each namespace, kind and key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier
from typing import Any

from onetray.domain import commands as c
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import KeyReused
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.tasks import STATES, counts, in_state, submit, take

OPEN = STATES[:5]
ENDED = STATES[5:]


@each_case("state", OPEN)
def test_while_a_job_is_open_it_is_the_answer_whatever_the_body(engine: Engine, state: str) -> None:
    first = in_state(engine, state, unique_key="k")
    before = counts(engine)
    again = engine.submit("mail", {"other": "body"}, queue="default", unique_key="k", priority=9)
    assert (again.id, again.state, again.repeated) == (first.id, state, True)
    assert again.version == engine.task(first.id).version
    assert counts(engine) == before


@each_case("state", ENDED)
def test_once_a_job_has_ended_its_key_is_free(engine: Engine, state: str) -> None:
    first = in_state(engine, state, unique_key="k")
    second = engine.submit("mail", unique_key="k")
    assert second.id != first.id
    assert not second.repeated
    assert engine.submit("mail", unique_key="k").id == second.id
    assert counts(engine)["unique_key"] == 1


def test_the_key_of_a_job_that_was_pruned_is_free(engine: Engine, clock: VirtualClock) -> None:
    submit(engine, unique_key="k")
    engine.succeed(take(engine))
    submit(engine, "newer")
    clock.advance(10)
    assert len(engine.prune(1)) == 1
    assert counts(engine)["unique_key"] == 0
    assert not engine.submit("mail", unique_key="k").repeated


def test_keys_of_kinds_and_namespaces_are_apart(engine: Engine) -> None:
    ids = {
        submit(engine, "mail", unique_key="k"),
        submit(engine, "sms", unique_key="k"),
        submit(engine, "mail", unique_key="k", namespace="other"),
        submit(engine, "mail", unique_key="K"),
        submit(engine, "mail"),
        submit(engine, "mail"),
    }
    assert len(ids) == 6


def test_the_same_key_twice_in_one_batch_makes_one_job(engine: Engine) -> None:
    one, other, two, free = (
        v.unwrap()
        for v in engine.run([
            c.Submit(kind="mail", payload=1, unique_key="k"),
            c.Submit(kind="mail", payload=3, unique_key="l"),
            c.Submit(kind="mail", payload=2, unique_key="k"),
            c.Submit(kind="mail", payload=2),
        ])
    )  # fmt: skip
    assert (two.id, two.repeated, two.state) == (one.id, True, "queued")
    assert len({one.id, other.id, free.id}) == 3
    assert [a.payload for a in engine.claim(worker="w", limit=9)] == [1, 3, 2]


def test_a_job_that_ends_in_the_same_batch_frees_its_key(engine: Engine) -> None:
    first = submit(engine, unique_key="k")
    ended, second = engine.run([c.Cancel(first), c.Submit(kind="mail", unique_key="k")])
    assert ended.ok
    assert second.unwrap().id != first


@each_case("state", ["failed", "dead_lettered"])
def test_a_redriven_job_does_not_take_the_key(engine: Engine, state: str) -> None:
    first = in_state(engine, state, unique_key="k")
    successor = engine.redrive(first.id).id
    third = engine.submit("mail", unique_key="k")
    assert (third.repeated, third.id in (first.id, successor)) == (False, False)


def flow(**fields: Any) -> dict[str, Any]:
    return {"name": "f", "stages": [StageSpec("a", [TaskSpec("x")])], "unique_key": "k", **fields}


def test_while_a_flow_is_open_it_is_the_answer(engine: Engine) -> None:
    first = engine.submit_flow(**flow())
    again = engine.submit_flow(**flow(stages=[], data={"other": "body"}))
    assert (again.id, again.entity, again.state, again.version, again.repeated) == (
        first.id, "flow", first.state, first.version, True,
    )  # fmt: skip
    engine.succeed(take(engine))
    second = engine.submit_flow(**flow())
    assert second.id != first.id
    assert not second.repeated


def test_a_retried_flow_does_not_take_the_key(engine: Engine) -> None:
    first = engine.submit_flow(**flow())
    engine.fail(take(engine), "no", retryable=False)
    successor = engine.retry_flow(first.id)
    assert not engine.submit_flow(**flow()).repeated
    assert engine.flow(successor.id).state == "pending"


def test_the_same_key_of_two_flows_in_one_batch_makes_one_flow(engine: Engine) -> None:
    gate = [StageSpec("a", [TaskSpec("x")], approval=Approval())]
    first, second = (v.unwrap() for v in engine.run([SubmitFlow(**flow(stages=gate)), SubmitFlow(**flow(stages=gate))]))
    assert (second.id, second.repeated, second.state, second.version) == (first.id, True, "waiting", first.version)
    assert len(engine.flows()) == 1


def test_a_flow_and_a_task_of_one_name_share_their_keys(engine: Engine) -> None:
    task, placed = engine.run([SubmitFlow(**flow(name="mail")), c.Submit(kind="mail", unique_key="k")])
    # Tasks are submitted before flows.
    assert (task.unwrap().id, task.unwrap().entity, task.unwrap().repeated) == (placed.unwrap().id, "task", True)
    assert "cancel" in task.unwrap().actions
    engine.succeed(take(engine))
    held = engine.submit_flow(**flow(name="mail"))
    assert engine.submit("mail", unique_key="k").id == held.id


def both(key: str, payload: int = 1, unique_key: str = "u") -> c.Submit:
    return c.Submit(kind="mail", payload=payload, idempotency_key=key, unique_key=unique_key)


def test_the_idempotency_key_is_looked_at_first(engine: Engine) -> None:
    first = engine.call(both("i"))
    assert isinstance(engine.run([both("i", payload=2)])[0].error, KeyReused)
    engine.succeed(take(engine))
    again = engine.call(both("i"))
    assert (again.id, again.state) == (first.id, "succeeded")


def test_an_idempotency_key_leads_to_the_job_that_its_submit_was_answered_with(engine: Engine) -> None:
    holder = submit(engine, unique_key="u")
    assert engine.call(both("i")).id == holder
    engine.succeed(take(engine))
    again = engine.call(both("i"))
    assert (again.id, again.state, again.repeated) == (holder, "succeeded", True)
    assert engine.call(both("j")).id != holder


def test_both_keys_twice_in_one_batch(engine: Engine) -> None:
    holder = submit(engine, unique_key="u")
    one, same, reused, other, own = engine.run(
        [both("i"), both("i"), both("i", payload=2), both("j"), both("k", unique_key="v")]
    )
    assert [v.unwrap().id for v in (one, same, other)] == [holder] * 3
    assert isinstance(reused.error, KeyReused)
    assert reused.error.task == holder
    assert not own.unwrap().repeated
    new, echo, led = (v.unwrap().id for v in engine.run([both("l", 1, "w"), both("l", 1, "w"), both("m", 1, "w")]))
    assert new == echo == led
    assert {engine.call(both(key, 1, "w")).id for key in "lm"} == {new}
    assert counts(engine)["task"] == 3


def test_a_job_that_a_living_idempotency_key_leads_to_is_not_pruned(engine: Engine, clock: VirtualClock) -> None:
    holder = submit(engine, unique_key="u", policy=Policy(idempotency_ttl_s=100))
    engine.call(c.Submit(kind="mail", idempotency_key="i", unique_key="u", policy=Policy(idempotency_ttl_s=100)))
    engine.succeed(take(engine))
    submit(engine, "newer")
    clock.advance(99)
    assert engine.prune(1) == []
    clock.advance(1)
    assert len(engine.prune(1)) == 1
    assert submit(engine, unique_key="u") != holder


def test_the_same_key_from_many_threads_makes_one_job(engine: Engine) -> None:
    together = Barrier(16)

    def one(i: int) -> list[tuple[str | None, bool]]:
        together.wait(30)
        turns = (range(6), range(5, -1, -1))[i % 2]
        said = [engine.submit("mail", i, unique_key=f"k{n}") for n in turns]
        return [(r.id, r.repeated) for r in said]

    with ThreadPoolExecutor(16) as pool:
        said = [answer for answers in pool.map(one, range(16)) for answer in answers]
    assert len({id_ for id_, _ in said}) == counts(engine)["task"] == 6
    assert sum(not repeated for _, repeated in said) == 6


def test_jobs_that_end_and_begin_at_once_are_never_two(engine: Engine) -> None:
    """Each thread submits under one key and ends what it claims: no two jobs of the key overlap."""
    together = Barrier(4)

    def one(i: int) -> int:
        together.wait(30)
        made = 0
        for _ in range(8):
            made += not engine.submit("mail", unique_key="k").repeated
            for claimed in engine.claim(worker=f"w{i}"):
                engine.succeed(claimed)
        return made

    with ThreadPoolExecutor(4) as pool:
        made = sum(pool.map(one, range(4)))
    lives = [[e.id for e in engine.events(t.id)] for t in engine.tasks()]
    assert len(lives) == made
    ended = sorted((life[0], life[-1], len(life)) for life in lives)
    for before, after in pairwise(ended):
        assert before[2] == 4
        assert before[1] < after[0]
