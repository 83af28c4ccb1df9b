"""Claims that find as many tasks as they want, in one statement: the same rows and answers as of other claims."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from onetray.domain import commands as c
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine
from onetray.engine.fast_claim import claim_full
from onetray.store.base import FullClaim, LoneClaim
from onetray.store.event_log import BLOCK, PAGE
from onetray.store.low_water import LowWater
from onetray.store.postgres_tx import PostgresTx
from tests.support.databases import Databases
from tests.support.engines import engine_on
from tests.support.proxy import LOSE_ANSWER, LOSE_REQUEST, Proxy

ROWS = {
    "task": "key, state, version, fence, attempts, owner, lease, updated_at, events, slots",
    "lease": "key, ns, worker, expires_at, length, tasks, request_key, part, expiry_counts",
    "event_batch": "id, size, ts, ns, type, was, state, actor, entity, job, version, fence, attempts, cause, trace, "
    "payload, varied",
    "ready": "queue, rank, task, kind",
}


@pytest.fixture
def engine(migrated_url: str, clock: VirtualClock) -> Iterator[Engine]:
    with engine_on(migrated_url, clock) as running:
        yield running


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each claim that was tried in one statement: whether it was written so."""
    written: list[bool] = []
    claim_full = PostgresTx.claim_full

    def noted(tx: PostgresTx, *given: Any) -> FullClaim | None:
        full = claim_full(tx, *given)
        written.append(full is not None)
        return full

    # A scan from the start of the queue is due every second.
    monkeypatch.setattr(LowWater, "can_start_at_mark", lambda low: True)
    monkeypatch.setattr(PostgresTx, "claim_full", noted)
    return written


def claim(engine: Engine, limit: int = 3, **fields: Any) -> list[Assignment]:
    claimed: list[Assignment] = engine.call(c.Claim(**{"worker": "w", "limit": limit, "request_key": "r", **fields}))
    return claimed


def submit(engine: Engine, count: int, **fields: Any) -> list[str]:
    return [engine.submit("mail", **fields).id or "" for _ in range(count)]


def rows_of(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    return {
        table: sorted(engine.store.read_sql(f"SELECT {columns} FROM onetray.{table}"), key=str)
        for table, columns in ROWS.items()
    }


def in_a_row(engine: Engine) -> None:
    submit(engine, 5)


def by_priority(engine: Engine) -> None:
    for priority in (1, 5, 3, 9):
        engine.submit("mail", {"n": priority}, priority=priority, correlation_id="c")


def tried_before(engine: Engine) -> None:
    submit(engine, 3)
    for task in engine.claim(worker="v", limit=3):
        engine.release(task)


def of_two_policies(engine: Engine) -> None:
    engine.configure("sms", Policy(max_attempts=9))
    for kind in ("mail", "sms", "mail"):
        engine.submit(kind)


@pytest.mark.parametrize("key", ["r", None])
@pytest.mark.parametrize("prepare", [in_a_row, by_priority, tried_before, of_two_policies])
def test_it_writes_and_answers_what_other_claims_do(
    databases: Databases, tried: list[bool], clock: VirtualClock, monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[Engine], None], key: str | None,
) -> None:  # fmt: skip
    found = []
    for usual in (True, False):
        with databases.database() as url, engine_on(url, clock) as engine:
            prepare(engine)
            with monkeypatch.context() as patch:
                if usual:
                    patch.setattr(PostgresTx, "claim_full", lambda *_: None)
                tried.clear()
                got = claim(engine, request_key=key, expiry_counts=True)
            assert tried == ([] if usual else [True])
            assert len(got) == 3
            ids = [task.id for task in got]
            found.append((_without_ids(repr(got), ids), _without_ids(repr(rows_of(engine)), ids)))
    assert found[0] == found[1]


def _without_ids(text: str, ids: list[str]) -> str:
    for n, id_ in enumerate(ids):
        text = text.replace(id_, f"id{n}")
    return text


def test_such_tasks_are_reported_like_any_other(engine: Engine, tried: list[bool]) -> None:
    ids = submit(engine, 3)
    for task in claim(engine):
        engine.succeed(task)
    assert tried == [True]
    for id_ in ids:
        assert [e.type for e in engine.events(id_)] == [
            "task.submitted", "task.claimed", "task.started", "task.succeeded",
        ]  # fmt: skip


def test_too_few_tasks_take_the_usual_way_without_another_look(
    engine: Engine, tried: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = submit(engine, 2)
    looks: list[str] = []
    query = PostgresTx.query
    monkeypatch.setattr(LowWater, "rest_s", lambda low, found=True: float("inf"))
    monkeypatch.setattr(PostgresTx, "query", lambda tx, name, /, **p: (looks.append(name), query(tx, name, **p))[1])
    assert [a.id for a in claim(engine)] == ids
    assert tried == [False]
    assert "claim_head" not in looks


def test_tasks_that_are_not_alike_take_the_usual_way(engine: Engine, tried: list[bool]) -> None:
    first = submit(engine, 1)
    [task] = claim(engine, 1)
    engine.release(task)
    ids = first + submit(engine, 2)
    assert sorted(a.id for a in claim(engine, request_key="s")) == sorted(ids)
    assert tried == [True, False]


def test_leases_of_two_lengths_take_the_usual_way(engine: Engine, tried: list[bool]) -> None:
    engine.configure("sms", Policy(lease_s=500))
    engine.submit("sms"), submit(engine, 2)
    got = claim(engine)
    assert (len(got), len({a.lease for a in got}), tried) == (3, 2, [False])


def test_tasks_of_other_kinds_are_left(engine: Engine, tried: list[bool]) -> None:
    engine.submit("sms")
    ids = submit(engine, 3)
    assert [a.id for a in claim(engine, kinds=("mail",))] == ids
    assert tried == [False]
    assert [a.kind for a in claim(engine, 1, request_key="s")] == ["sms"]


def test_tasks_of_a_flow_take_the_usual_way(engine: Engine, tried: list[bool]) -> None:
    engine.submit_flow("f", [StageSpec("a", [TaskSpec("mail"), TaskSpec("mail")])])
    got = claim(engine, 2)
    assert tried == [False]
    assert all(task.flow for task in got)


def test_tasks_with_a_long_history_take_the_usual_way(engine: Engine, tried: list[bool]) -> None:
    submit(engine, 2)
    for n in range(PAGE):
        got = claim(engine, 2, request_key=str(n))
        if not tried[-1]:
            break
        for task in got:
            engine.release(task)
    assert {engine.task(task.id).version for task in got} == {PAGE}


@pytest.mark.parametrize("why", ["paused", "limited", "breaker"])
def test_it_takes_nothing_that_another_claim_would_leave(engine: Engine, tried: list[bool], why: str) -> None:
    if why == "breaker":
        engine.configure("mail", Policy(breaker_failures=1, breaker_open_s=30, max_attempts=5))
        submit(engine, 1)
        engine.fail(engine.claim(worker="w")[0], "no")
    if why == "limited":
        engine.configure("mail", Policy(concurrency=Concurrency(1)))
    submit(engine, 3)
    if why == "paused":
        engine.pause_queue("default")
    tried.clear()
    assert len(claim(engine, 2)) == (1 if why == "limited" else 0)
    assert True not in tried


def test_a_repeated_request_gets_its_tasks_and_no_others(engine: Engine, tried: list[bool]) -> None:
    ids = submit(engine, 6)
    assert [a.id for a in claim(engine)] == ids[:3]
    assert [a.id for a in claim(engine)] == ids[:3]
    assert [a.id for a in claim(engine, request_key="s")] == ids[3:]
    assert tried == [True, False, True]


def test_an_expired_request_key_is_free_for_a_new_claim(engine: Engine, clock: VirtualClock) -> None:
    ids = submit(engine, 6)
    claim(engine)
    clock.advance(3600)
    assert [a.id for a in claim(engine)] == ids[3:]


def test_the_time_never_runs_back(engine: Engine, migrated_url: str, clock: VirtualClock, tried: list[bool]) -> None:
    with engine_on(migrated_url, VirtualClock(clock.now() + 5 * SECOND)) as ahead:
        ids = submit(ahead, 1)
    ids += submit(engine, 1)
    got = claim(engine, 2)
    assert tried == [True]
    assert {a.lease_expires_at for a in got} == {clock.now() + 5 * SECOND + got[0].policy.lease_us}
    assert {engine.task(id_).updated_at for id_ in ids} == {clock.now() + 5 * SECOND}


def test_it_goes_with_successes_and_is_dated_no_earlier(engine: Engine, tried: list[bool]) -> None:
    ids = submit(engine, 4)
    done = claim(engine, 2)
    next_claim = c.Claim(worker="w", limit=2, request_key="s")
    *receipts, claimed = engine.run([*(engine_success(task) for task in done), next_claim])
    assert [r.unwrap().state for r in receipts] == ["succeeded"] * 2
    assert [a.id for a in claimed.unwrap()] == ids[2:]
    assert tried == [True, True]


def engine_success(task: Assignment) -> c.Succeed:
    return c.Succeed(
        task.key, fence=task.fence, worker=task.worker, lease=task.lease, version=task.version, attempt=task.attempt
    )


def test_claimers_at_once_share_no_task(migrated_url: str) -> None:
    with engine_on(migrated_url) as engine, engine_on(migrated_url) as other:
        ids = submit(engine, 300)

        def drain(at: tuple[int, Engine]) -> list[str]:
            got: list[str] = []
            until = time.monotonic() + 60
            while time.monotonic() < until:
                some = claim(at[1], 7, worker=f"w{at[0]}", request_key=str(len(got)))
                if not some:
                    return got
                got += [a.id for a in some]
            raise AssertionError("the queue does not end")

        with ThreadPoolExecutor(4) as pool:
            found = [id_ for got in pool.map(drain, enumerate([engine, other] * 2)) for id_ in got]
        assert sorted(found) == sorted(ids)
        assert all(len(engine.events(id_)) == 2 for id_ in ids)


def test_a_task_locked_without_its_ready_row_is_left(engine: Engine, tried: list[bool]) -> None:
    ids = submit(engine, 3)
    with engine.store.transaction() as tx:
        tx.lock([engine.task(ids[0]).key])
        assert [a.id for a in claim(engine, 3)] == ids[1:]
    assert tried == [False]
    assert [a.id for a in claim(engine, 1, request_key="s")] == ids[:1]


def test_the_next_claim_finds_what_a_rolled_back_one_had_taken(engine: Engine) -> None:
    ids = submit(engine, 9)
    claim(engine, 1)
    with suppress(InterruptedError), engine.store.transaction() as tx:
        assert claim_full(tx, c.Claim(worker="w", limit=2), 2) is not None
        # It skips what is locked, and the claims of this process start behind it from now on.
        assert [a.id for a in claim(engine, 2, request_key="s")] == ids[3:5]
        raise InterruptedError
    assert [a.id for a in claim(engine, 2, request_key="t")] == ids[1:3]


def test_what_a_claim_has_locked_is_not_taken_from_another_queue(
    engine: Engine, tried: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread finds out meanwhile that the first queue has tasks of several kinds."""
    submit(engine, 2, queue="a"), submit(engine, 4, queue="b")
    try_full = PostgresTx.claim_full

    def while_found_mixed(tx: PostgresTx, lone: LoneClaim, limit: int) -> FullClaim | None:
        full = try_full(tx, lone, limit)
        tx.mixed.add(lone.queue)
        return full

    monkeypatch.setattr(PostgresTx, "claim_full", while_found_mixed)
    # The last two share a pick.
    claims = [c.Claim(worker="w", queue="a", limit=3, kinds=("mail",)), *[c.Claim(worker="w", queue="b", limit=2)] * 2]
    got = [verdict.unwrap() for verdict in engine.run(claims)]
    assert tried == [False]
    assert [[engine.task(a.id).queue for a in some] for some in got] == [["a"] * 2, ["b"] * 2, ["b"] * 2]


def test_a_task_that_enters_while_too_few_are_found_is_claimed_next(
    engine: Engine, tried: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The claim of an empty queue sets the mark to its start.
    submit(engine, 1), claim(engine), claim(engine, request_key="q"), tried.clear()
    monkeypatch.setattr(LowWater, "rest_s", lambda low, found=True: float("inf"))
    ids, urgent = submit(engine, 2), list[str]()
    try_full = PostgresTx.claim_full

    def while_one_enters(*given: Any) -> FullClaim | None:
        full = try_full(*given)
        with ThreadPoolExecutor(1) as pool:
            urgent.extend(pool.submit(submit, engine, 1, priority=5).result())
        return full

    with monkeypatch.context() as patch:
        patch.setattr(PostgresTx, "claim_full", while_one_enters)
        assert [a.id for a in claim(engine, request_key="s")] == ids
    assert tried == [False]
    submit(engine, 1)
    assert [a.id for a in claim(engine, 1, request_key="t")] == urgent


def test_a_claim_of_more_than_a_row_of_the_log_takes_the_usual_way(engine: Engine, tried: list[bool]) -> None:
    assert engine.config.limits.batch <= BLOCK or claim(engine, BLOCK + 1) == []
    assert tried == []


@pytest.mark.parametrize("lost", [LOSE_REQUEST, LOSE_ANSWER])
def test_a_lost_commit_is_answered_with_the_truth(
    migrated_url: str, tried: list[bool], lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(migrated_url) as proxy, engine_on(migrated_url) as direct, engine_on(proxy.url) as engine:
        ids = submit(direct, 6)
        commit = PostgresTx.commit

        def losing(tx: PostgresTx) -> None:
            monkeypatch.setattr(PostgresTx, "commit", commit)
            proxy.arm(lost)
            commit(tx)

        monkeypatch.setattr(PostgresTx, "commit", losing)
        assert [a.id for a in claim(engine)] == ids[:3]
        assert tried[0]
        assert [direct.task(id_).attempts for id_ in ids] == [1, 1, 1, 0, 0, 0]
        assert all([e.type for e in direct.events(id_)] == ["task.submitted", "task.claimed"] for id_ in ids[:3])


def test_a_claim_whose_commit_got_lost_takes_the_same_tasks_the_next_time(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(migrated_url) as proxy, engine_on(proxy.url) as engine:
        ids, commit = submit(engine, 9), PostgresTx.commit
        claim(engine, 1)

        def losing(tx: PostgresTx) -> None:
            monkeypatch.setattr(PostgresTx, "commit", commit)
            with ThreadPoolExecutor(1) as pool:
                # The claims of this process start behind these from now on.
                others = pool.submit(claim, engine, 2, request_key="t").result()
                assert [a.id for a in others] == ids[3:5]
            proxy.arm(LOSE_REQUEST)
            commit(tx)

        monkeypatch.setattr(PostgresTx, "commit", losing)
        assert [a.id for a in claim(engine, 2, request_key="s")] == ids[1:3]
