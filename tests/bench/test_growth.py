"""`./go bench growth`: databases that are full, old, or held open."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import crowd, growth
from benchmarks.checks import must_be_sound
from benchmarks.core import open_engine

CASES = ("idle", "queued", "finished", "held", "passed")
SMALL = [f"--{name}={size}" for name, size in [
    ("idle", 30), ("queued", 30), ("finished", 30), ("seconds", 0.1), ("passed", 25), ("first", 10), ("rounds", 1),
]]  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "SLICE", 20)
    monkeypatch.setattr(growth, "BATCH", 10)


def test_each_case_is_a_share_of_a_fresh_database(run: Callable[..., Any]) -> None:
    found = run("growth", "--store", "sqlite", *SMALL)["growth"]
    assert tuple(found) == CASES
    for figures in found.values():
        assert figures["sqlite"]["share"] > 0
    assert found["held"]["sqlite"]["wal_mib"] > 0


def test_a_case_can_be_chosen(run: Callable[..., Any]) -> None:
    found = run("growth", "--store", "postgres", "--case", "finished", "--case", "held", *SMALL)["growth"]
    assert tuple(found) == ("finished", "held")
    assert found["finished"]["postgres"]["mib"] > 0
    assert "wal_mib" not in found["held"]["postgres"]


@pytest.mark.parametrize(("original", "events", "ready"), [("delayed", 1, 0), ("queued", 1, 7), ("finished", 4, 0)])
def test_a_crowd_is_as_large_as_was_asked_for_and_verifies(
    original: str, events: int, ready: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd, "STEP", 3)
    monkeypatch.setattr(crowd, "MOVE", 2)
    url, heard = f"sqlite:///{tmp_path / 'jobs.db'}", list[str]()
    crowd.fill("sqlite", url, getattr(crowd, original), 7, heard.append)
    with open_engine(url) as engine:
        must_be_sound(engine)
        count = "SELECT " + ", ".join(f"(SELECT count(*) FROM onetray.{t})" for t in ("task", "event", "ready"))
        found = engine.store.read_sql(count)[0]
        assert tuple(found) == (7, 7 * events, ready)
        # The keys and the events go on after those of the crowd.
        engine.submit("noop", {"number": 0})
        must_be_sound(engine)
    assert heard == ["sqlite: 4 of 7 jobs beside", "sqlite: 7 of 7 jobs beside"]


@pytest.mark.parametrize("wrong", [("--case", "full"), ("--seconds", "0"), ("--passed", "0"), ("--idle", "-1")])
def test_arguments_out_of_range_are_refused(wrong: tuple[str, str], refused: Callable[..., str]) -> None:
    assert wrong[0] in refused("growth", *wrong)
