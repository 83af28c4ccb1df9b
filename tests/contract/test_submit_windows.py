"""Debounced and throttled submits: those of one kind and key share a job within a window of time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import psycopg
import pytest

from onetray.domain import commands as c
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import AliasTaken, InvalidInput, KeyReused
from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from onetray.domain.task import Receipt
from onetray.domain.verbs import SubmitMany
from onetray.engine import Engine
from tests.support import fleet
from tests.support.cases import each_case
from tests.support.engines import engine_on, must_verify
from tests.support.tasks import counts, submit, take
from tests.support.window_processes import ROUNDS, submit_until_killed, submit_windows


def debounced(engine: Engine, payload: Any = None, **fields: Any) -> Receipt:
    return engine.submit("mail", payload, **{"debounce_s": 5, **fields})


def throttled(engine: Engine, payload: Any = None, **fields: Any) -> Receipt:
    return engine.submit("mail", payload, **{"throttle_s": 60, **fields})


def pass_time(engine: Engine, clock: VirtualClock, seconds: float) -> None:
    clock.advance(seconds)
    while engine.sweep():
        pass


def test_the_last_payload_runs_after_the_quiet_time(engine: Engine, clock: VirtualClock) -> None:
    first = debounced(engine, 1)
    assert (first.repeated, first.window) == (False, None)
    for n in (2, 3):
        pass_time(engine, clock, 3)
        again = debounced(engine, n)
        assert (again.id, again.state, again.repeated, again.window) == (first.id, "queued", True, "debounced")
    pass_time(engine, clock, 4)
    assert engine.claim(worker="w") == []
    pass_time(engine, clock, 1)
    task = take(engine)
    assert (task.id, task.payload, task.attempt) == (first.id, 3, 1)
    assert counts(engine)["task"] == 1
    must_verify(engine)


def test_a_task_that_nobody_has_claimed_in_time_is_replaced_and_waits_again(
    engine: Engine, clock: VirtualClock
) -> None:
    first = debounced(engine, 1)
    pass_time(engine, clock, 6)
    assert counts(engine)["ready"] == 1
    assert debounced(engine, 2).id == first.id
    assert counts(engine)["ready"] == 0
    assert engine.claim(worker="w") == []
    pass_time(engine, clock, 5)
    assert take(engine).payload == 2


@each_case("end", ["claimed", "released", "cancelled"])
def test_a_task_that_was_claimed_or_has_ended_is_not_replaced(engine: Engine, clock: VirtualClock, end: str) -> None:
    first = debounced(engine, 1)
    if end == "cancelled":
        engine.cancel(first.id)
    else:
        pass_time(engine, clock, 5)
        held = take(engine)
        if end == "released":
            engine.release(held, delay_s=60)
    second = debounced(engine, 2)
    assert (second.id != first.id, second.repeated) == (True, False)
    assert (engine.task(first.id).payload, engine.task(second.id).payload) == (1, 2)
    assert debounced(engine, 3).id == second.id
    must_verify(engine)


def test_a_steady_stream_runs_after_the_longest_time(engine: Engine, clock: VirtualClock) -> None:
    began = clock.now()
    first = debounced(engine, 0, debounce_max_s=12)
    for n in range(1, 4):
        pass_time(engine, clock, 4)
        assert debounced(engine, n, debounce_max_s=12).id == first.id
        assert engine.task(first.id).run_at == began + min(4 * n + 5, 12) * SECOND
    # The time is over: a further submit replaces the payload, and the task stays claimable.
    pass_time(engine, clock, 3)
    assert debounced(engine, 4, debounce_max_s=12).id == first.id
    assert take(engine).payload == 4


def test_keys_kinds_and_namespaces_are_apart(engine: Engine) -> None:
    ids = {
        debounced(engine).id,
        debounced(engine, debounce_key="a").id,
        debounced(engine, debounce_key="b").id,
        debounced(engine, namespace="other").id,
        engine.submit("sms", debounce_s=5).id,
        throttled(engine).id,
        throttled(engine, throttle_key="a").id,
        submit(engine),
    }
    assert len(ids) == 8
    assert debounced(engine, debounce_key="b").repeated
    assert throttled(engine, throttle_key="a").repeated


def test_each_replacement_is_one_event_with_who_and_why(engine: Engine, clock: VirtualClock) -> None:
    first = debounced(engine, 1)
    clock.advance(1)
    debounced(engine, 2, actor_name="ann", cause="a click")
    submitted, replaced = engine.events(first.id)
    assert (replaced.type, replaced.actor, replaced.cause, replaced.version) == (
        "task.debounced", "user:ann", "a click", None,
    )  # fmt: skip
    at = submitted.ts + 5 * SECOND
    assert replaced.payload == {"was": at, "run_at": at + SECOND, "replaced": 1}


def test_the_past_of_a_debounced_task_shows_no_wrong_payload(engine: Engine, clock: VirtualClock) -> None:
    id_ = str(debounced(engine, 1).id)
    began = clock.now()
    for n in (2, 3):
        clock.advance(1)
        debounced(engine, n)
    pass_time(engine, clock, 5)
    take(engine)
    seen = [(past.task.payload, past.unknown.get(id_, []), past.task.run_at - began)
            for event in engine.events(id_) if (past := engine.at(id_, event.id)).task]  # fmt: skip
    unknown = ["payload"]
    assert seen == [
        (None, unknown, 5 * SECOND), (None, unknown, 6 * SECOND), (3, [], 7 * SECOND),
        (3, ["lease", "lease_expires_at"], 7 * SECOND),
    ]  # fmt: skip


def test_a_repeated_submit_replaces_nothing_twice(engine: Engine, clock: VirtualClock) -> None:
    first = debounced(engine, 1, idempotency_key="a")
    second = debounced(engine, 2, idempotency_key="b")
    third = debounced(engine, 3)
    clock.advance(1)
    again = debounced(engine, 2, idempotency_key="b")
    assert {first.id, second.id, third.id, again.id} == {first.id}
    assert (again.repeated, again.window) == (True, None)
    assert (engine.task(str(first.id)).payload, len(engine.events(first.id))) == (3, 3)
    with pytest.raises(KeyReused):
        debounced(engine, 9, idempotency_key="b")
    assert engine.task(str(first.id)).payload == 3
    must_verify(engine)


def test_a_repeated_submit_opens_no_window(engine: Engine, clock: VirtualClock) -> None:
    plain = submit(engine, payload=1, idempotency_key="a")
    for fields in ({"throttle_s": 60}, {"debounce_s": 60}):
        assert engine.submit("mail", 1, idempotency_key="a", **fields).id == plain
    assert counts(engine)["submit_window"] == 0


def test_several_submits_of_one_batch_share_a_job(engine: Engine) -> None:
    verdicts = engine.run([
        *(c.Submit(kind="mail", payload=n, debounce_s=5, debounce_key="d", actor_name=str(n)) for n in range(3)),
        *(c.Submit(kind="mail", payload=n, throttle_s=5) for n in range(3)),
        c.Submit(kind="mail", payload=1, debounce_s=5, debounce_key="d", idempotency_key="i"),
        c.Submit(kind="mail", payload=1, debounce_s=5, debounce_key="d", idempotency_key="i"),
    ])  # fmt: skip
    receipts = [v.unwrap() for v in verdicts]
    assert [r.window for r in receipts] == [
        None, "debounced", "debounced", None, "throttled", "throttled", "debounced", "debounced",
    ]  # fmt: skip
    waiting, first = receipts[0].id, receipts[3].id
    assert {r.id for r in (*receipts[:3], *receipts[6:])} == {waiting}
    assert {r.id for r in receipts[3:6]} == {first}
    assert (engine.task(waiting).payload, engine.task(first).payload) == (1, 0)
    assert [e.payload["replaced"] for e in engine.events(waiting)[1:]] == [1, 2, 3]
    # The same for a job of an earlier batch.
    engine.run([c.Submit(kind="mail", payload=n, debounce_s=5, debounce_key="d") for n in (7, 8)])
    assert (engine.task(waiting).payload, len(engine.events(waiting))) == (8, 6)
    must_verify(engine)


def test_a_batch_that_cancels_the_job_submits_another(engine: Engine) -> None:
    first = debounced(engine, 1)
    cancelled, second, third = engine.run([
        c.Cancel(str(first.id)), *(c.Submit(kind="mail", payload=n, debounce_s=5) for n in (2, 3)),
    ])  # fmt: skip
    assert cancelled.ok
    assert second.unwrap().id == third.unwrap().id != first.id
    must_verify(engine)


def test_the_first_submit_of_a_window_is_the_job_of_all(engine: Engine, clock: VirtualClock) -> None:
    first = throttled(engine, 1)
    assert (first.repeated, first.window) == (False, None)
    clock.advance(30)
    engine.succeed(take(engine))
    clock.advance(29.9)
    again = throttled(engine, 2, throttle_s=1)
    assert (again.id, again.state, again.repeated, again.window) == (first.id, "succeeded", True, "throttled")
    assert again.version == engine.task(str(first.id)).version
    clock.advance(0.1)
    second = throttled(engine, 3)
    assert (second.id != first.id, engine.task(str(second.id)).payload) == (True, 3)
    assert counts(engine)["submit_window"] == 1


def test_a_throttled_submit_keeps_its_idempotency_key(engine: Engine, clock: VirtualClock) -> None:
    first = throttled(engine, 1)
    assert throttled(engine, 2, idempotency_key="k").id == first.id
    clock.advance(61)
    assert throttled(engine, 2, idempotency_key="k").id == first.id
    assert not throttled(engine, 2).repeated


def test_the_window_of_a_deleted_job_is_free(engine: Engine, clock: VirtualClock) -> None:
    first = throttled(engine)
    engine.cancel(first.id)
    engine.delete_job(str(first.id))
    assert counts(engine)["submit_window"] == 0
    assert not throttled(engine).repeated
    engine.succeed(take(engine))
    submit(engine, "newer")
    clock.advance(10)
    assert len(engine.prune(1)) == 1
    assert counts(engine)["submit_window"] == 0


def test_a_submit_whose_alias_is_taken_leaves_its_window_as_it_was(engine: Engine) -> None:
    submit(engine, alias="a")
    for fields in ({"throttle_s": 60}, {"debounce_s": 60}):
        before = counts(engine)
        with pytest.raises(AliasTaken):
            engine.submit("mail", alias="a", **fields)
        assert counts(engine) == before
        second = engine.submit("mail", 2, alias=str(fields), **fields)
        assert not second.repeated
        # Of a submit that returns a job, the alias is not needed.
        assert engine.submit("mail", 3, alias="a", **fields).id == second.id
    must_verify(engine)


def test_the_queue_ttl_counts_from_the_last_replacement(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(queue_ttl_s=10)
    first = debounced(engine, 1, policy=policy)
    pass_time(engine, clock, 4)
    debounced(engine, 2, policy=policy)
    pass_time(engine, clock, 12)
    assert engine.task(str(first.id)).state == "queued"
    pass_time(engine, clock, 8)
    assert engine.task(str(first.id)).state != "queued"


def test_explain_says_until_when_it_waits_and_what_was_replaced(engine: Engine, clock: VirtualClock) -> None:
    first = debounced(engine, 1)
    clock.advance(2)
    debounced(engine, 2)
    clock.advance(1)
    reason = engine.explain(str(first.id))[0]
    assert (reason.code, reason.ends_at, reason.facts["replaced"]) == ("debounced", clock.now() + 4 * SECOND, 1)
    assert "it waits for quiet until" in reason.message
    assert "in 4 s; 1 submit replaced its payload" in reason.message
    engine.reschedule(first.id, delay_s=60)
    assert engine.explain(str(first.id))[0].code == "delayed"


@each_case(("fields", "message"), [
    ({"debounce_s": 0}, "debounce_s"),
    ({"throttle_s": float("nan")}, "throttle_s"),
    ({"debounce_key": "k"}, "need debounce_s"),
    ({"debounce_max_s": 5}, "need debounce_s"),
    ({"throttle_key": "k"}, "needs throttle_s"),
    ({"debounce_s": 5, "throttle_s": 5}, "not both"),
    ({"debounce_s": 5, "delay_s": 5}, "leave out delay_s and run_at"),
    ({"debounce_s": 5, "run_at": 5}, "leave out delay_s and run_at"),
    ({"debounce_s": 5, "debounce_max_s": 4}, "at least debounce_s"),
    ({"debounce_s": 5, "debounce_key": ""}, "debounce_key"),
    ({"throttle_s": 5, "unique_key": "u"}, "only one of them"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(engine: Engine, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        engine.submit("mail", **fields)


def test_submit_many_takes_no_window(engine: Engine) -> None:
    (verdict,) = engine.run([SubmitMany(like=c.Submit(kind="mail", throttle_s=5), payloads=[1])])
    assert "use submit" in str(verdict.error)


def test_the_events_of_replacements_cannot_be_pruned(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match=r"task.debounced cannot be pruned"):
        engine.prune_notes(["task.debounced"], older_than_s=1)


@each_case("fields", [{"debounce_s": 60}, {"throttle_s": 60}])
def test_concurrent_submits_make_one_job(engine: Engine, fields: dict[str, Any]) -> None:
    barrier, before = Barrier(8), counts(engine)["task"]

    def run(n: int) -> list[Receipt]:
        barrier.wait()
        return [engine.submit("mail", [n, i], **fields) for i in range(10)]

    with ThreadPoolExecutor(8) as pool:
        receipts = [r for part in pool.map(run, range(8)) for r in part]
    assert len({r.id for r in receipts}) == 1
    assert [r.repeated for r in receipts].count(False) == 1
    assert counts(engine)["task"] == before + 1
    must_verify(engine)


def test_submits_of_several_processes_make_one_job_for_each_window(database_url: str) -> None:
    parts = fleet.run_all(submit_windows, [(database_url, n) for n in range(3)], 60)
    told = [receipt for part in parts for receipt in part]
    with engine_on(database_url) as engine:
        tasks = {task.id: task for task in engine.tasks()}
        assert {id_ for id_, _ in told} == set(tasks)
        assert len(tasks) == [repeated for _, repeated in told].count(False) == 4
        replaced = [len(engine.events(task.id)) - 1 for task in tasks.values() if task.kind == "debounced"]
        assert sum(replaced) == 3 * ROUNDS - 2
        # The last submit of some process has won.
        assert all(task.payload[1] >= ROUNDS - 2 for task in tasks.values() if task.kind == "debounced")
        must_verify(engine)


def test_a_process_that_is_killed_leaves_its_windows_as_it_was_told(database_url: str, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    victim = fleet.start(submit_until_killed, database_url, str(ledger))
    fleet.wait_until(lambda: len(fleet.Ledger.read(ledger)) >= 5)
    victim.kill()
    fleet.end_all([victim], 60, exitcode=-9)
    rows = fleet.Ledger.read(ledger)
    last, waiting, first = rows[-1]
    assert {tuple(ids) for _, *ids in rows} == {(waiting, first)}
    with engine_on(database_url) as engine:
        # The last submit may have been committed and not acknowledged.
        assert engine.task(waiting).payload in (last, last + 1)
        assert (engine.task(first).payload, counts(engine)["task"]) == (1, 2)
        assert engine.submit("debounced", debounce_s=3600).id == waiting
        must_verify(engine)


def test_a_submit_into_a_window_waits_for_the_callers_transaction(migrated_url: str) -> None:
    with engine_on(migrated_url) as engine, psycopg.connect(migrated_url) as own:
        throttled(engine, 1, connection=own)
        debounced(engine, 1, connection=own)
        own.rollback()
        assert counts(engine)["submit_window"] == 0
        first, waiting = throttled(engine, 2, connection=own), debounced(engine, 2, debounce_s=60, connection=own)
        assert throttled(engine, 3, connection=own).id == first.id
        assert debounced(engine, 3, debounce_s=60, connection=own).id == waiting.id
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(debounced, engine, 4, debounce_s=60)
            fleet.wait_until(lambda: _someone_waits(migrated_url))
            own.commit()
            assert other.result(30).id == waiting.id
        assert engine.task(str(waiting.id)).payload == 4
        assert throttled(engine, 5).id == first.id
        must_verify(engine)


def _someone_waits(url: str) -> bool:
    with psycopg.connect(url) as other:
        row = other.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    return row is not None and row[0] > 0


def test_a_replaced_payload_takes_the_task_to_the_lane_of_its_new_key(engine: Engine, clock: VirtualClock) -> None:
    """The limit of its tenant counts it, and not that of the tenant of the first payload."""
    engine.configure("mail", Policy(concurrency=Concurrency(1, key="tenant")))
    engine.submit("mail", {"tenant": "b"})
    assert take(engine).payload == {"tenant": "b"}
    first = debounced(engine, {"tenant": "b"})
    assert debounced(engine, {"tenant": "a"}).id == first.id
    pass_time(engine, clock, 5)
    # It has become claimable, and is replaced once more: its ready row moves, too.
    assert debounced(engine, {"tenant": "c"}).id == first.id
    batch = [c.Submit(kind="mail", payload={"tenant": t}, debounce_s=5, debounce_key="two") for t in ("b", "d")]
    second = engine.run(batch)[0].value.id
    pass_time(engine, clock, 5)
    assert {a.id: a.payload["tenant"] for a in engine.claim(worker="w", limit=5)} == {first.id: "c", second: "d"}
    must_verify(engine)
