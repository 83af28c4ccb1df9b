"""A small database with flows and stages in many states. Each flow is called by its correlation id."""

from __future__ import annotations

from onetray.domain.flow import Approval, Placed, StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine

HOUR = 3600.0
LONG = Policy(lease_s=HOUR, jitter=False)


def fill_flows(engine: Engine) -> None:
    """Leave flows that have ended, that go on, and that are held, with all that belongs to them."""
    _ended(engine)
    _going(engine)
    _held(engine)


def _ended(engine: Engine) -> None:
    fields = {"context": {"n": 1}, "idempotency_key": "once", "unique_key": "one", "labels": {"team": "a"}}
    whole = _submit(engine, "whole", [_stage("a", 2), _stage("b", 1)], **fields)
    for _ in whole.tasks:
        engine.succeed(_claim(engine, "whole"))
    _submit(engine, "undone", [_stage("a", 1, compensate=_task("undoing")), _stage("b", 1), _stage("c", 1)])
    engine.succeed(_claim(engine, "undone"))
    engine.fail(_claim(engine, "undone"), "no", retryable=False)
    never = _submit(engine, "never", [], start=False)
    engine.cancel_flow(never.id)
    strict = _submit(engine, "strict", [_stage("a", 3)])
    _claim(engine, "strict")
    engine.fail(_claim(engine, "strict"), "no", retryable=False)
    assert engine.flow(strict.id).state == "failed"


def _going(engine: Engine) -> None:
    tasks = [_task("going"), _task("going", name="second"), _task("going", depends_on=("second",))]
    _submit(engine, "going", [_stage("a", 1), StageSpec("b", tasks), _stage("c", 1)], deadline_s=10 * HOUR)
    engine.succeed(_claim(engine, "going"))
    engine.start(_claim(engine, "going"))
    _submit(engine, "early", [_stage("a", 1)])
    _claim(engine, "early")
    _submit(engine, "grows", [_stage("a", 1, sealed=False)])
    engine.succeed(_claim(engine, "grows"))
    _submit(engine, "grown", [_stage("a", 1, sealed=True)], sealed=False)
    engine.succeed(_claim(engine, "grown"))


def _held(engine: Engine) -> None:
    paused = _submit(engine, "paused", [_stage("a", 2)])
    _claim(engine, "paused")
    engine.pause_flow(paused.id)
    gate = _submit(engine, "gate", [_stage("a", 2), _stage("b", 1)])
    _claim(engine, "gate")
    engine.wait_stage(gate.stages[0], Approval(owner="ann", deadline_s=HOUR))
    stopping = _submit(engine, "stopping", [_stage("a", 2)])
    _claim(engine, "stopping")
    engine.cancel_flow(stopping.id)


def _submit(engine: Engine, name: str, stages: list[StageSpec], **fields: object) -> Placed:
    for stage in stages:
        for task in stage.tasks:
            task.queue = name
    return engine.submit_flow("flow", stages, correlation_id=name, **fields)


def _stage(name: str, tasks: int, **fields: object) -> StageSpec:
    return StageSpec(name, [_task("") for _ in range(tasks)], **fields)  # type: ignore[arg-type]


def _task(queue: str, **fields: object) -> TaskSpec:
    return TaskSpec("work", queue=queue, policy=LONG, **fields)  # type: ignore[arg-type]


def _claim(engine: Engine, name: str) -> Assignment:
    (claimed,) = engine.claim(name, worker=f"{name}-worker")
    return claimed
