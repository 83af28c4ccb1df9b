"""Events: one for each transition, with everything that the specification asks of one."""

from __future__ import annotations

import pytest

from onetray.domain import commands as c
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import InvalidInput
from onetray.domain.lifecycle import TASK
from onetray.domain.policy import Policy
from onetray.domain.system_commands import DeadLetterIt
from onetray.domain.task import Event
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.tasks import STATES, in_state, last, running, settle, submit, take, types

TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
OTHER = "00-" + "c" * 32 + "-" + "d" * 16 + "-01"


def a_long_life(engine: Engine, clock: VirtualClock, id_: str) -> None:
    """Nearly every verb, on one task."""
    engine.reschedule(id_, delay_s=1)
    clock.advance(1)
    settle(engine)
    engine.set_priority(id_, 2)
    held = running(engine)
    engine.beat(held)
    engine.fail(held, "no", retry_after_s=0)
    engine.release(take(engine))
    take(engine)
    clock.advance(61)
    settle(engine)
    engine.pause(take(engine), owner="ann", reason="sign")
    engine.resume(id_)
    engine.pause(take(engine), owner="ann", reason="sign", state="waiting_input")
    engine.resume(id_)
    held = running(engine)
    engine.cancel(id_)
    engine.fail(held, "stopped")


def test_every_event_has_correlation_id_and_trace(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, correlation_id="order 7", trace=TRACE, policy=Policy(record_heartbeats=True))
    a_long_life(engine, clock, id_)
    events = engine.events(id_)
    assert len(events) == 21
    assert {(e.correlation_id, e.trace) for e in events} == {("order 7", TRACE)}
    assert {(e.job_id, e.entity_id, e.namespace) for e in events} == {(id_, id_, "default")}


def test_without_a_correlation_id_every_event_has_the_tasks_own_id(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    a_long_life(engine, clock, id_)
    assert {e.correlation_id for e in engine.events(id_)} == {id_}


def test_the_versions_of_transitions_are_contiguous_and_chained(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(record_heartbeats=True))
    a_long_life(engine, clock, id_)
    moves = [e for e in engine.events(id_) if e.version is not None]
    assert [e.version for e in moves] == list(range(1, len(moves) + 1))
    assert [e.was for e in moves[1:]] == [e.state for e in moves[:-1]]
    assert {(e.was, e.state) for e in moves} <= TASK.pairs
    assert [e.ts for e in moves] == sorted(e.ts for e in moves)
    assert [(e.fence, TASK.ranks[e.state or ""]) for e in moves] == sorted(
        (e.fence, TASK.ranks[e.state or ""]) for e in moves
    )
    task = engine.task(id_)
    assert (task.version, task.state) == (moves[-1].version, moves[-1].state)


def test_every_actor_may_make_the_transition_that_it_made(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    a_long_life(engine, clock, id_)
    by_event = {t.event: t for t in TASK.transitions}
    for event in engine.events(id_):
        kind, _, name = event.actor.partition(":")
        assert name
        if event.version is not None:
            assert kind in by_event[event.type].by, event


@each_case("kind", ["user", "worker", "system"])
def test_a_submit_names_its_actor_and_its_cause(engine: Engine, kind: str) -> None:
    id_ = submit(engine, actor=kind, actor_name="ann", cause="a click")
    (event,) = engine.events(id_)
    assert (event.actor, event.cause, event.type) == (f"{kind}:ann", "a click", "task.submitted")


CAUSES = {
    "cancel": ("queued", lambda i, t: c.Cancel(i, cause="why")),
    "cancel_requested": ("running", lambda i, t: c.Cancel(i, cause="why")),
    "resume": ("blocked", lambda i, t: c.Resume(i, cause="why")),
    "set_priority": ("queued", lambda i, t: c.SetPriority(i, priority=9, cause="why")),
    "reschedule": ("queued", lambda i, t: c.Reschedule(i, delay_s=9, cause="why")),
    "dead_letter": ("queued", lambda i, t: DeadLetterIt(i, reason_code="timeout", cause="why")),
    "release": ("running", lambda i, t: c.Release(reason="why", **t)),
    "pause": ("running", lambda i, t: c.Pause(owner="ann", reason="why", **t)),
}


@each_case("verb", CAUSES)
def test_the_cause_that_was_given_is_kept(engine: Engine, verb: str) -> None:
    start, make = CAUSES[verb]
    made = in_state(engine, start)
    engine.call(make(made.id, made.ticket))
    assert last(engine, made.id).cause == "why"


TRACED = {
    "start": ("assigned", lambda i, t: c.Start(trace=OTHER, **t)),
    "succeed": ("running", lambda i, t: c.Succeed(trace=OTHER, **t)),
    "fail": ("running", lambda i, t: c.Fail(message="no", trace=OTHER, **t)),
    "fail_hopeless": ("running", lambda i, t: c.Fail(message="no", reason_code="timeout", trace=OTHER, **t)),
    "release": ("running", lambda i, t: c.Release(trace=OTHER, **t)),
    "pause": ("running", lambda i, t: c.Pause(owner="ann", reason="why", trace=OTHER, **t)),
    "cancel": ("running", lambda i, t: c.Cancel(i, trace=OTHER)),
    "cancel_hard": ("running", lambda i, t: c.Cancel(i, hard=True, trace=OTHER)),
    "resume": ("blocked", lambda i, t: c.Resume(i, trace=OTHER)),
    "set_priority": ("queued", lambda i, t: c.SetPriority(i, priority=9, trace=OTHER)),
    "reschedule": ("queued", lambda i, t: c.Reschedule(i, delay_s=9, trace=OTHER)),
}


@each_case("verb", TRACED)
def test_a_commands_own_trace_stands_on_its_events(engine: Engine, verb: str) -> None:
    start, make = TRACED[verb]
    made = in_state(engine, start, trace=TRACE)
    engine.call(make(made.id, made.ticket))
    assert last(engine, made.id).trace == OTHER
    assert engine.task(made.id).trace == TRACE


def test_heartbeats_are_no_events_unless_the_kind_asks(engine: Engine) -> None:
    submit(engine, "quiet")
    quiet = take(engine)
    engine.configure("loud", Policy(record_heartbeats=True))
    submit(engine, "loud")
    loud = take(engine)
    for held in (quiet, loud):
        engine.beat(held)
        engine.beat(held)
    assert types(engine, quiet.id) == ["submitted", "claimed"]
    assert types(engine, loud.id) == ["submitted", "claimed", "heartbeat", "heartbeat"]
    note = last(engine, loud.id)
    assert (note.version, note.state, note.was, note.actor) == (None, None, None, "worker:w")
    assert engine.task(loud.id).version == 2


def test_notes_have_no_version(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(record_heartbeats=True))
    a_long_life(engine, clock, id_)
    notes = {e.type for e in engine.events(id_) if e.version is None}
    assert notes == {"task.heartbeat", "task.cancel_requested", "task.priority_set", "task.rescheduled"}
    assert all((e.version is None) == (e.state is None) for e in engine.events(id_))


@each_case("state", STATES)
def test_an_event_has_the_fields_of_the_specification(engine: Engine, clock: VirtualClock, state: str) -> None:
    made = in_state(engine, state)
    for event in engine.events(made.id):
        assert isinstance(event.id, int)
        assert (event.job_id, event.ts, event.correlation_id) == (made.id, clock.now(), made.id)
        assert event.type.startswith("task.")
        assert ":" in event.actor
        assert event.version is not None
        assert all(hasattr(event, name) for name in ("cause", "payload"))


def test_events_are_read_from_a_cursor_on(engine: Engine) -> None:
    made = in_state(engine, "succeeded")
    all_ = engine.events(made.id)
    assert engine.events(made.id, after=all_[1].id) == all_[2:]
    assert engine.events(made.id, limit=2) == all_[:2]
    assert [e.id for e in all_] == sorted(e.id for e in all_)


def test_events_are_found_by_the_correlation_id_that_was_given(engine: Engine) -> None:
    one = submit(engine, correlation_id="order 7")
    two = submit(engine, "sms", correlation_id="order 7")
    submit(engine, correlation_id="order 8")
    submit(engine, correlation_id="order 7", namespace="other")
    engine.succeed(take(engine))
    found = engine.events_by_correlation("order 7")
    assert [e.entity_id for e in found] == [one, two, one, one, one]
    assert _types(found) == ["submitted", "submitted", "claimed", "started", "succeeded"]


def test_events_are_found_by_the_correlation_id_that_stands_in(engine: Engine) -> None:
    id_ = submit(engine)
    engine.dead_letter(id_, "timeout")
    new = engine.redrive(id_).id
    submit(engine)
    found = engine.events_by_correlation(id_)
    assert [e.entity_id for e in found] == [id_, id_, new]
    assert {e.correlation_id for e in found} == {id_}
    assert engine.events_by_correlation(id_, namespace="other") == []


def _types(events: list[Event]) -> list[str]:
    return [e.type.removeprefix("task.") for e in events]


def test_old_notes_can_be_removed_and_transitions_cannot(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(record_heartbeats=True))
    held = running(engine)
    engine.beat(held)
    engine.set_priority(id_, 3)
    clock.advance(50)
    engine.beat(held)
    engine.prune_notes(["task.heartbeat"], older_than_s=10)
    assert types(engine, id_) == ["submitted", "claimed", "started", "priority_set", "heartbeat"]
    clock.advance(50)
    engine.prune_notes([e.event for e in TASK.transitions], older_than_s=1)
    assert types(engine, id_) == ["submitted", "claimed", "started", "priority_set", "heartbeat"]


def test_a_note_that_says_when_a_task_might_run_stays_with_its_job(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="rescheduled"):
        engine.prune_notes(["task.rescheduled"], older_than_s=1)


def test_the_event_of_a_dead_letter_names_who_asked_for_it(engine: Engine) -> None:
    id_ = submit(engine)
    engine.dead_letter(id_, "policy_violation", "not allowed here", actor_name="ops", cause="ticket 7")
    event = last(engine, id_)
    assert (event.actor, event.cause) == ("system:ops", "ticket 7")


def test_the_janitor_is_named_when_it_sets_a_task_aside(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, max_attempts=1)
    running(engine)
    clock.advance(61)
    engine.expire_leases()
    assert last(engine, id_).actor == "system:janitor"
