"""The command line with a server in place of a database."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from onetray.domain.flow import Approval, StageSpec, TaskSpec
from tests.cli.run import called, told
from tests.remote.conftest import at_work
from tests.support.engines import migrated_sqlite
from tests.support.fleet import wait_until
from tests.support.prepared import PreparedProcess
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
    job = told("submit", "mail", "to=ann", "--unknown-kind", *at)["id"]
    assert [j["id"] for j in told("jobs", "list", *at)["jobs"]] == [job]
    assert told("jobs", "show", job, *at)["payload"] == {"to": "ann"}
    assert [q["ready"] for q in told("queues", "list", *at)["queues"]] == [1]
    explained = told("jobs", "explain", job[-8:], *at)
    assert ([reason["code"] for reason in explained["reasons"]], explained["before_it"]) == (["no_worker"], 0)
    assert told("jobs", "cancel", job, *at)["state"] == "cancelled"
    assert called("jobs", "events", job, *at).stdout.count("\n") == 2
    assert called("jobs", "cancel", job, *at).exit_code == 5
    assert called("queues", "pause", "default", *at).exit_code == 0


def test_a_kind_that_the_server_does_not_know_is_refused(server: Served) -> None:
    at = ("--database", server.url)
    told("submit", "send_mail", "--unknown-kind", *at)
    done = called("submit", "send_mial", *at)
    assert (done.exit_code, "did you mean 'send_mail'?" in done.stderr) == (2, True)
    assert told("jobs", "cancel", "--all", "--kind", "send_mail", "--yes", *at)["done"] == 1
    assert told("jobs", "retry", "--all", "--yes", *at)["done"] == 1
    assert told("jobs", "retry", "--all", "--yes", *at)["repeated"] == 1


def test_a_token_that_may_only_submit_need_not_know_the_kinds(tmp_path: Path) -> None:
    with at_work(migrated_sqlite(tmp_path)) as (engine, server):
        token = engine.tokens.create("ci", ("submit",)).text
        done = called("submit", "mail", "--database", server.url, ONETRAY_TOKEN=token)
        assert done.exit_code == 0, done.stderr
        assert [job.kind for job in engine.jobs().jobs] == ["mail"]


def test_a_token_is_asked_for_by_its_variable_and_one_that_allows_too_little_is_exit_code_6(tmp_path: Path) -> None:
    with at_work(migrated_sqlite(tmp_path)) as (engine, server):
        token = engine.tokens.create("bob", ("read", "operate")).text
        stage = engine.submit_flow("pay", [StageSpec("ask", [TaskSpec("pay")], approval=Approval(owner="ann"))]).stages[
            0
        ]
        at = ("--database", server.url)
        for words, variable, says in (
            (("jobs", "list"), "", "the server needs a token: set ONETRAY_TOKEN"),
            (("jobs", "list"), "ot_x_y", "; the token comes from ONETRAY_TOKEN"),
            (("submit", "mail", "--unknown-kind"), token, "scope submit"),
            (("stages", "approve", stage), token, "'bob' is neither that user nor in a group of that name (database"),
        ):
            done = called(*words, *at, ONETRAY_TOKEN=variable)
            assert (done.exit_code, says in done.stderr) == (6, True), done.stderr


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
    command, said = ("onetray", "worker", "--app", "sums:app", "--server", server.url), tmp_path / "said"
    job = told("submit", "add", "a=2", "b=3", "--unknown-kind", "--database", server.url)["id"]
    worker = PreparedProcess(*command, cwd=tmp_path, stderr=said)
    try:
        wait_until(lambda: told("jobs", "show", job, "--database", server.url)["state"] == "succeeded", 60)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    finally:
        worker.kill()
    log = said.read_text()
    assert "has stopped" in log
    assert "HTTP Request" not in log
