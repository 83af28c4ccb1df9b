"""A job with many secrets and a long log, read from a server process while others are read: what that costs them."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx2

from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.engines import open_migrated
from tests.support.open_streams import Usage
from tests.support.serving import ServerProcess, serving

LINES = 500
REDACT = Policy(max_attempts=1, redact=("keys.*",))
T = TypeVar("T")


@dataclass
class Probe:
    """Somebody who asks a server something small, again and again."""

    path: str
    answers: int = 0
    longest_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    def ask(self, client: httpx2.Client, over: threading.Event) -> None:
        while not over.wait(0.002):
            began = time.monotonic()
            status = client.get(self.path).status_code
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.answers += 1
            if status != 200:
                self.faults.append(f"{self.path} was answered with {status}")


@dataclass
class Cost:
    """What the reading of one thing cost the server, and those who asked for something else meanwhile."""

    what: str
    took_s: float
    cpu_s: float
    loop: Probe
    other: Probe
    faults: list[str]

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.took_s:.2f} s, {self.cpu_s:.2f} s of CPU; meanwhile {self.loop.answers} answers of "
            f"the loop, the longest after {self.loop.longest_s * 1000:.0f} ms, and {self.other.answers} reads of "
            f"another job, the longest after {self.other.longest_s * 1000:.0f} ms"
        )


@contextmanager
def beside(server: ServerProcess, probe: Probe) -> Iterator[None]:
    over = threading.Event()
    with server.client() as client:
        thread = threading.Thread(target=probe.ask, args=(client, over))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(60)


def measured(
    server: ServerProcess,
    other: str,
    what: str,
    read: Callable[[httpx2.Client], T],
    faults_of: Callable[[T], list[str]],
) -> Cost:
    """Read something, while two others ask. What was read is looked at afterwards: that takes its time, too."""
    loop, reads = Probe("/healthz"), Probe(f"/api/v1/jobs/{other}")
    with server.client() as client, beside(server, loop), beside(server, reads):
        client.get("/healthz")
        before, began = Usage.of(server.process.pid), time.monotonic()
        found = read(client)
        took, after = time.monotonic() - began, Usage.of(server.process.pid)
    faults = faults_of(found)
    for probe in (loop, reads):
        if not probe.answers:
            faults.append(f"{probe.path} had no answer while {what}")
        faults += probe.faults
    return Cost(what, took, after.cpu_s - before.cpu_s, loop, reads, faults)


def read_redacted(folder: Path, secrets: int, log_bytes: int, seed: int = 1) -> Cost:
    """Read all that is known of a job with so many secrets, and look for each of them in it."""
    chance = random.Random(seed)
    # With signs in it that JSON, Python and URLs write each in their own way: all spellings are looked for.
    keys = [f'{chance.getrandbits(32):08x} "ß"/{chance.getrandbits(64):016x}' for _ in range(secrets)]
    url = f"sqlite:///{folder / 'jobs.db'}"
    with open_migrated(url) as engine:
        engine.configure("login", REDACT)
        other, id_ = str(engine.submit("other", {"n": 1}).id), _one_that_logs(engine, keys, log_bytes, chance)
    with serving(folder, "serve", "--database", url) as server:
        what = f"{secrets} secrets and {log_bytes / 1000:.0f} kB of log"
        return measured(
            server,
            other,
            what,
            lambda client: _all_of(client, id_),
            lambda found: _leaks(found, {key[-16:] for key in keys}),
        )


def _one_that_logs(engine: Engine, keys: list[str], log_bytes: int, chance: random.Random) -> str:
    id_ = str(engine.submit("login", {"keys": keys}).id)
    (job,) = engine.claim(worker="w", kinds=("login",))
    written = 0
    while written < log_bytes:
        lines = [
            f"{n} the request with {chance.choice(keys)} of session {chance.getrandbits(160):040x} went on" * 3
            for n in range(LINES)
        ]
        engine.log(job, *(("info", line, None) for line in lines))
        written += sum(map(len, lines))
    engine.fail(job, f"not with {keys[0]}")
    return id_


def _all_of(client: httpx2.Client, id_: str) -> list[tuple[str, httpx2.Response]]:
    at = f"/api/v1/jobs/{id_}"
    found = [(path, client.get(path)) for path in (at, f"{at}/events", f"{at}/explain", f"/api/v1/dead-letters/{id_}")]
    path = cursor = f"{at}/logs?limit=1000"
    while True:
        found.append((path, client.get(cursor)))
        following = re.search(r'"next":"([^"]+)"', found[-1][1].text[-200:])
        if found[-1][1].text.startswith('{"logs":[]') or following is None:
            return found
        cursor = f"{path}&cursor={following[1]}"


def _leaks(found: list[tuple[str, httpx2.Response]], keys: set[str]) -> list[str]:
    answered = [f"{path} was answered with {answer.status_code}" for path, answer in found if answer.status_code != 200]
    shown = [(path, len(keys & set(re.findall(r"/([0-9a-f]{16})\b", answer.text)))) for path, answer in found]
    return answered + [f"{path} shows {count} secrets" for path, count in shown if count]


def read_large(folder: Path, payload_bytes: int) -> Cost:
    """Read a job with a large payload, ten times."""
    url = f"sqlite:///{folder / 'jobs.db'}"
    with open_migrated(url) as engine:
        rows = [{"n": n, "name": f"row {n}", "price": n / 7} for n in range(payload_bytes // 60)]
        other, id_ = str(engine.submit("other", {"n": 1}).id), str(engine.submit("large", {"rows": rows}).id)
    with serving(folder, "serve", "--database", url) as server:

        def read(client: httpx2.Client) -> list[httpx2.Response]:
            return [client.get(f"/api/v1/jobs/{id_}") for _ in range(10)]

        def changed(answers: list[httpx2.Response]) -> list[str]:
            return ["the payload is not as it was stored" for a in answers if a.json()["payload"]["rows"] != rows]

        return measured(server, other, f"a job of {payload_bytes / 1000:.0f} kB, ten times", read, changed)
