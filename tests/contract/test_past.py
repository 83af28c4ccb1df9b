"""A job as it was after one of its events, and its states over time."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.config import EngineConfig
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import InvalidInput, NotFound, StoreError
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.past import PastJob
from onetray.domain.policy import Policy
from onetray.domain.task import Task
from onetray.engine import Engine
from tests.property.album import Album
from tests.support.engines import engine_on
from tests.support.tasks import UNKNOWN_ID, running, submit, take

SECRET = "hunter2"


def pasts(engine: Engine, id_: str, type_: str) -> list[PastJob]:
    """The job after each of its events of a type."""
    return [engine.at(id_, event.id) for event in engine.own_events(id_) if event.type == type_]


def task_at(engine: Engine, id_: str, type_: str, nth: int = 0) -> Task:
    task = pasts(engine, id_, type_)[nth].task
    assert task is not None
    return task


def test_a_task_is_shown_as_it_was_after_each_of_its_events(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(max_attempts=2, jitter=False, backoff_base_s=5)
    id_ = submit(engine, payload={"to": "ann"}, policy=policy)
    album = Album(engine)
    album.take()
    for step in (
        lambda: engine.fail(running(engine, worker="first"), "busy", error_class="Busy"),
        lambda: clock.advance(6),
        engine.do_due,
        lambda: engine.pause(running(engine, worker="second"), owner="ann", reason="which one?", state="waiting_input"),
        lambda: engine.resume(id_, input={"which": 2}),
        lambda: engine.succeed(running(engine, worker="third"), {"sent": True}),
    ):
        clock.advance(1)
        step()
        album.take()
    assert album.compare() > 4
    album.replay()
    retried = task_at(engine, id_, "task.retried")
    assert (retried.state, retried.attempts, retried.fence, retried.owner) == ("queued", 1, 2, None)
    assert retried.error == {"class": "Busy", "message": "busy", "stage": "exec"}
    assert retried.run_at == retried.updated_at + 5 * SECOND
    first, second, third = (task_at(engine, id_, "task.started", nth) for nth in range(3))
    assert [t.owner for t in (first, second, third)] == ["first", "second", "third"]
    assert (first.error, second.error, first.result) == (None, retried.error, None)
    waiting = task_at(engine, id_, "task.waiting_input")
    assert (waiting.held_by, waiting.held_why, waiting.input) == ("ann", "which one?", None)
    assert task_at(engine, id_, "task.resumed").input == {"which": 2}
    assert task_at(engine, id_, "task.succeeded").result == {"sent": True}


def test_nothing_can_be_done_in_the_past(engine: Engine) -> None:
    id_ = submit(engine)
    (past,) = pasts(engine, id_, "task.submitted")
    assert engine.task(id_).actions
    assert past.job.actions == ()


def test_the_lease_of_a_held_task_is_not_in_the_log(engine: Engine) -> None:
    id_ = submit(engine)
    take(engine)
    (past,) = pasts(engine, id_, "task.claimed")
    assert past.unknown == {id_: ["lease", "lease_expires_at"]}
    assert (past.job.state, past.task and past.task.lease_id) == ("assigned", None)


def test_an_input_that_a_later_one_has_replaced_is_unknown(engine: Engine) -> None:
    id_ = submit(engine)
    for answer in ({"n": 1}, {"n": 2}, None):
        engine.pause(running(engine), owner="ann", reason="asks")
        engine.resume(id_, input=answer)
    first, second, third = pasts(engine, id_, "task.resumed")
    assert (first.unknown, second.unknown, third.unknown) == ({id_: ["input"]}, {}, {})
    assert [past.task and past.task.input for past in (first, second, third)] == [None, {"n": 2}, {"n": 2}]
    assert task_at(engine, id_, "task.blocked").input is None


CHANGES: dict[str, Any] = {
    "set": lambda e, id_: e.set_metadata(id_, {"n": 2}),
    "succeed": lambda e, id_: e.succeed(take(e), metadata={"n": 2}),
    "fail": lambda e, id_: e.fail(take(e), "no", metadata={"n": 2}),
    "fail_for_good": lambda e, id_: e.fail(take(e), "no", retryable=False, metadata={"n": 2}),
    "dead_letter": lambda e, id_: e.fail(take(e), "no", reason_code="parse_error", metadata={"n": 2}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_metadata_that_was_replaced_is_unknown_before(engine: Engine, change: Any) -> None:
    id_ = submit(engine, metadata={"n": 1})
    (before,) = pasts(engine, id_, "task.submitted")
    assert (before.task and before.task.metadata, before.unknown) == ({"n": 1}, {})
    change(engine, id_)
    (before,) = pasts(engine, id_, "task.submitted")
    assert (before.task and before.task.metadata, before.unknown) == (None, {id_: ["metadata"]})
    last = engine.at(id_, engine.events(id_)[-1].id)
    assert last.task is not None
    assert (last.task.metadata, last.unknown) == ({"n": 2}, {})


def test_metadata_of_the_submit_is_known_of_a_job_that_ran(engine: Engine) -> None:
    id_ = submit(engine, metadata={"n": 1})
    engine.succeed(take(engine))
    assert task_at(engine, id_, "task.submitted").metadata == {"n": 1}


def test_a_change_of_priority_and_of_the_time_to_run_is_undone(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, priority=1, delay_s=60)
    at_submit = engine.task(id_)
    clock.advance(1)
    engine.set_priority(id_, 9)
    engine.reschedule(id_, delay_s=0)
    engine.release(take(engine), delay_s=30)
    released_until = clock.now() + 30 * SECOND
    clock.advance(31)
    engine.do_due()
    engine.release(take(engine))
    first = task_at(engine, id_, "task.submitted")
    assert (first.priority, first.run_at) == (1, at_submit.run_at)
    assert (task_at(engine, id_, "task.priority_set").priority, engine.task(id_).priority) == (9, 9)
    assert task_at(engine, id_, "task.released").run_at == released_until
    assert task_at(engine, id_, "task.released", 1).run_at == clock.now()


def flow_of(engine: Engine, **fields: Any) -> str:
    stages = [
        StageSpec("fetch", [TaskSpec("fetch", {"n": n}, name=f"t{n}") for n in range(3)]),
        StageSpec("send", [TaskSpec("send")], approval=Approval(owner="ann", reason="reads it")),
    ]
    return engine.submit_flow("news", stages, **fields).id


def test_a_flow_is_shown_with_its_stages_and_tasks_as_they_were(engine: Engine, clock: VirtualClock) -> None:
    id_ = flow_of(engine)
    album = Album(engine)
    album.take()
    for n, task in enumerate(engine.claim(worker="w", limit=3)):
        clock.advance(1)
        engine.succeed(task, n)
        album.take()
    engine.approve_stage(engine.stages(id_)[1].id, actor_name="ann")
    album.take()
    engine.succeed(take(engine))
    album.take()
    assert album.compare() == 6
    album.replay()
    events = engine.flow_events(id_)
    second_end = [e.id for e in events if e.type == "task.succeeded"][1]
    past = engine.at(id_, second_end)
    assert past.flow is not None
    assert (past.entity, past.flow.state, past.flow.current_stage) == ("flow", "running", "fetch")
    assert [(s.name, s.state, s.counts.succeeded, s.counts.held) for s in past.stages] == [
        ("fetch", "running", 2, 1), ("send", "waiting", 0, 0),
    ]  # fmt: skip
    assert [t.state for t in past.tasks] == ["succeeded", "succeeded", "assigned", "queued"]
    assert past.stages[0].percentage == 66
    first = engine.at(id_, events[0].id)
    assert (first.flow and first.flow.state, first.stages, first.tasks) == ("created", (), ())


def test_a_task_of_a_flow_has_its_own_past(engine: Engine) -> None:
    id_ = flow_of(engine)
    task = take(engine)
    engine.succeed(task, 1)
    assert task_at(engine, task.id, "task.claimed").state == "assigned"
    flow_event = engine.flow_events(id_)[0].id
    with pytest.raises(NotFound, match="was submitted by event"):
        engine.at(task.id, flow_event)


def test_of_a_large_flow_the_first_tasks_are_shown(engine: Engine) -> None:
    id_ = flow_of(engine)
    last = engine.flow_events(id_)[-1].id
    for limit, cut in ((0, True), (3, True), (4, False)):
        past = engine.at(id_, last, tasks=limit)
        assert (len(past.tasks), past.cut) == (limit, cut)
        assert past.stages[0].counts.total == 3, "the counts are those of all tasks"


def test_the_priority_of_a_flow_is_that_of_its_queued_tasks(engine: Engine) -> None:
    id_ = flow_of(engine, priority=1)
    held = take(engine)
    engine.set_flow_priority(id_, 7)
    note = next(e.id for e in engine.flow_events(id_) if e.type == "flow.priority_set")
    past, before = engine.at(id_, note), engine.at(id_, _before(engine, id_, note))
    assert past.flow is not None
    assert before.flow is not None
    assert (before.flow.priority, past.flow.priority) == (1, 7)
    assert {t.id: t.priority for t in past.tasks}[held.id] == 1
    assert sorted(t.priority for t in past.tasks) == [1, 7, 7, 7]
    others = [t.id for t in before.tasks if t.id != held.id]
    assert all("priority" in before.unknown[other] for other in others), "the log has only what they all got"
    assert "priority" not in before.unknown.get(held.id, [])


def _before(engine: Engine, id_: str, event: int) -> int:
    return max(e.id for e in engine.flow_events(id_) if e.id < event)


def test_an_event_of_another_job_is_refused(engine: Engine) -> None:
    first, second, flow = submit(engine), submit(engine), flow_of(engine)
    mine, other = engine.events(first)[0].id, engine.events(second)[0].id
    with pytest.raises(NotFound, match=rf"event {other} is none of the task {first}.*`onetray jobs events {first}`"):
        engine.at(first, other)
    with pytest.raises(
        NotFound, match=f"the task {second} was submitted by event {other}: it did not exist at event {mine}"
    ):
        engine.at(second, mine)
    with pytest.raises(NotFound, match=r"the flow .* was submitted by event"):
        engine.at(flow, mine)
    with pytest.raises(NotFound, match="is none of the task"):
        engine.at(first, 2**62)


@pytest.mark.parametrize("event", [0, -1, "1", True, 2**63])
def test_an_event_is_a_number_from_one(engine: Engine, event: Any) -> None:
    id_ = submit(engine)
    with pytest.raises(InvalidInput, match="event must be a whole number from 1"):
        engine.at(id_, event)


@pytest.mark.parametrize("tasks", [-1, 1_001, "3"])
def test_the_number_of_tasks_is_bounded(engine: Engine, tasks: Any) -> None:
    id_ = submit(engine)
    for read in (
        lambda: engine.at(id_, engine.events(id_)[0].id, tasks=tasks),
        lambda: engine.timeline(id_, tasks=tasks),
    ):
        with pytest.raises(InvalidInput, match="tasks must be a whole number from 0 to 1000"):
            read()


def test_a_job_that_is_not_there_has_no_past(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    event = engine.events(id_)[0].id
    engine.succeed(take(engine))
    clock.advance(100)
    engine.prune(0)
    for job in (id_, UNKNOWN_ID):
        for read in (lambda job=job: engine.at(job, event), lambda job=job: engine.timeline(job)):
            with pytest.raises(NotFound, match=f"there is no job {job}; with a deleted job its history is gone"):
                read()


def test_namespaces_are_kept_apart(engine: Engine) -> None:
    id_ = submit(engine, namespace="shop")
    event = engine.events(id_, namespace="shop")[0].id
    assert engine.at(id_, event, namespace="shop").job.id == id_
    assert engine.timeline(id_, namespace="shop").id == id_
    with pytest.raises(NotFound):
        engine.at(id_, event)
    with pytest.raises(NotFound):
        engine.timeline(id_)
    mine = submit(engine)
    with pytest.raises(NotFound, match=r"none of the task|did not exist"):
        engine.at(mine, event)


def test_a_hole_in_the_log_is_told_and_not_guessed(database_url: str) -> None:
    with engine_on(database_url, VirtualClock()) as engine:
        id_ = submit(engine)
        take(engine)
        event = engine.events(id_)[0].id
        with engine.store.transaction() as tx:
            tx.fetch("UPDATE onetray.task SET version = 5 WHERE id = :id", {"id": id_})
        try:
            with pytest.raises(StoreError, match=f"the log lacks version 3 of task {id_}: run `onetray verify`"):
                engine.at(id_, event)
        finally:
            with engine.store.transaction() as tx:
                tx.fetch("UPDATE onetray.task SET version = 2 WHERE id = :id", {"id": id_})


def test_fields_of_notes_that_the_janitor_deletes_are_unknown(database_url: str) -> None:
    config = EngineConfig(note_types=("task.priority_set", "task.cancel_requested", "flow.priority_set", "flow.sealed"))
    with engine_on(database_url, VirtualClock(), config=config) as engine:
        id_ = submit(engine)
        assert pasts(engine, id_, "task.submitted")[0].unknown == {id_: ["cancel_requested_at", "priority"]}
        flow = flow_of(engine)
        unknown = engine.at(flow, engine.flow_events(flow)[0].id).unknown
        assert unknown[flow] == ["sealed", "priority"]


def test_a_long_history_is_folded_whole(engine: Engine) -> None:
    id_ = submit(engine)
    for _ in range(70):
        engine.release(take(engine))
    engine.succeed(take(engine))
    events = engine.events(id_)
    assert task_at(engine, id_, "task.submitted").version == 1
    assert engine.at(id_, events[100].id).job.version == 101
    assert engine.at(id_, events[-1].id).job.state == "succeeded"


def test_the_past_is_redacted_as_the_present_is(engine: Engine) -> None:
    engine.configure("login", Policy(max_attempts=2, redact=("password",)))
    id_ = submit(engine, "login", {"password": SECRET})
    engine.fail(take(engine), f"not with {SECRET}", retry_after_s=0)
    engine.succeed(take(engine))
    (event,) = [e.id for e in engine.events(id_) if e.type == "task.retried"]
    real, shown = engine.at(id_, event), engine.redacted.at(id_, event)
    assert SECRET in str(real)
    assert SECRET not in str(shown)
    assert shown.task is not None
    assert (shown.task.payload, shown.task.state) == ({"password": "***"}, "queued")


def test_the_past_of_a_flow_is_redacted_whole(engine: Engine) -> None:
    engine.configure("fetch", Policy(redact=("password",)))
    stages = [StageSpec("fetch", [TaskSpec("fetch", {"password": SECRET})]), StageSpec("send", [TaskSpec("send")])]
    id_ = engine.submit_flow("news", stages, data={"note": SECRET}).id
    engine.succeed(take(engine), {"got": SECRET})
    last = engine.flow_events(id_)[-1].id
    assert SECRET in str(engine.at(id_, last))
    shown = engine.redacted.at(id_, last)
    assert SECRET not in str(shown)
    assert (len(shown.stages), len(shown.tasks), shown.stages[0].state) == (2, 2, "succeeded")


def test_a_timeline_has_the_attempts_and_waits_of_a_task(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(jitter=False, backoff_base_s=0))
    begin = clock.now()
    clock.advance(1)
    held = take(engine, worker="one")
    clock.advance(2)
    engine.start(held)
    clock.advance(3)
    engine.fail(held, "no")
    held = running(engine, worker="two")
    clock.advance(4)
    engine.pause(held, owner="ann", reason="asks", state="waiting_input")
    clock.advance(5)
    found = engine.timeline(id_)
    assert (found.entity, found.id, found.from_at, found.until_at) == ("task", id_, begin, None)
    assert (found.now_at, found.cut) == (clock.now(), False)
    told = [(i.state, (i.from_at - begin) // SECOND, i.attempt, i.worker, i.next_state) for i in found.intervals]
    assert told == [
        ("queued", 0, None, None, "assigned"),
        ("assigned", 1, 1, "one", "running"),
        ("running", 3, 1, "one", "running"),
        ("running", 6, 2, "two", "waiting_input"),
        ("waiting_input", 10, None, None, None),
    ]
    for interval, then in zip(found.intervals, found.intervals[1:], strict=False):
        assert interval.until_at == then.from_at
        assert engine.at(id_, interval.event).job.state == interval.state
    engine.cancel(id_)
    ended = engine.timeline(id_)
    assert (ended.until_at, ended.intervals[-1].until_at, ended.intervals[-1].next_state) == (
        clock.now(), clock.now(), "cancelled",
    )  # fmt: skip


def test_a_timeline_of_a_flow_has_its_stages_and_the_first_tasks(engine: Engine, clock: VirtualClock) -> None:
    id_ = flow_of(engine)
    clock.advance(1)
    for task in engine.claim(worker="w", limit=3):
        clock.advance(1)
        engine.succeed(task)
    clock.advance(1)
    found = engine.timeline(id_)
    fetch, send = engine.stages(id_)
    assert list(dict.fromkeys((i.entity, i.label, i.stage) for i in found.intervals)) == [
        ("flow", "news", None), ("stage", "fetch", None), ("task", "t0", fetch.id), ("task", "t1", fetch.id),
        ("task", "t2", fetch.id), ("stage", "send", None), ("task", "send", send.id),
    ]  # fmt: skip
    waits = [(i.label, i.state, i.until_at) for i in found.intervals if i.state == "waiting"]
    assert waits == [("news", "waiting", None), ("send", "waiting", None)]
    fewer = engine.timeline(id_, tasks=2)
    assert (fewer.cut, found.cut) == (True, False)
    assert {i.label for i in fewer.intervals if i.entity == "task"} == {"t0", "t1"}


def test_a_timeline_is_bounded(engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onetray.engine.past_api.MAX_INTERVALS", 3)
    id_ = submit(engine)
    for _ in range(3):
        clock.advance(1)
        held = take(engine)
        clock.advance(1)
        engine.release(held)
    found = engine.timeline(id_)
    assert (len(found.intervals), found.cut) == (3, True)


def test_a_flow_that_is_too_large_to_count_says_so(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onetray.engine.past_api.MAX_MOVES", 2)
    id_ = flow_of(engine)
    past = engine.at(id_, engine.flow_events(id_)[-1].id)
    assert past.flow is not None
    assert past.flow.state == "pending"
    assert all("counts" in past.unknown[stage.id] for stage in past.stages)
