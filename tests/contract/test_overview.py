"""The overview: queues, workers, and what waits for a person, in counts that end at a limit."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import InvalidInput
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.overview import HeldTask, QueueOverview, Waiting, WaitingItem, WorkerOverview
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine, overview_api
from tests.support.engines import must_verify
from tests.support.tasks import in_state, running, submit, take

NOBODY_WAITS = Waiting(0, False, None, [])


def queue(engine: Engine, name: str = "default", **fields: Any) -> QueueOverview:
    (found,) = [q for q in engine.overview(**fields).queues if q.name == name]
    return found


def worker(engine: Engine, name: str) -> WorkerOverview:
    (found,) = [w for w in engine.overview().workers if w.name == name]
    return found


def beat(engine: Engine, name: str = "w", **fields: Any) -> None:
    engine.worker_beat(WorkerBeat(name=name, host="h", pid=1, version="1", **fields))


def test_a_queue_has_the_numbers_of_its_tasks(engine: Engine, clock: VirtualClock) -> None:
    began = clock.now()
    for _ in range(4):
        submit(engine)
    submit(engine, delay_s=60)
    submit(engine, queue="other")
    take(engine)
    clock.advance(5)
    running(engine, worker="v")
    found = queue(engine)
    assert (found.ready, found.delayed, found.held, found.running) == (2, 1, 1, 1)
    assert (found.at_least, found.oldest_ready_at, found.paused_at) == ((), began, None)
    assert queue(engine, "other").ready == 1
    assert [(q.name, q.ready, q.delayed, q.held) for q in engine.queues()] == [("default", 2, 1, 2), ("other", 1, 0, 0)]


def test_an_empty_queue_and_an_unknown_namespace(engine: Engine) -> None:
    in_state(engine, "succeeded")
    found = queue(engine)
    assert (found.ready, found.oldest_ready_at, found.missing) == (0, None, None)
    nothing = engine.overview(namespace="nobody's")
    assert (nothing.queues, nothing.workers, nothing.needs_human.missing_workers) == ([], [], [])
    assert nothing.needs_human.approvals == nothing.needs_human.dead_letters == NOBODY_WAITS


def test_a_namespace_sees_its_own_only(engine: Engine) -> None:
    for namespace in ("a", "b"):
        for state in ("queued", "running", "blocked", "dead_lettered"):
            engine.submit("mail", namespace=namespace, queue=state)
        engine.submit("mail", namespace=namespace, queue="later", delay_s=60)
    for namespace in ("a", "b"):
        engine.start(take(engine, queue="running", namespace=namespace))
        engine.pause(take(engine, queue="blocked", namespace=namespace), owner="ann", reason="x")
        engine.fail(take(engine, queue="dead_lettered", namespace=namespace), "x", reason_code="parse_error")
    found = engine.overview(namespace="a")
    counts = {q.name: (q.ready, q.delayed, q.held, q.running) for q in found.queues}
    assert counts == {"queued": (1, 0, 0, 0), "running": (0, 0, 0, 1), "blocked": (0, 0, 0, 0),
                      "dead_lettered": (0, 0, 0, 0), "later": (0, 1, 0, 0)}  # fmt: skip
    assert (found.needs_human.blocked.count, found.needs_human.dead_letters.count) == (1, 1)
    assert [(w.name, w.held) for w in found.workers] == [("w", 1)]


def test_counts_end_at_a_limit_and_say_so(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_COUNT", "MAX_DUE", "MAX_LEASED"):
        monkeypatch.setattr(overview_api, name, 3)
    for _ in range(5):
        submit(engine)
        submit(engine, queue="later", delay_s=60)
        in_state(engine, "waiting_input", queue="asks")
        in_state(engine, "running", queue="runs")
    found = engine.overview()
    numbers = {q.name: (q.ready, q.delayed, q.running, q.at_least) for q in found.queues}
    every = ("delayed", "held", "running")
    assert numbers["default"] == (3, 0, 0, ("ready", *every))
    assert numbers["later"][1] == 3
    assert numbers["runs"][2] <= 3
    assert numbers["runs"][3] == every
    assert (found.needs_human.inputs.count, found.needs_human.inputs.is_more) == (3, True)


def test_a_paused_queue_says_since_when_by_whom_and_why(engine: Engine, clock: VirtualClock) -> None:
    submit(engine)
    submit(engine, queue="other")
    engine.pause_queue("default", by="ann", reason="the first time")
    engine.resume_queue("default", by="ann")
    clock.advance(1)
    engine.pause_queue("default", by="bob", reason="maintenance")
    engine.pause_queue("other", by="cat")
    found, other = queue(engine), queue(engine, "other")
    assert (found.paused_at, found.paused_by, found.paused_why) == (clock.now(), "bob", "maintenance")
    assert (other.paused_by, other.paused_why) == ("cat", None)
    engine.resume_queue("default")
    assert (queue(engine).paused_at, queue(engine).paused_why) == (None, None)


def test_whether_anybody_listens(engine: Engine) -> None:
    submit(engine, "mail")
    assert "no worker is alive" in (queue(engine).missing or "")
    beat(engine, queues=("elsewhere",))
    assert (queue(engine).workers, engine.overview().needs_human.missing_workers[0].code) == (0, "no_worker_on_queue")
    beat(engine, queues=("default:5",), kinds=("other",))
    (missing,) = engine.overview().needs_human.missing_workers
    assert (missing.queue, missing.kind, missing.code) == ("default", "mail", "no_worker_for_kind")
    assert (queue(engine).workers, queue(engine).missing) == (1, missing.problem)
    beat(engine, "v", kinds=("mail",))
    assert (queue(engine).workers, queue(engine).missing) == (2, None)
    assert engine.overview().needs_human.missing_workers == []


def test_a_worker_and_what_it_runs(engine: Engine, clock: VirtualClock) -> None:
    beat(engine, queues=("default",), kinds=("mail",), concurrency=7)
    ids = [submit(engine) for _ in range(3)]
    take(engine)
    running(engine)
    clock.advance(2)
    engine.succeed(running(engine))
    found = worker(engine, "w")
    assert (found.status, found.host, found.concurrency, found.held) == ("running", "h", 7, 2)
    assert found.tasks == [
        HeldTask(ids[1], "mail", "default", "running", clock.now() - 2 * SECOND),
        HeldTask(ids[0], "mail", "default", "assigned", None),
    ]
    assert (found.queues, found.kinds, found.beat_at) == (("default",), ("mail",), clock.now() - 2 * SECOND)
    beat(engine, state="stopping")
    assert worker(engine, "w").status == "stopping"
    clock.advance(31)
    assert worker(engine, "w").status == "lost"


def test_a_worker_that_only_claims_is_shown_while_it_holds_tasks(engine: Engine) -> None:
    submit(engine)
    claimed = take(engine, worker="agent")
    found = worker(engine, "agent")
    assert (found.status, found.held, found.host, found.beat_at) == ("unregistered", 1, None, None)
    engine.succeed(claimed)
    assert engine.overview().workers == []


def test_few_of_many_tasks_of_a_worker_are_listed(engine: Engine) -> None:
    for _ in range(30):
        submit(engine)
    engine.claim(worker="w", limit=30)
    found = worker(engine, "w")
    assert (found.held, len(found.tasks)) == (30, 20)


def test_what_waits_for_a_person(engine: Engine, clock: VirtualClock) -> None:
    asked = in_state(engine, "waiting_input")
    clock.advance(1)
    blocked = in_state(engine, "blocked")
    dead = in_state(engine, "dead_lettered")
    flow = engine.submit_flow("release", [StageSpec("sign", [TaskSpec("ship")], approval=Approval(owner="ann"))])
    found, now = engine.overview().needs_human, clock.now()
    assert found.inputs == Waiting(1, False, now - SECOND, [WaitingItem(asked.id, asked.id, "mail", now - SECOND)])
    assert found.blocked == Waiting(1, False, now, [WaitingItem(blocked.id, blocked.id, "mail", now)])
    assert found.dead_letters == Waiting(1, False, now, [WaitingItem(dead.id, dead.id, "mail", now)])
    assert found.approvals == Waiting(1, False, now, [WaitingItem(flow.stages[0], flow.id, "sign", now)])
    must_verify(engine)
    engine.resume(asked.id, input=1)
    engine.cancel(blocked.id)
    engine.redrive(dead.id)
    engine.approve_stage(flow.stages[0], actor_name="ann")
    found = engine.overview().needs_human
    assert found.inputs == found.blocked == found.dead_letters == found.approvals == NOBODY_WAITS


def test_an_approval_counts_when_its_turn_has_come(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = [StageSpec("build", [TaskSpec("build")]), StageSpec("sign", [TaskSpec("ship")], approval=Approval())]
    flow, other = (engine.submit_flow("release", stages) for _ in range(2))
    assert engine.overview().needs_human.approvals == NOBODY_WAITS
    engine.succeed(take(engine))
    found = engine.overview().needs_human.approvals
    assert (found.count, [item.id for item in found.first]) == (1, [flow.stages[1]])
    assert [entry.id for entry in engine.waiting().entries] == [flow.stages[1]]
    monkeypatch.setattr(overview_api, "MAX_COUNT", 1)
    assert engine.overview().needs_human.approvals.is_more
    engine.cancel_flow(other.id)
    engine.approve_stage(flow.stages[1], actor_name="ann")
    assert engine.overview().needs_human.approvals == NOBODY_WAITS


def test_a_paused_queue_misses_no_worker(engine: Engine) -> None:
    submit(engine, queue="mail")
    assert [m.queue for m in engine.overview().needs_human.missing_workers] == ["mail"]
    engine.pause_queue("mail")
    assert engine.overview().needs_human.missing_workers == []
    engine.resume_queue("mail")
    assert [m.queue for m in engine.overview().needs_human.missing_workers] == ["mail"]


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_whatever_ends_a_wait_ends_its_row(engine: Engine, clock: VirtualClock, end: str) -> None:
    gate = StageSpec("sign", [TaskSpec("ship")], approval=Approval(owner="ann"))
    flows = [engine.submit_flow("release", [gate], deadline_s=50) for _ in range(3)]
    ask = StageSpec("ask", [TaskSpec("ask"), TaskSpec("ask")])
    flows.append(engine.submit_flow("ask", [ask], deadline_s=50))
    for claimed in engine.claim(worker="w", limit=9):
        engine.pause(claimed, owner="ann", reason="?", state="waiting_input")
    assert (engine.overview().needs_human.approvals.count, engine.overview().needs_human.inputs.count) == (3, 2)
    if end == "cancel":
        for flow in flows:
            engine.cancel_flow(flow.id)
    else:
        clock.advance(51)
        while engine.sweep():
            pass
    found = engine.overview().needs_human
    assert found.approvals == found.inputs == NOBODY_WAITS


def test_a_waiting_task_of_a_flow_names_its_flow(engine: Engine) -> None:
    flow = engine.submit_flow("ask", [StageSpec("ask", [TaskSpec("ask")])])
    engine.pause(take(engine), owner="ann", reason="?", state="waiting_input")
    (item,) = engine.overview().needs_human.inputs.first
    assert (item.job_id, item.id) == (flow.id, flow.tasks[0])


def test_a_bad_namespace_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidInput):
        engine.overview(namespace="")
