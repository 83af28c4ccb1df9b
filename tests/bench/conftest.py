"""How a test runs a command of `./go bench`."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from click.testing import CliRunner

from benchmarks import fleet, host
from benchmarks.__main__ import bench
from tests.support.prepared import PreparedProcess

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


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers that are forked: a dozen that start as `./go bench` starts them import for as long as they measure.

    test_workers.py starts them that way.
    """
    wanted = fleet.command

    def forked(url: str, name: str, queues: str, log: IO[bytes], leash: int) -> PreparedProcess:
        _, _, *words = wanted(url, name, queues)
        return PreparedProcess(*words, stdout=tmp_path / "log", stderr=tmp_path / "log")

    monkeypatch.setattr(fleet, "_start", forked)
