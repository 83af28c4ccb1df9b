"""Attempts: when they are counted, when they are given back, and what follows when none is left."""

from __future__ import annotations

import random
from typing import Any

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.commands import Command
from onetray.domain.lifecycle import DEAD_LETTERED, FAILED, QUEUED
from onetray.domain.policy import Policy
from onetray.domain.retry import backoff_us, retryable
from onetray.domain.verbs import command_of
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.tasks import last, running, settle, state, submit, take, types


def test_an_attempt_is_counted_at_the_claim(engine: Engine) -> None:
    id_ = submit(engine)
    assert engine.task(id_).attempts == 0
    assert take(engine).attempt == 1
    assert engine.task(id_).attempts == 1


def test_release_gives_the_attempt_back(engine: Engine) -> None:
    id_ = submit(engine, max_attempts=1)
    for fence in range(1, 9):
        held = running(engine)
        assert (held.fence, held.attempt) == (fence, 1)
        engine.release(held, reason="not here")
    task = engine.task(id_)
    assert (task.state, task.attempts, task.fence) == (QUEUED, 0, 9)
    assert last(engine, id_).cause == "not here"


def test_a_release_may_ask_for_a_delay(engine: Engine, clock: VirtualClock) -> None:
    submit(engine)
    engine.release(take(engine), delay_s=10)
    assert engine.claim(worker="w") == []
    clock.advance(10)
    engine.sweep()
    assert take(engine).fence == 2


@each_case("paused", ["blocked", "waiting_input"])
def test_a_pause_gives_the_attempt_back(engine: Engine, paused: str) -> None:
    id_ = submit(engine, max_attempts=1)
    engine.pause(running(engine), state=paused, owner="ann", reason="sign")
    assert engine.task(id_).attempts == 0
    engine.resume(id_)
    assert take(engine).attempt == 1


def test_a_crash_counts(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, max_attempts=2)
    running(engine)
    clock.advance(61)
    engine.expire_leases()
    assert engine.task(id_).attempts == 1
    clock.advance(60)
    settle(engine)
    assert running(engine).attempt == 2


def test_a_task_that_never_started_gets_its_attempt_back_five_times_in_a_row(
    engine: Engine, clock: VirtualClock
) -> None:
    id_ = submit(engine, max_attempts=1)
    for _ in range(5):
        assert take(engine).attempt == 1
        clock.advance(61)
        engine.expire_leases()
        assert (state(engine, id_), engine.task(id_).attempts) == (QUEUED, 0)
    take(engine)
    clock.advance(61)
    engine.expire_leases()
    assert state(engine, id_) == DEAD_LETTERED
    (letter,) = engine.dead_letters(id_)
    assert (letter.reason_code, letter.attempts, letter.last_owner) == ("infrastructure_failure", 1, "w")


@each_case("between", ["release", "fail", "start", "pause"])
def test_five_times_in_a_row_begins_again_after(engine: Engine, clock: VirtualClock, between: str) -> None:
    id_ = submit(engine, policy=Policy(max_attempts=5, jitter=False))
    for _ in range(5):
        take(engine)
        clock.advance(61)
        engine.expire_leases()
    held = take(engine)
    match between:
        case "release":
            engine.release(held)
        case "fail":
            engine.fail(held, "no")
        case "start":
            engine.start(held)
            clock.advance(61)
            engine.expire_leases()
        case "pause":
            engine.pause(held, owner="ann", reason="sign")
            engine.resume(id_)
    for _ in range(5):
        clock.advance(60)
        settle(engine)
        take(engine)
        clock.advance(61)
        engine.expire_leases()
    assert state(engine, id_) == QUEUED


@each_case("attempt", [1, 2, 3, 5, 9, 40, 1000])
def test_backoff_stays_in_its_bounds(attempt: int) -> None:
    policy = Policy(backoff_base_s=0.5, backoff_factor=2, backoff_max_s=60)
    chance = random.Random(7)
    plain = 0.5 * 2.0 ** min(attempt - 1, 64)
    waits = [backoff_us(policy, attempt, chance) / SECOND for _ in range(500)]
    assert min(waits) >= min(60, plain * 0.5) - 1e-6
    assert max(waits) <= min(60, plain * 1.5)
    if plain * 1.5 < 60:
        assert max(waits) - min(waits) > plain * 0.9
    if plain * 0.5 >= 60:
        assert set(waits) == {60}


def test_backoff_is_capped_after_the_jitter() -> None:
    policy = Policy(backoff_base_s=50, backoff_max_s=60)
    chance = random.Random(3)
    waits = [backoff_us(policy, 1, chance) / SECOND for _ in range(500)]
    assert max(waits) == 60
    assert min(waits) < 30


def test_backoff_without_jitter_is_exact() -> None:
    policy = Policy(backoff_base_s=2, backoff_factor=3, backoff_max_s=50, jitter=False)
    waits = [backoff_us(policy, n, random.Random()) for n in range(1, 6)]
    assert waits == [2 * SECOND, 6 * SECOND, 18 * SECOND, 50 * SECOND, 50 * SECOND]


def test_a_retry_waits_as_its_seed_says(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    engine.fail(running(engine), "no")
    factor = random.Random(1).uniform(0.5, 1.5)
    assert engine.task(id_).run_at == clock.now() + int(0.5 * factor * SECOND)
    assert engine.claim(worker="w") == []
    clock.advance(0.5 * factor + 0.001)
    engine.sweep()
    assert take(engine).attempt == 2


def test_the_reporter_may_say_when_to_try_again(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    engine.fail(running(engine), "busy", error_class="HTTP 429", retry_after_s=120)
    assert engine.task(id_).run_at == clock.now() + 120 * SECOND
    clock.advance(119.9)
    engine.sweep()
    assert engine.claim(worker="w") == []
    clock.advance(0.1)
    engine.sweep()
    assert take(engine).fence == 2


def test_zero_seconds_means_at_once(engine: Engine) -> None:
    submit(engine)
    engine.fail(running(engine), "busy", retry_after_s=0)
    assert take(engine).attempt == 2


RETRYABLE = [
    # error class, retry_on, no_retry_on, the reporter's word, tried again
    ("TransientError", (), (), None, True),
    ("TimeoutError", (), (), None, True),
    ("ConnectionError", (), (), None, True),
    ("AnythingElse", (), (), None, True),
    ("ValidationError", (), (), None, False),
    ("PermanentError", (), (), None, False),
    ("my.package.PermanentError", (), (), None, False),
    ("HTTP 429", (), (), None, True),
    ("HTTP 500", (), (), None, True),
    ("http_503", (), (), None, True),
    ("HTTP 404", (), (), None, False),
    ("HTTP 400", (), (), None, False),
    ("ValueError", ("KeyError",), (), None, False),
    ("KeyError", ("KeyError",), (), None, True),
    ("builtins.KeyError", ("KeyError",), (), None, True),
    ("PermanentError", ("PermanentError",), (), None, True),
    ("HTTP 404", ("HTTP 404",), (), None, True),
    ("KeyError", (), ("KeyError",), None, False),
    ("KeyError", ("KeyError",), ("KeyError",), None, False),
    ("PermanentError", (), (), True, True),
    ("TransientError", (), (), False, False),
    ("KeyError", (), ("KeyError",), True, True),
]


@each_case(("name", "yes", "no", "said", "again"), RETRYABLE)
def test_which_errors_are_tried_again(
    name: str, yes: tuple[str, ...], no: tuple[str, ...], said: bool | None, again: bool
) -> None:
    assert retryable(Policy(retry_on=yes, no_retry_on=no), name, said) is again


def test_the_engine_asks_the_policy_whether_to_try_again(engine: Engine) -> None:
    engine.configure("mail", Policy(retry_on=("KeyError",)))
    first, second = submit(engine), submit(engine)
    engine.fail(running(engine), "no", error_class="KeyError")
    engine.fail(running(engine), "no", error_class="ValueError")
    assert (state(engine, first), state(engine, second)) == (QUEUED, FAILED)


@each_case(("policy", "end"), [("dead_letter", DEAD_LETTERED), ("fail", FAILED)])
def test_what_follows_the_last_attempt_is_the_policys(engine: Engine, policy: str, end: str) -> None:
    id_ = submit(engine, policy=Policy(max_attempts=2, on_exhaustion=policy))
    engine.fail(running(engine), "no", retry_after_s=0)
    engine.fail(running(engine), "no again", error_class="OSError")
    task = engine.task(id_)
    assert (task.state, task.attempts) == (end, 2)
    assert task.error is not None
    assert (task.error["class"], task.error["message"]) == ("OSError", "no again")
    letters = engine.dead_letters(id_)
    assert [letter.reason_code for letter in letters] == (["exhausted_retries"] if end == DEAD_LETTERED else [])
    if end == FAILED:
        assert last(engine, id_).payload["reason"] == "exhausted_retries"


@each_case(("policy", "end"), [("dead_letter", DEAD_LETTERED), ("fail", FAILED)])
def test_a_crash_in_the_last_attempt_exhausts_it_too(
    engine: Engine, clock: VirtualClock, policy: str, end: str
) -> None:
    id_ = submit(engine, policy=Policy(max_attempts=1, on_exhaustion=policy))
    held = running(engine)
    clock.advance(61)
    assert engine.expire_leases() == [held.key]
    assert state(engine, id_) == end


def test_a_failure_with_a_reason_goes_to_the_dead_letters_at_once(engine: Engine) -> None:
    id_ = submit(engine, policy=Policy(on_exhaustion="fail"))
    engine.fail(running(engine), "cannot read it", reason_code="parse_error", stage="input")
    assert state(engine, id_) == DEAD_LETTERED
    (letter,) = engine.dead_letters(id_)
    assert (letter.reason_code, letter.stage, letter.attempts) == ("parse_error", "input", 1)


def test_a_failure_that_is_not_tried_again_fails_whatever_is_left(engine: Engine) -> None:
    id_ = submit(engine, max_attempts=9)
    engine.fail(running(engine), "no", error_class="PermanentError", detail={"at": 3})
    task = engine.task(id_)
    assert (task.state, task.attempts) == (FAILED, 1)
    assert task.error == {"class": "PermanentError", "message": "no", "stage": "exec", "detail": {"at": 3}}


def test_a_late_success_forgets_the_error_of_an_earlier_attempt(engine: Engine) -> None:
    id_ = submit(engine)
    engine.fail(running(engine), "no", retry_after_s=0)
    assert engine.task(id_).error is not None
    engine.succeed(running(engine))
    assert engine.task(id_).error is None


def test_max_attempts_of_a_submit_overrides_the_kinds(engine: Engine) -> None:
    engine.configure("mail", Policy(max_attempts=9))
    id_ = submit(engine, max_attempts=1)
    engine.fail(running(engine), "no")
    assert state(engine, id_) == DEAD_LETTERED


def test_an_outcome_that_comes_with_its_start_dates_the_start(engine: Engine, clock: VirtualClock) -> None:
    good, bad = submit(engine), submit(engine)
    first, second = take(engine), take(engine)
    clock.advance(10)
    engine.succeed(first, ran_s=4)
    engine.fail(second, "no", ran_s=4, retryable=False)
    for id_ in (good, bad):
        task, began = engine.task(id_), clock.now() - 4 * SECOND
        assert (task.started_at, task.finished_at) == (began, clock.now())
        assert [e.ts for e in engine.events(id_)][2:] == [began, clock.now()]


def test_a_start_is_never_dated_before_the_claim(engine: Engine, clock: VirtualClock) -> None:
    good, bad = submit(engine), submit(engine)
    first, second = take(engine), take(engine)
    claimed_at = clock.now()
    clock.advance(1)
    engine.succeed(first, ran_s=100)
    engine.fail(second, "no", ran_s=100, retryable=False)
    assert [engine.task(i).started_at for i in (good, bad)] == [claimed_at, claimed_at]


SAID_AGAIN: dict[str, dict[str, Any]] = {
    "succeed": {},
    "fail": {"message": "no"},
    "release": {},
    "pause": {"owner": "ann", "reason": "sign"},
}


@each_case("verb", SAID_AGAIN)
def test_the_same_report_again_is_accepted_without_an_event(engine: Engine, verb: str) -> None:
    id_ = submit(engine)
    held = running(engine)
    ticket = {"task": held.key, "fence": held.fence, "worker": held.worker}
    first = engine.do(verb, **ticket, **SAID_AGAIN[verb])
    before = types(engine, id_)
    again = engine.do(verb, **ticket, **SAID_AGAIN[verb])
    assert not first.repeated
    assert again.repeated
    assert (again.state, again.fence, again.version) == (first.state, first.fence, first.version)
    assert types(engine, id_) == before


@each_case("first", SAID_AGAIN)
def test_another_outcome_for_the_same_attempt_is_refused(engine: Engine, first: str) -> None:
    id_ = submit(engine)
    held = running(engine)
    ticket = {"task": held.key, "fence": held.fence, "worker": held.worker}
    engine.do(first, **ticket, **SAID_AGAIN[first])
    before = types(engine, id_)
    for second in SAID_AGAIN.keys() - {first}:
        error = engine.run([_command(second, ticket)])[0].error
        assert error is not None
        assert error.code in ("illegal_transition", "lease_lost")
    assert types(engine, id_) == before


def _command(verb: str, ticket: dict[str, Any]) -> Command:
    return command_of(verb, {**ticket, **SAID_AGAIN[verb]})


@each_case("ended_by", ["deadline", "expiry"])
def test_a_first_failure_report_after_the_engine_failed_the_task_is_refused(
    engine: Engine, clock: VirtualClock, ended_by: str
) -> None:
    deadline_s = 30 if ended_by == "deadline" else None
    id_ = submit(engine, policy=Policy(max_attempts=1, on_exhaustion="fail", deadline_s=deadline_s))
    held = running(engine)
    clock.advance(61)
    settle(engine)
    assert state(engine, id_) == FAILED
    error = engine.run([_command("fail", {"task": held.key, "fence": held.fence, "worker": held.worker})])[0].error
    assert error is not None
    assert error.code == "illegal_transition"
