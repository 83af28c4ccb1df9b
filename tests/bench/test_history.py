"""Reads of a large log by the engine, beside the same by hand."""

import pytest

from benchmarks import history
from benchmarks.history import history as measure
from benchmarks.host import Host


def test_the_engines_reads_are_set_beside_those_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in [("STEP", 30), ("BATCH", 10), ("HISTORIES", 4), ("PAGES", 2), ("PAGE", 50)]:
        monkeypatch.setattr(history, name, size)
    heard: list[str] = []
    with Host(("sqlite",)) as host:
        found = measure(host, "sqlite", 400, 1, heard.append)
    assert heard[-1] == "sqlite: 100 of 100 jobs with a row for each event"
    for what in ("history", "page"):
        ratio = found[f"{what}_ms"] / found[f"{what}_by_hand_ms"]
        assert found[f"{what}_ratio"] == pytest.approx(ratio, rel=0.05, abs=0.01)
