"""Claims: what is handed out, to whom, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.config import EngineConfig
from onetray.domain import commands as c
from onetray.domain.clock import SECOND, VirtualClock
from onetray.engine import Engine
from onetray.store.low_water import LowWater
from onetray.store.postgres_tx import PostgresTx
from tests.support.cases import each_case
from tests.support.engines import engine_on, must_verify
from tests.support.fleet import wait_until
from tests.support.tasks import settle, submit, take


def claimed(engine: Engine, limit: int = 100, **fields: object) -> list[str]:
    return [a.id for a in engine.claim(worker="w", limit=limit, **fields)]


def test_the_oldest_comes_first(engine: Engine, clock: VirtualClock) -> None:
    ids = []
    for _ in range(5):
        ids.append(submit(engine))
        clock.advance(1)
    assert claimed(engine) == ids


def test_the_highest_priority_comes_first_then_the_oldest(engine: Engine) -> None:
    ids = {p: [submit(engine, priority=p) for _ in range(2)] for p in (0, 5, -3, 2_000_000_000, 5)}
    first = [submit(engine, priority=5)]
    assert claimed(engine, 1) == ids[2_000_000_000][:1]
    assert claimed(engine, 1) == ids[2_000_000_000][1:]
    rest = claimed(engine)
    assert rest[-2:] == ids[-3]
    assert rest[-4:-2] == ids[0]
    assert rest[:-4][-1:] == first


def test_priority_holds_across_kinds(engine: Engine) -> None:
    low = submit(engine, "mail")
    high = submit(engine, "sms", priority=1)
    other = submit(engine, "fax", priority=9)
    mid = submit(engine, "mail", priority=1)
    assert claimed(engine, kinds=["mail", "sms"]) == [high, mid, low]
    assert claimed(engine) == [other]


def test_the_order_across_kinds_holds_for_a_small_limit(engine: Engine) -> None:
    ids = [submit(engine, kind) for kind in ("a", "b", "a", "b", "a", "c")]
    got = [claimed(engine, 2, kinds=["b", "a"]), claimed(engine, 2, kinds=["b", "a"]), claimed(engine, 2)]
    assert got == [ids[:2], ids[2:4], ids[4:]]


@each_case("kinds", [None, ["mail"], ["mail", "sms"]])
def test_a_higher_priority_that_comes_later_is_claimed_next(engine: Engine, kinds: list[str] | None) -> None:
    for _ in range(4):
        submit(engine)
    claimed(engine, 1, kinds=kinds)
    urgent = submit(engine, priority=5)
    assert claimed(engine, 1, kinds=kinds) == [urgent]


@each_case("kinds", [None, ["mail"]])
def test_a_task_whose_priority_was_raised_is_claimed_next(engine: Engine, kinds: list[str] | None) -> None:
    ids = [submit(engine) for _ in range(4)]
    claimed(engine, 1, kinds=kinds)
    engine.set_priority(ids[3], 1)
    assert claimed(engine, 1, kinds=kinds) == [ids[3]]
    engine.set_priority(ids[1], -1)
    assert claimed(engine, kinds=kinds) == [ids[2], ids[1]]


def test_a_priority_may_change_while_the_task_is_held_or_delayed(engine: Engine, clock: VirtualClock) -> None:
    delayed = submit(engine, delay_s=10)
    held = take_of(engine, submit(engine))
    plain = submit(engine)
    engine.set_priority(delayed, 2)
    engine.set_priority(held, 1)
    engine.release(held)
    clock.advance(10)
    settle(engine)
    assert claimed(engine) == [delayed, held, plain]


def take_of(engine: Engine, id_: str) -> str:
    assert claimed(engine, 1) == [id_]
    return id_


def test_the_same_priority_again_writes_nothing(engine: Engine) -> None:
    id_ = submit(engine, priority=3)
    assert engine.set_priority(id_, 3).repeated
    assert len(engine.events(id_)) == 1


@each_case("how", ["retry", "release", "expire", "resume"])
def test_a_task_that_comes_back_keeps_its_place(engine: Engine, clock: VirtualClock, how: str) -> None:
    first, second, third = (submit(engine) for _ in range(3))
    (held,) = engine.claim(worker="w")
    (other,) = engine.claim(worker="w")
    match how:
        case "retry":
            engine.fail(held, "no", retry_after_s=0)
        case "release":
            engine.release(held)
        case "expire":
            engine.beat(other, lease_s=1000)
            clock.advance(61)
            settle(engine)
        case "resume":
            engine.pause(held, owner="ann", reason="sign")
            engine.resume(held.id)
    assert (held.id, other.id) == (first, second)
    assert claimed(engine, 1) == [first]
    assert claimed(engine, 1) == [third]


def test_a_claim_takes_no_more_than_its_limit(engine: Engine) -> None:
    ids = [submit(engine) for _ in range(5)]
    assert [claimed(engine, 2), claimed(engine, 2), claimed(engine, 2), claimed(engine, 2)] == [
        ids[:2],
        ids[2:4],
        ids[4:],
        [],
    ]


def test_an_empty_claim_is_not_an_error(engine: Engine) -> None:
    assert claimed(engine) == []
    submit(engine)
    assert claimed(engine, kinds=["nothing of this kind"]) == []
    assert claimed(engine, kinds=[]) == []
    assert engine.claim("no such queue", worker="w") == []
    assert engine.claim(worker="w", namespace="nowhere") == []


def test_a_claim_takes_only_the_kinds_it_names(engine: Engine) -> None:
    mail, sms, fax = submit(engine, "mail"), submit(engine, "sms"), submit(engine, "fax")
    assert claimed(engine, kinds=["sms"]) == [sms]
    assert claimed(engine, kinds=["fax", "mail", "fax", "unknown"]) == [mail, fax]


def test_a_claim_takes_only_from_its_queue(engine: Engine) -> None:
    here, there = submit(engine, queue="here"), submit(engine, queue="there")
    assert [a.id for a in engine.claim("there", worker="w", limit=9)] == [there]
    assert [a.id for a in engine.claim("here", worker="w", limit=9)] == [here]


def test_namespaces_do_not_cross(engine: Engine) -> None:
    ours, theirs = submit(engine, namespace="ours"), submit(engine, namespace="theirs")
    assert claimed(engine) == []
    assert claimed(engine, namespace="theirs") == [theirs]
    assert claimed(engine, namespace="ours", kinds=["mail"]) == [ours]
    assert [t.id for t in engine.tasks(namespace="ours")] == [ours]


@each_case("kinds", [None, ["mail"], ["mail", "sms"]])
def test_nothing_is_claimed_from_a_paused_queue(engine: Engine, kinds: list[str] | None) -> None:
    ids = [submit(engine) for _ in range(3)]
    held = engine.claim(worker="w", kinds=kinds)[0]
    engine.pause_queue("default", by="ann")
    assert claimed(engine, kinds=kinds) == []
    engine.succeed(held)
    submit(engine, queue="other")
    assert len(engine.claim("other", worker="w", kinds=kinds)) == 1
    engine.resume_queue("default")
    assert claimed(engine, kinds=kinds) == ids[1:]


@each_case("kinds", [["mail"], ["mail", "sms"]])
def test_nothing_is_claimed_from_a_paused_queue_of_several_kinds(engine: Engine, kinds: list[str]) -> None:
    """After the first claim, those of this queue look for their kinds at once."""
    submit(engine, kind="scan")
    ids = [submit(engine) for _ in range(3)]
    assert [a.id for a in engine.claim(worker="w", kinds=kinds)] == ids[:1]
    engine.pause_queue("default", by="ann")
    assert claimed(engine, kinds=kinds) == []
    engine.resume_queue("default")
    assert claimed(engine, kinds=kinds) == ids[1:]


def test_a_queue_is_paused_in_its_namespace_only(engine: Engine) -> None:
    submit(engine, namespace="a")
    submit(engine, namespace="b")
    engine.pause_queue("default", namespace="a")
    assert claimed(engine, namespace="a") == []
    assert len(claimed(engine, namespace="b")) == 1


@each_case("how", ["delay_s", "run_at"])
def test_a_delayed_task_is_not_claimed_before_its_time(engine: Engine, clock: VirtualClock, how: str) -> None:
    fields = {"delay_s": 10} if how == "delay_s" else {"run_at": clock.now() + 10 * SECOND}
    id_ = submit(engine, **fields)
    clock.advance(9.999999)
    settle(engine)
    assert claimed(engine) == []
    clock.advance(0.000001)
    settle(engine)
    assert claimed(engine) == [id_]
    assert engine.task(id_).version == 2


def test_a_task_with_a_time_in_the_past_is_claimable_at_once(engine: Engine) -> None:
    id_ = submit(engine, run_at=5)
    assert claimed(engine) == [id_]


def test_a_queued_task_can_be_rescheduled_both_ways(engine: Engine, clock: VirtualClock) -> None:
    later, sooner = submit(engine), submit(engine, delay_s=1000)
    engine.reschedule(later, delay_s=20)
    engine.reschedule(sooner, run_at=clock.now())
    assert claimed(engine) == [sooner]
    clock.advance(20)
    settle(engine)
    assert claimed(engine) == [later]


def test_a_task_that_is_rescheduled_twice_runs_at_the_last_time(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, delay_s=5)
    engine.reschedule(id_, delay_s=10)
    engine.reschedule(id_, delay_s=30)
    clock.advance(15)
    settle(engine)
    assert claimed(engine) == []
    clock.advance(15)
    settle(engine)
    assert claimed(engine) == [id_]


def test_a_claim_carries_all_that_a_worker_needs(engine: Engine) -> None:
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    id_ = submit(engine, payload={"to": "ann"}, queue="q", correlation_id="order 7", trace=trace)
    held = take(engine, queue="q")
    assert (held.id, held.kind, held.queue, held.namespace, held.worker) == (id_, "mail", "q", "default", "w")
    assert (held.payload, held.input, held.attempt, held.fence) == ({"to": "ann"}, None, 1, 1)
    assert (held.correlation_id, held.trace, held.idempotency_key) == ("order 7", trace, id_)
    assert held.actions == ("start", "succeed", "fail", "release", "block", "wait_for_input")


def test_a_claim_carries_long_texts_and_short_ones(engine: Engine) -> None:
    sent = ["", "short", "é" * 5_000, "x" * 100_000, 'with "quotes", a \\ and a \n', "after"]
    for text in sent:
        submit(engine, payload=text)
    waiting = [take(engine, limit=1) for _ in sent]
    for text, held in zip(sent, waiting, strict=True):
        assert held.payload == text
        engine.pause(held, owner="ann", reason="asks")
        engine.resume(held.id, input=text[::-1])
    again = engine.claim(worker="w", limit=100)
    assert [(a.payload, a.input) for a in again] == [(text, text[::-1]) for text in sent]


def test_several_claims_in_one_batch_share_nothing(engine: Engine) -> None:
    ids = [submit(engine) for _ in range(6)]
    verdicts = engine.run([c.Claim(worker=f"w{i}", limit=2) for i in range(4)])
    assert [[a.id for a in v.unwrap()] for v in verdicts] == [ids[:2], ids[2:4], ids[4:], []]


def test_a_claim_sees_what_was_submitted_in_the_same_batch(engine: Engine) -> None:
    submitted, taken = engine.run([c.Submit(kind="mail"), c.Claim(worker="w")])
    assert [a.id for a in taken.unwrap()] == [submitted.unwrap().id]


def test_two_engines_on_one_database_never_claim_the_same_task(
    engine: Engine, database_url: str, clock: VirtualClock
) -> None:
    ids = {submit(engine) for _ in range(20)}
    with engine_on(database_url, clock, config=EngineConfig(committers=1)) as second:
        got = [a.id for _ in range(5) for e in (engine, second) for a in e.claim(worker="w", limit=2)]
    assert len(got) == len(set(got)) == 20
    assert set(got) == ids


def test_a_paused_queue_is_paused_for_every_engine(engine: Engine, database_url: str, clock: VirtualClock) -> None:
    submit(engine)
    with engine_on(database_url, clock) as second:
        engine.pause_queue("default")
        assert second.claim(worker="w") == []
        engine.resume_queue("default")
        assert len(second.claim(worker="w")) == 1


@pytest.mark.parametrize("kinds", [None, ["mail", "sms"]])
def test_a_claim_of_two_looks_is_dated_after_the_later_one(
    kinds: list[str] | None, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came due between two looks stands first in the claim, and was not due yet at the first look."""
    # The first look of a claim of any kind is that for as many as it wants, which is no query of this name.
    looks = iter(range(1 if kinds is None else 0, 100))
    query = PostgresTx.query

    def look(tx: PostgresTx, name: str, /, **params: Any) -> Any:
        if name in ("claim_head", "claim_any", "claim_kind") and next(looks) == 1:
            wait_until(lambda: other.do_due() > 0)
        return query(tx, name, **params)

    with engine_on(migrated_url) as engine, engine_on(migrated_url) as other:
        old = [submit(engine, kind) for kind in ("mail", "mail", "sms")]
        assert claimed(engine, 1) == old[:1]
        if kinds is None:
            # From the mark that the first claim has left, then from the start.
            monkeypatch.setattr(LowWater, "can_start_at_mark", lambda low: True)
            monkeypatch.setattr(LowWater, "rest_s", lambda low, found: 0.0)
        else:
            engine.store.mixed.add(engine.store.names.queue(1, "default") or 0)
        urgent = submit(other, "sms", priority=9, delay_s=0.3)
        monkeypatch.setattr(PostgresTx, "query", look)
        found = engine.claim(worker="w", limit=3, kinds=kinds)
        assert len(found) == (3 if kinds is None else 2)
        assert found[0].id == urgent
        monkeypatch.undo()
        must_verify(engine)
