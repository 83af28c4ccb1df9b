"""What a task's holder keeps beside it: how far it is, and what the next attempt will want to know."""

from __future__ import annotations

import pytest

from onetray.domain import commands as c
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import LeaseLost, TooLarge
from onetray.domain.task import RawJson, TaskProgress
from onetray.engine import Engine
from tests.support.tasks import counts, running, submit, take

DAY = 86_400


def test_a_task_that_has_said_nothing_has_no_progress_and_no_checkpoint(engine: Engine) -> None:
    id_ = submit(engine)
    assert engine.progress_of(id_) is None
    assert engine.last_checkpoint(id_) is None


def test_the_last_word_about_progress_is_kept(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    held = running(engine)
    receipt = engine.say_progress(held, 1, 10, "reading")
    assert (receipt.id, receipt.state) == (id_, "running")
    assert engine.progress_of(id_) == TaskProgress(clock.now(), 1, 1.0, 10.0, "reading")
    clock.advance(2)
    engine.say_progress(held, 2.5)
    assert engine.progress_of(id_) == TaskProgress(clock.now(), 1, 2.5, None, None)
    assert counts(engine)["progress"] == 1


def test_progress_of_many_tasks_is_one_batch(engine: Engine) -> None:
    ids = [submit(engine) for _ in range(3)]
    tickets = [c.ticket(a) for a in engine.claim(worker="w", limit=3)]
    said = [c.Progress(done=n, total=None if n else 2, message=None, **t) for n, t in enumerate(tickets)]
    assert all(v.ok for v in engine.run([*said, c.Progress(done=9, **tickets[0])]))
    found = [engine.progress_of(id_) for id_ in ids]
    assert [(p.done, p.total) for p in found if p] == [(9, None), (1, None), (2, None)]


def test_progress_says_which_attempt_it_is_from(engine: Engine) -> None:
    id_ = submit(engine)
    engine.say_progress(take(engine), 5)
    engine.fail(id_, "no", retry_after_s=0)
    engine.say_progress(take(engine), 1)
    found = engine.progress_of(id_)
    assert found is not None
    assert (found.attempt, found.done) == (2, 1)


def test_only_the_holder_may_say_something(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    held = running(engine)
    engine.checkpoint(held, "kept")
    clock.advance(61)
    with pytest.raises(LeaseLost):
        engine.say_progress(held, 1)
    with pytest.raises(LeaseLost):
        engine.checkpoint(held, "late")
    assert engine.progress_of(id_) is None
    assert engine.last_checkpoint(id_) == "kept"


def test_neither_changes_a_state_or_writes_an_event(engine: Engine) -> None:
    id_ = submit(engine)
    held = running(engine)
    before, events = engine.task(id_), engine.events(id_)
    engine.say_progress(held, 1)
    engine.checkpoint(held, {"row": 5})
    assert engine.task(id_) == before
    assert engine.events(id_) == events


def test_progress_rings_for_those_who_watch_and_a_checkpoint_does_not(engine: Engine) -> None:
    submit(engine)
    held = running(engine)
    seen = engine.wake.generation
    engine.checkpoint(held, 1)
    assert engine.wake.generation == seen
    engine.say_progress(held, 1)
    assert engine.wake.generation != seen


def test_a_checkpoint_is_found_by_the_next_attempt(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    held = running(engine)
    engine.checkpoint(held, {"row": 5})
    engine.checkpoint(held, {"row": 7, "seen": [None, "ü"]})
    clock.advance(61)
    engine.expire_leases()
    clock.advance(60)
    engine.do_due()
    again = take(engine, worker="another")
    assert engine.last_checkpoint(again.id) == {"row": 7, "seen": [None, "ü"]}
    engine.checkpoint(again, None)
    assert engine.last_checkpoint(id_) is None
    assert counts(engine)["checkpoint"] == 1


def test_a_checkpoint_stays_readable_after_the_end(engine: Engine) -> None:
    id_ = submit(engine)
    held = running(engine)
    engine.checkpoint(held, RawJson(b'{"a":  1}'))
    engine.succeed(held)
    assert engine.last_checkpoint(id_) == {"a": 1}


def test_a_checkpoint_is_as_large_as_a_result_at_most(engine: Engine) -> None:
    id_ = submit(engine)
    held = running(engine)
    with pytest.raises(TooLarge):
        engine.checkpoint(held, "x" * 1_000_001)
    assert engine.last_checkpoint(id_) is None


def test_both_are_pruned_with_their_task(engine: Engine, clock: VirtualClock) -> None:
    submit(engine)
    held = running(engine)
    engine.say_progress(held, 1)
    engine.checkpoint(held, 1)
    engine.succeed(held)
    submit(engine, "newer", delay_s=DAY)
    clock.advance(10)
    assert len(engine.prune(5)) == 1
    assert (counts(engine)["progress"], counts(engine)["checkpoint"]) == (0, 0)


def test_times_are_those_of_the_engines_clock(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    held = running(engine)
    clock.advance(3)
    engine.say_progress(held, 0)
    found = engine.progress_of(id_)
    assert found is not None
    assert found.at - engine.task(id_).created_at == 3 * SECOND
