"""`./go bench handlers`: a drain by handlers that sleep."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.catalogue import PYTHON


def test_a_drain_takes_as_long_as_its_handlers_sleep_at_least(run: Callable[..., Any]) -> None:
    found = run("handlers", "--peer", "onetray-sqlite", "--jobs", 20, "--ms", 100, "--at-once", 20, "--rounds", 1)
    assert found["missing"] == {}
    assert 0 < found["handlers"]["onetray-sqlite"]["drain"] <= 200


def test_only_peers_whose_handlers_are_python_take_part() -> None:
    assert {"onetray-sqlite", "onetray-postgres", "procrastinate", "pgqueuer", "taskiq", "dbos"} <= set(PYTHON)
    assert not {"graphile-worker", "pg-boss", "bullmq"} & set(PYTHON)


@pytest.mark.parametrize("wrong", [("--peer", "bullmq"), ("--at-once", "1"), ("--ms", "-1")])
def test_arguments_out_of_range_are_refused(wrong: tuple[str, str], refused: Callable[..., str]) -> None:
    assert wrong[0] in refused("handlers", *wrong)
