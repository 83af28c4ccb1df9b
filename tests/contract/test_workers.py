"""The registry of workers: what they say about themselves, for whoever looks after them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import InvalidInput
from onetray.domain.worker import WorkerBeat, WorkerInfo
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.tasks import written

DAY = 86_400
BEAT = WorkerBeat(
    name="w1", host="blue", pid=7, version="1.0", queues=("mail", "scan"), kinds=("send",), concurrency=8, running=2,
    claimed=5, ttl_s=30,
)  # fmt: skip


def names(engine: Engine) -> list[str]:
    return [w.name for w in engine.workers()]


def test_a_worker_is_listed_as_it_describes_itself(engine: Engine, clock: VirtualClock) -> None:
    engine.worker_beat(BEAT)
    now = clock.now()
    assert engine.workers() == [
        WorkerInfo(
            "w1", "blue", 7, "1.0", now, now, now + 30 * SECOND, 8, 2, 5, ("mail", "scan"), ("send",), "running", True
        )
    ]


def test_a_beat_tells_what_has_changed_and_keeps_the_start(engine: Engine, clock: VirtualClock) -> None:
    engine.worker_beat(BEAT)
    began = clock.now()
    clock.advance(10)
    engine.worker_beat(replace(BEAT, running=0, claimed=0, state="stopping", queues=(), kinds=()))
    (found,) = engine.workers()
    assert (found.started_at, found.beat_at, found.running, found.state) == (began, clock.now(), 0, "stopping")
    assert (found.queues, found.kinds) == ((), ())


def test_another_process_under_the_same_name_has_its_own_start(engine: Engine, clock: VirtualClock) -> None:
    engine.worker_beat(BEAT)
    clock.advance(10)
    engine.worker_beat(replace(BEAT, pid=8))
    (found,) = engine.workers()
    assert found.started_at == clock.now()


def test_a_silent_worker_is_listed_and_not_alive(engine: Engine, clock: VirtualClock) -> None:
    engine.worker_beat(BEAT)
    clock.advance(29.999999)
    assert engine.workers()[0].alive
    clock.advance(0.000001)
    assert not engine.workers()[0].alive


def test_a_worker_that_leaves_is_not_listed(engine: Engine) -> None:
    engine.worker_beat(BEAT)
    engine.worker_leave("w1")
    engine.worker_leave("w1")
    engine.worker_leave("w1", namespace="never seen")
    assert engine.workers() == []


def test_a_worker_that_comes_back_has_its_own_start(engine: Engine, clock: VirtualClock) -> None:
    engine.worker_beat(BEAT)
    engine.worker_leave("w1")
    clock.advance(10)
    engine.worker_beat(BEAT)
    assert [(w.started_at, w.alive) for w in engine.workers()] == [(clock.now(), True)]


def test_the_newest_worker_is_listed_first(engine: Engine, clock: VirtualClock) -> None:
    for name in ("b", "a", "c"):
        engine.worker_beat(replace(BEAT, name=name))
        clock.advance(1)
    engine.worker_beat(replace(BEAT, name="b"))
    assert names(engine) == ["c", "a", "b"]
    assert [w.name for w in engine.workers(limit=1)] == ["c"]


def test_workers_of_namespaces_are_apart(engine: Engine) -> None:
    engine.worker_beat(BEAT)
    engine.worker_beat(replace(BEAT, pid=9), namespace="other")
    assert [w.pid for w in engine.workers()] == [7]
    assert [w.pid for w in engine.workers(namespace="other")] == [9]
    assert engine.workers(namespace="never seen") == []
    engine.worker_leave("w1", namespace="other")
    assert [w.pid for w in engine.workers()] == [7]


def test_a_worker_that_was_silent_for_a_day_is_forgotten_at_the_beat_of_another(
    engine: Engine, clock: VirtualClock
) -> None:
    engine.worker_beat(BEAT)
    engine.worker_beat(replace(BEAT, name="later", ttl_s=31), namespace="other")
    clock.advance(30 + DAY)
    engine.worker_beat(replace(BEAT, name="w2"))
    assert names(engine) == ["w2", "w1"]
    clock.advance(0.000001)
    engine.worker_beat(replace(BEAT, name="w2"))
    assert names(engine) == ["w2"]
    assert [w.name for w in engine.workers(namespace="other")] == ["later"]


def test_two_engines_see_the_same_workers(engine: Engine, database_url: str, clock: VirtualClock) -> None:
    with engine_on(database_url, clock) as second:
        engine.worker_beat(BEAT)
        second.worker_beat(replace(BEAT, name="w2"))
        assert engine.workers() == second.workers()
        assert len(engine.workers()) == 2


def test_workers_that_wake_up_after_a_long_night_do_not_get_in_each_others_way(
    engine: Engine, database_url: str, clock: VirtualClock
) -> None:
    beats = [replace(BEAT, name=f"w{n}") for n in range(8)]
    for beat in beats:
        engine.worker_beat(beat)
    clock.advance(2 * DAY)
    with engine_on(database_url, clock) as second, ThreadPoolExecutor(8) as pool:
        engines = [engine, second] * 4
        list(pool.map(lambda one, beat: one.worker_beat(beat), engines, beats))
    assert all(w.alive for w in engine.workers())


@each_case(
    ("field", "value"),
    [
        *[(f, v) for f in ("name", "host", "version") for v in ("", None, 5, "a\0b", "x" * 201)],
        *[(f, v) for f in ("pid", "concurrency", "running", "claimed") for v in (-1, 2**31, 1.5, True, None)],
        *[(f, v) for f in ("queues", "kinds") for v in (None, "mail", 5, [""], [5], ["x"] * 1001)],
        *[("state", v) for v in ("asleep", None, 5)],
        *[("ttl_s", v) for v in (0, -1, None, "5", True, float("nan"), float("inf"))],
    ],
    ids=lambda v: ascii(v)[:30],
)
def test_a_bad_beat_names_its_field(shared_engine: Engine, field: str, value: Any) -> None:
    before = written(shared_engine)
    with pytest.raises(InvalidInput) as refused:
        shared_engine.worker_beat(replace(BEAT, **{field: value}))
    assert refused.value.field == field
    assert written(shared_engine) == before
