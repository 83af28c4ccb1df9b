"""Lists by the time of the last change, what is pending, what is dead, and the events of one flow."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from onetray import Engine, InvalidInput, NotFound, StageSpec, TaskSpec
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.flow import Placed
from onetray.domain.policy import Policy
from tests.support.cases import each_case
from tests.support.tasks import UNKNOWN_ID, settle, submit, take

ONCE = Policy(max_attempts=1)


def names(engine: Engine, known: dict[str, str], **filters: Any) -> str:
    return " ".join(known[job.id] for job in engine.sorted_jobs(**filters))


def test_jobs_in_the_order_of_their_last_change(engine: Engine, clock: VirtualClock) -> None:
    known: dict[str, str] = {}
    for name in ("a", "b", "c"):
        known[submit(engine, queue=name, labels={"of": name, "all": "x"})] = name
        clock.advance(1)
    flow = engine.submit_flow("run", [StageSpec("all", [TaskSpec("k", queue="f")])], labels={"all": "x"})
    known[flow.id] = "f"
    clock.advance(1)
    submit(engine, namespace="north")
    changed_at = clock.now()
    engine.claim(worker="w", queue="a")
    assert names(engine, known) == "a f c b"
    assert names(engine, known, descending=False) == "b c f a"
    assert names(engine, known, order_by="created_at") == "f c b a"
    assert names(engine, known, order_by="created_at", descending=False) == "a b c f"
    assert names(engine, known, updated_since=changed_at) == "a"
    assert names(engine, known, updated_until=changed_at) == "f c b"
    assert names(engine, known, updated_since=changed_at - SECOND, updated_until=changed_at) == "f"
    assert [names(engine, known, limit=2, offset=n) for n in (0, 2, 4)] == ["a f", "c b", ""]
    assert names(engine, known, entity="flow") == "f"
    assert names(engine, known, entity="task", states=["queued"]) == "c b"
    assert names(engine, known, labels={"of": "b"}) == "b"
    assert names(engine, known, labels={"all": "x"}, limit=3) == "a f c"
    assert names(engine, known, labels={"all": "x", "of": "c"}) == "c"
    assert names(engine, known, kind="run") == "f"


def test_pending_tasks_come_in_the_order_of_claims(engine: Engine, clock: VirtualClock) -> None:
    low, high = submit(engine, priority=-1), submit(engine, "call", priority=5, queue="other")
    plain = submit(engine)
    later = submit(engine, delay_s=60, priority=9)
    submit(engine, namespace="north")
    engine.claim(worker="w", kinds=["nothing"])
    taken = submit(engine, queue="taken")
    take(engine, queue="taken", lease_s=3600)

    def pending(**filters: Any) -> list[str]:
        return [task.id for task in engine.pending_tasks(**filters)]

    assert taken not in pending()
    assert pending() == [later, high, plain, low]
    assert pending(ready_by=clock.now()) == [high, plain, low]
    assert pending(ready_by=clock.now() + 60 * SECOND) == [later, high, plain, low]
    assert pending(kinds=["call"]) == [high]
    assert pending(kinds=["call", "mail", "none"], limit=2, offset=1) == [high, plain]
    assert pending(kinds=["none"]) == pending(offset=9) == pending(ready_by=0) == []
    assert [task.namespace for task in engine.pending_tasks(namespace="north")] == ["north"]
    clock.advance(61)
    assert pending(ready_by=clock.now()) == [later, high, plain, low], "whether or not the janitor has come"
    settle(engine)
    assert pending() == [later, high, plain, low]


def a_run(engine: Engine, **fields: Any) -> Placed:
    specs = [
        TaskSpec("a", name="first"), TaskSpec("b", depends_on=("first",)), TaskSpec("b", delay_s=60),
        TaskSpec("c", priority=1, policy=ONCE),
    ]  # fmt: skip
    return engine.submit_flow(
        "run", [StageSpec("one", specs), StageSpec("two", [TaskSpec("a")])], roll_up="drain", **fields
    )


def test_pending_tasks_of_a_flow_wait_for_nothing_but_time(engine: Engine, clock: VirtualClock) -> None:
    run = a_run(engine)
    a_run(engine)
    first, _, delayed, urgent, _ = run.tasks

    def pending(**filters: Any) -> list[str]:
        return [task.id for task in engine.pending_tasks(flow=run.id, **filters)]

    assert pending() == [urgent, first, delayed]
    assert pending(ready_by=clock.now()) == [urgent, first]
    assert pending(kinds=["b", "c"]) == [urgent, delayed]
    assert pending(limit=1, offset=1) == [first]
    both = {task.id for task in engine.pending_tasks()}
    assert {urgent, first, delayed} < both
    engine.pause_flow(run.id)
    assert pending() == []
    assert both - {task.id for task in engine.pending_tasks()} == {urgent, first, delayed}
    engine.resume_flow(run.id)
    assert pending() == [urgent, first, delayed]
    closed = a_run(engine, start=False)
    assert engine.pending_tasks(flow=closed.id) == []
    for unknown in (UNKNOWN_ID, first):
        with pytest.raises(NotFound):
            engine.pending_tasks(flow=unknown)
    with pytest.raises(NotFound):
        engine.pending_tasks(flow=run.id, namespace="north")


def test_dead_tasks_of_a_flow_and_of_kinds(engine: Engine) -> None:
    run, other = a_run(engine), a_run(engine)
    for _ in range(2):
        engine.fail(take(engine, kinds=["c"]), "no")
    single = submit(engine, "d", policy=ONCE)
    engine.fail(take(engine, kinds=["d"]), "no")

    def dead(**filters: Any) -> list[str]:
        return [letter.id for letter in engine.dead_lines(**filters)]

    mine, theirs = run.tasks[3], other.tasks[3]
    assert dead() == [mine, theirs, single]
    assert dead(flow=run.id) == [mine]
    assert dead(kinds=["c"]) == [mine, theirs]
    assert dead(kinds=["d", "c", "none"], limit=1, offset=1) == [theirs]
    assert dead(flow=run.id, kinds=["d"]) == dead(offset=3) == []
    with pytest.raises(NotFound):
        dead(flow=run.id, namespace="north")
    engine.redrive(mine)
    assert dead(flow=run.id) == []


def read_all(engine: Engine, limit: int = 3, **filters: Any) -> list[int]:
    """The ids of all events, page by page, and that the cursor rises with every page."""
    after, found = 0, list[int]()
    while True:
        page = engine.events_since(after=after, limit=limit, **filters)
        found += [event.id for event in page.events]
        if page.next_cursor == after:
            return found
        assert page.next_cursor > after
        after = page.next_cursor


def test_the_events_of_one_flow_are_read_by_a_cursor(engine: Engine) -> None:
    run, other = a_run(engine), a_run(engine)
    for held in engine.claim(worker="w", limit=2):
        engine.succeed(held)
    every = engine.flow_events(run.id)
    assert len(every) > 10
    assert read_all(engine, flow=run.id) == [event.id for event in every]
    wanted = ("task.submitted", "flow.opened")
    of_types = [event.id for event in every if event.type in wanted]
    assert read_all(engine, flow=run.id, types=wanted) == of_types
    assert read_all(engine, flow=run.id, types=["nothing"]) == []
    assert read_all(engine, types=wanted, limit=1000) == [
        event.id for event in engine.feed.read(0, 1000).events if event.type in wanted
    ]
    end = engine.events_since(flow=other.id, after=0, limit=10_000).next_cursor
    assert engine.events_since(flow=other.id, after=end).events == []
    engine.cancel_flow(run.id)
    assert engine.events_since(flow=other.id, after=end).next_cursor > end, "past the events of others"
    assert {event.job_id for event in engine.events_since(flow=run.id, after=end).events} == {run.id}


def test_the_feed_shows_one_namespace(engine: Engine) -> None:
    run = a_run(engine, namespace="north")
    ours = submit(engine)
    assert {event.entity_id for event in engine.events_since().events} == {ours}
    for flow in (run.id, UNKNOWN_ID):
        with pytest.raises(NotFound):
            engine.events_since(flow=flow)
    assert engine.events_since(flow=run.id, namespace="north").events


def test_no_event_of_a_flow_is_missed_while_many_write(engine: Engine) -> None:
    """Claims do not lock the flow: without the barrier, events would appear behind the cursor."""
    specs = [TaskSpec("k") for _ in range(120)]
    run = engine.submit_flow("run", [StageSpec("all", specs)], roll_up="drain")
    done = threading.Event()
    seen: list[int] = []

    def work() -> None:
        while claimed := engine.claim(worker="w", limit=1):
            engine.start(claimed[0])
            engine.succeed(claimed[0])

    def follow() -> None:
        after = 0
        while True:
            is_last = done.is_set()
            page = engine.events_since(flow=run.id, after=after, limit=7)
            seen.extend(event.id for event in page.events)
            if is_last and page.next_cursor == after:
                return
            after = page.next_cursor

    reader = threading.Thread(target=follow)
    workers = [threading.Thread(target=work) for _ in range(6)]
    for thread in (reader, *workers):
        thread.start()
    for thread in workers:
        thread.join(120)
    done.set()
    reader.join(120)
    assert engine.flow(run.id).state == "succeeded"
    assert seen == [event.id for event in engine.flow_events(run.id, limit=10_000)]


@each_case(
    ("call", "fields", "field"),
    [
        ("sorted_jobs", {"order_by": "priority"}, "order_by"), ("sorted_jobs", {"descending": 1}, "descending"),
        ("sorted_jobs", {"offset": -1}, "offset"), ("sorted_jobs", {"limit": 10_001}, "limit"),
        ("sorted_jobs", {"updated_since": -1}, "updated_since"),
        ("sorted_jobs", {"updated_until": "x"}, "updated_until"),
        ("sorted_jobs", {"states": ["lost"]}, "states"), ("sorted_jobs", {"labels": 5}, "labels"),
        ("pending_tasks", {"ready_by": -1}, "ready_by"), ("pending_tasks", {"offset": True}, "offset"),
        ("pending_tasks", {"kinds": "mail"}, "kinds"), ("pending_tasks", {"kinds": [""]}, "kinds"),
        ("pending_tasks", {"kinds": ["x"] * 1001}, "kinds"), ("pending_tasks", {"flow": "x"}, "flow"),
        ("pending_tasks", {"limit": -1}, "limit"), ("dead_lines", {"kinds": [5]}, "kinds"),
        ("dead_lines", {"flow": 5}, "flow"), ("dead_lines", {"offset": -1}, "offset"),
        ("events_since", {"after": -1}, "after"), ("events_since", {"limit": 0}, "limit"),
        ("events_since", {"types": [""]}, "types"), ("events_since", {"types": "x"}, "types"),
        ("events_since", {"flow": "x"}, "flow"), ("events_since", {"namespace": ""}, "namespace"),
    ],
)  # fmt: skip
def test_bad_input_is_named(engine: Engine, call: str, fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        getattr(engine, call)(**fields)
    assert refused.value.field == field
