"""Many claims that wait at a server process, and idle remote workers: what they cost, and whether each task finds one.

A claim waits on a socket of its own, as a worker in any language would have it.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from onetray.engine import Engine
from onetray.verify import verify
from tests.support.fleet import wait_until
from tests.support.serving import ServerProcess
from tests.support.workers import cpu_s

SUBMITTERS = 4
REMOTE_QUEUE = "of-remote-workers"
_WORKER = """
import sys
from onetray import Onetray
app = Onetray(sys.argv[1])
@app.task(kind="work", queue=sys.argv[2])
def work() -> None: ...
with app.worker(queues=(sys.argv[2],), concurrency=2):
    print("ready", flush=True)
    sys.stdin.read()
"""


@dataclass
class Waited:
    """How it went."""

    claims: int
    tasks: int
    rates: dict[int, float] = field(default_factory=dict)
    """Submits a second of one client, by the number of idle remote workers on another queue."""
    idle_share: float = 0.0
    waits_ms: dict[str, list[float]] = field(default_factory=dict)
    """From submit to claim, by who claimed."""
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rates = ", ".join(f"{rate:.0f}/s beside {n} idle remote workers" for n, rate in self.rates.items())
        waits = "; ".join(f"{name} {_spread(sorted(ms))}" for name, ms in self.waits_ms.items())
        return (
            f"one client submits {rates}; {self.claims} claims that wait: {self.idle_share:.1%} of a core while idle; "
            f"{self.tasks} tasks from submit to claim: {waits}"
        )


def _spread(ms: list[float]) -> str:
    return f"{ms[len(ms) // 2]:.0f} ms, 99th percentile {ms[len(ms) * 99 // 100]:.0f} ms, at most {ms[-1]:.0f} ms"


def run_waiting(
    engine: Engine, url: str, *, claims: int, queues: int, tasks: int, workers: int, idle_s: float, most_wait_s: float,
    rate_s: float = 5.0,
) -> Waited:  # fmt: skip
    """Measure, then submit tasks while claims wait; each must be claimed once, and soon."""
    done = Waited(claims, tasks)
    _allow_files(2 * claims + 200)
    with tempfile.TemporaryDirectory(prefix="onetray-waiting-") as folder:
        server = ServerProcess(Path(folder), "serve", "--database", url)
        try:
            server.until_ready()
            port = int(server.url.rpartition(":")[2])
            done.rates[0] = asyncio.run(_rate(port, rate_s))
            with _remote_workers(server.url, workers):
                done.rates[workers] = asyncio.run(_rate(port, rate_s))
                asyncio.run(_wait_and_submit(done, engine, server.process.pid, port, queues, idle_s))
            _judge(done, engine, most_wait_s)
        finally:
            server.kill()
    return done


def _allow_files(many: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < many:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(many, hard), hard))


@contextmanager
def _remote_workers(url: str, many: int) -> Iterator[None]:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, url, REMOTE_QUEUE],
            cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        )
        for _ in range(many)
    ]  # fmt: skip
    try:
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        yield
    finally:
        for one in started:
            one.kill()
            one.communicate()


class Client:
    """One connection, one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Client:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()

    async def post(self, path: str, body: dict[str, object]) -> dict[str, object]:
        text = orjson.dumps(body)
        self._writer.write(
            f"POST /api/v1{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n\r\n".encode()
            + text
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].split("\r\n")[0])
        answer: dict[str, object] = orjson.loads(await self._reader.readexactly(length))
        if head.split()[1] not in ("200", "201"):
            raise AssertionError(f"{path}: {answer}")
        return answer


async def _rate(port: int, for_s: float) -> float:
    """Submits a second of one client."""
    async with Client(port) as client:
        await client.post("/jobs", {"kind": "noted", "queue": "nobody's"})
        began, many = time.monotonic(), 0
        while time.monotonic() - began < for_s:
            await client.post("/jobs", {"kind": "noted", "queue": "nobody's"})
            many += 1
        return many / (time.monotonic() - began)


async def _wait_and_submit(done: Waited, engine: Engine, pid: int, port: int, queues: int, idle_s: float) -> None:
    claimed: Counter[str] = Counter()
    claimers = [asyncio.create_task(_claimer(port, n, f"q{n % queues}", claimed)) for n in range(done.claims)]
    await asyncio.sleep(2.0 + done.claims / 500)
    began, used = time.monotonic(), cpu_s(pid)
    await asyncio.sleep(idle_s)
    done.idle_share = (cpu_s(pid) - used) / (time.monotonic() - began)
    places = [*(f"q{n}" for n in range(queues)), REMOTE_QUEUE]
    submitted: set[str] = set()
    await asyncio.gather(*(
        _submitter(port, places, range(first, done.tasks, SUBMITTERS), submitted) for first in range(SUBMITTERS)
    ))  # fmt: skip
    await asyncio.to_thread(wait_until, lambda: not engine.store.read_sql("SELECT 1 FROM onetray.ready AS r "
        "JOIN onetray.queue AS q ON q.key = r.queue WHERE q.name <> :name LIMIT 1", name="nobody's"), 60.0)  # fmt: skip
    for one in claimers:
        one.cancel()
    broken = [e for e in await asyncio.gather(*claimers, return_exceptions=True) if isinstance(e, Exception)]
    done.faults += [f"a claim broke: {e!r}" for e in broken]
    done.faults += [f"{id_} was handed out {n} times" for id_, n in claimed.items() if n > 1]


async def _claimer(port: int, number: int, queue: str, claimed: Counter[str]) -> None:
    async with Client(port) as client:
        while True:
            answer = await client.post(
                "/tasks/claim", {"worker": f"w{number}", "queue": queue, "wait_s": 30, "lease_s": 3600}
            )
            for task in answer["tasks"]:  # type: ignore[attr-defined]
                claimed[task["id"]] += 1


async def _submitter(port: int, places: list[str], numbers: range, submitted: set[str]) -> None:
    async with Client(port) as client:
        for n in numbers:
            answer = await client.post("/jobs", {"kind": "work", "queue": places[n % len(places)]})
            submitted.add(str(answer["id"]))


def _judge(done: Waited, engine: Engine, most_wait_s: float) -> None:
    """By the log: each task was claimed once, and none waited longer than the polling period."""
    rows = engine.store.read_sql(
        "SELECT e.entity, q.name, min(CASE WHEN e.type = 'task.submitted' THEN e.ts END), "
        "min(CASE WHEN e.type = 'task.claimed' THEN e.ts END), "
        "sum(CASE WHEN e.type = 'task.claimed' THEN 1 ELSE 0 END) "
        "FROM onetray.event AS e JOIN onetray.task AS t ON t.key = e.entity JOIN onetray.kind AS k ON k.key = t.kind "
        "JOIN onetray.queue AS q ON q.key = t.queue WHERE k.name = 'work' GROUP BY e.entity, q.name"
    )
    if len(rows) != done.tasks:
        done.faults.append(f"{len(rows)} tasks are there, not {done.tasks}")
    done.faults += [f"task {key} was claimed {times} times" for key, *_, times in rows if times != 1]
    for _, queue, submitted, claimed, _ in rows:
        if claimed is not None:
            who = "remote workers" if queue == REMOTE_QUEUE else "claims that wait"
            done.waits_ms.setdefault(who, []).append((claimed - submitted) / 1000)
    for who, waits in done.waits_ms.items():
        late = sum(wait > most_wait_s * 1000 for wait in waits)
        if late:
            done.faults.append(f"{late} tasks for {who} waited longer than {most_wait_s:g} s")
    done.faults += map(str, verify(engine.store).violations)
