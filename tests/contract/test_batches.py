"""Batches: each command has its own answer, in its place, and harms no other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from onetray.config import EngineConfig, Limits
from onetray.domain import commands as c
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import InvalidInput, NotFound, TooLarge
from onetray.domain.lifecycle import QUEUED, RUNNING, SUCCEEDED
from onetray.engine import Engine
from onetray.store.postgres import PostgresStore
from onetray.store.sqlite import SqliteStore
from tests.support.engines import engine_on
from tests.support.tasks import UNKNOWN_ID, counts, running, state, submit, take, types, written


def test_an_empty_batch_is_answered_with_nothing(engine: Engine) -> None:
    assert engine.run([]) == []


def test_each_command_is_answered_in_its_place(engine: Engine) -> None:
    id_ = submit(engine)
    verdicts = engine.run(
        [
            c.Claim(worker="w"),
            c.Cancel(UNKNOWN_ID),
            c.Submit(kind="sms"),
            c.Submit(kind=""),
            c.SetPriority(id_, priority=3),
            "no command",  # type: ignore[list-item]
        ]
    )
    assert [v.ok for v in verdicts] == [True, False, True, False, True, False]
    assert isinstance(verdicts[1].error, NotFound)
    assert [v.error and v.error.code for v in verdicts[3:]] == ["invalid_input", None, "unknown_verb"]


def test_commands_about_one_task_are_carried_out_in_order_of_arrival(engine: Engine) -> None:
    id_ = submit(engine)
    t = c.ticket(take(engine))
    verdicts = engine.run(
        [
            c.Start(**t),
            c.Log(lines=("one",), **t),
            c.Beat(**t),
            c.Release(**t),
            c.Cancel(id_),
            c.Succeed(**t),
        ]
    )
    assert [v.ok for v in verdicts] == [True, True, True, True, True, False]
    assert types(engine, id_) == ["submitted", "claimed", "started", "released", "cancelled"]
    assert [verdicts[i].unwrap().state for i in (0, 3, 4)] == [RUNNING, QUEUED, "cancelled"]


def test_the_same_report_twice_in_one_batch_counts_once(engine: Engine) -> None:
    id_ = submit(engine)
    t = c.ticket(running(engine))
    first, again, other = engine.run([c.Succeed(result=1, **t), c.Succeed(result=2, **t), c.Fail(message="no", **t)])
    assert (first.unwrap().repeated, again.unwrap().repeated) == (False, True)
    assert other.error is not None
    assert other.error.code == "illegal_transition"
    assert engine.task(id_).result == 1
    assert types(engine, id_).count("succeeded") == 1


def test_two_outcomes_of_one_attempt_in_one_batch_the_first_counts(engine: Engine) -> None:
    id_ = submit(engine)
    t = c.ticket(take(engine))
    fail, succeed = engine.run([c.Fail(message="no", retry_after_s=0, **t), c.Succeed(**t)])
    assert fail.ok
    assert succeed.error is not None
    assert succeed.error.code == "lease_lost"
    assert types(engine, id_) == ["submitted", "claimed", "started", "retried"]


def test_the_same_task_by_id_and_by_key_is_one_task(engine: Engine) -> None:
    id_ = submit(engine)
    held = take(engine)
    one, two, three = engine.run([c.Start(held.key), c.Release(id_), c.Cancel(id_.upper())])
    assert (one.ok, two.ok, three.ok) == (True, True, True)
    assert types(engine, id_)[-3:] == ["started", "released", "cancelled"]


def test_mixed_verbs_about_many_tasks(engine: Engine) -> None:
    ids = [submit(engine, payload=n) for n in range(6)]
    a, b, d, e, f = (c.ticket(x) for x in engine.claim(worker="w", limit=5))
    verdicts = engine.run(
        [
            c.Succeed(result="x", **a),
            c.Fail(message="no", retryable=False, **b),
            c.Pause(owner="ann", reason="sign", **d),
            c.Fail(message="no", reason_code="timeout", **e),
            c.Cancel(f["task"], hard=True),
            c.Cancel(ids[5]),
        ]
    )
    assert all(v.ok for v in verdicts)
    expected = [SUCCEEDED, "failed", "blocked", "dead_lettered", "cancelled", "cancelled"]
    assert [state(engine, i) for i in ids] == expected


def poison(engine: Engine) -> None:
    """Let the database itself refuse every task whose payload says so."""
    if isinstance(engine.store, SqliteStore):
        sql = """CREATE TRIGGER poison BEFORE INSERT ON task WHEN new.payload = '"poison"'
            BEGIN SELECT raise(ABORT, 'poison'); END"""
        with engine.store.transaction() as tx:
            tx._connection.execute(sql)
        return
    assert isinstance(engine.store, PostgresStore)
    with psycopg.connect(engine.store.url) as connection:
        connection.execute(
            """CREATE FUNCTION onetray.poison() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'poison'; END $$"""
        )
        connection.execute(
            """CREATE TRIGGER poison BEFORE INSERT ON onetray.task FOR EACH ROW
            WHEN (new.payload = '"poison"') EXECUTE FUNCTION onetray.poison()"""
        )


@pytest.mark.parametrize("size", [4, 120])
def test_an_item_that_breaks_the_transaction_harms_no_other(engine: Engine, size: int) -> None:
    poison(engine)
    old = submit(engine)
    held = running(engine)
    batch: list[c.Command] = [c.Submit(kind="mail", payload=n) for n in range(size)]
    batch[2] = c.Submit(kind="mail", payload="poison")
    batch += [c.Succeed(result=1, **c.ticket(held)), c.Claim(worker="w")]
    verdicts = engine.run(batch)
    assert [i for i, v in enumerate(verdicts) if not v.ok] == [2]
    assert verdicts[2].error is not None
    assert "poison" in str(verdicts[2].error)
    assert state(engine, old) == SUCCEEDED
    assert counts(engine)["task"] == size
    assert [a.payload for a in verdicts[-1].unwrap()] == [0]
    assert submit(engine, payload="after")


def test_an_item_that_breaks_the_transaction_harms_no_other_caller(engine: Engine) -> None:
    poison(engine)

    def one(n: int) -> str:
        error = engine.run([c.Submit(kind="mail", payload="poison" if n % 5 == 0 else n)])[0].error
        return "good" if error is None else "poison" if "poison" in str(error) else str(error)

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(one, range(50)))
    assert answers == ["good" if n % 5 else "poison" for n in range(50)]
    assert counts(engine)["task"] == 40


def test_a_batch_beyond_the_chunk_is_carried_out_whole_and_in_order(database_url: str, clock: VirtualClock) -> None:
    with engine_on(database_url, clock, config=EngineConfig(chunk=7)) as engine:
        ids = [v.unwrap().id for v in engine.run([c.Submit(kind="mail", payload=n) for n in range(50)])]
        held = engine.claim(worker="w", limit=50)
        assert [a.id for a in held] == ids
        orders: list[Any] = [order for a in held for order in (c.Start(**c.ticket(a)), c.Succeed(**c.ticket(a)))]
        orders.insert(31, c.Cancel(UNKNOWN_ID))
        verdicts = engine.run(orders)
        assert [i for i, v in enumerate(verdicts) if not v.ok] == [31]
        assert {t.state for t in engine.tasks()} == {SUCCEEDED}


def test_a_batch_past_the_limit_is_refused_whole(database_url: str, clock: VirtualClock) -> None:
    config = EngineConfig(limits=Limits(batch=10))
    with engine_on(database_url, clock, config=config) as engine:
        before = written(engine)
        with pytest.raises(TooLarge) as refused:
            engine.run([c.Submit(kind="mail")] * 11)
        assert (refused.value.field, refused.value.limit) == ("batch", 10)
        assert written(engine) == before
        assert all(v.ok for v in engine.run([c.Submit(kind="mail") for _ in range(10)]))


def test_a_batch_of_ten_thousand_and_one_is_refused(engine: Engine) -> None:
    with pytest.raises(TooLarge):
        engine.run([c.Cancel(UNKNOWN_ID)] * 10_001)


def test_a_value_that_cannot_even_be_shown_harms_no_other(engine: Engine) -> None:
    good, bad = engine.run([c.Submit(kind="mail"), c.Submit(kind="mail", priority=10**5000)])
    assert good.ok
    assert isinstance(bad.error, InvalidInput)
    assert bad.error.field == "priority"


def test_many_submits_in_one_batch_keep_their_order(engine: Engine) -> None:
    ids = [v.unwrap().id for v in engine.run([c.Submit(kind="mail", payload=n) for n in range(300)])]
    assert [a.id for a in engine.claim(worker="w", limit=300)] == ids


def test_broken_transactions_leave_no_broken_connection_behind(engine: Engine) -> None:
    """Statements that are prepared behind the one that fails are lost with it: nobody may rely on them later."""
    poison(engine)
    for n in range(12):
        good, bad = engine.run([c.Submit(kind="mail", payload=n), c.Submit(kind="mail", payload="poison")])
        assert (good.error, bad.ok) == (None, False)
        held = engine.claim(worker="w")[0]
        assert engine.run([c.Succeed(**c.ticket(held)), c.Submit(kind="mail", payload="poison")])[0].error is None
    assert counts(engine)["task"] == 12
