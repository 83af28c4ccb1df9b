"""Two agents share out a run and are killed at random: a small version of `./go soak agents`."""

from __future__ import annotations

from pathlib import Path

from tests.support.agent_kills import kill_agents
from tests.support.engines import open_migrated


def test_killed_agents_lose_no_task_and_no_outcome_counts_twice(database_url: str, tmp_path: Path) -> None:
    open_migrated(database_url).close()
    journals = tmp_path / "journals"
    journals.mkdir()
    done = kill_agents(database_url, journals, tasks=30, every=8, seed=1, limit_s=120, say=print)
    assert done.faults == []
    assert done.kills >= 2
    assert 0 < done.accepted <= done.tasks <= done.attempts
