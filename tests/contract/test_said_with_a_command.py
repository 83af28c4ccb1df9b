"""Whatever is said with a command reaches its effect: who, why and in which trace stand in the log, for every verb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onetray.domain.declared_flow import FlowDeclaration, StageDeclaration
from onetray.domain.errors import InvalidInput
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.system_commands import SystemCommand
from onetray.domain.verbs import VERBS, command_of
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.flows import run_all
from tests.support.tasks import take

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SAID = {"actor_name": "ann", "cause": "because", "trace": TRACE}
Fields = dict[str, Any]


def task(engine: Engine, queue: str, **fields: Any) -> str:
    return engine.submit("x", queue=queue, **fields).id or ""


def paused(engine: Engine, queue: str) -> Fields:
    id_ = task(engine, queue)
    engine.pause(take(engine, queue=queue), owner="bob", reason="r")
    return {"task": id_}


def ended(engine: Engine, queue: str) -> Fields:
    id_ = task(engine, queue)
    engine.cancel(id_)
    return {"task": id_}


def flow(engine: Engine, queue: str, *stages: StageSpec, **fields: Any) -> tuple[str, str]:
    made = engine.submit_flow("f", stages or [StageSpec("a", [TaskSpec("x", queue=queue)])], **fields)
    return made.id, made.stages[0]


def paused_flow(engine: Engine, queue: str) -> Fields:
    id_ = flow(engine, queue)[0]
    engine.pause_flow(id_)
    return {"flow": id_}


def ended_flow(engine: Engine, queue: str) -> Fields:
    id_ = flow(engine, queue)[0]
    engine.cancel_flow(id_)
    return {"flow": id_}


def waiting(engine: Engine, queue: str) -> Fields:
    spec = StageSpec("a", [TaskSpec("x", queue=queue)], approval=Approval())
    return {"flow": flow(engine, queue, spec)[1]}


def growing(engine: Engine, queue: str) -> tuple[str, str]:
    return flow(engine, queue, StageSpec("a", [TaskSpec("x", queue=queue)], sealed=False), sealed=False)


def declared(engine: Engine, queue: str) -> Fields:
    stage = StageDeclaration(name="a", kind="x", queue=queue)
    engine.declare_flow(FlowDeclaration(name=f"of {queue}", stages=[stage]))
    return {"name": f"of {queue}"}


def new_stage(queue: str) -> StageSpec:
    return StageSpec("new", [TaskSpec("x", queue=queue)])


COMMANDS: dict[str, Callable[[Engine, str], Fields]] = {
    "submit": lambda e, q: {"kind": "x", "queue": q},
    "resume": paused,
    "cancel": lambda e, q: {"task": task(e, q)},
    "redrive": ended,
    "set_priority": lambda e, q: {"task": task(e, q), "priority": 7},
    "set_metadata": lambda e, q: {"task": task(e, q), "metadata": 7},
    "set_flow_metadata": lambda e, q: {"flow": flow(e, q)[0], "metadata": 7},
    "set_flow_priority": lambda e, q: {"flow": flow(e, q)[0], "priority": 7},
    "set_stage_metadata": lambda e, q: {"flow": flow(e, q)[1], "metadata": 7},
    "cancel_stage": lambda e, q: {"flow": flow(e, q)[1]},
    "reschedule": lambda e, q: {"task": task(e, q), "delay_s": 5},
    "submit_flow": lambda e, q: {"name": "f", "stages": [new_stage(q)]},
    "submit_declared": declared,
    "add_stage": lambda e, q: {"flow": growing(e, q)[0], "stage": new_stage(q)},
    "add_tasks": lambda e, q: {"flow": growing(e, q)[1], "tasks": [TaskSpec("x", queue=q)]},
    "open_flow": lambda e, q: {"flow": flow(e, q, start=False)[0]},
    "pause_flow": lambda e, q: {"flow": flow(e, q)[0]},
    "resume_flow": paused_flow,
    "cancel_flow": lambda e, q: {"flow": flow(e, q)[0]},
    "seal_flow": lambda e, q: {"flow": growing(e, q)[0]},
    "retry_flow": ended_flow,
    "append_context": lambda e, q: {"flow": flow(e, q)[0], "payload": 1},
    "seal_stage": lambda e, q: {"flow": growing(e, q)[1]},
    "wait_stage": lambda e, q: {"flow": growing(e, q)[1]},
    "approve_stage": waiting,
    "reject_stage": waiting,
    "skip_stage": waiting,
}


def test_every_command_that_somebody_gives_is_tried_here() -> None:
    given = {verb for verb, kind in VERBS.items() if "cause" in kind.__dataclass_fields__}
    assert given - {v for v, kind in VERBS.items() if issubclass(kind, SystemCommand)} == set(COMMANDS)


@each_case("verb", COMMANDS)
def test_who_why_and_in_which_trace_stand_in_the_log(shared_engine: Engine, verb: str) -> None:
    engine = shared_engine
    fields = COMMANDS[verb](engine, verb)
    before = engine.feed.tail()
    engine.call(command_of(verb, {**fields, **SAID}))
    events = engine.feed.read(before).events
    assert [e.type for e in events if e.actor == "user:ann"], "nobody is told who did it"
    assert [e.type for e in events if e.cause == "because"], "nobody is told why"
    assert [e.type for e in events if e.trace == TRACE], "the trace is lost"
    # The same event has all of it, and what comes into being by the command is of its trace.
    assert [e for e in events if (e.actor, e.cause, e.trace) == ("user:ann", "because", TRACE)]
    assert {e.trace for e in events if e.version == 1} <= {TRACE}


@each_case("role", ["when", "compensate"])
@each_case("time", [{"delay_s": 5.0}, {"run_at": 5}])
def test_a_time_for_a_condition_or_a_compensation_is_refused(
    shared_engine: Engine, role: str, time: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match=f"stage.{role}"):
        shared_engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], **{role: TaskSpec("y", **time)})])


def test_a_retry_gives_the_trace_and_the_cause_to_what_runs_again(shared_engine: Engine) -> None:
    engine = shared_engine
    made = engine.submit_flow(
        "f", [StageSpec("a", [TaskSpec("bad", queue="again")])], trace=TRACE.replace("0af", "1bf")
    )
    engine.fail(take(engine, queue="again"), "no", retryable=False)
    again = engine.retry_flow(made.id, **SAID)
    (first,) = engine.events(again.tasks[0])
    assert (engine.task(again.tasks[0]).trace, first.cause) == (TRACE, "because")
    run_all(engine)
