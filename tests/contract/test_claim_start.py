"""A claim that starts: the task, its stage and its flow move in one transaction."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg

from onetray.domain.commands import Claim, Submit, Succeed, ticket
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.engines import engine_on
from tests.support.flows import history, how, run_all
from tests.support.waits import somebody_waits, wait_until


def test_a_single_task_is_claimed_and_started_at_once(engine: Engine) -> None:
    task = engine.submit("x", policy=Policy(timeout_s=30)).id or ""
    (held,) = engine.claim(worker="w", start=True)
    seen = engine.task(task)
    assert (held.state, seen.state, seen.version, seen.attempts) == ("running", "running", 3, 1)
    assert seen.started_at is not None
    assert [e.type for e in engine.events(task)] == ["task.submitted", "task.claimed", "task.started"]
    assert engine.start(held).repeated
    assert engine.succeed(held, 1).state == "succeeded"


def test_a_started_task_succeeds_without_a_look_at_it_first(engine: Engine) -> None:
    engine.submit("x")
    (held,) = engine.claim(worker="w", start=True)
    (verdict,) = engine.run([Succeed(**ticket(held), started=True)])
    assert verdict.unwrap().state == "succeeded"


def test_its_stage_and_its_flow_start_with_a_task(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 2), StageSpec("b", [TaskSpec("x")])])
    (held,) = engine.claim(worker="w", start=True, kinds=("x",))
    assert how(engine, flow) == ["running", "running", "created"]
    started = [e for e in history(engine, flow) if e.type.endswith("started")]
    assert {e.type for e in started} == {"task.started", "stage.started", "flow.started"}
    assert len({e.ts for e in started}) == 1
    engine.succeed(held)
    assert run_all(engine) == ["x", "x"]
    assert how(engine, flow) == ["succeeded"] * 3


def test_a_claim_takes_tasks_of_several_flows_and_single_ones(engine: Engine) -> None:
    flows = [engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])]) for _ in range(3)]
    engine.submit("x")
    held = engine.claim(worker="w", start=True, limit=10)
    assert [a.state for a in held] == ["running"] * 4
    assert [how(engine, flow) for flow in flows] == [["running", "running"]] * 3
    # With what else a batch may hold: the report of one flow, and the claim in another.
    engine.submit_flow("f", [StageSpec("a", [TaskSpec("y")])])
    reported, claimed = engine.run([Succeed(**ticket(held[0])), Claim(worker="w", start=True)])
    assert reported.unwrap().state == "succeeded"
    assert [a.kind for a in claimed.unwrap()] == ["y"]


def test_the_same_claim_again_answers_the_same_tasks_as_they_stand(engine: Engine) -> None:
    engine.run([Submit(kind="x") for _ in range(2)])
    first = engine.claim(worker="w", start=True, limit=2, request_key="k")
    again = engine.claim(worker="w", start=True, limit=2, request_key="k")
    assert [(a.id, a.fence, a.state) for a in again] == [(a.id, a.fence, "running") for a in first]


def test_nothing_of_a_paused_flow_is_started(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    engine.pause_flow(flow.id)
    assert engine.claim(worker="w", start=True) == []


def test_many_claimers_of_many_flows_start_every_task_once(database_url: str) -> None:
    with engine_on(database_url) as engine, engine_on(database_url) as other:
        flows = [engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 4)]) for _ in range(20)]
        ran: list[str] = []

        def work(engine: Engine, worker: str) -> None:
            while held := engine.claim(worker=worker, start=True, limit=2):
                for task in held:
                    ran.append(task.id)
                    engine.succeed(task)

        threads = [threading.Thread(target=work, args=((engine, other)[n % 2], f"w{n}")) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # A claim may not see what another process has just unlocked.
        wait_until(lambda: work(engine, "last") or len(ran) == 80)
        assert sorted(ran) == sorted(id_ for flow in flows for id_ in flow.tasks)
        assert [how(engine, flow) for flow in flows] == [["succeeded"] * 2] * 20


def test_the_first_start_of_a_stage_waits_for_whoever_changes_its_flow(pg_url: str) -> None:
    with engine_on(pg_url) as engine, ThreadPoolExecutor(1) as background:
        flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 2)])
        with psycopg.connect(pg_url) as other:
            other.execute("SELECT 1 FROM onetray.flow FOR NO KEY UPDATE")
            claimed = background.submit(engine.claim, worker="w", start=True)
            wait_until(lambda: somebody_waits(pg_url))
            # It holds no task meanwhile: whoever has the flow may want that, too.
            other.execute("SELECT 1 FROM onetray.task FOR UPDATE NOWAIT")
        assert [a.state for a in claimed.result(30)] == ["running"]
        assert how(engine, flow) == ["running", "running"]


def test_later_starts_of_a_stage_wait_for_nobody(pg_url: str) -> None:
    with engine_on(pg_url) as engine:
        engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 2)])
        engine.claim(worker="w", start=True)
        with psycopg.connect(pg_url) as other:
            other.execute("SELECT 1 FROM onetray.flow FOR NO KEY UPDATE")
            assert [a.state for a in engine.claim(worker="w", start=True)] == ["running"]


def test_a_control_task_starts_without_its_stage(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("decide"))])
    (held,) = engine.claim(worker="w", start=True)
    assert (held.kind, held.state, how(engine, flow)) == ("decide", "running", ["pending", "created"])
    engine.succeed(held, True)
    (task,) = engine.claim(worker="w", start=True)
    assert (task.kind, how(engine, flow)) == ("x", ["running", "running"])


def test_a_stage_that_was_approved_again_starts_again(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 3)])
    (first,) = engine.claim(worker="w", start=True)
    engine.wait_stage(flow.stages[0])
    assert engine.claim(worker="w", start=True) == []
    engine.succeed(first)
    engine.approve_stage(flow.stages[0])
    engine.claim(worker="w", start=True)
    assert how(engine, flow) == ["running", "running"]
