"""Deletion of one job by its id: all of it goes, one event says so, and what is open stays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import Conflict, IllegalTransition, NotFound
from onetray.domain.flow import Placed, StageSpec, TaskSpec
from onetray.engine import Engine, deletion
from onetray.engine.deletion import Deletion
from tests.support.engines import engine_on, must_verify
from tests.support.listening import register
from tests.support.tasks import counts, in_state, running, settle, submit

UNKNOWN = "00000000-0000-7000-8000-000000000000"
LATER = ("namespace", "queue", "kind", "policy", "due", "lease")
"""Names stay; due rows and leases go when their time comes."""


def left(engine: Engine) -> dict[str, int]:
    """The tables that have rows of jobs."""
    of_flows = {name: count(engine, name) for name in ("flow", "stage", "context", "dependency")}
    return {name: n for name, n in (counts(engine) | of_flows).items() if n and name not in LATER}


def count(engine: Engine, table: str) -> int:
    return int(engine.store.read_sql(f"SELECT count(*) FROM onetray.{table}")[0][0])


def end_all(engine: Engine) -> None:
    while claimed := engine.claim(worker="w", limit=100):
        for task in claimed:
            engine.succeed(task, context={"n": 1})


def ended_flow(engine: Engine, tasks: int = 3, **fields: Any) -> Placed:
    first = StageSpec("a", [TaskSpec("x", name="n"), *[TaskSpec("y", depends_on=("n",))] * (tasks - 1)])
    flow = engine.submit_flow("f", [first, StageSpec("b", [TaskSpec("z")])], context=1, **fields)
    end_all(engine)
    return flow


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled", "dead_lettered"])
def test_nothing_is_left_of_a_deleted_task_but_one_event(engine: Engine, end: str) -> None:
    made = in_state(engine, end)
    last = engine.events(made.id)[-1]
    engine.delete_job(made.id, by="ann", reason="as its owner wished")
    assert left(engine) == {"event": 1}
    (event,) = engine.feed.read(last.id).events
    assert (event.type, event.job_id, event.entity_id, event.actor) == ("job.deleted", made.id, made.id, "user:ann")
    assert (event.version, event.state, event.cause) == (None, None, "as its owner wished")
    facts = {"id": made.id, "entity": "task", "kind": "mail", "state": end, "correlation_id": made.id}
    assert event.payload == facts
    assert engine.redacted.feed.read(last.id).events == [event]
    with pytest.raises(NotFound):
        engine.delete_job(made.id)


def test_keys_logs_and_labels_go_with_a_deleted_job(engine: Engine) -> None:
    fields: dict[str, Any] = {"idempotency_key": "k", "unique_key": "u", "labels": {"team": "a"}}
    id_ = submit(engine, **fields)
    held = running(engine)
    engine.log(held, "a line")
    engine.say_progress(held, 1)
    engine.checkpoint(held, 1)
    engine.succeed(held)
    engine.delete_job(id_)
    assert left(engine) == {"event": 1}
    assert submit(engine, **fields) != id_


REFUSED: dict[str, tuple[type[Exception], str, Callable[[Engine], str]]] = {
    "queued": (IllegalTransition, "cancel it", lambda e: in_state(e, "queued").id),
    "running": (IllegalTransition, "cancel it", lambda e: in_state(e, "running").id),
    "open flow": (IllegalTransition, "cancel it", lambda e: e.submit_flow("f", [StageSpec("a", [TaskSpec("x")])]).id),
    "member": (Conflict, "delete the flow", lambda e: ended_flow(e).tasks[0]),
    "unknown": (NotFound, "there is no job", lambda e: UNKNOWN),
    "other namespace": (NotFound, "there is no job", lambda e: submit(e, namespace="theirs")),
    "stage": (NotFound, "there is no job", lambda e: ended_flow(e).stages[0]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_deleted_is_refused(engine: Engine, case: str) -> None:
    error, message, make = REFUSED[case]
    id_, before = make(engine), counts(engine)
    with pytest.raises(error, match=message):
        engine.delete_job(id_)
    assert counts(engine) == before


def test_a_flow_is_refused_while_a_task_of_it_or_its_compensation_runs(engine: Engine) -> None:
    undo = TaskSpec("undo")
    flow = engine.submit_flow(
        "f", [StageSpec("a", [TaskSpec("x")], compensate=undo), StageSpec("b", [TaskSpec("y")] * 2)]
    )
    engine.succeed(engine.claim(worker="w")[0])
    failing, running_on = engine.claim(worker="w", limit=2)
    engine.fail(failing, "no", retryable=False)
    assert engine.flow(flow.id).state == "failed"
    with pytest.raises(Conflict, match="still runs a task"):
        engine.delete_job(flow.id)
    engine.succeed(running_on)
    with pytest.raises(Conflict, match=r"compensation .* has not ended"):
        engine.delete_job(flow.id)
    compensation = engine.flow(flow.id).compensation
    end_all(engine)
    engine.delete_job(flow.id)
    assert compensation is not None
    undone = engine.flow(compensation)
    assert (undone.state, undone.compensates) == ("succeeded", None)
    assert engine.explain(compensation)
    engine.delete_job(compensation)
    assert left(engine) == {"event": 2}


def test_a_large_flow_goes_in_steps_and_is_not_found_after_the_first(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "STEP", 2)
    flow = ended_flow(engine, 5, labels={"team": "a"}, unique_key="u")
    retried = engine.retry_flow(flow.id, from_stage="b")
    end_all(engine)
    ns = engine.store.names.namespace("default")
    call = Deletion(flow.id, ns, "ann", None)
    steps = 0
    while not engine.store.write(call.step):
        steps += 1
        must_verify(engine)
        for find in (engine.flow, engine.explain, engine.job_status, engine.locate, engine.flow_events):
            with pytest.raises(NotFound):
                find(flow.id)
        for change in (engine.retry_flow, engine.pause_flow, engine.set_flow_priority):
            with pytest.raises(NotFound):
                change(flow.id, **({"priority": 1} if change == engine.set_flow_priority else {}))
        if engine.find_tasks(states=["succeeded"]).tasks[-1].id == flow.tasks[0]:
            with pytest.raises(NotFound):
                engine.redrive(flow.tasks[0])
        with pytest.raises(Conflict, match="was deleted: submit it anew"):
            engine.retry_flow(retried.id, from_stage="a")
        assert [job.id for job in engine.jobs().jobs] == [retried.id]
    assert steps > 4
    assert [e.type for e in engine.feed.read(0).events].count("job.deleted") == 1
    assert engine.flow(retried.id).retry_of is None
    assert engine.retry_flow(retried.id, from_stage="b").id


@pytest.mark.parametrize("who", ["janitor", "another call", "retention"])
def test_a_deletion_that_was_interrupted_is_completed(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setattr(deletion, "STEP", 2)
    flow = ended_flow(engine, 5)
    ns = engine.store.names.namespace("default")
    assert not engine.store.write(Deletion(flow.id, ns, "ann", None).step)
    if who == "another call":
        engine.delete_job(flow.id)
    else:
        clock.advance(deletion.JANITOR_AFTER_S)
        newer = submit(engine)
        settle(engine) if who == "janitor" else engine.prune(10)
        engine.cancel(newer)
        engine.delete_job(newer)
    assert left(engine) == {"event": {"janitor": 2, "another call": 1, "retention": 1}[who]}
    settle(engine)
    with pytest.raises(NotFound):
        engine.delete_job(flow.id)


def test_two_calls_at_once_delete_a_job_once(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "STEP", 2)
    with engine_on(database_url) as one, engine_on(database_url) as two:
        flow, task = ended_flow(one, 20), in_state(one, "succeeded")
        broken: list[Exception] = []

        def delete(engine: Engine) -> None:
            for id_ in (flow.id, task.id):
                try:
                    engine.delete_job(id_)
                except NotFound:
                    pass
                except Exception as e:
                    broken.append(e)

        threads = [threading.Thread(target=delete, args=(engine,)) for engine in (one, two, one)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not broken
        assert left(one) == {"event": 2}


def test_what_points_to_a_deleted_task_can_still_be_read(engine: Engine) -> None:
    dead = in_state(engine, "dead_lettered")
    again = engine.redrive(dead.id).id or ""
    engine.delete_job(dead.id)
    assert engine.task(again).retry_of is None
    register(engine)
    assert engine.explain(again) == []
    assert engine.dead_letters() == []


def test_a_note_about_a_deletion_goes_with_retention(engine: Engine, clock: VirtualClock) -> None:
    engine.delete_job(in_state(engine, "succeeded").id)
    clock.advance(100)
    walk = engine.retention(10)
    while walk.step() is not None:
        pass
    assert left(engine) == {}
    engine.delete_job(in_state(engine, "succeeded").id)
    while walk.step() is not None:
        pass
    assert left(engine) == {"event": 1}
    clock.advance(100)
    assert engine.prune(10) == []
    assert left(engine) == {}
