"""Drive flows in tests: run what can be claimed, bring a task to an outcome, look at where everything stands."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from onetray.domain.flow import Placed, StageSpec, TaskSpec
from onetray.domain.lifecycle import FLOW
from onetray.domain.task import Assignment
from onetray.engine import Engine
from tests.support.tasks import running


def stage(name: str, *kinds: str, **fields: Any) -> StageSpec:
    """A stage with one task of each kind."""
    return StageSpec(name, [TaskSpec(kind) for kind in kinds], **fields)


def run(
    engine: Engine, *, fail: Collection[str] = (), answers: Mapping[str, Any] | None = None, most: int = 1000
) -> list[str]:
    """Claim and finish one task after another, up to `most`. Answers the kinds in the order of their claims."""
    ran: list[str] = []
    while len(ran) < most and (claimed := engine.claim(worker="w")):
        (task,) = claimed
        ran.append(task.kind)
        engine.start(task)
        if task.kind in fail:
            engine.fail(task, f"{task.kind} broke", retryable=False)
            continue
        answer = (answers or {}).get(task.kind)
        engine.succeed(task, answer(task) if callable(answer) else answer)
    return ran


def begun(engine: Engine, *stages: StageSpec, **fields: Any) -> tuple[Placed, Assignment]:
    """A flow of which one task is running."""
    flow = engine.submit_flow("f", stages, **fields)
    return flow, running(engine)


def flow_state(engine: Engine, flow: Placed) -> str:
    return engine.flow(flow.id).state


def stage_states(engine: Engine, flow: Placed) -> list[str]:
    return [s.state for s in engine.stages(flow.id)]


def task_states(engine: Engine, stage_id: str) -> list[str]:
    return [t.state for t in engine.stage_tasks(stage_id)]


def all_states(engine: Engine, flow: Placed) -> tuple[str, list[str], list[str]]:
    """Where the flow, its stages and all their tasks stand."""
    tasks = [state for s in engine.stages(flow.id) for state in task_states(engine, s.id)]
    return flow_state(engine, flow), stage_states(engine, flow), tasks


def events_of(engine: Engine, flow: Placed, entity: str | None = None) -> list[str]:
    """The types of a flow's events, in order: of one entity, or of the flow with all that is below it."""
    return [e.type for e in engine.flow_events(flow.id) if entity in (None, e.entity_id)]


def finish_flows(url: str, worker: str, flows: list[str]) -> list[str]:
    """What one process of several does: claim and succeed until these flows have ended. Answers what it succeeded."""
    done: list[str] = []
    with Engine.open(url) as engine:
        while any(engine.flow(flow).state not in FLOW.terminal for flow in flows):
            seen = engine.wake.generation
            held = engine.claim(worker=worker, limit=2)
            for task in held:
                engine.succeed(task, worker)
                done.append(task.id)
            if not held:
                engine.wake.wait(seen, 0.05)  # The others hold what is left.
    return done
