"""Flows for tests: how they stand, how they are run, and whether their history is whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

from onetray.domain.flow import Placed
from onetray.domain.lifecycle import MACHINES
from onetray.domain.task import Assignment, Event
from onetray.engine import Engine


def how(engine: Engine, flow: Placed | str) -> list[str]:
    """The state of a flow, then those of its stages."""
    id_ = flow if isinstance(flow, str) else flow.id
    return [engine.flow(id_).state, *(s.state for s in engine.stages(id_))]


def tasks_of(engine: Engine, stage: str) -> list[str]:
    """The states of a stage's tasks, in their order."""
    return [t.state for t in engine.stage_tasks(stage)]


def report(engine: Engine, task: Assignment, bad: Collection[str] = (), result: Any = None) -> None:
    """Fail a task for good when its kind is among the bad ones; else succeed."""
    if task.kind in bad:
        engine.fail(task, "no", retryable=False)
    else:
        engine.succeed(task, result)


def run_all(engine: Engine, bad: Collection[str] = (), answer: Callable[[Assignment], Any] | None = None) -> list[str]:
    """Run all that can be claimed, one at a time; answers the kinds in the order they ran."""
    ran = []
    while claimed := engine.claim(worker="w"):
        ran.append(claimed[0].kind)
        report(engine, claimed[0], bad, answer(claimed[0]) if answer else claimed[0].kind)
    return ran


def history(engine: Engine, flow: Placed | str) -> list[Event]:
    """All events of a flow. Each entity's transitions are one apart, lead from state to state, and end where it is."""
    id_ = flow if isinstance(flow, str) else flow.id
    events = engine.flow_events(id_, limit=10_000)
    of: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.version is not None:
            of[event.entity_id].append(event)
    rows: list[Any] = [engine.flow(id_), *engine.stages(id_)]
    rows += [t for stage in engine.stages(id_) for t in engine.stage_tasks(stage.id, limit=10_000)]
    assert sorted(of) == sorted(row.id for row in rows)
    for row in rows:
        own = of[row.id]
        assert [e.version for e in own] == list(range(1, row.version + 1))
        assert [e.was for e in own] == [None, *(e.state for e in own[:-1])]
        assert own[-1].state == row.state
        terminal = MACHINES[own[0].type.split(".")[0]].terminal
        assert all(e.state not in terminal for e in own[:-1])
    return events


def types(engine: Engine, flow: Placed | str, of: str) -> list[str]:
    """The types of the events of a flow, or of one of its stages or tasks, in order."""
    return [e.type for e in history(engine, flow) if e.entity_id == of]


def last(engine: Engine, flow: Placed | str, of: str) -> Event:
    """The newest transition of a flow, or of one of its stages or tasks."""
    return [e for e in history(engine, flow) if e.entity_id == of and e.version is not None][-1]
