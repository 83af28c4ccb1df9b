"""Everybody takes locks in one order, so that PostgreSQL never has to break a deadlock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from onetray import failpoints
from onetray.config import EngineConfig
from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Beat, SetPriority
from onetray.domain.errors import LeaseLost
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.flow_commands import CancelFlow, PauseFlow
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support import fleet
from tests.support.audit import audit, deadlocks
from tests.support.engines import engine_on, must_verify
from tests.support.lock_contention import compete, prepare, prepare_flows
from tests.support.waits import somebody_waits, waiting

ROUND_S = 0.6
MOST_ROUNDS = 25
"""On a busy machine one of them may be over before a rival has met the others."""
MARKS = {
    "claim": "task.claimed",
    "claim_and_start": "stage.started",
    "report": "task.started",
    "expire": "task.lease_expired",
    "cancel_flow": "flow.cancelled",
    "pause_flow": "flow.resumed",
    "touch_flows": "task.priority_set",
}
"""The events by which a rival is seen to have done something."""
ONE = EngineConfig(committers=1)


@pytest.mark.parametrize(
    "rivals",
    [
        ("set_priority", "set_priority", "claim", "cancel"),
        ("expire", "report", "expire", "beat", "put_off"),
    ],
    ids="-".join,
)
def test_rivals_for_the_same_tasks_never_deadlock(rivals: tuple[str, ...], own_url: str) -> None:
    with engine_on(own_url) as engine:
        prepare(engine)
        done = fleet.run_all(compete, [(own_url, what, n, ROUND_S) for n, what in enumerate(rivals)], 60)
        assert all(rounds > 0 for _, rounds in done), done
        found = audit(engine.store)
        assert not found.faults, found.faults
    assert deadlocks(own_url) == 0


@pytest.mark.parametrize(
    "rivals",
    [
        ("claim", "cancel_flow", "claim", "cancel_flow"),
        ("pause_flow", "claim", "report", "pause_flow", "expire"),
        ("touch_flows", "touch_flows", "report", "pause_flow", "expire"),
        ("expire", "cancel_flow", "claim", "expire", "cancel_flow"),
        ("claim_and_start", "cancel_flow", "claim_and_start", "pause_flow", "report"),
    ],
    ids="-".join,
)
def test_rivals_for_the_same_flows_never_deadlock(rivals: tuple[str, ...], own_url: str) -> None:
    with engine_on(own_url) as engine:
        prepare_flows(engine)
        plans = [(own_url, what, n, ROUND_S) for n, what in enumerate(rivals)]
        missing = {MARKS[what] for what in rivals}
        for _ in range(MOST_ROUNDS):
            done = fleet.run_all(compete, plans, 60)
            assert all(rounds > 0 for _, rounds in done), done
            missing -= {type_ for (type_,) in engine.store.read_sql("SELECT DISTINCT type FROM onetray.event")}
            if not missing:
                break
        assert not missing
    assert deadlocks(own_url) == 0


@contextmanager
def stop_once_at(point: str, act: object, monkeypatch: pytest.MonkeyPatch, thread: str | None = None) -> Iterator[None]:
    """Let something happen while a thread is first at the point: the named one, or this one, whose calls are alone."""
    left, name_of_thread = [1], thread or threading.current_thread().name

    def hook(name: str) -> None:
        if name == point and threading.current_thread().name == name_of_thread and left[0]:
            left[0] = 0
            act()  # type: ignore[operator]

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hook", hook)
        yield
    assert not left[0]


def started(name: str, call: object, *args: object) -> threading.Thread:
    thread = threading.Thread(target=call, args=args, name=name)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_a_janitor_with_several_kinds_of_due_work_locks_all_its_tasks_in_order(
    own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It promoted the newer task first and then wanted the older one, which a batch held that wanted the newer."""
    clock = VirtualClock()
    with engine_on(own_url, clock) as engine:
        engine.submit("mail", "older")
        (older,) = engine.claim(worker="w")
        engine.cancel(older.id, grace_s=5)
        newer = engine.submit("mail", "newer", delay_s=5).id or ""
        clock.advance(6)
        batch: list[threading.Thread] = []

        def rush_in() -> None:
            both = [SetPriority(task=newer, priority=1), SetPriority(task=older.id, priority=1)]
            batch.append(started("batch", engine.run, both))
            fleet.wait_until(lambda: somebody_waits(own_url))

        with stop_once_at("locked", rush_in, monkeypatch, "janitor"):
            started("janitor", engine.do_due).join(60)
            batch[0].join(60)
        assert engine.task(older.id).state == "cancelled"
        assert engine.task(newer).priority == 1
    assert deadlocks(own_url) == 0


def test_a_beat_and_a_janitor_that_meet_at_the_expiry_do_not_deadlock(
    own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The beat held the task and wanted the lease; the janitor held the lease and wanted the task."""
    clock = VirtualClock()
    later = VirtualClock(clock.now() + 11_000_000)  # The janitor reads the clock a moment after the beat did.
    with engine_on(own_url, clock, config=ONE) as engine, engine_on(own_url, later) as sweeper:
        engine.configure("mail", Policy(lease_s=10))
        engine.submit("mail")
        (a,) = engine.claim(worker="w")
        swept: list[threading.Thread] = []

        def sweep() -> None:
            swept.append(started("sweep", sweeper.expire_leases))
            # It waits for the task, or sees that it cannot have it.
            fleet.wait_until(lambda: somebody_waits(own_url) or not swept[0].is_alive())

        with stop_once_at("locked", sweep, monkeypatch):
            beaten = engine.beat(a, lease_s=20)
            swept[0].join(60)
        assert beaten.lease_expires_at == clock.now() + 20_000_000
        assert engine.task(a.id).state == "assigned"
    assert deadlocks(own_url) == 0


def test_beats_for_the_same_leases_in_opposite_order_do_not_deadlock(own_url: str) -> None:
    with engine_on(own_url) as engine:
        for n in range(4):
            engine.submit("mail", n)
        a, b = (engine.claim(worker="w", limit=2) for _ in range(2))
        with psycopg.connect(own_url) as rude:
            rude.execute("SELECT 1 FROM onetray.lease WHERE key = %s FOR UPDATE", (a[0].lease,))
            # One after the other: handed over together they would be one transaction.
            calls = [started("one", engine.run, [Beat(task=a[0].key), Beat(task=b[0].key)])]
            fleet.wait_until(lambda: waiting(own_url) == 1)
            calls += [started("two", engine.run, [Beat(task=b[1].key), Beat(task=a[1].key)])]
            fleet.wait_until(lambda: waiting(own_url) == 2)
            rude.rollback()
        for call in calls:
            call.join(60)
    assert deadlocks(own_url) == 0


def test_batches_about_the_same_two_flows_in_opposite_order_do_not_deadlock(own_url: str) -> None:
    with engine_on(own_url) as engine:
        one, two = (engine.submit_flow("f", [StageSpec("one", [TaskSpec("mail")] * 2)]) for _ in range(2))
        with psycopg.connect(own_url) as rude:
            rude.execute("SELECT 1 FROM onetray.flow ORDER BY key LIMIT 1 FOR UPDATE")
            calls = [started("one", engine.run, [PauseFlow(one.id), SetPriority(task=two.tasks[0], priority=1)])]
            fleet.wait_until(lambda: waiting(own_url) == 1)
            calls += [started("two", engine.run, [CancelFlow(two.id), SetPriority(task=one.tasks[0], priority=1)])]
            fleet.wait_until(lambda: waiting(own_url) == 2)
            rude.rollback()
        for call in calls:
            call.join(60)
        assert [engine.flow(flow.id).state for flow in (one, two)] == ["paused", "cancelled"]
        assert engine.task(one.tasks[0]).priority == 1
    assert deadlocks(own_url) == 0


def test_a_batch_that_lost_a_deadlock_is_run_again(own_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_on(own_url) as engine:
        one, two = (engine.submit("mail", n).id or "" for n in range(2))
        keys = [engine.task(i).key for i in (one, two)]
        with psycopg.connect(own_url) as rude:
            rude.execute("SET LOCAL deadlock_timeout = '60s'")
            rude.execute("SELECT 1 FROM onetray.task WHERE key = %s FOR UPDATE", (keys[1],))
            call = started("call", engine.run, [SetPriority(task=i, priority=5) for i in (one, two)])
            fleet.wait_until(lambda: somebody_waits(own_url))
            rude.execute("SELECT 1 FROM onetray.task WHERE key = %s FOR UPDATE", (keys[0],))
            rude.rollback()
        call.join(60)
        assert [engine.task(i).priority for i in (one, two)] == [5, 5]


def test_a_report_that_waited_for_a_beat_sees_the_renewed_lease(own_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It judged by the expiry that it had read before it waited, and refused a worker that had renewed in time."""
    clock = VirtualClock()
    later = VirtualClock(clock.now() + 11_000_000)
    with engine_on(own_url, clock, config=ONE) as engine, engine_on(own_url, later) as other:
        engine.configure("mail", Policy(lease_s=10))
        engine.submit("mail")
        (a,) = engine.claim(worker="w")
        clock.advance(9)
        other.store.names.refresh()
        report: list[threading.Thread] = []

        def speak() -> None:
            report.append(started("report", other.succeed, a))
            fleet.wait_until(lambda: somebody_waits(own_url))

        with stop_once_at("committing", speak, monkeypatch):
            engine.beat(a)
        report[0].join(60)
        assert engine.task(a.id).state == "succeeded"


def test_a_report_that_waited_past_the_end_of_its_lease_is_refused(own_url: str) -> None:
    """The clock is the database's, and is read once the task is locked."""
    with engine_on(own_url) as engine, psycopg.connect(own_url) as other, ThreadPoolExecutor(1) as calls:
        engine.submit("mail")
        (held,) = engine.claim(worker="w", lease_s=2)
        other.execute("SELECT 1 FROM onetray.task FOR UPDATE")
        report = calls.submit(engine.release, held)
        fleet.wait_until(lambda: somebody_waits(own_url))
        fleet.wait_until(lambda: engine.now() > held.lease_expires_at)
        other.rollback()
        with pytest.raises(LeaseLost):
            report.result(60)


def test_a_dead_letter_that_waited_for_a_claim_names_the_lease_of_that_claim(
    own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had looked for the lease before the claim was there, and left the field empty."""
    clock = VirtualClock()
    with engine_on(own_url, clock, config=ONE) as engine, engine_on(own_url, clock) as other:
        id_ = engine.submit("mail").id or ""
        other.store.names.refresh()
        bury: list[threading.Thread] = []

        def set_aside() -> None:
            bury.append(started("bury", other.dead_letter, id_, "policy_violation"))
            fleet.wait_until(lambda: somebody_waits(own_url))

        with stop_once_at("committing", set_aside, monkeypatch):
            (a,) = engine.claim(worker="w")
        bury[0].join(60)
        (letter,) = engine.dead_letters()
        assert (letter.last_owner, letter.last_lease_expires_at) == ("w", a.lease_expires_at)


def test_a_janitor_that_waited_for_a_reschedule_leaves_the_task_to_its_new_due_row(
    own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It promoted the task by the due row of the old time, and the row of the new time stayed behind."""
    clock = VirtualClock()
    later = VirtualClock(clock.now() + 8_000_000)
    with engine_on(own_url, clock, config=ONE) as engine, engine_on(own_url, later) as sweeper:
        id_ = engine.submit("mail", delay_s=5).id or ""
        sweeper.store.names.refresh()
        swept: list[threading.Thread] = []

        def sweep() -> None:
            swept.append(started("sweep", sweeper.do_due))
            fleet.wait_until(lambda: somebody_waits(own_url))

        with stop_once_at("committing", sweep, monkeypatch):
            engine.reschedule(id_, delay_s=7)
        swept[0].join(60)
        must_verify(engine)
        assert sweeper.do_due() == 1
        assert len(sweeper.claim(worker="w")) == 1


def _a_delayed_task(engine: Engine) -> str:
    return engine.submit_flow("f", [StageSpec("one", [TaskSpec("mail", delay_s=5)])]).id


def _a_condition_that_is_tried_again(engine: Engine) -> str:
    flow = engine.submit_flow("f", [StageSpec("one", [TaskSpec("mail")], when=TaskSpec("mail"))])
    engine.fail(engine.claim(worker="w")[0], "not now", retry_after_s=5)
    return flow.id


@pytest.mark.parametrize("submit", [_a_delayed_task, _a_condition_that_is_tried_again])
def test_a_resume_and_a_janitor_that_want_the_same_due_row_do_not_deadlock(
    submit: Callable[[Engine], str], own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The janitor held the due row and wanted the flow; the resume held the flow and wrote the due row again."""
    clock = VirtualClock()
    later = VirtualClock(clock.now() + 6_000_000)  # The task is due for the janitor and not yet for the resume.
    with engine_on(own_url, clock, config=ONE) as engine, engine_on(own_url, later) as sweeper:
        flow = submit(engine)
        engine.pause_flow(flow)
        sweeper.store.names.refresh()
        swept: list[threading.Thread] = []

        def sweep() -> None:
            swept.append(started("sweep", sweeper.do_due))
            fleet.wait_until(lambda: somebody_waits(own_url))

        with stop_once_at("flows_locked", sweep, monkeypatch):
            engine.resume_flow(flow)
            swept[0].join(60)
        assert len(sweeper.claim(worker="w")) == 1
    assert deadlocks(own_url) == 0


def test_a_claim_that_a_cancel_of_the_flow_waited_for_comes_before_it_in_the_log(
    own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancel was noted before it waited for the claim, so that the log told of a claim after the cancel."""
    clock = VirtualClock()
    with engine_on(own_url, clock, config=ONE) as engine, engine_on(own_url, clock) as other:
        flow = engine.submit_flow("f", [StageSpec("one", [TaskSpec("mail")])])
        other.store.names.refresh()
        cancel: list[threading.Thread] = []

        def interfere() -> None:
            cancel.append(started("cancel", lambda: other.cancel_flow(flow.id, hard=True)))
            fleet.wait_until(lambda: somebody_waits(own_url))

        with stop_once_at("moving", interfere, monkeypatch):
            engine.claim(worker="w")
        cancel[0].join(60)
        assert engine.flow(flow.id).state == "cancelled"
        types = [event.type for event in engine.flow_events(flow.id)]
        assert types.index("task.claimed") < types.index("flow.cancel_requested")
    assert deadlocks(own_url) == 0
