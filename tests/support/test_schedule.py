"""The longest tests begin first, and those of a file stay together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import schedule

LONG, SHORT, NEW = "tests/http/test_streams.py", "tests/cli/test_jobs.py", "tests/bench/test_core.py"
WAITS = "tests/crash/test_kill.py"


@pytest.fixture(autouse=True)
def durations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(schedule, "DURATIONS", tmp_path / "durations.txt")
    schedule.save_durations(
        [
            (f"{SHORT}::test_a", 1.0, 2.0),
            (f"{LONG}::test_a[x y]", 1.0, 5.0),
            (f"{LONG}::test_b", 1.0, 4.0),
            (f"{WAITS}::test_a[one]", 1.0, 7.0),
            (f"{WAITS}::test_a[two]", 1.0, 3.0),
            (f"{WAITS}::test_b", 1.0, 0.1),
            ("(between tests)", 9.0, 99.0),
        ]
    )
    return schedule.DURATIONS


def test_a_file_takes_as_long_as_its_tests_and_a_test_as_long_as_its_longest_case(durations: Path) -> None:
    assert durations.read_text().splitlines() == [f"9 {LONG}", f"7 {WAITS}::test_a", f"2 {SHORT}"]


def test_what_took_longest_begins_first_and_what_is_not_known_comes_last() -> None:
    names = [
        f"{NEW}::test_a", f"{SHORT}::test_a", f"{WAITS}::test_b", f"{LONG}::test_b", f"{LONG}::test_a[x y]",
        f"{WAITS}::test_a[two]",
    ]  # fmt: skip
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    schedule.longest_first(items)
    assert [item.nodeid for item in items] == [
        f"{LONG}::test_b", f"{LONG}::test_a[x y]", f"{WAITS}::test_a[two]", f"{SHORT}::test_a", f"{NEW}::test_a",
        f"{WAITS}::test_b",
    ]  # fmt: skip


def test_tests_of_a_file_share_a_process_unless_they_wait_for_processes_of_their_own() -> None:
    assert schedule.unit_of(f"{LONG}::test_a[x::y]") == LONG
    assert schedule.unit_of(f"{WAITS}::test_a[x]") == f"{WAITS}::test_a[x]"


def test_all_tests_in_a_browser_share_a_process() -> None:
    assert schedule.unit_of("tests/browser/test_a.py::test_a[x]") == schedule.unit_of("tests/browser/test_b.py::test_b")
