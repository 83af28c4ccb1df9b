"""A process may be killed anywhere in a cascade: all of the step is there, or nothing of it, and others go on."""

from __future__ import annotations

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.flow import StageSpec
from onetray.engine.flows import advance
from onetray.failpoints import FLOW_POINTS
from tests.support import fleet
from tests.support.engines import engine_on, must_verify
from tests.support.flow_kills import (
    CASES,
    KILLED,
    before_the_commit,
    cancel_in_steps_and_die,
    every_point,
    finish,
    flows_of,
    kill_in,
    tasks,
)

STEP = 2
AT_EVERY_POINT = {"the last success of a stage", "a strict failure", "an end with a compensation"}
"""The others are killed right before their commit and right after it. `./go soak kill-flows` kills all everywhere."""
WAY = {"begun", "moving", "updated", "moved", "committing", *FLOW_POINTS}
MISSED = {"a submit": {"flows_locked"}, "the last of two dependencies": {"cascading"}}
"""A new flow needs no lock, and where no stage or flow moves there is no cascade."""


@pytest.mark.parametrize("case", CASES)
def test_a_kill_at_any_point_of_a_cascade_leaves_all_of_it_or_nothing(
    case: str, database_url: str, clock: VirtualClock
) -> None:
    with engine_on(database_url, clock) as engine:
        where = every_point if case in AT_EVERY_POINT else before_the_commit
        killed = kill_in(engine, clock, database_url, case, where)
        assert not killed.faults, killed.faults
        assert set(killed.way) - {"locked"} == WAY - MISSED.get(case, set())


def test_a_cascade_in_several_steps_goes_on_where_the_killed_left_it(
    database_url: str, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advance, "STEP", STEP)
    points = ("flows_locked", "locked", "moving", "updated", "moved", "settled", "committing", "committed")
    with engine_on(database_url, clock) as engine:
        flow = engine.submit_flow("f", [StageSpec("a", tasks(5)), StageSpec("b", tasks(3))])
        engine.start(engine.claim(worker="w")[0])

        def cancelled() -> int:
            sql = "SELECT count(*) FROM onetray.task WHERE state = 'cancelled'"
            return int(engine.store.read_sql(sql)[0][0])

        for steps in range(3):
            for point in points:
                wanted = flow.id if steps == 0 else None
                process = fleet.start(cancel_in_steps_and_die, database_url, clock.now(), STEP, wanted, point)
                fleet.end_all([process], 60, exitcode=KILLED)
                assert cancelled() == STEP * (steps + (point == "committed")), (steps, point)
            must_verify(engine)
            assert not engine.claim(worker="w"), "what is to be cancelled can be claimed"
            assert engine.flow(flow.id).state == "running"
        finish(engine, clock)
        assert flows_of(engine) == "cancelled a:cancelled b:cancelled"
        assert cancelled() == 8
