"""Which process of the run gets which tests next: the longest first, so that nobody is left with them at the end.

The tests of a file go to one process, so that what they share is made once. Tests that wait for processes of their own
share nothing and take long: they go one by one. Those in a browser go together, so that a run starts one browser. How
long each takes is in tests/durations.txt, which `./go test --save-durations` writes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]
DURATIONS = ROOT / "tests/durations.txt"
ONE_BY_ONE = ("tests/load/", "tests/crash/", "tests/docs/", "tests/worker/", "tests/property/test_walks")
TOGETHER = "tests/browser"
SHORT_S = 1.0
"""What takes less is not in the list. It fills the gaps at the end."""


class LongestFirst(LoadScopeScheduling):
    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        # It would put the files with the most tests first, which are not those that take longest.
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """What goes to one process: the file of a test, the test itself, or all tests in a browser."""
    path = nodeid.split("::")[0]
    if path.startswith(f"{TOGETHER}/"):
        return TOGETHER
    return nodeid if path.startswith(ONE_BY_ONE) and not _has_shared_fixtures(path) else path


@cache
def _has_shared_fixtures(path: str) -> bool:
    return 'scope="module"' in (ROOT / path).read_text()


def longest_first(items: list[pytest.Item]) -> None:
    """Put the tests in the order in which they are given out; those of a file stay together, in their own order."""
    took = {name: float(seconds) for seconds, name in map(str.split, DURATIONS.read_text().splitlines())}
    # Of what is not known, those of the same file stay together.
    items.sort(key=lambda item: (-took.get(_name_of(item.nodeid), 0.0), item.nodeid.split("::")[0]))


def save_durations(usage: Iterable[tuple[str, float, float]]) -> None:
    """Write down how long each unit of a run took: name, processor time, wall time."""
    took: dict[str, list[float]] = defaultdict(list)
    for nodeid, _, wall_s in usage:
        if "::" in nodeid:
            took[unit_of(nodeid)].append(wall_s)
    longest: dict[str, float] = defaultdict(float)
    for unit, walls in took.items():
        longest[_name_of(unit)] = max(longest[_name_of(unit)], sum(walls))
    lines = [f"{seconds:.0f} {name}\n" for name, seconds in longest.items() if seconds >= SHORT_S]
    DURATIONS.write_text("".join(sorted(lines, key=lambda line: (-int(line.split()[0]), line))))


def _name_of(nodeid: str) -> str:
    """The name of a test's unit in the list: all parameters of a test share one."""
    return re.sub(r"\[.*", "", unit_of(nodeid), flags=re.DOTALL)
