"""Schedules: one job for each fire time, what happens to missed and overlapping ones, and who may change what."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

import pytest

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.declared_flow import FlowDeclaration, StageDeclaration
from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.lifecycle import ABOUT_SCHEDULES
from onetray.domain.policy import Policy
from onetray.domain.schedule import Schedule, ScheduledFire
from onetray.domain.task import Event
from onetray.engine import Engine
from tests.support.engines import engine_on
from tests.support.tasks import take

HOUR = 3_600
THUMBNAILS = FlowDeclaration(name="thumbnails", stages=[StageDeclaration(name="a", kind="resize")])


@pytest.fixture
def clock() -> VirtualClock:
    """Begins on a full hour."""
    return VirtualClock(us("2026-06-01T00:00Z"))


def us(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * SECOND


def sweep(engine: Engine) -> None:
    for _ in range(1_000):
        if not engine.fire_schedules():
            return
    raise AssertionError("it does not end")


def add(engine: Engine, name: str = "s", **fields: Any) -> Schedule:
    return engine.put_schedule(name, **{"kind": "mail", "every_s": HOUR, **fields})


def fires(engine: Engine, name: str = "s") -> list[ScheduledFire]:
    return engine.schedule_fires(name, limit=1_000)[::-1]


def outcomes(engine: Engine, name: str = "s") -> list[str]:
    return [fire.outcome for fire in fires(engine, name)]


def about(engine: Engine) -> list[Event]:
    return [e for e in engine.feed.read(0, 10_000).events if e.type in ABOUT_SCHEDULES]


def jobs(engine: Engine) -> int:
    return len(engine.jobs(limit=1_000).jobs)


def test_a_fire_time_submits_one_job_that_says_where_it_comes_from(engine: Engine, clock: VirtualClock) -> None:
    add(engine, payload={"to": "ann"}, queue="q", priority=3, max_attempts=5, labels={"team": "a"})
    sweep(engine)
    assert jobs(engine) == 0
    clock.advance(HOUR)
    sweep(engine)
    sweep(engine)
    (fire,) = fires(engine)
    assert (fire.fire_at, fire.outcome, fire.by, fire.job_state) == (
        clock.now(),
        "submitted",
        "system:schedule",
        "queued",
    )
    task = engine.task(fire.job or "")
    assert (task.kind, task.queue, task.priority, task.max_attempts, task.payload) == ("mail", "q", 3, 5, {"to": "ann"})
    assert task.labels == {"team": "a", "schedule": "s"}
    assert task.correlation_id == "schedule:2026-06-01T01:00:00.000000Z:s"
    (event,) = engine.events(task.id)
    assert (event.actor, event.cause) == ("system:schedule", "schedule s, fire time 2026-06-01 01:00:00 UTC")
    shown = engine.schedule("s")
    assert (shown.last_fire_at, shown.last_outcome, shown.last_job) == (clock.now(), "submitted", task.id)
    assert shown.next_fire_at == clock.now() + HOUR * SECOND
    assert jobs(engine) == 1


TABLE: list[tuple[str, str, str, list[str]]] = [
    # Spring forward: 02:00 becomes 03:00, so 02:30 does not exist on 29 March. It comes when the gap ends.
    ("Europe/Berlin", "30 2 * * *", "2026-03-28T00:00Z",
     ["2026-03-28T01:30Z", "2026-03-29T01:00Z", "2026-03-30T00:30Z"]),
    # Real time for intervals: 01:45 is followed by 03:00, a quarter of an hour later.
    ("Europe/Berlin", "*/15 * * * *", "2026-03-29T00:40Z",
     ["2026-03-29T00:45Z", "2026-03-29T01:00Z", "2026-03-29T01:15Z"]),
    # Fall back: 02:30 exists twice on 25 October, at 00:30 and 01:30 UTC. A fixed time comes the first time.
    ("Europe/Berlin", "30 2 * * *", "2026-10-24T00:00Z",
     ["2026-10-24T00:30Z", "2026-10-25T00:30Z", "2026-10-26T01:30Z"]),
    ("Europe/Berlin", "*/30 * * * *", "2026-10-24T23:50Z",
     ["2026-10-25T00:00Z", "2026-10-25T00:30Z", "2026-10-25T01:00Z", "2026-10-25T01:30Z", "2026-10-25T02:00Z"]),
    # New York: 8 March 02:00 -05:00 becomes 03:00 -04:00; 1 November 02:00 -04:00 becomes 01:00 -05:00.
    ("America/New_York", "30 2 * * *", "2026-03-07T00:00Z",
     ["2026-03-07T07:30Z", "2026-03-08T07:00Z", "2026-03-09T06:30Z"]),
    ("America/New_York", "30 1 * * *", "2026-10-31T00:00Z",
     ["2026-10-31T05:30Z", "2026-11-01T05:30Z", "2026-11-02T06:30Z"]),
    ("America/New_York", "0 * * * *", "2026-11-01T04:30Z",
     ["2026-11-01T05:00Z", "2026-11-01T06:00Z", "2026-11-01T07:00Z"]),
    # Lord Howe changes by half an hour: 4 October 02:00 +10:30 becomes 02:30 +11; 5 April 02:00 +11 becomes 01:30.
    ("Australia/Lord_Howe", "15 2 * * *", "2026-10-02T00:00Z",
     ["2026-10-02T15:45Z", "2026-10-03T15:30Z", "2026-10-04T15:15Z"]),
    ("Australia/Lord_Howe", "45 1 * * *", "2026-04-03T00:00Z",
     ["2026-04-03T14:45Z", "2026-04-04T14:45Z", "2026-04-05T15:15Z"]),
    ("Australia/Lord_Howe", "*/30 * * * *", "2026-04-04T14:10Z",
     ["2026-04-04T14:30Z", "2026-04-04T15:00Z", "2026-04-04T15:30Z", "2026-04-04T16:00Z"]),
    # A leap day, and the last day of a month.
    ("UTC", "0 12 29 2 *", "2026-06-01T00:00Z", ["2028-02-29T12:00Z", "2032-02-29T12:00Z"]),
    ("Europe/Berlin", "0 0 L 2 *", "2027-01-01T00:00Z", ["2027-02-27T23:00Z", "2028-02-28T23:00Z"]),
]  # fmt: skip
"""Time zone, expression, from when on, and the next fire times in UTC: worked out by hand."""


def test_changes_of_the_clock_move_fire_times_as_worked_out_by_hand(database_url: str) -> None:
    clock = VirtualClock(us("2026-01-01T00:00Z"))
    with engine_on(database_url, clock) as engine:
        for i, (zone, cron, since, expected) in enumerate(TABLE):
            add(
                engine, str(i), every_s=None, cron=cron, timezone=zone, catch_up="all", catch_up_s=10 * 366 * 86_400,
                starts_at=us(since), ends_at=us(expected[-1]),
            )  # fmt: skip
        clock.advance((us("2032-06-01T00:00Z") - clock.now()) / SECOND)
        sweep(engine)
        for i, (*_, expected) in enumerate(TABLE):
            assert [fire.fire_at for fire in fires(engine, str(i))] == [us(text) for text in expected], TABLE[i]
            assert engine.schedule(str(i)).state == "ended"


MATRIX: dict[tuple[str, str, int], list[str]] = {
    # On time. The job of the first fire is still open.
    **{(catch_up, "allow", 0): ["submitted"] for catch_up in ("skip", "last", "all")},
    **{(catch_up, "skip", 0): ["skipped_overlap"] for catch_up in ("skip", "last", "all")},
    **{(catch_up, "queue_one", 0): ["queued"] for catch_up in ("skip", "last", "all")},
    **{(catch_up, "cancel_running", 0): ["submitted"] for catch_up in ("skip", "last", "all")},
    # Half an hour late: nobody could fire.
    **{("skip", overlap, 1): ["skipped_missed"] for overlap in ("allow", "skip", "queue_one", "cancel_running")},
    ("last", "allow", 1): ["submitted"], ("all", "allow", 1): ["submitted"],
    ("last", "skip", 1): ["skipped_overlap"], ("all", "skip", 1): ["skipped_overlap"],
    ("last", "queue_one", 1): ["queued"], ("all", "queue_one", 1): ["queued"],
    ("last", "cancel_running", 1): ["submitted"], ("all", "cancel_running", 1): ["submitted"],
    # Three fire times have passed.
    **{("skip", overlap, 3): ["skipped_missed x3"] for overlap in ("allow", "skip", "queue_one", "cancel_running")},
    ("last", "allow", 3): ["skipped_missed x2", "submitted"],
    ("last", "skip", 3): ["skipped_missed x2", "skipped_overlap"],
    ("last", "queue_one", 3): ["skipped_missed x2", "queued"],
    ("last", "cancel_running", 3): ["skipped_missed x2", "submitted"],
    ("all", "allow", 3): ["submitted", "submitted", "submitted"],
    ("all", "skip", 3): ["skipped_overlap", "skipped_overlap", "skipped_overlap"],
    ("all", "queue_one", 3): ["queued", "skipped_overlap", "skipped_overlap"],
    ("all", "cancel_running", 3): ["skipped_overlap", "skipped_overlap", "submitted"],
}  # fmt: skip
"""By catch-up, overlap, and how many fire times passed while nobody could fire: what they come to."""


@pytest.mark.parametrize("down", [0, 1, 3])
def test_catch_up_and_overlap_decide_what_a_downtime_leaves(engine: Engine, clock: VirtualClock, down: int) -> None:
    cases = [case for case in MATRIX if case[2] == down]
    for catch_up, overlap, _ in cases:
        add(engine, f"{catch_up} {overlap}", catch_up=catch_up, overlap=overlap)
    clock.advance(HOUR)
    sweep(engine)
    clock.advance(HOUR if down == 0 else down * HOUR + HOUR / 2)
    sweep(engine)
    for case in cases:
        catch_up, overlap, _ = case
        name = f"{catch_up} {overlap}"
        first, *later = fires(engine, name)
        told = [f"{f.outcome} x{f.missed + 1}" if f.missed else f.outcome for f in later]
        assert (first.outcome, told) == ("submitted", MATRIX[case]), case
        is_cancelled = overlap == "cancel_running" and "submitted" in MATRIX[case]
        assert first.job_state == ("cancelled" if is_cancelled else "queued"), case
    # Nobody has lost or repeated a fire time.
    assert {engine.schedule(f"{c} {o}").next_fire_at for c, o, _ in cases} == {
        clock.now() // 3_600_000_000 * 3_600_000_000 + 3_600_000_000
    }


def test_a_queued_fire_is_submitted_when_the_job_before_it_has_ended(engine: Engine, clock: VirtualClock) -> None:
    add(engine, overlap="queue_one")
    for _ in range(3):
        clock.advance(HOUR)
        sweep(engine)
    assert outcomes(engine) == ["submitted", "queued", "skipped_overlap"]
    assert "is queued: it waits until job" in str(engine.explain_schedule("s").reasons)
    engine.succeed(take(engine))
    clock.advance(2)
    sweep(engine)
    assert outcomes(engine) == ["submitted", "submitted", "skipped_overlap"]
    assert fires(engine)[1].why == "it has waited for its turn"
    assert engine.task(fires(engine)[1].job or "").correlation_id.startswith("schedule:2026-06-01T02:00:00")


def test_a_queued_fire_waits_through_a_pause(engine: Engine, clock: VirtualClock) -> None:
    add(engine, overlap="queue_one", ends_at=clock.now() + 2 * HOUR * SECOND)
    for _ in range(2):
        clock.advance(HOUR)
        sweep(engine)
    engine.pause_schedule("s")
    engine.succeed(take(engine))
    clock.advance(5)
    sweep(engine)
    assert outcomes(engine) == ["submitted", "queued"]
    engine.resume_schedule("s")
    sweep(engine)
    assert (outcomes(engine), engine.schedule("s").state) == (["submitted", "submitted"], "ended")


def test_a_week_of_missed_seconds_is_caught_up_in_bounded_steps(engine: Engine, clock: VirtualClock) -> None:
    add(engine, "all", every_s=1, catch_up="all", catch_up_s=250)
    add(engine, "last", every_s=1)
    add(engine, "none", every_s=1, catch_up="skip")
    clock.advance(7 * 86_400)
    assert engine.fire_schedules() == 3
    assert len(fires(engine, "all")) == 101
    sweep(engine)
    missed, *caught_up = fires(engine, "all")
    assert (missed.outcome, missed.why) == (
        "skipped_missed",
        "nobody could fire at at least 1,000 times from this one on",
    )
    assert [fire.fire_at for fire in caught_up] == [clock.now() - n * SECOND for n in range(250, -1, -1)]
    for name in ("last", "none"):
        assert outcomes(engine, name) == ["skipped_missed", "submitted"]
        assert fires(engine, name)[-1].fire_at == clock.now()


def test_failures_in_a_row_pause_the_schedule_and_say_so(
    engine: Engine, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    engine.configure("mail", Policy(max_attempts=1))
    add(engine, pause_after_failures=2)

    def fire_and_end(fail: bool) -> None:
        clock.advance(HOUR)
        sweep(engine)
        claimed = take(engine)
        engine.fail(claimed, "no") if fail else engine.succeed(claimed)
        clock.advance(61)
        sweep(engine)

    with caplog.at_level(logging.WARNING, "onetray.janitor"):
        for fail in (True, False, True):
            fire_and_end(fail)
        assert engine.schedule("s").failures_in_row == 1
        assert engine.schedule("s").state == "active"
        fire_and_end(True)
    paused = engine.schedule("s")
    assert (paused.state, paused.paused_by, paused.paused_why) == (
        "paused", "system:schedule", "its last 2 jobs have failed",
    )  # fmt: skip
    assert "the schedule s of default has paused itself: its last 2 jobs have failed" in caplog.text
    assert [(e.type, e.actor) for e in about(engine)][-1] == ("schedule.paused", "system:schedule")
    clock.advance(5 * HOUR)
    sweep(engine)
    assert len(fires(engine)) == 4
    resumed = engine.resume_schedule("s")
    assert (resumed.state, resumed.failures_in_row) == ("active", 0)


def test_a_cancelled_job_is_neither_a_failure_nor_a_success(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("mail", Policy(max_attempts=1))
    add(engine, pause_after_failures=2)
    for end in ("fail", "cancel", "fail"):
        clock.advance(HOUR)
        sweep(engine)
        claimed = take(engine)
        engine.fail(claimed, "no") if end == "fail" else engine.cancel(claimed.id, hard=True)
    clock.advance(HOUR)
    sweep(engine)
    assert engine.schedule("s").state == "paused"


def test_a_pause_is_not_caught_up_and_a_trigger_works_all_the_same(engine: Engine, clock: VirtualClock) -> None:
    add(engine, catch_up="all")
    paused = engine.pause_schedule("s", by="ann", reason="holiday")
    assert (paused.state, paused.paused_by, paused.paused_why, paused.next_fire_at) == (
        "paused", "user:ann", "holiday", None,
    )  # fmt: skip
    engine.pause_schedule("s", by="bob")
    clock.advance(3 * HOUR + 10)
    sweep(engine)
    assert fires(engine) == []
    assert (
        engine.explain_schedule("s")
        .reasons[0]
        .startswith("it does not fire: paused by user:ann at 2026-06-01 00:00:00")
    )
    triggered = engine.trigger_schedule("s", by="ann", reason="now")
    assert (triggered.outcome, triggered.by, triggered.why, triggered.is_triggered) == (
        "submitted",
        "user:ann",
        "now",
        True,
    )
    assert engine.events(triggered.job or "")[0].cause == "schedule s, triggered by user:ann"
    assert engine.trigger_schedule("s").job != triggered.job
    resumed = engine.resume_schedule("s", by="ann")
    assert resumed.next_fire_at == us("2026-06-01T04:00Z")
    sweep(engine)
    assert outcomes(engine) == ["submitted", "submitted"]
    assert [e.type for e in about(engine)] == [
        "schedule.created", "schedule.paused", "schedule.triggered", "schedule.triggered", "schedule.resumed",
    ]  # fmt: skip


def test_a_changed_expression_loses_no_fire_time_and_repeats_none(engine: Engine, clock: VirtualClock) -> None:
    add(engine, catch_up="all")
    clock.advance(2 * HOUR)
    # Nobody has fired yet: the two fire times of the old expression have come, so they happen.
    changed = add(engine, every_s=None, cron="30 * * * *", catch_up="all")
    assert [fire.fire_at for fire in fires(engine)] == [us("2026-06-01T01:00Z"), us("2026-06-01T02:00Z")]
    assert changed.next_fire_at == us("2026-06-01T02:30Z")
    add(engine, every_s=None, cron="30 * * * *", catch_up="all", payload=1)
    clock.advance(HOUR / 2)
    sweep(engine)
    # Back: 02:00 is not repeated.
    assert add(engine, catch_up="all").next_fire_at == us("2026-06-01T03:00Z")
    sweep(engine)
    assert [fire.fire_at for fire in fires(engine)][2:] == [us("2026-06-01T02:30Z")]
    types = [e.type for e in about(engine)]
    assert types == ["schedule.created", "schedule.changed", "schedule.changed", "schedule.changed"]


def test_the_same_definition_again_changes_nothing(engine: Engine, clock: VirtualClock) -> None:
    first = add(engine)
    clock.advance(10)
    assert add(engine) == first
    assert [e.type for e in about(engine)] == ["schedule.created"]


def test_jitter_delays_each_fire_by_its_own_fixed_time(engine: Engine, clock: VirtualClock) -> None:
    names = [f"s{i}" for i in range(20)]
    for name in names:
        add(engine, name, jitter_s=600)
    clock.advance(HOUR)
    sweep(engine)
    assert sum(len(fires(engine, name)) for name in names) < 20
    for _ in range(60):
        clock.advance(10)
        sweep(engine)
    found = [fire for name in names for fire in fires(engine, name)]
    assert {fire.fire_at for fire in found} == {us("2026-06-01T01:00Z")}
    assert len({fire.at for fire in found}) > 5
    assert len(found) == 20
    # A change of the expression keeps a fire that waits for its delay.
    for name in names:
        add(engine, name, jitter_s=600)


def test_a_fire_that_waits_for_its_jitter_outlives_a_change(engine: Engine, clock: VirtualClock) -> None:
    add(engine, jitter_s=3_000)
    clock.advance(HOUR)
    sweep(engine)
    assert fires(engine) == []
    add(engine, every_s=2 * HOUR, jitter_s=3_000)
    clock.advance(3_001)
    sweep(engine)
    assert [fire.fire_at for fire in fires(engine)] == [us("2026-06-01T01:00Z")]


def test_a_schedule_begins_and_ends(engine: Engine, clock: VirtualClock) -> None:
    start = clock.now() + 90 * SECOND
    shown = add(engine, every_s=60, starts_at=start, ends_at=start + 60 * SECOND, catch_up="all")
    assert shown.next_fire_at == start
    clock.advance(HOUR)
    sweep(engine)
    assert [fire.fire_at for fire in fires(engine)] == [start, start + 60 * SECOND]
    assert (engine.schedule("s").state, engine.schedule("s").next_fire_at) == ("ended", None)
    assert engine.explain_schedule("s").reasons[0].startswith("it does not fire any more")


def test_a_declared_flow_is_submitted_and_an_undeclared_one_refused(engine: Engine, clock: VirtualClock) -> None:
    add(engine, kind=None, flow=THUMBNAILS.name, payload={}, overlap="cancel_running")
    clock.advance(HOUR)
    sweep(engine)
    (refused,) = fires(engine)
    assert (refused.outcome, refused.job) == ("refused", None)
    assert "no worker has declared a flow" in (refused.why or "")
    engine.declare_flow(THUMBNAILS)
    for _ in range(2):
        clock.advance(HOUR)
        sweep(engine)
    _, first, second = fires(engine)
    assert (first.outcome, second.outcome) == ("submitted", "submitted")
    assert engine.flow(first.job or "").labels["schedule"] == "s"
    assert engine.flow(first.job or "").ending is not None or first.job_state == "cancelled"
    assert next(e.actor for e in engine.flow_events(first.job or "") if "cancel" in e.type) == "system:schedule"


def test_a_backfill_submits_each_missed_time_once(engine: Engine, clock: VirtualClock) -> None:
    add(engine, catch_up="skip")
    clock.advance(HOUR)
    sweep(engine)
    clock.advance(5.5 * HOUR)
    sweep(engine)
    assert outcomes(engine) == ["submitted", "skipped_missed"]
    wanted = {"since": us("2026-06-01T00:00Z"), "until": clock.now()}
    preview = engine.backfill_schedule("s", **wanted, preview=True)
    assert [time.fire_at for time in preview.times] == [us(f"2026-06-01T0{h}:00Z") for h in (0, 2, 3, 4, 5, 6)]
    assert (preview.submitted, jobs(engine)) == (0, 1)
    some = engine.backfill_schedule("s", **wanted, limit=4, by="ann", reason="late")
    assert (some.submitted, some.more) == (4, True)
    rest = engine.backfill_schedule("s", **wanted)
    assert (rest.submitted, rest.more, len(rest.jobs)) == (2, False, 2)
    assert engine.backfill_schedule("s", **wanted).submitted == 0
    assert outcomes(engine) == ["submitted"] * 7
    assert fires(engine)[2].by == "user:ann"
    clock.advance(HOUR / 2)
    sweep(engine)
    assert jobs(engine) == 8


def test_a_backfill_leaves_the_next_fire_to_the_janitor(engine: Engine, clock: VirtualClock) -> None:
    add(engine)
    clock.advance(HOUR)
    assert engine.backfill_schedule("s", since=us("2026-06-01T00:30Z"), until=clock.now() + 1).times == []
    sweep(engine)
    assert outcomes(engine) == ["submitted"]


def test_old_fires_are_forgotten_and_cannot_be_backfilled(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onetray.engine.schedule_steps.KEPT", 3)
    monkeypatch.setattr("onetray.engine.schedule_steps.FORGET_EVERY", 5)
    add(engine, catch_up="all")
    clock.advance(10 * HOUR)
    sweep(engine)
    assert [fire.fire_at for fire in fires(engine)] == [us(f"2026-06-01T{h:02}:00Z") for h in (8, 9, 10)]
    with pytest.raises(InvalidInput, match="before 2026-06-01 07:00:00 UTC is forgotten"):
        engine.backfill_schedule("s", since=us("2026-06-01T07:00Z"), until=clock.now())


def test_a_fire_whose_job_is_open_is_not_forgotten(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onetray.engine.schedule_steps.KEPT", 3)
    monkeypatch.setattr("onetray.engine.schedule_steps.FORGET_EVERY", 5)
    add(engine, overlap="skip")
    for _ in range(20):
        clock.advance(HOUR)
        sweep(engine)
    first, *others = outcomes(engine)
    assert (jobs(engine), first, {*others}) == (1, "submitted", {"skipped_overlap"})
    # Up to FORGET_EVERY more than KEPT.
    assert 3 <= len(others) < 3 + 5


def test_a_broken_schedule_does_not_keep_the_others_from_firing(
    engine: Engine, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    add(engine, "a")
    add(engine, "b")
    engine.store.write(lambda tx: tx.fetch("UPDATE onetray.schedule SET body = '[]' WHERE name = 'a' RETURNING 1", {}))
    clock.advance(HOUR)
    with caplog.at_level(logging.ERROR, "onetray.janitor"):
        sweep(engine)
    assert "the schedule a of default cannot be fired" in caplog.text
    assert outcomes(engine, "b") == ["submitted"]
    engine.remove_schedule("a")


def test_a_removed_schedule_is_gone_and_its_jobs_stay(engine: Engine, clock: VirtualClock) -> None:
    add(engine)
    clock.advance(HOUR)
    sweep(engine)
    engine.remove_schedule("s", by="ann", reason="no longer needed")
    clock.advance(HOUR)
    sweep(engine)
    assert (engine.schedules(), jobs(engine)) == ([], 1)
    for call in (engine.schedule, engine.pause_schedule, engine.remove_schedule, engine.trigger_schedule):
        with pytest.raises(NotFound, match="there is no schedule 's' in the namespace default"):
            call("s")
    # A new one of the same name has no history.
    add(engine)
    assert fires(engine) == []


def test_namespaces_have_their_own_schedules(engine: Engine, clock: VirtualClock) -> None:
    add(engine, namespace="other")
    assert engine.schedules() == []
    clock.advance(HOUR)
    sweep(engine)
    (line,) = engine.schedules(namespace="other")
    assert engine.task(line.last_job or "", namespace="other").namespace == "other"
    with pytest.raises(NotFound):
        engine.schedule("s")


def test_a_job_that_was_deleted_does_not_hold_up_its_schedule(engine: Engine, clock: VirtualClock) -> None:
    add(engine, overlap="skip")
    clock.advance(HOUR)
    sweep(engine)
    engine.succeed(take(engine))
    engine.delete_job(fires(engine)[0].job or "")
    clock.advance(HOUR)
    sweep(engine)
    assert outcomes(engine) == ["submitted", "submitted"]
    assert fires(engine)[0].job_state is None


BAD: list[tuple[dict[str, Any], str]] = [
    ({"cron": "* * * *"}, "cron '\\* \\* \\* \\*' is not an expression: Wrong number of fields"),
    ({"cron": "61 * * * *"}, "Bad minute"),
    ({"cron": "0 0 30 2 *"}, "Bad day-of-month"),
    ({"every_s": HOUR, "cron": "* * * * *"}, "set either cron or every_s"),
    ({}, "set either cron or every_s"),
    ({"every_s": 0.5}, "every_s must be 1 or more"),
    ({"every_s": HOUR, "timezone": "Europe/berlin"}, "do you mean 'Europe/Berlin'"),
    ({"every_s": HOUR, "timezone": "../../etc/passwd"}, "there is no time zone"),
    ({"every_s": HOUR, "kind": None}, "set either kind or flow"),
    ({"every_s": HOUR, "flow": "f"}, "set either kind or flow"),
    ({"every_s": HOUR, "kind": None, "flow": "f", "max_attempts": 3}, "a flow takes no queue and no max_attempts"),
    ({"every_s": HOUR, "catch_up": "some"}, "catch_up must be one of skip, last, all"),
    ({"every_s": HOUR, "overlap": "no"}, "overlap must be one of allow, skip, queue_one, cancel_running"),
    ({"every_s": HOUR, "labels": 5}, "labels must be an object of texts"),
    ({"every_s": HOUR, "labels": {"schedule": "x"}}, "the label 'schedule' is the name of the schedule"),
    ({"every_s": HOUR, "starts_at": 10, "ends_at": 5}, "ends_at is before starts_at"),
    ({"every_s": HOUR, "ends_at": 5}, "would never fire"),
    ({"every_s": HOUR, "starts_at": 2**61}, "would never fire"),
    ({"cron": "@daily", "starts_at": 2**61}, "would never fire"),
    ({"every_s": HOUR, "jitter_s": -1}, "jitter_s must be seconds"),
    ({"every_s": HOUR, "pause_after_failures": 0}, "pause_after_failures must be a whole number"),
    ({"every_s": HOUR, "payload": float("nan")}, "payload"),
]  # fmt: skip


def test_bad_definitions_are_refused_with_what_to_do(engine: Engine) -> None:
    for fields, message in BAD:
        with pytest.raises(InvalidInput, match=message):
            engine.put_schedule("s", **{"kind": "mail", **fields})
    for name in ("", "x" * 300, "a\nb"):
        with pytest.raises(InvalidInput):
            add(engine, name)
    assert engine.schedules() == []
    add(engine)
    for call in (
        lambda: engine.preview_schedule("s", cron="* * * * *"), lambda: engine.preview_schedule(),
        lambda: engine.preview_schedule("s", limit=0), lambda: engine.backfill_schedule("s", since=-1, until=5),
        lambda: engine.backfill_schedule("s", since=0, until=5, limit=10_000),
        lambda: engine.schedules(limit=-1),
    ):  # fmt: skip
        with pytest.raises(InvalidInput):
            call()


def test_a_preview_marks_what_a_change_of_the_clock_does(engine: Engine) -> None:
    times = engine.preview_schedule(cron="30 2 * * *", timezone="Europe/Berlin", since=us("2026-03-28T00:00Z"), limit=2)
    assert [(time.local, time.note) for time in times] == [
        ("2026-03-28T02:30:00+01:00", None), ("2026-03-29T03:00:00+02:00", "moved"),
    ]  # fmt: skip
    (twice,) = engine.preview_schedule(
        cron="30 2 * * *", timezone="Europe/Berlin", since=us("2026-10-25T00:00Z"), limit=1
    )
    assert (twice.local, twice.note) == ("2026-10-25T02:30:00+02:00", "twice")
    assert engine.preview_schedule(every_s=60, since=2**61) == engine.preview_schedule(cron="@daily", since=2**61) == []
    add(engine)
    assert [time.fire_at for time in engine.preview_schedule("s", limit=2)] == [
        us("2026-06-01T01:00Z"), us("2026-06-01T02:00Z"),
    ]  # fmt: skip


def test_secrets_in_a_payload_are_hidden_from_readers(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("login", Policy(redact=("password",)))
    add(engine, kind="login", payload={"password": "hunter2"})
    add(engine, "plain", payload={"to": "ann"})
    shown = {line.name: line.payload for line in engine.redacted.schedules()}
    assert shown == {"plain": {"to": "ann"}, "s": "***"}
    assert "hunter2" not in str(engine.redacted.explain_schedule("s"))
    assert engine.schedule("s").payload == {"password": "hunter2"}
    assert "hunter2" not in str([e.payload for e in about(engine)])


def test_many_schedules_of_the_same_second_fire_in_few_transactions(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(250):
        add(engine, f"s{n:03}", kind=f"kind {n % 7}", queue=f"q{n % 3}", overlap=("allow", "skip")[n % 2])
    transactions = count_hits(monkeypatch, "schedule_fired")
    clock.advance(HOUR)
    assert engine.fire_schedules(1_000) == 250
    assert transactions == ["schedule_fired"] * 3
    lines = engine.schedules()
    assert {(line.last_outcome, line.fires, line.last_fire_at) for line in lines} == {("submitted", 1, clock.now())}
    assert {line.next_fire_at for line in lines} == {clock.now() + HOUR * SECOND}
    found = {line.last_job: line for line in lines}
    assert len(found) == 250
    for job in engine.jobs(limit=1_000).jobs:
        assert (job.kind, job.queue) == (found[job.id].kind, found[job.id].queue)
    (of_one,) = engine.jobs(labels={"schedule": "s123"}).jobs
    assert found[of_one.id].name == "s123"
    clock.advance(HOUR)
    sweep(engine)
    assert (
        sorted(line.last_outcome or "" for line in engine.schedules())
        == ["skipped_overlap"] * 125 + ["submitted"] * 125
    )


def count_hits(monkeypatch: pytest.MonkeyPatch, point: str) -> list[str]:
    hits: list[str] = []
    monkeypatch.setattr("onetray.failpoints.hook", lambda at: hits.append(at) if at == point else None)
    return hits


def test_a_schedule_that_cannot_fire_does_not_hold_up_the_others_of_its_batch(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine.declare_flow(THUMBNAILS)
    add(engine, "flow", kind=None, flow="thumbnails")
    add(engine, "unknown flow", kind=None, flow="thumbnails")
    add(engine, "large", payload="small")
    for name in ("a", "b", "taken", "z"):
        add(engine, name)
    engine.store.write(lambda tx: tx.fetch(TAKE, {"at": clock.now() + HOUR * SECOND}))
    # As if its limit had been larger, and the flow declared, when they were added.
    replace_in_body(engine, "large", "small", "x" * (engine.config.limits.payload_bytes + 1))
    replace_in_body(engine, "unknown flow", "thumbnails", "gone")
    clock.advance(HOUR)
    with caplog.at_level(logging.ERROR, "onetray.janitor"):
        sweep(engine)
    came_to = {line.name: line.last_outcome for line in engine.schedules()}
    assert came_to == {
        "a": "submitted", "b": "submitted", "z": "submitted", "flow": "submitted", "unknown flow": "refused",
        "large": "refused", "taken": None,
    }  # fmt: skip
    assert [r.getMessage() for r in caplog.records] == ["the schedule taken of default cannot be fired"]
    assert jobs(engine) == 4
    engine.remove_schedule("taken")
    transactions = count_hits(monkeypatch, "schedule_fired")
    clock.advance(HOUR)
    sweep(engine)
    assert engine.schedule("a").fires == 2
    assert len(transactions) == 1


TAKE = """
INSERT INTO onetray.schedule_fire (schedule, fire_at, manual, outcome, actor, at, missed, open)
SELECT key, :at, 0, 'submitted', 'user:ann', 0, 0, 0 FROM onetray.schedule WHERE name = 'taken' RETURNING 1
"""


def replace_in_body(engine: Engine, name: str, old: str, new: str) -> None:
    sql = "UPDATE onetray.schedule SET body = replace(body, :old, :new) WHERE name = :name RETURNING 1"
    engine.store.write(lambda tx: tx.fetch(sql, {"name": name, "old": old, "new": new}))


def test_schedules_that_another_process_works_on_are_left_to_it(
    engine: Engine, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch whose schedules have changed since it was read fires only the others."""
    for name in ("a", "b", "c"):
        add(engine, name)
    clock.advance(HOUR)
    rows = engine.store.read("due_schedules", now=clock.now(), limit=10)
    engine.pause_schedule("b")
    assert engine._schedules._look_at_all(rows) == 2
    assert [line.last_outcome for line in engine.schedules()] == ["submitted", None, "submitted"]
    assert engine._schedules._look_at_all(rows) == 0
    assert jobs(engine) == 2
    # Otherwise the constraints of the tables would refuse it, and it would count as broken.
    assert not caplog.records


def test_a_schedule_that_is_removed_while_a_janitor_fires_it_submits_nothing_more(
    engine: Engine, clock: VirtualClock
) -> None:
    add(engine)
    add(engine, "other")
    clock.advance(HOUR)
    rows = engine.store.read("due_schedules", now=clock.now(), limit=10)
    engine.remove_schedule("s")
    add(engine)
    assert engine._schedules._look_at_all(rows) == 1
    assert (fires(engine), outcomes(engine, "other"), jobs(engine)) == ([], ["submitted"], 1)


def test_a_time_zone_that_is_gone_is_said_and_holds_up_nobody(engine: Engine, clock: VirtualClock) -> None:
    """As after an update of the time zones, or on a machine with older ones."""
    add(engine, every_s=None, cron="0 * * * *", timezone="Europe/Berlin")
    add(engine, "other")
    replace_in_body(engine, "s", "Europe/Berlin", "Europe/Atlantis")
    clock.advance(HOUR)
    sweep(engine)
    assert (outcomes(engine), outcomes(engine, "other")) == ([], ["submitted"])
    found = engine.explain_schedule("s")
    assert "this process cannot fire it: there is no time zone 'Europe/Atlantis'" in found.reasons[0]
    assert (found.upcoming, found.schedule.next_fire_at) == ([], us("2026-06-01T01:00Z"))


def test_a_clock_that_jumps_a_year_forward_and_back(engine: Engine, clock: VirtualClock) -> None:
    """No fire time is repeated. On SQLite, the time of the database does not go back."""
    for name, fields in YEAR.items():
        add(engine, name, **fields)
    clock.advance(365 * 24 * HOUR)
    sweep(engine)
    before = {name: [fire.fire_at for fire in fires(engine, name)] for name in YEAR}
    clock._now -= 365 * 24 * HOUR * SECOND
    clock.advance(2 * HOUR)
    sweep(engine)
    for name, times in before.items():
        after = [fire.fire_at for fire in fires(engine, name)]
        assert after[: len(times)] == times
        assert len(set(after)) == len(after)
        if engine.store.now() < us("2027-01-01T00:00Z"):
            assert (
                "because it has fired for 2027-06-01 00:00:00 UTC: the clock was set back. Remove it"
                in (engine.explain_schedule(name).reasons[0])
            )


YEAR: dict[str, dict[str, Any]] = {
    "last": {}, "skip": {"catch_up": "skip"}, "all": {"catch_up": "all"},
    "cron": {"every_s": None, "cron": "0 * * * *", "timezone": "Europe/Berlin"},
}  # fmt: skip


def test_a_backfill_of_ten_years_by_minute_goes_on_in_bounded_calls(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(engine, every_s=60)
    since = clock.now() - 10 * 365 * 24 * HOUR * SECOND
    first = engine.backfill_schedule("s", since=since, until=clock.now(), limit=150)
    assert (first.submitted, first.more, jobs(engine)) == (150, True, 150)
    second = engine.backfill_schedule("s", since=since, until=clock.now(), limit=1)
    assert second.times[0].fire_at == since + 150 * 60 * SECOND
    monkeypatch.setattr("onetray.engine.schedule_submits.MAX_LOOKED_AT", 100)
    with pytest.raises(InvalidInput, match="the first 100 fire times of the range have jobs: begin after 2016-06-03"):
        engine.backfill_schedule("s", since=since, until=clock.now())


def test_intervals_that_are_too_long_are_told_the_bound(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="every_s must be seconds, at most 4,000,000,000"):
        add(engine, every_s=1e12)
    assert add(engine, every_s=1e9).next_fire_at == 2 * 10**9 * SECOND
