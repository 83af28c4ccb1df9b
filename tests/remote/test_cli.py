"""The command line with a server in place of a database."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.run import called, told
from tests.support.fleet import wait_until
from tests.support.servers import Served, listener

APP = """
from onetray import Onetray

app = Onetray("sqlite:///not/there.db")


@app.task(isolation="process")
def add(a: int, b: int) -> int:
    return a + b
"""


def test_jobs_are_submitted_listed_shown_and_cancelled_at_a_server(server: Served) -> None:
    at = ("--database", server.url)
    job = told("submit", "mail", "to=ann", *at)["id"]
    assert [j["id"] for j in told("jobs", "list", *at)["jobs"]] == [job]
    assert told("jobs", "show", job, *at)["payload"] == {"to": "ann"}
    assert [q["ready"] for q in told("queues", "list", *at)["queues"]] == [1]
    assert told("jobs", "explain", job[-8:], *at)["before_it"] == 0
    assert told("jobs", "cancel", job, *at)["state"] == "cancelled"
    assert called("jobs", "events", job, *at).stdout.count("\n") == 2
    assert called("jobs", "cancel", job, *at).exit_code == 5
    assert called("queues", "pause", "default", *at).exit_code == 0


@pytest.mark.parametrize("words", [("migrate",), ("verify",), ("prune", "--older-than", "1d", "--yes")])
def test_what_needs_the_database_itself_says_so(server: Served, words: tuple[str, ...]) -> None:
    done = called(*words, "--database", server.url)
    assert done.exit_code == 3
    assert "needs the database itself" in done.stderr


def test_a_server_that_is_not_there_is_told_of_at_once() -> None:
    with listener() as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    done = called("jobs", "list", "--database", url)
    assert done.exit_code == 3
    assert "cannot be reached" in done.stderr


def test_a_worker_is_for_a_server_or_a_database() -> None:
    for words in (("--server", "sqlite:///x.db"), ("--server", "http://h", "--database", "sqlite:///x.db")):
        done = called("worker", "--app", "m:app", *words)
        assert done.exit_code == 2
        assert "--server" in done.stderr


def test_a_worker_process_works_for_a_server(server: Served, tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(APP)
    command = [sys.executable, "-m", "onetray", "worker", "--app", "sums:app", "--server", server.url]
    job = told("submit", "add", "a=2", "b=3", "--database", server.url)["id"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as worker:
        try:
            wait_until(lambda: told("jobs", "show", job, "--database", server.url)["state"] == "succeeded", 60)
            worker.send_signal(signal.SIGTERM)
            _, log = worker.communicate(timeout=60)
        finally:
            worker.kill()
    assert worker.returncode == 0
    assert "has stopped" in log
    assert "HTTP Request" not in log
