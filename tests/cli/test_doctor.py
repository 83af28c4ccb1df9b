"""`onetray doctor`: what is wrong with a set-up, and what to do about it."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import psycopg
import pytest

from onetray.cli import doctor
from onetray.config import hide_password
from onetray.store import server_facts
from onetray.store.sqlite import SqliteStore
from tests.cli.conftest import Place
from tests.cli.run import called, onetray, told
from tests.cli.test_verify import spoil
from tests.cli.test_workers import beat
from tests.support.engines import engine_on
from tests.support.tasks import submit


def verdicts(found: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in found["checks"]}


def test_a_sound_set_up_is_all_ok(database_url: str) -> None:
    with engine_on(database_url) as engine:
        engine.cancel(submit(engine))
    # The tests' own servers are set to be quick rather than safe: that is found, and nothing else.
    found = verdicts(json.loads(called("doctor", "--database", database_url, "--json").stdout))
    assert {v for name, v in found.items() if name != "durable"} == {"ok"}
    assert {"python", "database", "schema", "clock", "janitor", "queues", "workers", "rules"} <= set(found)


def test_each_line_has_a_verdict_and_what_is_not_ok_a_next_step(place: Place) -> None:
    submit(place.engine, queue="mail")
    beat(place, "w1", queues=("mail",))
    place.engine.pause_queue("mail", by="ann")
    done = onetray("doctor", *place.at)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} == {"ok", "warn"}
    (warning,) = [line for line in lines if line.startswith("warn")]
    assert "paused by ann" in warning
    assert warning.endswith("`onetray queues resume mail`")


def test_a_database_that_is_not_there_fails(tmp_path: Path) -> None:
    done = onetray("doctor", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[-1].startswith("fail  database")
    assert "onetray migrate" in done.stdout
    assert list(tmp_path.iterdir()) == []
    done = onetray("doctor", "--database", "postgresql://ann:secret@127.0.0.1:1/jobs")
    assert done.returncode == 1
    assert "secret" not in done.stdout


def test_an_old_schema_fails_and_nothing_is_asked_of_it(pg_url: str) -> None:
    done = called("doctor", "--database", pg_url)
    assert done.exit_code == 1
    assert f"run `onetray migrate --database {hide_password(pg_url)}`" in done.stdout
    assert "rules" not in done.stdout


def test_a_broken_rule_fails(place: Place, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broken.db'}"
    with engine_on(url) as engine:
        submit(engine)
    spoil(url, "DELETE FROM onetray.ready")
    done = called("doctor", "--database", url)
    assert done.exit_code == 1
    assert "run `onetray verify`" in done.stdout


def test_a_large_database_is_not_verified_along_the_way(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(place.engine)
    monkeypatch.setattr(doctor, "MAX_VERIFIED_EVENTS", 0)
    assert "run `onetray verify`" in called("doctor", *place.at).stdout


def test_work_that_nobody_does_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(place.engine)
    submit(place.engine, delay_s=0.001)
    for name in ("MAX_OVERDUE_US", "MAX_QUEUED_US"):
        monkeypatch.setattr(doctor, name, -1)
    found = verdicts(told("doctor", *place.at))
    assert (found["janitor"], found["queue"]) == ("warn", "warn")


def test_tasks_that_no_worker_claims_are_told_with_the_command_that_starts_one(place: Place) -> None:
    submit(place.engine, "send", queue="mail")
    submit(place.engine, "print", queue="mail")
    submit(place.engine, "send", queue="post", delay_s=60)
    assert workers_of(place) == [
        ("warn", "no worker is alive, and queue 'mail' has ready tasks",
         "start one, `onetray worker --app MODULE:APP --queues mail`"),
    ]  # fmt: skip
    beat(place, "w1", queues=("post",))
    assert workers_of(place)[0][1] == "no registered worker claims from queue 'mail', and queue 'mail' has ready tasks"
    beat(place, "w2", queues=("mail:5",), kinds=("send",))
    ((verdict, said, next_step),) = workers_of(place)
    assert (verdict, "none of them knows the kind 'print'" in said) == ("warn", True)
    assert next_step.startswith("start one whose app has it")
    beat(place, "w3", queues=("mail",))
    assert workers_of(place) == [("ok", "3 workers alive", "")]


def test_only_the_first_queues_that_nobody_claims_from_are_listed(place: Place) -> None:
    for number in range(12):
        submit(place.engine, queue=f"queue-{number:02}")
    beat(place, "w1", queues=("other",))
    found = workers_of(place)
    assert (len(found), found[-1][1][:25]) == (11, "2 more queues and kinds h")


def workers_of(place: Place) -> list[tuple[str, str, str]]:
    found = told("doctor", *place.at)["checks"]
    return [(c["verdict"], c["said"], c["next_step"]) for c in found if c["name"] == "workers"]


def test_an_old_library_and_a_full_disk_are_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_facts, "sqlite_library", lambda: (3, 40, 1))
    monkeypatch.setattr(server_facts, "free_bytes", lambda store: 1_000)
    found = verdicts(told("doctor", *place.at))
    assert (found["library"], found["file"]) == ("warn", "warn")


def test_clocks_that_differ_are_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = place.engine.store.now() + 90_000_000
    monkeypatch.setattr(SqliteStore, "now", lambda store: ahead)
    found = told("doctor", *place.at)
    (clock,) = [c for c in found["checks"] if c["name"] == "clock"]
    assert (clock["verdict"], "ahead of this host" in clock["said"]) == ("warn", True)


def test_a_server_is_asked_whether_it_keeps_what_it_acknowledges(migrated_url: str) -> None:
    with psycopg.connect(migrated_url, autocommit=True) as server:
        name = server.info.dbname
        found = {}
        try:
            for value in ("off", "on"):
                server.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = {value}'.encode())
                found[value] = server_facts.server_facts(migrated_url).synchronous_commit
        finally:
            server.execute(f'ALTER DATABASE "{name}" RESET synchronous_commit'.encode())
    assert found == {"off": "off", "on": "on"}


@pytest.mark.parametrize(
    ("facts", "name", "verdict"),
    [
        ({"version": 130_004}, "server", "fail"),
        ({"standby": True}, "writable", "fail"),
        ({"fsync": False}, "durable", "fail"),
        ({"synchronous_commit": "off"}, "durable", "fail"),
        ({"behind_pooler": True}, "pooler", "warn"),
        ({}, "durable", "ok"),
    ],
)
def test_what_a_server_says_of_itself_is_judged(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, object], name: str, verdict: str
) -> None:
    sound = server_facts.ServerFacts(160_002, True, "on", False, False)
    monkeypatch.setattr(server_facts, "server_facts", lambda url: sound._replace(**facts))  # type: ignore[arg-type]
    found = {c.name: c for c in doctor.check_server("postgresql://host/jobs", pooler=False)}
    assert found[name].verdict == verdict
    assert bool(found[name].next_step) == (verdict != "ok")


def test_a_pooler_is_known_by_its_own_process_number(migrated_url: str) -> None:
    """What stands in between answers the start of a connection itself, as pgbouncer does."""
    with psycopg.connect(migrated_url) as direct:
        target = (direct.info.host, direct.info.port)
    assert not server_facts.server_facts(migrated_url).behind_pooler
    with Between(target) as port:
        parts = psycopg.conninfo.conninfo_to_dict(migrated_url)
        url = psycopg.conninfo.make_conninfo(**{**parts, "host": "127.0.0.1", "port": port, "sslmode": "disable"})
        assert server_facts.server_facts(url).behind_pooler


class Between:
    """Passes one connection on, and gives it another process number."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._door = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> int:
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        port: int = self._door.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        self._door.close()
        self._thread.join(timeout=10)

    def _serve(self) -> None:
        client, _ = self._door.accept()
        with client, socket.create_connection(self._target) as server:
            up = threading.Thread(target=self._pass_on, args=(client, server), daemon=True)
            up.start()
            while data := server.recv(65536):
                key = data.find(b"K\x00\x00\x00\x0c")
                if key >= 0:
                    data = data[: key + 5] + b"\x00\x00\x00\x07" + data[key + 9 :]
                client.sendall(data)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while data := client.recv(65536):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)
