"""Retention: what is old goes in the background, in small steps, and nothing else does."""

from __future__ import annotations

import threading
from itertools import count
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Submit, Succeed, ticket
from onetray.domain.errors import InvalidInput
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.engine import Engine, retention
from onetray.engine.retention import SHARE, Retention
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.tasks import in_state, state, submit, take

DAY = 86_400
FIRST = 10


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps begin small, so that few jobs make several."""
    monkeypatch.setattr(retention, "FIRST_LIMIT", FIRST)
    monkeypatch.setattr(retention, "MIN_LIMIT", FIRST)


def newer(engine: Engine) -> str:
    """Another job with the newest event, which is never removed."""
    return submit(engine, "newer", delay_s=100 * DAY)


def ended(engine: Engine, many: int, **fields: Any) -> list[str]:
    """Jobs that have succeeded."""
    made = [v.unwrap().id for v in engine.run([Submit(kind="mail", payload=n, **fields) for n in range(many)])]
    namespace = fields.get("namespace", "default")
    for verdict in engine.run(
        [Succeed(**ticket(a)) for a in engine.claim(worker="w", limit=many, namespace=namespace)]
    ):
        verdict.unwrap()
    return made


def a_round(walk: Retention) -> int:
    """How many jobs a whole round removes."""
    removed = 0
    while (gone := walk.step()) is not None:
        removed += gone
    return removed


def ids(engine: Engine, namespace: str = "default") -> set[str]:
    return {task.id for task in engine.tasks(namespace=namespace, limit=1000)}


def test_a_round_removes_what_is_old_and_keeps_the_rest(engine: Engine, clock: VirtualClock) -> None:
    for end in ("succeeded", "failed", "cancelled", "dead_lettered"):
        in_state(engine, end)
    kept = [in_state(engine, start).id for start in ("blocked", "waiting_input")]
    kept += ended(engine, 1, idempotency_key="k", policy=Policy(idempotency_ttl_s=100 * DAY))
    clock.advance(2 * DAY)
    kept += [*ended(engine, 3), newer(engine)]
    assert a_round(engine.retention(DAY)) == 4
    assert ids(engine) == set(kept)


def test_a_job_that_ends_late_goes_with_a_later_round(engine: Engine, clock: VirtualClock) -> None:
    late = submit(engine)
    held = take(engine, lease_s=100 * DAY)
    ended(engine, 2)
    walk = engine.retention(DAY)
    clock.advance(10 * DAY)
    kept = newer(engine)
    assert a_round(walk) == 2
    engine.succeed(held)
    newest = newer(engine)
    assert a_round(walk) == 0
    assert late in ids(engine)
    clock.advance(DAY)
    assert a_round(walk) == 1
    assert ids(engine) == {kept, newest}


def test_what_is_young_is_not_read(engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SPAN", 2)
    ended(engine, 3)
    clock.advance(DAY)
    young = [engine.task(id_).key for id_ in ended(engine, 20)]
    read, asked = engine.store.read, []

    def noted(name: str, /, **params: Any) -> Any:
        if name == "next_tasks":
            asked.append(params["after"])
        return read(name, **params)

    monkeypatch.setattr(engine.store, "read", noted)
    assert a_round(engine.retention(DAY)) == 3
    assert max(asked) < young[2]


def test_a_flow_goes_whole_and_an_open_one_stays(engine: Engine, clock: VirtualClock) -> None:
    stages = [
        StageSpec("a", [TaskSpec("x", name="n"), TaskSpec("y", depends_on=("n",))]),
        StageSpec("b", [TaskSpec("z")]),
    ]
    for _ in range(2):
        engine.submit_flow("f", stages, context=1)
    while claimed := engine.claim(worker="w", limit=10):
        for task in claimed:
            engine.succeed(task)
    still_open = engine.submit_flow("f", stages)
    clock.advance(2 * DAY)
    newer(engine)
    assert a_round(engine.retention(DAY)) == 2
    assert [flow.id for flow in engine.flows()] == [still_open.id]
    assert engine.store.read_sql("SELECT count(*) FROM onetray.stage") == [(2,)]
    assert engine.store.read_sql("SELECT count(*) FROM onetray.task") == [(4,)]


def test_a_step_takes_no_more_flows_than_have_its_number_of_tasks(engine: Engine, clock: VirtualClock) -> None:
    for size in (1, FIRST - 1, 1, 3 * FIRST, 1):
        engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * size)])
        for task in engine.claim(worker="w", limit=100):
            engine.succeed(task)
    clock.advance(2 * DAY)
    newer(engine)
    walk, steps = engine.retention(DAY), []
    while (gone := walk.step()) is not None:
        steps.append(gone)
    assert [n for n in steps if n] == [2, 1, 1, 1]


def test_retention_may_be_of_one_namespace(engine: Engine, clock: VirtualClock) -> None:
    for namespace in ("a", "b"):
        ended(engine, 2, namespace=namespace)
    clock.advance(2 * DAY)
    newer(engine)
    assert a_round(engine.retention(DAY, namespace="nowhere")) == 0
    assert a_round(engine.retention(DAY, namespace="a")) == 2
    assert (len(ids(engine, "a")), len(ids(engine, "b"))) == (0, 2)


def test_steps_grow_while_they_are_quick(engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "STEP_S", dict.fromkeys(retention.STEP_S, 1000.0))
    ended(engine, 7 * FIRST)
    clock.advance(2 * DAY)
    newer(engine)
    walk = engine.retention(DAY)
    assert [walk.step() for _ in range(3)] == [FIRST, 2 * FIRST, 4 * FIRST]


def test_a_slow_step_is_followed_by_a_smaller_one_and_a_rest(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(engine, 12 * FIRST)
    clock.advance(2 * DAY)
    newer(engine)
    walk = engine.retention(DAY)
    with monkeypatch.context() as quick:
        quick.setattr(retention, "STEP_S", dict.fromkeys(retention.STEP_S, 1000.0))
        assert [walk.step() for _ in range(2)] == [FIRST, 2 * FIRST]
    ticks, seen = count(), []

    def slow() -> float:
        seen.append(float(next(ticks)))
        return seen[-1]

    monkeypatch.setattr(retention, "time", SimpleNamespace(monotonic=slow))
    assert [walk.step() for _ in range(2)] == [4 * FIRST, 2 * FIRST]
    half = len(seen) // 2
    assert walk.rest_s == pytest.approx((seen[-1] - seen[half]) * (1 - SHARE) / SHARE)


def test_what_cannot_be_removed_does_not_hold_up_the_rest(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SPAN", 2)
    ended(engine, 4)
    clock.advance(2 * DAY)
    newer(engine)
    walk = engine.retention(DAY)
    with monkeypatch.context() as broken:
        broken.setattr(retention, "prune_tasks", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            walk.step()
    assert a_round(walk) == 2
    assert a_round(walk) == 2


def test_several_janitors_at_once_remove_every_job_once(database_url: str) -> None:
    clock, broken = VirtualClock(), []
    with engine_on(database_url, clock) as one, engine_on(database_url, clock) as two:
        ended(one, 200)
        one.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 5)])
        for task in one.claim(worker="w", limit=10):
            one.succeed(task)
        clock.advance(2 * DAY)
        kept = newer(one)
        gone: list[int] = []

        def remove(engine: Engine) -> None:
            try:
                gone.append(a_round(engine.retention(DAY)))
            except Exception as e:
                broken.append(e)

        threads = [threading.Thread(target=remove, args=(engine,)) for engine in (one, two, one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not broken
        # Whoever found another one at it has left the rest to it.
        assert sum(gone) + a_round(one.retention(DAY)) == 201
        assert ids(one) == {kept}


def test_one_janitor_of_a_fleet_prunes_at_a_time_and_none_waits(migrated_url: str) -> None:
    clock = VirtualClock()
    with engine_on(migrated_url, clock) as one, engine_on(migrated_url, clock) as two:
        ended(one, 3)
        clock.advance(2 * DAY)
        newer(one)
        walk = two.retention(DAY)
        with one.store.transaction() as tx:
            assert tx.query("turn_to_prune")[0][0]
            assert walk.step() is None
        assert a_round(walk) + a_round(walk) == 3


def test_a_job_that_somebody_has_locked_is_left_for_the_next_round(migrated_url: str) -> None:
    clock = VirtualClock()
    with engine_on(migrated_url, clock) as one, engine_on(migrated_url, clock) as two:
        locked = ended(one, 3)[1]
        clock.advance(2 * DAY)
        newer(one)
        walk = two.retention(DAY)
        with one.store.transaction() as tx:
            tx.lock([one.task(locked).key])
            assert a_round(walk) == 2
        assert state(one, locked) == "succeeded"
        assert a_round(walk) == 1


@each_case("value", [0, -1, 0.5, float("nan"), "30d", True])
def test_a_retention_that_is_no_length_of_time_is_refused(engine: Engine, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        engine.janitor(retention_s=value)
    assert refused.value.field == "retention_s"


def test_a_janitor_with_retention_ends_with_its_engine(database_url: str) -> None:
    with engine_on(database_url) as engine:
        engine.janitor(retention_s=DAY).start()
    assert not [t for t in threading.enumerate() if t.name in ("onetray-janitor", "onetray-retention", "onetray-bulk")]


@pytest.mark.parametrize("key", ["idempotency_key", "unique_key"])
def test_a_job_whose_key_a_submit_holds_is_left_for_the_next_round(migrated_url: str, key: str) -> None:
    """To wait for the submit could be a deadlock: it may want the key of another job that is being removed."""
    clock, policy = VirtualClock(), Policy(idempotency_ttl_s=1)
    with engine_on(migrated_url, clock) as one, engine_on(migrated_url, clock) as two:
        held = ended(one, 1, policy=policy, **{key: "k"})[0]
        ended(one, 1, policy=policy, **{key: "l"})
        clock.advance(2 * DAY)
        newer(one)
        walk = two.retention(DAY)
        with psycopg.connect(migrated_url) as submit_of_the_callers:
            again = one.submit("mail", policy=policy, connection=submit_of_the_callers, **{key: "k"})
            assert a_round(walk) == 1
            assert state(one, held) == "succeeded"
        assert again.id != held
        assert a_round(walk) == 1
        assert one.submit("mail", policy=policy, **{key: "k"}).id == again.id
