"""Workers that are killed while they work: every job ends in one tray, with one accepted outcome."""

from __future__ import annotations

from pathlib import Path

from tests.support.worker_kills import kill_workers


def test_jobs_of_workers_that_are_killed_end_once_each(database_url: str, tmp_path: Path) -> None:
    done = kill_workers(database_url, tmp_path, jobs=100, processes=3, every_s=0.5, most_kills=6)
    assert done.faults == []
    assert done.kills >= 3
