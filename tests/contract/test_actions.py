"""`actions` is what the engine would accept now: each listed one is accepted, each other one is refused.

A situation is made anew for each action that is accepted. Those that are refused are tried one after the other: what
a refusal would change, the next ones would show. A repeated command changes nothing: it counts as refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from onetray.domain import commands as c
from onetray.domain import flow_commands as f
from onetray.domain.actions import REDRIVE, RETRY
from onetray.domain.errors import IllegalTransition
from onetray.domain.flow import Placed
from onetray.domain.task import Receipt
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.situations import (
    FLOWS,
    STAGES,
    TASKS,
    Case,
    Maker,
    control_task,
    later,
    softly_cancelled,
    two_tasks,
)
from tests.support.tasks import STATES, in_state

USER, WORKER, SYSTEM = "user", "worker", "system"
OF_TASK = {
    USER: {
        "resume": lambda case: c.Resume(case.id),
        "cancel": lambda case: c.Cancel(case.id, hard=True),
        RETRY: lambda case: c.Redrive(case.id),
        REDRIVE: lambda case: c.Redrive(case.id),
    },
    WORKER: {
        "start": lambda case: c.Start(**case.ticket),
        "succeed": lambda case: c.Succeed(**case.ticket),
        "fail": lambda case: c.Fail(message="no", **case.ticket),
        "release": lambda case: c.Release(**case.ticket),
        "block": lambda case: c.Pause(owner="ann", reason="why", **case.ticket),
        "wait_for_input": lambda case: c.Pause(state="waiting_input", owner="ann", reason="why", **case.ticket),
    },
}
OF_FLOW: dict[str, Callable[..., c.Command]] = {
    "open": f.OpenFlow,
    "pause": f.PauseFlow,
    "resume": f.ResumeFlow,
    "cancel": lambda id_, **by: f.CancelFlow(id_, hard=True, **by),
    RETRY: f.RetryFlow,
}
OF_STAGE: dict[str, Callable[..., c.Command]] = {
    "wait": f.WaitStage,
    "approve": f.ApproveStage,
    "reject": f.RejectStage,
    "skip": f.SkipStage,
    "cancel": lambda id_, **by: f.CancelStage(id_, hard=True, **by),
}


def takes_effect(engine: Engine, command: c.Command) -> bool:
    (verdict,) = engine.run([command])
    if isinstance(verdict.error, IllegalTransition):
        about = verdict.error
        assert about.facts["attempted"] not in about.allowed, about
    return verdict.ok and not verdict.value.repeated


def test_every_state_of_every_entity_is_tried(shared_engine: Engine) -> None:
    engine = shared_engine
    found = {
        "task": {engine.task(make(Maker(engine)).id).state for make in TASKS.values()},
        "flow": {engine.flow(make(Maker(engine)).id).state for make in FLOWS.values()},
        "stage": {engine.stage(make(Maker(engine))).state for make in STAGES.values()},
    }
    assert found["task"] == {*STATES}
    assert found["flow"] >= {"created", "pending", "running", "waiting", "paused", "succeeded", "failed", "cancelled"}
    assert found["stage"] >= {"created", "pending", "running", "waiting", "succeeded", "failed", "cancelled", "skipped"}


@each_case("situation", TASKS)
def test_the_actions_of_a_task_are_what_is_accepted(shared_engine: Engine, situation: str) -> None:
    engine = shared_engine

    def make() -> Case:
        case = TASKS[situation](Maker(engine))
        return case if case.ticket is None else Case(case.id, {**case.ticket, "task": case.id})

    refusing = make()
    for actor, commands in OF_TASK.items():
        listed = engine.task(refusing.id, actor=actor).actions
        assert set(listed) <= {*commands, "claim"}
        if actor == WORKER and refusing.ticket is None:
            assert not set(listed) - {"claim"}
            continue
        for action, command in commands.items():
            accepted = action in listed
            case = make() if accepted else refusing
            assert takes_effect(engine, command(case)) == accepted, (actor, action, listed)
        assert engine.task(refusing.id, actor=actor).actions == listed


def try_all(engine: Engine, entity: str, make: Callable[[], str], verbs: dict[str, Callable[..., c.Command]]) -> None:
    refusing, read = make(), getattr(engine, entity)
    for actor in (USER, WORKER, SYSTEM):
        listed = read(refusing, actor=actor).actions
        assert actor == SYSTEM or set(listed) <= set(verbs)
        for action, command in verbs.items():
            accepted = action in listed
            id_ = make() if accepted else refusing
            assert takes_effect(engine, command(id_, actor=actor)) == accepted, (actor, action, listed)
        assert read(refusing, actor=actor).actions == listed


@each_case("situation", FLOWS)
def test_the_actions_of_a_flow_are_what_is_accepted(shared_engine: Engine, situation: str) -> None:
    try_all(shared_engine, "flow", lambda: FLOWS[situation](Maker(shared_engine)).id, OF_FLOW)


@each_case("situation", STAGES)
def test_the_actions_of_a_stage_are_what_is_accepted(shared_engine: Engine, situation: str) -> None:
    try_all(shared_engine, "stage", lambda: STAGES[situation](Maker(shared_engine)), OF_STAGE)


def answers(engine: Engine, m: Maker) -> Iterator[tuple[Receipt | Placed, str]]:
    """Answers to commands, each with the id of what it is about."""
    member = two_tasks(m, lambda held: None)
    yield engine.cancel(member.id, hard=True), member.id
    last = Maker(engine).flow(m.stage())
    yield engine.cancel(last.tasks[0]), last.tasks[0]
    dead = in_state(engine, "dead_lettered", queue=f"{m.queue} dead")
    successor = engine.redrive(dead.id).id or ""
    yield engine.set_metadata(dead.id, 1), dead.id
    yield engine.redrive(dead.id), successor
    yield engine.cancel(successor), successor
    yield engine.redrive(dead.id), successor
    flow, gate = softly_cancelled(Maker(engine)), later(Maker(engine))
    yield engine.cancel_flow(flow.id), flow.id
    yield engine.cancel_flow(flow.id, hard=True), flow.id
    yield engine.set_flow_metadata(gate.id, 1), gate.id
    yield engine.set_stage_metadata(gate.stages[1], 1), gate.stages[1]
    yield engine.cancel_flow(gate.id), gate.id


def test_the_answer_to_a_command_lists_what_a_read_lists(shared_engine: Engine) -> None:
    engine = shared_engine
    for answer, id_ in answers(engine, Maker(engine)):
        entity = engine.locate(id_, among=("task", "flow", "stage")).entity
        assert answer.actions == getattr(engine, entity)(id_).actions, (answer, id_)


def test_lists_and_the_status_of_a_job_say_the_same(shared_engine: Engine) -> None:
    engine = shared_engine
    for make in TASKS.values():
        task = engine.task(make(Maker(engine)).id)
        assert engine.tasks_by_id([task.id])[0].actions == task.actions
        assert engine.job_status(task.id).actions == task.actions
        if task.stage_id is not None:
            assert next(t for t in engine.stage_tasks(task.stage_id) if t.id == task.id).actions == task.actions
    for make_flow in FLOWS.values():
        flow = engine.flow(make_flow(Maker(engine)).id)
        assert engine.job_status(flow.id).actions == flow.actions
        assert engine.job_details([flow.key])[0].job.actions == flow.actions


def test_an_error_lists_what_is_accepted_instead(shared_engine: Engine) -> None:
    engine = shared_engine
    failed = in_state(engine, "failed", queue="an error lists").id
    with pytest.raises(IllegalTransition) as refused:
        engine.cancel(failed)
    assert refused.value.allowed == [RETRY, REDRIVE] == list(engine.task(failed).actions)
    control = control_task(Maker(engine)).id
    with pytest.raises(IllegalTransition) as refused:
        engine.cancel(control)
    assert refused.value.allowed == []
