"""Servers as processes: what they say, what they refuse, how they stop."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from onetray import Onetray
from onetray.http import server as server_module
from onetray.http.app import build
from onetray.http.auth.middleware import may_bind
from onetray.http.services import HttpConfig, Services
from tests.cli.run import called, one_line
from tests.support import workload
from tests.support.engines import engine_on, must_verify
from tests.support.fleet import wait_until
from tests.support.serving import serving
from tests.support.workers import APP, Traces


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Onetray]:
    """The app that `up` serves, for this process; its database is verified at the end."""
    workload.app.database = f"sqlite:///{tmp_path / 'jobs.db'}"
    workload.app.engine.store.migrate()
    yield workload.app
    try:
        must_verify(workload.app.engine)
    finally:
        workload.app.close()


def test_a_server_says_where_it_is_and_leaves_in_order(tmp_path: Path) -> None:
    with serving(tmp_path, "serve", "--database", "sqlite:///jobs.db") as server:
        assert server.said.count("\n") == 1
        assert f"listens on {server.url};" in server.said
        assert f"{server.url}/docs" in server.said
        assert "no token is needed" in server.said
        with server.client() as client:
            assert client.get("/readyz").json() == {"status": "ok"}
            server.send(signal.SIGINT)
            assert server.end() == 0
    lines = [json.loads(line) for line in server.log.splitlines()]
    assert [line["message"] for line in lines][-1] == "the server has stopped"
    assert (tmp_path / "jobs.db").exists()


def test_a_stop_of_up_gives_back_what_runs_and_its_lease(app: Onetray, tmp_path: Path) -> None:
    traces = Traces(tmp_path)
    with serving(tmp_path, "up", "--app", APP, "--database", app.database, "--drain", "0.2") as server:
        job = workload.doze.submit(**traces.asked)
        wait_until(traces.rows)
        (worker,) = app.engine.workers()
        server.send()
        assert server.end() == 0
        assert f"worker {worker.name} has stopped" in server.log
    view = app.engine.task(job.id)
    assert (view.state, view.attempts, view.lease) == ("queued", 0, None), server.log
    assert app.engine.workers() == []


def test_a_stop_of_up_lets_handlers_end_and_a_second_one_does_not_wait_for_them(app: Onetray, tmp_path: Path) -> None:
    traces = Traces(tmp_path)
    with serving(tmp_path, "up", "--app", APP, "--database", app.database, "--drain", "600") as server:
        kind, stubborn = workload.nap.submit(0.3), workload.deaf.submit(**traces.asked)
        wait_until(lambda: bool(traces.rows()) and kind.state != "queued")
        server.send()
        assert kind.result(60) == 0.3
        assert server.process.poll() is None
        server.send()
        assert server.end() == 0
    view = app.engine.task(stubborn.id)
    assert (view.state, view.attempts) == ("queued", 0)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["serve", "--host", "0.0.0.0"], 2, "onetray token create"),
        (["serve", "--dialects", "esperanto"], 2, "use so1"),
        (["serve", "--port", "70000"], 2, "65,535"),
        (["serve", "--log-format", "xml"], 2, "auto, json, text"),
        (["serve", "--database", "postgresql://127.0.0.1:1/jobs"], 3, "does not answer"),
        (["serve", "--database", "mysql://x"], 2, "sqlite:///"),
        (["up"], 2, "--app module:app"),
        (["up", "--app", "no_such_module"], 2, "no module"),
        (["up", "--app", "x", "--example"], 2, "not both"),
        (["up", "--example", "--app", "x"], 2, "not both"),
    ],
)
def test_what_cannot_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = called(*words)
    assert (done.exit_code, done.stdout) == (code, ""), done.output
    assert one_line(done.stderr)
    assert said in done.stderr


def test_a_port_that_is_taken_says_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = called("serve", "--port", str(taken.getsockname()[1]), "--database", f"sqlite:///{tmp_path / 'jobs.db'}")
    assert done.exit_code == 2
    assert "use another --port" in done.stderr


def test_without_tokens_only_the_loopback_interface_is_listened_on() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        may_bind(host, has_tokens=False)
    may_bind("0.0.0.0", has_tokens=True)
    with pytest.raises(server_module.InvalidInput, match="token create"):
        may_bind("0.0.0.0", has_tokens=False)


async def _told(services: Services, heard: list[str]) -> None:
    async def late() -> None:
        heard.append("late")

    def broken() -> None:
        raise RuntimeError("deaf")

    services.closing += [lambda: heard.append("first"), broken, late]
    await services.close()


def test_all_are_told_of_a_stop_also_when_one_of_them_breaks() -> None:
    import asyncio

    heard: list[str] = []
    with engine_on("sqlite://:memory:") as engine:
        services = build(engine, HttpConfig()).state.services
        asyncio.run(_told(services, heard))
    assert heard == ["first", "late"]
    assert services.stopping
