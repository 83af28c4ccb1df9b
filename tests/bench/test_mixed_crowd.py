"""The database that `./go bench dashboard` looks at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import mixed_crowd
from benchmarks.checks import must_be_sound
from benchmarks.core import open_engine


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(mixed_crowd, "HOURS", 1)
    monkeypatch.setattr(mixed_crowd, "KINDS", mixed_crowd.KINDS[:4])
    monkeypatch.setattr(mixed_crowd, "FLOWS", 4)
    monkeypatch.setattr(mixed_crowd, "RUNNING", 5)
    return


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_mixed_crowd_has_jobs_of_every_sort_and_verifies(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if store == "sqlite" else request.getfixturevalue("migrated_url")
    mixed_crowd.fill_mixed(store, url, 400, lambda _: None)
    with open_engine(url) as engine:
        must_be_sound(engine)
        counts = engine.job_counts()
        states = dict(engine.store.read_sql("SELECT state, count(*) FROM onetray.task GROUP BY state"))
        flows = dict(engine.store.read_sql("SELECT state, count(*) FROM onetray.flow GROUP BY state"))
        letters = engine.store.read_sql("SELECT count(*) FROM onetray.dead_letter")[0][0]
    assert counts
    assert states["succeeded"] > states["queued"] > states["dead_lettered"] > 0
    assert states["running"] == 5
    assert states["waiting_input"] > 0
    assert states["cancelled"] > 0
    assert letters == states["dead_lettered"]
    assert set(flows) == {"succeeded", "failed", "running", "waiting"}
