"""Breakers: a kind that keeps failing is left alone for a while, then tried with one task."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain import commands as c
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import NotFound
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.domain.worker import Breaker
from onetray.engine import Engine
from tests.support.engines import engine_on
from tests.support.tasks import running, submit, take

THREE = Policy(
    breaker_failures=3, breaker_window_s=60, breaker_open_s=30, max_attempts=9, backoff_base_s=0, jitter=False
)


@pytest.fixture(autouse=True)
def _mail_has_a_breaker(request: pytest.FixtureRequest) -> None:
    if "engine" in request.fixturenames:
        request.getfixturevalue("engine").configure("mail", THREE)


def fail_once(engine: Engine, kind: str = "mail") -> None:
    """One more failed attempt of a kind, of a task that does not come back soon."""
    submit(engine, kind, queue="failing")
    engine.fail(take(engine, queue="failing", kinds=(kind,)), "no", error_class="Refused", retry_after_s=9999)


def fail_often(engine: Engine, times: int = 3, kind: str = "mail") -> None:
    for _ in range(times):
        fail_once(engine, kind)


def state(engine: Engine, kind: str = "mail") -> str:
    return {b.kind: b.state for b in engine.breakers()}.get(kind, "closed")


def claimed(engine: Engine, **fields: object) -> list[str]:
    return [a.id for a in engine.claim(worker="w", limit=10, **fields)]


def half_open(engine: Engine, clock: VirtualClock) -> None:
    fail_often(engine)
    clock.advance(30)
    assert state(engine) == "half_open"


def probe(engine: Engine, clock: VirtualClock) -> Assignment:
    """The one task that is let through. Another one waits behind it."""
    submit(engine)
    submit(engine)
    half_open(engine, clock)
    (sent,) = engine.claim(worker="w", limit=10)
    return sent


# What opens it.


def test_a_kind_without_a_breaker_has_none(engine: Engine) -> None:
    engine.configure("mail", THREE.with_(breaker_failures=None))
    fail_often(engine, 20)
    assert engine.breakers() == []
    submit(engine)
    assert len(claimed(engine)) == 1


def test_so_many_failures_within_the_window_open_it(engine: Engine, clock: VirtualClock) -> None:
    waiting = submit(engine)
    fail_often(engine, 2)
    assert engine.breakers() == [Breaker("mail", "closed", 2, None, None, None, None)]
    clock.advance(60)
    fail_once(engine)
    now = clock.now()
    why = "3 attempts failed within 60 s, the last with Refused"
    assert engine.breakers() == [Breaker("mail", "open", 3, now, now + 30 * SECOND, why, "system:engine")]
    assert claimed(engine) == []
    assert engine.task(waiting).state == "queued"


def test_the_window_slides_from_failure_to_failure(engine: Engine, clock: VirtualClock) -> None:
    for wait in (40, 21, 40, 21):
        fail_once(engine)
        clock.advance(wait)
        assert state(engine) == "closed"
    fail_once(engine)
    assert state(engine) == "closed"
    clock.advance(38)
    fail_once(engine)
    assert state(engine) == "open"


def test_failures_of_one_batch_are_counted_one_by_one(engine: Engine) -> None:
    for _ in range(3):
        submit(engine)
    held = [c.ticket(a) for a in engine.claim(worker="w", limit=3)]
    assert all(v.ok for v in engine.run([c.Fail(message="no", **t) for t in held]))
    assert state(engine) == "open"


def test_the_last_attempt_counts_as_those_before_it(engine: Engine) -> None:
    engine.configure("mail", THREE.with_(max_attempts=1, on_exhaustion="fail", breaker_failures=1))
    fail_once(engine)
    assert state(engine) == "open"


def test_a_started_task_whose_lease_runs_out_counts(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("mail", THREE.with_(breaker_failures=2))
    for _ in range(2):
        submit(engine)
        running(engine)
    clock.advance(61)
    assert len(engine.expire_leases()) == 2
    assert state(engine) == "open"
    assert "LeaseExpired" in (engine.breakers()[0].why or "")


def test_a_task_that_was_never_started_does_not_count(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("mail", THREE.with_(breaker_failures=1))
    submit(engine)
    take(engine)
    clock.advance(61)
    engine.expire_leases()
    assert engine.breakers() == []


def test_an_attempt_that_takes_too_long_counts(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("mail", THREE.with_(breaker_failures=1, timeout_s=5))
    submit(engine)
    running(engine)
    clock.advance(5)
    engine.do_due()
    assert "Timeout" in (engine.breakers()[0].why or "")


def test_what_is_nobodys_failure_does_not_count(engine: Engine) -> None:
    engine.configure("mail", THREE.with_(breaker_failures=1, no_retry_on=("Bad",)))
    ends = (
        lambda a: engine.fail(a, "no", retryable=False),
        lambda a: engine.fail(a, "no", error_class="Bad"),
        lambda a: engine.fail(a, "no", reason_code="parse_error"),
        lambda a: engine.release(a, delay_s=99),
        lambda a: engine.cancel(a.id, hard=True),
        lambda a: (engine.cancel(a.id), engine.fail(a, "stopped")),
    )
    for end in ends:
        submit(engine)
        end(running(engine))
    assert engine.breakers() == []


def test_kinds_of_namespaces_have_breakers_of_their_own(engine: Engine) -> None:
    fail_often(engine)
    id_ = submit(engine, namespace="other")
    assert claimed(engine, namespace="other") == [id_]
    assert engine.breakers(namespace="other") == []


# What goes on while it is open.


def test_other_kinds_of_the_queue_are_claimed_in_their_order(engine: Engine) -> None:
    order = [("scan", 0), ("mail", 9), ("print", 5), ("scan", 5), ("mail", 0), ("print", 0), ("scan", 9)]
    ids = {kind_rank: submit(engine, kind_rank[0], priority=kind_rank[1]) for kind_rank in order}
    fail_often(engine)
    assert [a.id for a in engine.claim(worker="w", limit=3)] == [
        ids["scan", 9], ids["print", 5], ids["scan", 5],
    ]  # fmt: skip
    assert claimed(engine) == [ids["scan", 0], ids["print", 0]]
    assert claimed(engine) == []


def test_a_claim_of_some_kinds_goes_past_the_open_one(engine: Engine) -> None:
    ids = {kind: submit(engine, kind) for kind in ("mail", "scan", "print")}
    fail_often(engine)
    assert claimed(engine, kinds=("mail",)) == []
    assert claimed(engine, kinds=("mail", "scan")) == [ids["scan"]]
    assert claimed(engine, kinds=("print", "never seen")) == [ids["print"]]


def test_a_kind_that_another_engine_has_just_made_is_claimed_too(
    engine: Engine, database_url: str, clock: VirtualClock
) -> None:
    fail_often(engine)
    with engine_on(database_url, clock) as second:
        id_ = submit(second, "brand new")
    assert claimed(engine) == [id_]


def test_a_paused_queue_stays_paused(engine: Engine) -> None:
    submit(engine, "scan")
    fail_often(engine)
    engine.pause_queue("default")
    assert claimed(engine) == []


def test_what_was_claimed_before_goes_on_and_does_not_close_it(engine: Engine, clock: VirtualClock) -> None:
    submit(engine)
    submit(engine)
    early, late = take(engine), take(engine)
    fail_often(engine)
    until = engine.breakers()[0].open_until
    engine.succeed(early)
    engine.fail(late, "no")
    (found,) = engine.breakers()
    assert (found.state, found.open_until) == ("open", until)


def test_the_fleet_agrees(engine: Engine, database_url: str, clock: VirtualClock) -> None:
    with engine_on(database_url, clock) as second:
        submit(engine)
        submit(second)
        fail_once(engine)
        fail_once(second)
        fail_once(engine)
        assert engine.breakers() == second.breakers()
        assert (claimed(engine), claimed(second)) == ([], [])
        clock.advance(30)
        sent = take(second, limit=10)
        assert claimed(engine) == []
        engine.succeed(sent)
        assert len(claimed(second)) == 1


def test_work_that_has_no_breaker_asks_nothing_about_any(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        submit(engine, "scan")
    asked: list[str] = []
    with engine.store.transaction() as tx:
        kind = type(tx)
    for way in ("query", "batch"):
        told = getattr(kind, way)

        def note(self: object, name: str, /, *args: Any, told: Any = told, **params: Any) -> Any:
            asked.append(name)
            return told(self, name, *args, **params)

        monkeypatch.setattr(kind, way, note)
    held = engine.claim(worker="w", limit=5)
    engine.run([c.Succeed(**c.ticket(a)) for a in held[:4]])
    engine.fail(held[4], "no")
    assert "delete_ready" in asked
    assert [name for name in asked if "breaker" in name] == []


# Half open.


def test_when_its_time_is_over_one_task_is_let_through(engine: Engine, clock: VirtualClock) -> None:
    fail_often(engine)
    first, second = submit(engine), submit(engine)
    clock.advance(29.999999)
    assert claimed(engine) == []
    clock.advance(0.000001)
    assert claimed(engine) == [first]
    assert claimed(engine) == []
    assert engine.task(second).state == "queued"


def test_claims_of_one_batch_let_one_through(engine: Engine, clock: VirtualClock) -> None:
    for queue in ("a", "b"):
        submit(engine, queue=queue)
    half_open(engine, clock)
    verdicts = engine.run([c.Claim(worker="w", queue=q, limit=5) for q in ("a", "b", "a", "b")])
    assert [len(v.unwrap()) for v in verdicts] == [1, 0, 0, 0]


def test_a_probe_waits_for_its_turn_among_other_kinds(engine: Engine, clock: VirtualClock) -> None:
    ids = [submit(engine, kind, priority=p) for kind, p in (("scan", 9), ("mail", 5), ("mail", 4), ("scan", 0))]
    half_open(engine, clock)
    assert [take(engine).id for _ in range(3)] == [ids[0], ids[1], ids[3]]
    assert claimed(engine) == []


def test_a_probe_that_succeeds_closes_it(engine: Engine, clock: VirtualClock) -> None:
    engine.succeed(probe(engine, clock))
    assert engine.breakers() == [Breaker("mail", "closed", 0, None, None, None, None)]
    assert len(claimed(engine)) == 1
    fail_often(engine, 2)
    assert state(engine) == "closed"


def test_a_probe_that_fails_opens_it_again(engine: Engine, clock: VirtualClock) -> None:
    sent = probe(engine, clock)
    clock.advance(10)
    engine.fail(sent, "no", error_class="Refused")
    (found,) = engine.breakers()
    assert (found.state, found.opened_at, found.open_until) == ("open", clock.now(), clock.now() + 30 * SECOND)
    assert found.why == "it was tried again, and failed with Refused"
    assert claimed(engine) == []


def test_a_success_and_a_failure_in_one_batch_are_a_failure(engine: Engine, clock: VirtualClock) -> None:
    submit(engine)
    early = take(engine)
    sent = probe(engine, clock)
    engine.run([c.Fail(message="no", **c.ticket(early)), c.Succeed(**c.ticket(sent))])
    assert state(engine) == "open"


def test_a_probe_that_says_nothing_lets_another_through(engine: Engine, clock: VirtualClock) -> None:
    sent = probe(engine, clock)
    clock.advance(29)
    assert claimed(engine) == []
    clock.advance(1)
    (other,) = engine.claim(worker="w", limit=10)
    assert other.id != sent.id
    engine.succeed(other)
    assert state(engine) == "closed"


def test_a_probe_that_is_given_back_leaves_it_half_open(engine: Engine, clock: VirtualClock) -> None:
    engine.release(probe(engine, clock))
    assert state(engine) == "half_open"
    assert claimed(engine) == []
    clock.advance(30)
    assert len(claimed(engine)) == 1


# By hand.


def test_a_breaker_is_opened_and_closed_by_hand(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, "scan")
    engine.open_breaker("scan", for_s=100, by="ann", why="the scanner is being moved")
    now = clock.now()
    assert engine.breakers() == [
        Breaker("scan", "open", 0, now, now + 100 * SECOND, "the scanner is being moved", "ann"),
    ]
    assert claimed(engine) == []
    seen = engine.wake.generation
    engine.close_breaker("scan")
    assert engine.wake.generation != seen
    assert state(engine, "scan") == "closed"
    assert claimed(engine) == [id_]


def test_closing_by_hand_forgets_the_failures(engine: Engine) -> None:
    fail_often(engine)
    engine.close_breaker("mail")
    fail_often(engine, 2)
    assert state(engine) == "closed"
    fail_once(engine)
    assert state(engine) == "open"


def test_opening_by_hand_again_moves_the_end_and_takes_back_a_probe(engine: Engine, clock: VirtualClock) -> None:
    sent = probe(engine, clock)
    engine.open_breaker("mail", for_s=500)
    engine.succeed(sent)
    (found,) = engine.breakers()
    assert (found.state, found.open_until, found.opened_by) == ("open", clock.now() + 500 * SECOND, "anonymous")


def test_a_kind_that_counts_nothing_is_closed_by_the_first_claim_after_its_time(
    engine: Engine, clock: VirtualClock
) -> None:
    for _ in range(3):
        submit(engine, "scan")
    engine.open_breaker("scan", for_s=10)
    clock.advance(10)
    assert len(claimed(engine)) == 1
    assert state(engine, "scan") == "closed"
    assert len(claimed(engine)) == 2


def test_a_kind_may_be_stopped_before_it_is_used(engine: Engine) -> None:
    engine.open_breaker("new", for_s=10)
    submit(engine, "new")
    assert claimed(engine) == []


def test_closing_what_is_closed_changes_nothing_and_of_an_unknown_kind_is_an_error(engine: Engine) -> None:
    submit(engine)
    engine.close_breaker("mail")
    assert engine.breakers() == []
    for kind, namespace in (("unknown", "default"), ("mail", "elsewhere")):
        with pytest.raises(NotFound):
            engine.close_breaker(kind, namespace=namespace)
