"""Slow and greedy clients at full size, at a server process: what honest clients get meanwhile, and what it costs.

Used by `./go soak slow-connections` and `./go soak slow-readers`.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from onetray.domain.commands import Submit
from onetray.engine import Engine
from tests.support.engines import open_migrated
from tests.support.open_streams import Usage
from tests.support.serving import ServerProcess, serving
from tests.support.slow_clients import Act, drip, guess, hold_body, slow_clients, stay_silent

FILES = 1024
WAIT_S = 60.0
EVERY_S = 0.2
"""How often an honest client asks."""
QUIET_LINES = 100
"""What the log may say beside one line for each request."""
MOST_MB = 400
"""What the server may grow by: the budgets for bodies and for answers, and the copies that are made of them."""
STALL_S = 5


@dataclass
class Phase:
    """What was seen while clients of one sort were there."""

    name: str
    seconds: float = 0.0
    honest: list[float] = field(default_factory=list)
    """How long the honest requests took."""
    connected: int = 0
    cpu_s: float = 0.0
    lines: int = 0
    grown_mb: float = 0.0
    files: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        took = sorted(self.honest) or [0.0]
        return (
            f"{self.name}: {self.connected:,} connections in {self.seconds:.0f} s; {len(self.honest)} honest requests, "
            f"half of them within {took[len(took) // 2] * 1000:.0f} ms, all within {took[-1] * 1000:.0f} ms; the "
            f"server used {self.cpu_s:.1f} s of CPU, wrote {self.lines:,} lines, grew by {self.grown_mb:.0f} MB at "
            f"most, and had {self.files:,} files open at most"
        )

    def judge(self, requests: int) -> None:
        if not self.honest:
            self.faults.append("no honest client was answered")
        if self.lines > requests + QUIET_LINES:
            self.faults.append(f"{self.lines:,} lines were logged for {requests:,} requests")
        if self.grown_mb > MOST_MB:
            self.faults.append(f"the server grew by {self.grown_mb:.0f} MB")
        if self.files >= FILES:
            self.faults.append("no file could be opened any more")


class Honest:
    """Clients that ask as they should, in a thread each: with a new connection, with a kept one, without a token."""

    def __init__(self, port: int, token: Callable[[], str], phase: Phase) -> None:
        self._port, self._token, self._phase = port, token, phase
        self._over = threading.Event()
        clients = (self._anew, self._on_a_kept_connection, self._without_a_token)
        self._threads = [threading.Thread(target=client) for client in clients]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(2 * WAIT_S)

    def _anew(self) -> None:
        while not self._over.wait(EVERY_S):
            self._ask(self._connection(), "GET", "/api/v1/queues", self._token(), 200)

    def _on_a_kept_connection(self) -> None:
        connection, token = self._connection(), self._token()
        while not self._over.wait(EVERY_S):
            self._ask(connection, "POST", "/api/v1/jobs", token, 201)

    def _without_a_token(self) -> None:
        while not self._over.wait(EVERY_S):
            self._ask(self._connection(), "GET", "/healthz", None, 200)

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=WAIT_S)

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, token: str | None, expect: int
    ) -> None:
        began = time.monotonic()
        headers = {"Content-Type": "application/json"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
        body = json.dumps({"kind": "mail", "queue": "honest"}) if method == "POST" else None
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as e:
            connection.close()
            self._phase.faults.append(f"{self._phase.name}: {method} {path}: {type(e).__name__}: {e}")
            return
        if answer.status != expect:
            self._phase.faults.append(f"{self._phase.name}: {method} {path}: {answer.status}")
        self._phase.honest.append(time.monotonic() - began)
        if method == "GET":
            connection.close()


@contextmanager
def _server(url: str, **settings: str) -> Iterator[tuple[ServerProcess, Engine]]:
    engine = open_migrated(url)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="onetray-slow-") as folder,
            serving(Path(folder), "serve", "--database", url, files=FILES, **settings) as server,
        ):
            yield server, engine
    finally:
        engine.close()


def _phase(server: ServerProcess, engine: Engine, name: str, clients: int, act: Act, seconds: float) -> Phase:
    phase, pid = Phase(name), server.process.pid

    def token() -> str:
        return engine.tokens.create("honest", ["admin"]).text

    before, lines, began = Usage.of(pid), server.log.count("\n"), time.monotonic()
    with slow_clients(server.port, clients, act) as seen:
        honest = Honest(server.port, token, phase)
        try:
            while time.monotonic() - began < seconds:
                now = Usage.of(pid)
                phase.grown_mb = max(phase.grown_mb, now.rss_mb - before.rss_mb)
                phase.files = max(phase.files, now.files)
                time.sleep(0.1)
        finally:
            honest.end()
    phase.seconds = time.monotonic() - began
    phase.connected, phase.cpu_s = seen.connected, Usage.of(pid).cpu_s - before.cpu_s
    phase.lines = server.log.count("\n") - lines
    # A request is a line; so is a connection that was cut off with an answer on its way.
    phase.judge(len(phase.honest) + seen.answered + (0 if seen.answered or "heads" in name else 2 * seen.connected))
    return phase


def slow_connections(url: str, clients: int, seconds: float) -> Iterator[Phase]:
    """Heads that drip, and a flood of random tokens."""
    with _server(url) as (server, engine):
        engine.tokens.create("first", ["read"])
        yield _phase(server, engine, "heads that drip", clients, drip(1.0), seconds)
        yield _phase(server, engine, "random tokens", 20, guess, seconds / 3)


def slow_readers(url: str, clients: int, seconds: float) -> Iterator[Phase]:
    """Streams and large answers that nobody reads, and bodies that never end."""
    with _server(url, http_stall_s=str(STALL_S)) as (server, engine):
        slow = engine.tokens.create("slow", ["admin"]).text
        engine.run([Submit(kind="mail", queue="told", cause="x" * 1_900) for _ in range(5_000)])
        large = engine.submit("mail", {"text": "x" * 990_000}, queue="told").id
        feed, job = "/api/v1/feed/stream?cursor=0", f"/api/v1/jobs/{large}"
        yield _phase(server, engine, "streams that are not read", clients, stay_silent(feed, slow), seconds)
        yield _phase(server, engine, "answers that are not read", clients, stay_silent(job, slow), seconds)
        yield _phase(server, engine, "bodies that do not end", 100, hold_body("/api/v1/jobs", slow, 9_900_000), seconds)
