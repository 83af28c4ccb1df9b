"""How a test runs a command of `./go bench`."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import host
from benchmarks.__main__ import bench

Run = Callable[..., Any]


@pytest.fixture
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The JSON that a command prints. It uses the server of the tests: to start its own would take longer than it."""

    def start() -> Any:
        server, lent = request.getfixturevalue("postgres"), request.getfixturevalue("databases")
        log = getattr(server, "log", None)
        return nullcontext(SimpleNamespace(url=server.url, pid=None, log=log, database=lent.database))

    monkeypatch.setattr(host, "Cluster", SimpleNamespace(start=start))

    def answer(*words: object) -> Any:
        done = CliRunner().invoke(bench, [*map(str, words), "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    return answer


@pytest.fixture
def refused() -> Callable[..., str]:
    """What a command says when it does not take its arguments."""

    def complaint(*words: object) -> str:
        done = CliRunner().invoke(bench, [*map(str, words)])
        assert done.exit_code == 2, done.output
        return done.stderr

    return complaint
