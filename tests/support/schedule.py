"""Which process of the run gets which tests next.

The tests of a file go to one process, so that what they share is made once. Tests that wait for processes of their own
share nothing and take long: they go one by one, and begin first. So nobody is left with a long file at the end.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]
FIRST = ("tests/load/", "tests/crash/", "tests/docs/", "tests/property/", "tests/http/", "tests/worker/")
"""Where the longest tests are, the longest first."""
ONE_BY_ONE = ("tests/load/", "tests/crash/", "tests/docs/", "tests/worker/", "tests/property/test_walks")


class LongestFirst(LoadScopeScheduling):
    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        # It would put the files with the most tests first, which are not those that take longest.
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """The file of a test, or the test itself."""
    path = nodeid.split("::")[0]
    return nodeid if path.startswith(ONE_BY_ONE) and not _has_shared_fixtures(path) else path


@cache
def _has_shared_fixtures(path: str) -> bool:
    return 'scope="module"' in (ROOT / path).read_text()


def longest_first(items: list[pytest.Item]) -> None:
    """Put the tests in the order in which they are given out; those of a file stay together, in their own order."""
    sizes: dict[str, int] = {}
    for item in items:
        path = item.nodeid.split("::")[0]
        sizes[path] = sizes.get(path, 0) + 1

    def place(item: pytest.Item) -> tuple[int, int, str]:
        path = item.nodeid.split("::")[0]
        rank = next((n for n, prefix in enumerate(FIRST) if path.startswith(prefix)), len(FIRST))
        return rank, -sizes[path], path

    items.sort(key=place)
