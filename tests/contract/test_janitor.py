"""The janitor's steps: each gets past what is in its way, and nothing that is due waits behind it."""

from __future__ import annotations

import threading

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.lifecycle import ASSIGNED, QUEUED, RUNNING
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.engine.janitor import seconds_until_next
from onetray.store.postgres import PostgresTx
from tests.support.engines import engine_on
from tests.support.listening import register
from tests.support.tasks import state, submit, take


def test_abandoned_work_is_found_behind_leases_whose_work_is_done(engine: Engine, clock: VirtualClock) -> None:
    ids = [submit(engine) for _ in range(5)]
    for claimed in [take(engine) for _ in range(5)][:4]:
        engine.succeed(claimed)
    clock.advance(61)
    assert engine.expire_leases(limit=2)
    assert state(engine, ids[4]) == QUEUED


def test_a_step_takes_back_no_more_tasks_than_its_limit(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(6):
        submit(engine)
    for _ in range(3):
        assert len(engine.claim(worker="w", limit=2)) == 2
    clock.advance(61)
    assert [len(engine.expire_leases(limit=4)) for _ in range(3)] == [4, 2, 0]


def test_a_lease_larger_than_the_limit_is_taken_back_whole(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(3):
        submit(engine)
    engine.claim(worker="w", limit=3)
    clock.advance(61)
    assert len(engine.expire_leases(limit=2)) == 3


def test_a_damaged_task_does_not_keep_the_others_from_being_taken_back(engine: Engine, clock: VirtualClock) -> None:
    register(engine)
    ids = [submit(engine) for _ in range(4)]
    engine.claim(worker="w", limit=2)
    engine.claim(worker="w", limit=2)
    _claimable_already(engine, ids[0])
    late = submit(engine, delay_s=10)
    clock.advance(61)
    with pytest.raises(Exception, match="ready"):
        engine.sweep()
    assert [state(engine, i) for i in ids] == [ASSIGNED, QUEUED, QUEUED, QUEUED]
    assert not engine.explain(late)
    assert engine.store.read_sql("SELECT count(*) FROM onetray.lease") == [(1,)], "of what was taken back nothing stays"
    _mend(engine, ids[0])


def test_a_damaged_task_does_not_keep_the_others_from_being_timed_out(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(timeout_s=5, max_attempts=2, backoff_base_s=0)
    ids = [submit(engine, policy=policy) for _ in range(3)]
    for claimed in engine.claim(worker="w", limit=3):
        engine.start(claimed)
    _claimable_already(engine, ids[0])
    clock.advance(6)
    with pytest.raises(Exception, match="ready"):
        engine.do_due()
    assert [state(engine, i) for i in ids] == [RUNNING, QUEUED, QUEUED]
    _mend(engine, ids[0])
    assert engine.do_due() == 1
    assert state(engine, ids[0]) == QUEUED


def test_what_a_newer_version_has_to_do_is_left_to_it(engine: Engine, clock: VirtualClock) -> None:
    """While a fleet is upgraded, an old janitor must not throw away what only a new one understands."""
    key = engine.task(submit(engine)).key
    row = {"at": [clock.now()], "key": [key], "what": ["stage_deadline"], "fence": [0]}
    with engine.store.transaction() as tx:
        tx.batch("insert_due", row)
    clock.advance(1)
    assert engine.do_due() == 0
    assert seconds_until_next(engine.store) > 0, "the janitor would not rest"
    assert engine.store.read_sql("SELECT what FROM onetray.due") == [("stage_deadline",)]
    with engine.store.transaction() as tx:
        tx.batch("delete_due", row)


def _claimable_already(engine: Engine, id_: str) -> None:
    """Damage a task that is held: it has a ready row, so that it cannot be given another."""
    with engine.store.transaction() as tx:
        tx.batch("insert_ready", _place(engine, id_))


def _mend(engine: Engine, id_: str) -> None:
    with engine.store.transaction() as tx:
        tx.batch("delete_ready", _place(engine, id_))


def _place(engine: Engine, id_: str) -> dict[str, list[int]]:
    sql, key = "SELECT queue, kind FROM onetray.task WHERE key = :key", engine.task(id_).key
    ((queue, kind),) = engine.store.read_sql(sql, key=key)
    return {"queue": [queue], "rank": [0], "key": [key], "kind": [kind]}


def test_a_clock_that_is_set_back_within_a_transaction_leaves_nothing_stuck(migrated_url: str) -> None:
    """A due row was found, then the clock went back: the task was not due any more, and the row was gone."""
    clock = VirtualClock()
    with engine_on(migrated_url, clock) as engine:
        id_ = submit(engine, delay_s=5)
        clock.advance(6)
        with engine.store.transaction() as tx:
            found_at = tx.now
            assert isinstance(tx, PostgresTx)
            tx._given = found_at - 3_000_000
            tx.lock([engine.task(id_).key])
            assert tx.now == found_at


def test_a_janitor_ends_with_its_engine(database_url: str) -> None:
    with engine_on(database_url) as engine:
        engine.janitor(every_s=0.01).start()
    assert not [t for t in threading.enumerate() if t.name == "onetray-janitor"]
