"""A PostgreSQL that cannot be used: the reason is said at once, and what to do about it, without the password."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from onetray import Onetray
from onetray.domain.errors import StoreError, Unavailable
from onetray.engine import Engine
from onetray.store.connect_errors import nobody_listens, place_of
from onetray.store.postgres import OPEN_S
from tests.cli.run import called, one_line, onetray
from tests.support.cluster import Server

SECRET = "s3cret"


CRASH = ""


class Refusing:
    """A server that speaks just enough to refuse each connection, with the next of these messages, or to crash."""

    def __init__(self, messages: Sequence[str]) -> None:
        self._messages = list(messages)
        self.refused = self._port = 0
        self.listen()

    def listen(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"postgresql://ann:{SECRET}@127.0.0.1:{self._port}/jobs?gssencmode=disable"

    def close(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                with self._listening.accept()[0] as connection:
                    self._refuse(connection)

    def _refuse(self, connection: socket.socket) -> None:
        (length, code) = struct.unpack("!ii", connection.recv(8, socket.MSG_WAITALL))
        if code == 80877103:
            # It asks for TLS.
            connection.sendall(b"N")
            (length, _) = struct.unpack("!ii", connection.recv(8, socket.MSG_WAITALL))
        connection.recv(length - 8, socket.MSG_WAITALL)
        message = self._messages[min(self.refused, len(self._messages) - 1)]
        self.refused += 1
        if message == CRASH:
            self.close()
            return
        body = b"SFATAL\0VFATAL\0C28000\0M" + message.encode() + b"\0\0"
        connection.sendall(b"E" + struct.pack("!i", len(body) + 4) + body)


@contextlib.contextmanager
def refusing(*messages: str) -> Iterator[Refusing]:
    server = Refusing(messages)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def closed_url() -> str:
    """A URL where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    return f"postgresql://ann:{SECRET}@127.0.0.1:{port}/jobs"


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ('database "jobs" does not exist', "createdb -h 127.0.0.1 -p PORT -U ann jobs"),
        ('role "ann" does not exist', "createuser"),
        ('password authentication failed for user "ann"', "rejects the password or the role"),
        ('no pg_hba.conf entry for host "127.0.0.1", user "ann"', "pg_hba.conf"),
        ('permission denied for database "jobs"', "GRANT CONNECT ON DATABASE jobs TO ann"),
    ],
)
def test_what_the_server_says_is_said_after_one_attempt(said: str, advice: str) -> None:
    with refusing(said) as server:
        port = str(urlsplit(server.url).port)
        with pytest.raises(StoreError) as raised:
            Engine.open(server.url)
        assert server.refused == 1
    message = str(raised.value)
    assert advice.replace("PORT", port) in message
    assert f"127.0.0.1:{port} (database jobs, role ann)" in message
    assert SECRET not in message


def test_a_server_that_starts_is_waited_for() -> None:
    with refusing("the database system is starting up", 'database "jobs" does not exist') as server:
        with pytest.raises(StoreError, match="there is no database 'jobs'"):
            Engine.open(server.url)
        assert server.refused == 2


def test_a_server_that_crashes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing(CRASH, 'database "jobs" does not exist') as server:

        def start_again(error: Exception | None) -> bool:
            found = nobody_listens(error)
            if found:
                server.listen()
            return found

        monkeypatch.setattr("onetray.store.postgres.nobody_listens", start_again)
        with pytest.raises(StoreError, match="there is no database 'jobs'"):
            Engine.open(server.url)
        assert server.refused == 2


def test_nobody_listens(closed_url: str) -> None:
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"is the server running, and on this port\?") as raised:
        _ = Onetray(closed_url).engine
    assert time.monotonic() - began < OPEN_S / 2
    assert SECRET not in str(raised.value)
    assert "(database jobs, role ann)" in str(raised.value)


def test_commands_and_workers_say_it_in_one_line(closed_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from onetray import Onetray\napp = Onetray()\n@app.task\ndef mail(): ...\n")
    for words in (["jobs", "list"], ["submit", "mail"], ["worker", "--app", "shop"], ["shell"]):
        done = onetray(*words, "--database", closed_url, cwd=tmp_path)
        assert done.returncode == 3, done.stderr
        assert "is the server running" in done.stderr
        assert SECRET not in done.stderr
        last = done.stderr.splitlines(keepends=True)[-1]
        assert one_line(last)
        assert "from --database" in last


def test_a_database_and_a_role_that_do_not_exist(postgres: Server) -> None:
    parts = urlsplit(postgres.url)
    there = f"{parts.hostname}:{parts.port}"
    for url, advice in (
        (f"postgresql://postgres@{there}/nowhere", "createdb"),
        (f"postgresql://nobody@{there}/postgres", "createuser"),
    ):
        with pytest.raises(StoreError, match=advice):
            Engine.open(url)
        done = called("jobs", "list", "--database", url)
        assert (done.exit_code, one_line(done.stderr), advice in done.stderr) == (3, True, True)


def test_a_host_that_does_not_exist() -> None:
    with pytest.raises(StoreError, match=r"the host of no\.such\.invalid:\d+ .* is unknown"):
        Engine.open("postgresql://ann@no.such.invalid/jobs")


def test_a_place_is_what_libpq_would_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGUSER", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGPORT", "6000")
    assert str(place_of("postgresql://ann@one,two/jobs")) == "one:6000, two:6000 (database jobs, role ann)"
    assert str(place_of("postgresql://ann@/?host=/tmp")) == "the socket in /tmp, port 6000 (database ann, role ann)"


@pytest.mark.parametrize("end", ["cret@h/jobs", "cret]@h:x:1/jobs", "cret%zz@h/jobs"])
@pytest.mark.parametrize("middle", ["/", "[", ""])
def test_a_password_that_is_not_encoded_is_not_printed(middle: str, end: str) -> None:
    url = f"postgresql://ann:s3{middle}{end}"
    done = called("jobs", "list", "--database", url)
    assert done.exit_code == 3
    assert one_line(done.stderr)
    assert "s3" not in done.stderr
    assert "cret" not in done.stderr


def test_a_migration_that_is_missing_names_the_url_to_pass(pg_url: str) -> None:
    url = pg_url.replace("://postgres@", f"://postgres:{SECRET}@")
    with pytest.raises(StoreError, match="onetray migrate --database") as raised:
        Engine.open(url)
    assert url.replace(SECRET, "***") in str(raised.value)
    assert SECRET not in called("jobs", "list", "--database", url).stderr
