"""The last tasks of a stage end at the same moment: the stage ends once, and the next one gets its turn."""

from __future__ import annotations

from tests.support.last_task_races import ACTS, RACES, STAGES, Outcome, run_races

# `./go soak flows` has two thousand stages for each race.
RACING, MIXED = 30, 10


def race(url: str, races: tuple[str, ...], stages: int) -> Outcome:
    outcome = run_races(url, races, stages, limit_s=60)
    assert not outcome.faults, (str(outcome), outcome.faults[:20])
    return outcome


def test_tasks_that_end_at_once_end_their_stage_open_the_next_and_let_their_dependent_go(own_url: str) -> None:
    outcome = race(own_url, ("plain", "depend"), RACING)
    for name in ("plain", "depend"):
        assert outcome.states["stages"][name] == {"succeeded": RACING}
        assert outcome.states["flows"][name] == {"succeeded": RACING // STAGES}
    assert outcome.refused == 0


def test_no_stage_is_stuck_whatever_happens_to_its_flow_while_its_last_tasks_end(own_url: str) -> None:
    outcome = race(own_url, RACES, MIXED)
    assert all(outcome.acts[name] > 0 for name in ACTS), outcome.acts
    ended = outcome.states["stages"]
    assert ended["cancel_soft"]["cancelled"] > 0
    assert ended["cancel_hard"]["cancelled"] > 0
    assert ended["fail_strict"]["failed"] > 0
    assert ended["fail_drain"]["failed"] > 0
    for calm in ("plain", "depend", "add_tasks", "pause"):
        assert ended[calm] == {"succeeded": MIXED}
