"""Dead letters: every field that is needed to understand one, and the way back."""

from __future__ import annotations

import hashlib

import pytest

from onetray.domain import commands as c
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import IllegalTransition
from onetray.domain.lifecycle import DEAD_LETTERED, QUEUED
from onetray.domain.policy import Policy
from onetray.domain.system_commands import DeadLetterIt
from onetray.domain.task import DEAD_STAGES, REASON_CODES
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.tasks import counts, in_state, last, running, settle, submit, take

TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def test_a_letter_has_every_field(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, payload={"to": "ann"}, correlation_id="order 7", trace=TRACE)
    held = running(engine)
    clock.advance(5)
    engine.fail(held, "cannot read", error_class="ParseError", reason_code="parse_error", stage="input", detail=[1])
    (letter,) = engine.dead_letters(id_)
    assert letter.task_id == id_
    assert letter.created_at == clock.now()
    assert (letter.reason_code, letter.stage) == ("parse_error", "input")
    assert letter.last_error == {"class": "ParseError", "message": "cannot read", "stage": "input", "detail": [1]}
    assert letter.attempts == 1
    assert letter.last_owner == "w"
    assert letter.last_lease_expires_at == held.lease_expires_at
    assert letter.correlation_id == "order 7"
    assert letter.trace_id == "a" * 32
    assert letter.payload_hash == hashlib.sha256(b'{"to":"ann"}').hexdigest()
    assert letter.successor_id is None


def test_without_a_correlation_id_the_tasks_own_id_stands_in(engine: Engine) -> None:
    id_ = submit(engine)
    engine.dead_letter(id_, "policy_violation", "not allowed")
    (letter,) = engine.dead_letters(id_)
    assert (letter.correlation_id, letter.trace_id) == (id_, None)
    assert letter.last_error == {"class": "PolicyError", "message": "not allowed"}


def test_owner_and_lease_are_null_only_if_it_was_never_claimed(engine: Engine) -> None:
    never = submit(engine)
    engine.dead_letter(never, "policy_violation")
    (letter,) = engine.dead_letters(never)
    assert (letter.last_owner, letter.last_lease_expires_at, letter.attempts) == (None, None, 0)


@each_case("how", ["release", "retry", "expire", "resume"])
def test_the_last_holder_is_known_after_the_task_went_back_to_the_queue(
    engine: Engine, clock: VirtualClock, how: str
) -> None:
    id_ = submit(engine)
    engine.release(take(engine, worker="first"))
    held = running(engine, worker="second")
    match how:
        case "release":
            engine.release(held)
        case "retry":
            engine.fail(held, "no")
        case "expire":
            clock.advance(61)
            engine.expire_leases()
        case "resume":
            engine.pause(held, owner="ann", reason="sign")
            engine.resume(id_)
    engine.dead_letter(id_, "dependency_unavailable")
    (letter,) = engine.dead_letters(id_)
    assert (letter.last_owner, letter.last_lease_expires_at) == ("second", held.lease_expires_at)


def test_every_reason_can_be_given(engine: Engine) -> None:
    for reason in REASON_CODES:
        first, second = submit(engine), submit(engine)
        engine.fail(running(engine), "no", reason_code=reason)
        engine.dead_letter(second, reason)
        assert [engine.dead_letters(i)[0].reason_code for i in (first, second)] == [reason, reason]


def test_every_stage_can_be_given(engine: Engine) -> None:
    for stage in DEAD_STAGES:
        id_ = submit(engine)
        engine.fail(running(engine), "no", reason_code="timeout", stage=stage)
        assert engine.dead_letters(id_)[0].stage == stage


@each_case("start", ["queued", "assigned", "running"])
def test_the_system_may_bury_what_is_not_paused(engine: Engine, start: str) -> None:
    made = in_state(engine, start)
    engine.dead_letter(made.id, "policy_violation", cause="by the auditor")
    event = last(engine, made.id)
    assert (event.state, event.was, event.cause) == (DEAD_LETTERED, start, "by the auditor")
    assert event.actor.startswith("system:")
    assert event.payload["reason_code"] == "policy_violation"
    assert engine.claim(worker="w") == []


def test_letters_are_listed_newest_first_in_their_namespace(engine: Engine) -> None:
    ids = [submit(engine) for _ in range(3)]
    other = submit(engine, namespace="other")
    for id_ in ids:
        engine.dead_letter(id_, "timeout")
    engine.dead_letter(other, "timeout", namespace="other")
    assert [letter.task_id for letter in engine.dead_letters()] == ids[::-1]
    assert [letter.task_id for letter in engine.dead_letters(limit=1)] == ids[2:]
    assert [letter.task_id for letter in engine.dead_letters(namespace="other")] == [other]


def test_a_redriven_letter_names_its_successor(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, payload={"n": 1}, queue="q", priority=4, correlation_id="order 7", trace=TRACE, max_attempts=7)
    engine.dead_letter(id_, "timeout")
    clock.advance(100)
    receipt = engine.redrive(id_, actor_name="ann", cause="mended")
    assert receipt.id is not None
    assert (receipt.state, receipt.repeated) == (QUEUED, False)
    new, old = engine.task(receipt.id), engine.task(id_)
    assert new.retry_of == id_
    assert engine.dead_letters(id_)[0].successor_id == new.id
    for name in ("payload", "queue", "kind", "priority", "correlation_id", "trace", "max_attempts", "policy"):
        assert getattr(new, name) == getattr(old, name), name
    assert (new.attempts, new.fence, new.version, new.created_at) == (0, 1, 1, clock.now())
    assert (old.state, old.version) == (DEAD_LETTERED, 2)
    (event,) = engine.events(new.id)
    assert (event.actor, event.cause) == ("user:ann", "mended")
    assert engine.claim("q", worker="w")[0].id == new.id


def test_a_successor_shares_the_correlation_of_a_task_that_named_none(engine: Engine) -> None:
    id_ = submit(engine)
    engine.dead_letter(id_, "timeout")
    new = engine.redrive(id_).id
    assert engine.task(new or "").correlation_id == id_


def test_a_letter_has_one_successor_however_often_it_is_redriven(engine: Engine) -> None:
    id_ = submit(engine)
    engine.dead_letter(id_, "timeout")
    first = engine.redrive(id_)
    before = counts(engine)
    again, twice = (v.unwrap() for v in engine.run([c.Redrive(id_), c.Redrive(id_)]))
    assert {first.id} == {again.id, twice.id}
    assert again.repeated
    assert twice.repeated
    assert counts(engine) == before


def test_two_redrives_in_one_batch_make_one_successor(engine: Engine) -> None:
    id_ = submit(engine)
    engine.dead_letter(id_, "timeout")
    first, second = (v.unwrap() for v in engine.run([c.Redrive(id_), c.Redrive(id_)]))
    assert first.id == second.id
    assert (first.repeated, second.repeated) == (False, True)


def test_a_letter_whose_successor_is_gone_can_be_redriven_again(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(idempotency_ttl_s=1_000_000), idempotency_key="k")
    engine.dead_letter(id_, "timeout")
    first = engine.redrive(id_).id
    engine.succeed(take(engine))
    clock.advance(1000)
    submit(engine)
    engine.prune(10)
    second = engine.redrive(id_)
    assert (second.id == first, second.repeated) == (False, False)
    assert engine.dead_letters(id_)[0].successor_id == second.id


@each_case("end", ["succeeded", "failed", "cancelled"])
def test_anything_terminal_can_be_redriven(engine: Engine, end: str) -> None:
    made = in_state(engine, end)
    receipt = engine.redrive(made.id)
    assert engine.task(receipt.id or "").retry_of == made.id
    assert engine.task(made.id).state == end


def test_a_redrive_may_be_delayed(engine: Engine, clock: VirtualClock) -> None:
    made = in_state(engine, "failed")
    new = engine.redrive(made.id, delay_s=10)
    assert engine.task(new.id or "").run_at == clock.now() + 10 * SECOND
    assert engine.claim(worker="w") == []
    clock.advance(10)
    settle(engine)
    assert take(engine).id == new.id


@each_case("start", ["queued", "assigned", "running", "blocked", "waiting_input"])
def test_an_open_task_cannot_be_redriven(engine: Engine, start: str) -> None:
    made = in_state(engine, start)
    with pytest.raises(IllegalTransition):
        engine.redrive(made.id)


def test_many_letters_of_one_batch_keep_their_own_facts(engine: Engine) -> None:
    ids = [submit(engine, payload=n) for n in range(5)]
    held = engine.claim(worker="w", limit=3)
    engine.run(
        [c.Fail(message=f"no {n}", reason_code="timeout", **c.ticket(a)) for n, a in enumerate(held)]
        + [DeadLetterIt(id_, reason_code="parse_error", message="bad") for id_ in ids[3:]]
    )
    letters = [engine.dead_letters(i)[0] for i in ids]
    assert [letter.last_error["message"] for letter in letters] == ["no 0", "no 1", "no 2", "bad", "bad"]
    assert [letter.last_owner for letter in letters] == ["w", "w", "w", None, None]
    assert [letter.payload_hash for letter in letters] == [
        hashlib.sha256(str(n).encode()).hexdigest() for n in range(5)
    ]
