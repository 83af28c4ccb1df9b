"""Tasks, flows and stages in all situations that decide what may be done with them, each made anew."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from onetray.domain.flow import Approval, More, Placed, StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine
from tests.support.tasks import STATES, in_state

NUMBERS = count()
ONCE = Policy(max_attempts=1, lease_s=3600)


class Case(NamedTuple):
    """An entity in a situation; of a task that a worker holds, with the fields of its reports."""

    id: str
    ticket: dict[str, Any] | None = None


class Maker:
    """Makes flows whose tasks wait in a queue of their own."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.queue = engine, f"queue {next(NUMBERS)}"

    def task(self, **fields: Any) -> TaskSpec:
        return TaskSpec("work", queue=self.queue, policy=ONCE, **fields)

    def stage(self, name: str = "a", tasks: int = 1, **fields: Any) -> StageSpec:
        return StageSpec(name, [self.task() for _ in range(tasks)], **fields)

    def flow(self, *stages: StageSpec, **fields: Any) -> Placed:
        return self.engine.submit_flow(fields.pop("name", "flow"), list(stages), **fields)

    def claim(self) -> Assignment:
        return self.engine.claim(self.queue, worker="w")[0]

    def succeed(self, **fields: Any) -> Assignment:
        held = self.claim()
        self.engine.succeed(held, **fields)
        return held

    def fail(self, **fields: Any) -> Assignment:
        held = self.claim()
        self.engine.fail(held, "no", **{"retryable": False, **fields})
        return held


def with_spawned(m: Maker, spawner_fails: bool, **fields: Any) -> Case:
    """A failed task that another one of its stage has spawned; its flow has ended."""
    flow = m.flow(m.stage("a"), **fields)
    spawner = m.claim()
    if spawner_fails:
        (new,) = m.engine.add_tasks(flow.stages[0], [m.task()], spawned_by=spawner.id).tasks
        m.engine.fail(spawner, "no", retryable=False)
        if fields.get("roll_up") == "drain":
            m.fail()
    else:
        m.engine.succeed(spawner, more=More(spawn={"a": [m.task()]}))
        new = m.fail().id
    assert m.engine.flow(flow.id).finished_at is not None
    return Case(new)


def two_tasks(m: Maker, end: Callable[[Assignment], Any], **fields: Any) -> Case:
    """The first task of an open stage, ended in this way."""
    m.flow(m.stage("a", 2), roll_up="drain", **fields)
    held = m.claim()
    end(held)
    return Case(held.id)


def dependent(m: Maker, roll_up: str, ends: bool) -> Case:
    """A task that was cancelled because one that it needs has failed."""
    tasks = [m.task(name="first"), m.task(name="second", depends_on=("first",)), m.task(name="third")]
    flow = m.flow(StageSpec("a", tasks), roll_up=roll_up)
    m.fail()
    if ends and roll_up != "strict":
        m.succeed()
    return Case(flow.tasks[1])


def dependent_on_redriven(m: Maker) -> Case:
    tasks = [m.task(name="first"), m.task(name="second", depends_on=("first",)), m.task(name="third")]
    flow = m.flow(StageSpec("a", tasks), roll_up="drain")
    m.engine.redrive(m.fail().id)
    return Case(flow.tasks[1])


def redriven(m: Maker) -> Case:
    case = two_tasks(m, lambda held: m.engine.fail(held, "no", retryable=False))
    m.engine.redrive(case.id)
    return case


def single(state: str) -> Callable[[Maker], Case]:
    def make(m: Maker) -> Case:
        made = in_state(m.engine, state, queue=m.queue)
        return Case(made.id, made.ticket)

    return make


def dead_and_redriven(m: Maker) -> Case:
    made = in_state(m.engine, "dead_lettered", queue=m.queue)
    m.engine.redrive(made.id)
    return Case(made.id)


def cancel_requested(m: Maker) -> Case:
    made = in_state(m.engine, "running", queue=m.queue)
    m.engine.cancel(made.id)
    return Case(made.id, made.ticket)


def member_of_ended(m: Maker, roll_up: str, how: str) -> Case:
    m.flow(m.stage("a", 2), roll_up=roll_up)
    first = m.claim()
    second = m.claim()
    m.engine.succeed(first)
    m.engine.fail(second, "no", **({"reason_code": "timeout"} if how == "dead" else {"retryable": False}))
    return Case(first.id if how == "succeeded" else second.id)


def carried_over_dead(m: Maker, original: bool) -> Case:
    """One of two dead letters of an ended flow was redriven in a new flow; the other one was carried over to it."""
    m.flow(m.stage("a", 2), roll_up="drain")
    dead = [m.fail(reason_code="timeout").id for _ in range(2)]
    successor = m.engine.redrive(dead[0]).id or ""
    if original:
        return Case(dead[1])
    tasks = m.engine.stage_tasks(m.engine.task(successor).stage_id or "")
    return Case(next(t.id for t in tasks if t.state == "dead_lettered"))


def stage_over(m: Maker) -> Case:
    m.flow(m.stage("a", on_failure="continue"), m.stage("b"))
    return Case(m.fail().id)


def control_task(m: Maker) -> Case:
    m.flow(m.stage("a", when=m.task()))
    return Case(m.fail().id)


def ending_flow_member(m: Maker) -> Case:
    flow = m.flow(m.stage("a", 2), roll_up="drain")
    failed = m.fail()
    m.claim()
    m.engine.cancel_flow(flow.id)
    return Case(failed.id)


def compensated_member(m: Maker) -> Case:
    m.flow(m.stage("a", compensate=m.task()), m.stage("b"))
    m.succeed()
    return Case(m.fail().id)


def member_of_singleton(m: Maker) -> Case:
    m.flow(m.stage(), name=m.queue, singleton=True)
    failed = m.fail()
    m.flow(m.stage(), name=m.queue, singleton=True)
    return Case(failed.id)


def spawned_and_undone(m: Maker) -> Case:
    m.flow(m.stage("a", compensate=m.task()))
    m.succeed(more=More(spawn={"a": [m.task()]}))
    return Case(m.fail().id)


TASKS: dict[str, Callable[[Maker], Case]] = {
    **{state: single(state) for state in STATES},
    "a dead letter that was redriven": dead_and_redriven,
    "a cancel was requested": cancel_requested,
    "a failed member of an open stage": lambda m: two_tasks(m, lambda a: m.engine.fail(a, "no", retryable=False)),
    "a dead letter of an open stage": lambda m: two_tasks(m, lambda a: m.engine.fail(a, "no")),
    "a succeeded member of an open stage": lambda m: two_tasks(m, lambda a: m.engine.succeed(a)),
    "a cancelled member of an open stage": lambda m: two_tasks(m, lambda a: m.engine.cancel(a.id, hard=True)),
    "a member that was redriven in its stage": redriven,
    "a member of a stage that is over in an open flow": stage_over,
    "a member of a flow that is ending": ending_flow_member,
    "a control task": control_task,
    "a member of a compensated flow": compensated_member,
    "a member of a singleton of which another is open": member_of_singleton,
    **{f"a member that is {how}, of an ended {roll_up} flow": lambda m, r=roll_up, h=how: member_of_ended(m, r, h)  # type: ignore[misc]
       for roll_up in ("strict", "drain") for how in ("succeeded", "failed", "dead")},
    **{f"depends on a failed one, {roll_up}, {'ended' if ends else 'open'}":
       lambda m, r=roll_up, e=ends: dependent(m, r, e)  # type: ignore[misc]
       for roll_up, ends in (("strict", True), ("drain", True), ("drain", False))},
    "depends on one that was redriven": dependent_on_redriven,
    "a dead letter that was carried over": lambda m: carried_over_dead(m, original=False),
    "a dead letter whose copy was carried over": lambda m: carried_over_dead(m, original=True),
    "was spawned by one that succeeded": lambda m: with_spawned(m, spawner_fails=False),
    "was spawned by one that failed": lambda m: with_spawned(m, spawner_fails=True),
    "was spawned by one that failed, drain": lambda m: with_spawned(m, spawner_fails=True, roll_up="drain"),
    "was spawned in a stage that was undone": spawned_and_undone,
}  # fmt: skip


def paused(m: Maker) -> Placed:
    return m.engine.pause_flow(m.flow(m.stage()).id)


def softly_cancelled(m: Maker, hard: bool = False, pause: bool = False) -> Placed:
    """A worker still holds a task of it."""
    flow = m.flow(m.stage("a", 2), m.stage("b"))
    m.engine.start(m.claim())
    if pause:
        m.engine.pause_flow(flow.id)
    m.engine.cancel_flow(flow.id, hard=hard)
    return flow


def ended(m: Maker, fail: bool) -> Placed:
    flow = m.flow(m.stage("a"), m.stage("b"))
    m.succeed()
    m.fail() if fail else m.succeed()
    return flow


def singleton(m: Maker, other_is_open: bool) -> Placed:
    flow = m.flow(m.stage(), name=m.queue, singleton=True)
    m.fail()
    if other_is_open:
        m.flow(m.stage(), name=m.queue, singleton=True)
    return flow


def retried(m: Maker, fail: bool, delete_origin: bool) -> Placed:
    """The first stage was carried over from a flow that may be deleted since."""
    first = ended(m, fail=True)
    second = m.engine.retry_flow(first.id)
    m.fail() if fail else m.succeed()
    if delete_origin:
        m.engine.delete_job(first.id)
    return second


def compensation(m: Maker) -> Placed:
    flow = m.flow(m.stage("a", compensate=m.task()), m.stage("b"))
    m.succeed()
    m.fail()
    m.fail()
    undoing = m.engine.flow(m.engine.flow(flow.id).compensation or "")
    assert undoing.finished_at is not None
    return Placed(undoing.id, "flow", undoing.state, undoing.version)


def started(m: Maker) -> Placed:
    flow = m.flow(m.stage())
    m.engine.start(m.claim())
    return flow


def waiting(m: Maker) -> Placed:
    flow = m.flow(m.stage())
    m.engine.wait_stage(flow.stages[0])
    return flow


FLOWS: dict[str, Callable[[Maker], Placed]] = {
    "created": lambda m: m.flow(m.stage(), start=False),
    "pending": lambda m: m.flow(m.stage()),
    "running": started,
    "waiting": waiting,
    "paused": paused,
    "without stages": lambda m: m.flow(sealed=False),
    "softly cancelled": softly_cancelled,
    "softly cancelled while paused": lambda m: softly_cancelled(m, pause=True),
    "cancelled": lambda m: softly_cancelled(m, hard=True),
    "succeeded": lambda m: ended(m, fail=False),
    "failed": lambda m: ended(m, fail=True),
    "a failed singleton": lambda m: singleton(m, other_is_open=False),
    "a failed singleton of which another is open": lambda m: singleton(m, other_is_open=True),
    "a failed retry": lambda m: retried(m, fail=True, delete_origin=False),
    "a failed retry of a deleted flow": lambda m: retried(m, fail=True, delete_origin=True),
    "a succeeded retry": lambda m: retried(m, fail=False, delete_origin=False),
    "a succeeded retry of a deleted flow": lambda m: retried(m, fail=False, delete_origin=True),
    "a failed compensation": compensation,
}


def stage_of(make: Callable[[Maker], Placed], place: int = 0) -> Callable[[Maker], str]:
    return lambda m: m.engine.stages(make(m).id)[place].id


def later(m: Maker, **fields: Any) -> Placed:
    return m.flow(m.stage("a"), m.stage("b", **fields))


def deciding(m: Maker) -> Placed:
    return m.flow(m.stage("a", when=m.task(), approval=Approval()))


def stage_cancelled(m: Maker, hard: bool) -> Placed:
    flow = m.flow(m.stage("a", 2), m.stage("b"))
    m.engine.start(m.claim())
    m.engine.cancel_stage(flow.stages[0], hard=hard)
    return flow


def skipped(m: Maker) -> Placed:
    flow = later(m)
    m.engine.skip_stage(flow.stages[1])
    return flow


STAGES: dict[str, Callable[[Maker], str]] = {
    "created, in a flow that is not open": stage_of(FLOWS["created"]),
    "waiting, in a flow that is not open": stage_of(lambda m: m.flow(m.stage(start_as_waiting=True), start=False)),
    "pending": stage_of(FLOWS["pending"]),
    "running": stage_of(started),
    "waiting": stage_of(waiting),
    "of a paused flow": stage_of(paused),
    "later": stage_of(later, 1),
    "later, its failure is ignored": stage_of(lambda m: later(m, on_failure="ignore"), 1),
    "later, it will wait": stage_of(lambda m: later(m, start_as_waiting=True), 1),
    "its condition is being decided": stage_of(deciding),
    "softly cancelled": stage_of(lambda m: stage_cancelled(m, hard=False)),
    "cancelled": stage_of(lambda m: stage_cancelled(m, hard=True)),
    "of a softly cancelled flow": stage_of(softly_cancelled),
    "later, of a softly cancelled flow": stage_of(softly_cancelled, 1),
    "succeeded": stage_of(FLOWS["succeeded"]),
    "failed": stage_of(FLOWS["failed"], 1),
    "carried over": stage_of(FLOWS["a failed retry"]),
    "skipped": stage_of(skipped, 1),
}
