"""The janitor's steps: each gets past what is in its way, and nothing that is due waits behind it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.lifecycle import ASSIGNED, QUEUED, RUNNING
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.engine.janitor import DueTimes, Janitor
from onetray.notify.new_work import NewWork, format_new_work, parse_new_work
from onetray.store.postgres import PostgresTx
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.fleet import wait_until
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
    assert DueTimes(engine.store).next_in_s() > 0, "the janitor would not rest"
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
    assert not [t for t in threading.enumerate() if t.name in ("onetray-janitor", "onetray-retention", "onetray-bulk")]


HOURLY = 3600.0
SOON = {"max_attempts": 3, "backoff_base_s": 0.05, "backoff_max_s": 0.1}


def _idle_janitor(engine: Engine) -> Janitor:
    """A janitor that has swept, and would sweep again in an hour."""
    janitor = engine.janitor(every_s=HOURLY)
    janitor.start()
    wait_until(lambda: 0 < janitor._sweep_at < float("inf"))
    return janitor


def _claimable(engine: Engine) -> list[Any]:
    return engine.store.read_sql("SELECT task FROM onetray.ready")


def test_a_janitor_wakes_for_a_short_delay_that_comes_in_while_it_rests(database_url: str) -> None:
    with engine_on(database_url) as engine:
        _idle_janitor(engine)
        engine.submit("mail", delay_s=0.1)
        wait_until(lambda: _claimable(engine))


def test_a_janitor_wakes_for_a_retry_with_a_short_backoff(database_url: str) -> None:
    with engine_on(database_url) as engine:
        _idle_janitor(engine)
        engine.submit("mail", policy=Policy(**SOON))
        (claimed,) = engine.claim(worker="w")
        engine.fail(claimed, "not now")
        wait_until(lambda: _claimable(engine))


def _wait_for_work(engine: Engine) -> None:
    """As an idle worker does: only for those who wait does a process listen to others."""
    waiter = engine.wake.waiter([("default", "elsewhere")])
    while not engine.wake.closed:
        waiter.wait(waiter.seen(), 60.0)


def test_a_janitor_wakes_for_a_short_delay_of_another_process(database_url: str) -> None:
    with engine_on(database_url) as engine, engine_on(database_url) as other:
        threading.Thread(target=_wait_for_work, args=(engine,), daemon=True).start()
        wait_until(lambda: engine.wake._listener is not None and engine.wake._listener.is_connected)
        _idle_janitor(engine)
        wait_until(lambda: other.submit("mail", delay_s=0.05) and _claimable(engine))


def test_a_janitor_keeps_its_time_for_what_is_due_later(engine: Engine) -> None:
    """What is due in more than a second is found by the look of each second: it is worth no wake-up."""
    seen: list[int] = []
    engine.wake.on_due.append(seen.append)
    submit(engine, delay_s=5)
    submit(engine)
    assert seen == []
    submit(engine, delay_s=0.5)
    assert seen == [engine.now() + SECOND // 2]


def test_a_row_moves_the_next_sweep_forward_and_never_back() -> None:
    janitor = Janitor(lambda: 0, lambda: HOURLY, HOURLY)
    janitor._sweep_at = float("inf")
    at = []
    for wait_s in (100.0, 10.0, 50.0):
        janitor.sweep_within(wait_s)
        at.append(janitor._sweep_at)
    assert at[0] > at[1] == at[2]


def test_the_time_of_a_due_row_is_counted_from_the_last_look(engine: Engine, clock: VirtualClock) -> None:
    due = DueTimes(engine.store)
    assert due.in_s(engine.now() + SECOND) == 0.0, "before the first look it is not known, so look now"
    due.next_in_s()
    assert 0 < due.in_s(engine.now() + 100 * SECOND) <= 100


@each_case(
    ("text", "work"),
    [
        ("a @17", NewWork(due_at=17)), ("a 3=2,@17", NewWork({3: 2}, due_at=17)),
        ("a *,@17", NewWork(anywhere=True, due_at=17)),
    ],
)  # fmt: skip
def test_other_processes_hear_when_the_first_row_is_due(text: str, work: NewWork[int]) -> None:
    found = parse_new_work(text, "me")
    assert found is not None
    assert (found.counted, found.anywhere, found.due_at) == (work.counted, work.anywhere, work.due_at)
    assert format_new_work(work, "a") == text


def test_the_first_of_several_due_times_counts() -> None:
    total: NewWork[int] = NewWork()
    for at in (30, 10, 20):
        total.add(NewWork(due_at=at))
    assert total.due_at == 10
