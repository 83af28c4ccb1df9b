"""Servers as processes, under requests of the native API: what was acknowledged is there, whatever stops."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import apsw
import httpx2
import pytest

from onetray.engine import Engine
from tests.support.engines import engine_on
from tests.support.fleet import wait_until
from tests.support.serving import ServerProcess, serving, serving_all

CLIENTS = 8


def _submit(client: httpx2.Client, number: int) -> str:
    answer = client.post("/api/v1/jobs", json={"kind": "mail", "payload": {"number": number}})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def _submit_until_it_is_gone(server: ServerProcess, acknowledged: list[str]) -> None:
    with server.client() as client:
        for number in range(100_000):
            try:
                acknowledged.append(_submit(client, number))
            except httpx2.TransportError:
                return


def _is_there(engine: Engine, id_: str) -> bool:
    return engine.task(id_).state == "queued"


@pytest.mark.parametrize("signals", [1, 2])
def test_a_stop_under_load_loses_no_acknowledged_request(tmp_path: Path, signals: int) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    acknowledged: list[str] = []
    with serving(tmp_path, "serve", "--database", url) as server:
        clients = [
            threading.Thread(target=_submit_until_it_is_gone, args=(server, acknowledged)) for _ in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        wait_until(lambda: len(acknowledged) >= 50)
        for _ in range(signals):
            server.send()
        assert server.end() == 0, server.log
        for client in clients:
            client.join(60)
            assert not client.is_alive()
    with engine_on(url) as engine:
        assert len(set(acknowledged)) == len(acknowledged)
        assert all(_is_there(engine, id_) for id_ in acknowledged)


def test_a_request_that_is_under_way_is_answered_after_a_stop_was_asked_for(tmp_path: Path) -> None:
    url, answers = f"sqlite:///{tmp_path / 'jobs.db'}", []
    with serving(tmp_path, "serve", "--database", url) as server, server.client() as client:
        client.get("/readyz")
        writer = apsw.Connection(str(tmp_path / "jobs.db"))
        writer.execute("BEGIN IMMEDIATE")
        request = threading.Thread(target=lambda: answers.append(_submit(client, 1)))
        request.start()
        wait_until(lambda: _open(server) == 2)
        server.send()
        server.until_logged("asked to stop")
        with pytest.raises(httpx2.TransportError), server.client() as late:
            late.get("/readyz")
        writer.execute("ROLLBACK")
        writer.close()
        request.join(60)
        assert server.end() == 0
    with engine_on(url) as engine:
        assert _is_there(engine, answers[0])


def _open(server: ServerProcess) -> int:
    """How many requests are under way, the one that asks for this among them."""
    with server.client() as client:
        return int(float(re.findall(r"^onetray_requests_open (\S+)", client.get("/metrics").text, re.MULTILINE)[0]))


def test_streams_are_told_of_a_stop_and_do_not_hold_it_up(tmp_path: Path) -> None:
    with serving(tmp_path, "serve", "--database", "sqlite:///jobs.db") as server, server.client() as client:
        with client.stream("GET", "/api/v1/feed/stream") as stream:
            assert stream.status_code == 200
            lines = stream.iter_lines()
            # A stream that has not begun to follow ends without a cursor to reconnect with.
            assert next(lines).startswith("id: ")
            server.send()
            last = list(lines)
        assert "event: bye" in last, last
        assert server.end() == 0
    assert "timeout graceful shutdown exceeded" not in server.log


def test_what_one_server_takes_another_gives(migrated_url: str, tmp_path: Path) -> None:
    with serving_all(tmp_path, ["one", "two"], "serve", "--database", migrated_url) as (one, two):
        _from_one_to_the_other(one, two)
        for server in (one, two):
            server.send()
        assert (one.end(), two.end()) == (0, 0)


def _from_one_to_the_other(one: ServerProcess, two: ServerProcess) -> None:
    found: list[httpx2.Response] = []
    with one.client() as here, two.client() as there:
        body = {"queue": "default", "worker": "w", "limit": 1, "wait_s": 20}
        waits = threading.Thread(target=lambda: found.append(there.post("/api/v1/tasks/claim", json=body)))
        waits.start()
        id_ = _submit(here, 1)
        waits.join(60)
        (task,) = found[0].json()["tasks"]
        assert task["id"] == id_
        assert here.get(f"/api/v1/jobs/{id_}").json()["state"] == "assigned"
        report = {"fence": task["fence"], "worker": "w", "result": "done"}
        assert here.post(f"/api/v1/tasks/{id_}/succeed", json=report).status_code == 200
        assert there.get(f"/api/v1/jobs/{id_}").json()["state"] == "succeeded"
