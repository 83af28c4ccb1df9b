"""Requests per second of a real server on the loopback interface, beside a bare route that parses and answers the same.

Owns the clients, and what they ask. In each round the sides run side by side, on fresh databases, and take turns:
what else the machine does meanwhile hits all of them. The bare one gives again what the server has answered, so all
carry the same bytes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from benchmarks.figures import percentile
from benchmarks.host import Host, cpu_s
from benchmarks.limit import prepare

ROOT = Path(__file__).parents[1]
SERVER, BEFORE, BARE = "onetray", "before", "bare"
SUBMIT, MANY = "/api/v1/jobs", "/api/v1/jobs/batch"
CLAIM, REPORT = "/api/v1/tasks/claim", "/api/v1/tasks/reports"
BARE_COMMAND = [sys.executable, "-m", "benchmarks.bare"]
PATIENCE_S = 30.0
TURN_EACH, MAX_TURNS = 15, 16
"""Requests of a client in one turn, at least; turns of a side in a round, at most."""
Figures = dict[str, Any]


@dataclass
class Asked:
    """What was asked in one turn: how long each request took, all of them, and the CPU time of the server."""

    waits_s: list[float] = field(default_factory=list)
    jobs: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    client_cpu_s: float = 0.0


class Client:
    """One connection that is kept, with as little of its own as can be: it shares the machine with the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: dict[str, bytes]) -> None:
        self._reader, self._writer, self._answers = reader, writer, answers

    async def post(self, path: str, body: Any, asked: Asked) -> Any:
        status, answer = await self.send("POST", path, body, asked)
        if status >= 300:
            raise RuntimeError(f"POST {path} was answered with {status}: {answer[:500]!r}")
        self._answers[path] = answer
        return orjson.loads(answer)

    async def send(self, method: str, path: str, body: Any, asked: Asked) -> tuple[int, bytes]:
        content = b"" if body is None else orjson.dumps(body)
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        began = time.perf_counter()
        self._writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        answer = await self._answer()
        asked.waits_s.append(time.perf_counter() - began)
        return answer

    async def _answer(self) -> tuple[int, bytes]:
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        return int(head.split(b" ", 2)[1]), await self._reader.readexactly(length)


def http(
    host: Host, store: str, batch: int, jobs: int, clients: int, rounds: int, before: Path | None = None
) -> Figures:
    """Submits, and claims with reports, of one size: figures of the server, and their ratio to the bare route's.

    `before` is the directory of another version, whose server takes part.
    """
    found: dict[str, dict[str, list[Asked]]] = {name: {} for name in PHASES}
    for n in range(rounds):
        with ExitStack() as stack:
            sides = _sides(stack, host, store, batch, before)
            asyncio.run(_round(sides, n, batch, jobs, clients, found))
    return {name: _figures(sides) for name, sides in found.items()}


@dataclass(frozen=True)
class Side:
    """A server that takes part, and how to ask for the CPU seconds that it has used with its database."""

    name: str
    port: int
    cpu_s: Callable[[], float]


def _sides(stack: ExitStack, host: Host, store: str, batch: int, before: Path | None) -> list[Side]:
    """Start the servers, each on its database. The bare one learns from ours what to answer."""
    sides = []
    for name, root in ((SERVER, ROOT), (BEFORE, before)):
        if root is not None:
            url = stack.enter_context(host.database(store))
            prepare(url)
            pid, port = stack.enter_context(process(our_server(url), root=root))
            sides.append(Side(name, port, partial(_cpu_s, host, store, pid)))
    answers: dict[str, bytes] = {}
    for side in sides[::-1]:
        asyncio.run(_warm_up(side, batch, answers))
    pid, port = stack.enter_context(process(BARE_COMMAND, _told(answers)))
    sides.append(Side(BARE, port, partial(cpu_s, pid)))
    asyncio.run(_warm_up(sides[-1], batch, {}))
    return sides


def _cpu_s(host: Host, store: str, pid: int) -> float:
    return cpu_s(pid) + host.server_cpu_s(store)


async def _warm_up(side: Side, batch: int, answers: dict[str, bytes]) -> None:
    """The first requests pay for what is loaded late; what they submit is done with."""
    async with connected(side.port, 1, answers) as crew:
        await _submits(crew, batch, batch, Asked())
        await _drain(crew[0], batch, Asked(), batch)


async def _round(
    sides: list[Side], n: int, batch: int, jobs: int, clients: int, found: dict[str, dict[str, list[Asked]]]
) -> None:
    """Let the sides take turns, each time another one first: first all submits, then all claims and reports."""
    turns = max(1, min(MAX_TURNS, jobs // (batch * clients * TURN_EACH)))
    async with AsyncExitStack() as stack:
        crews = {side: await stack.enter_async_context(connected(side.port, clients, {})) for side in sides}
        for name, phase in PHASES.items():
            for turn in range(turns):
                first = (n + turn) % len(sides)
                for side in [*sides[first:], *sides[:first]]:
                    asked = await _turn(side, phase, crews[side], batch, jobs // turns)
                    found[name].setdefault(side.name, []).append(asked)


async def _turn(side: Side, phase: Phase, crew: list[Client], batch: int, jobs: int) -> Asked:
    asked = Asked()
    cpu, own_cpu, began = side.cpu_s(), time.process_time(), time.perf_counter()
    await phase(crew, batch, jobs, asked)
    asked.wall_s, asked.client_cpu_s = time.perf_counter() - began, time.process_time() - own_cpu
    asked.cpu_s = side.cpu_s() - cpu
    return asked


async def _submits(crew: list[Client], batch: int, jobs: int, asked: Asked) -> None:
    job = {"kind": "noop", "payload": {"number": 1}}

    async def caller(client: Client, share: int) -> None:
        for _ in range(share):
            if batch == 1:
                await client.post(SUBMIT, job, asked)
            else:
                answer = await client.post(MANY, {"jobs": [job] * batch}, asked)
                assert len(answer["verdicts"]) == batch
            asked.jobs += batch

    await asyncio.gather(*(caller(client, _share(jobs, batch, crew)) for client in crew))


async def _drains(crew: list[Client], batch: int, jobs: int, asked: Asked) -> None:
    share = batch * _share(jobs, batch, crew)
    await asyncio.gather(*(_drain(client, batch, asked, share) for client in crew))


async def _drain(client: Client, batch: int, asked: Asked, jobs: int) -> None:
    """Claim and report until so many are done: all that there are, when everybody has had his share."""
    done = 0
    while done < jobs:
        tasks = (await client.post(CLAIM, {"worker": "w", "limit": batch, "wait_s": 5}, asked))["tasks"]
        reports = [{"verb": "succeed", "task": t["id"], "fence": t["fence"], "worker": "w"} for t in tasks]
        if reports:
            await client.post(REPORT, {"reports": reports}, asked)
        done += len(reports)
        asked.jobs += len(reports)


Phase = Callable[[list[Client], int, int, Asked], Awaitable[None]]
PHASES: dict[str, Phase] = {"submit": _submits, "claim_report": _drains}


def _share(jobs: int, batch: int, crew: list[Client]) -> int:
    """Requests of each client."""
    return max(1, jobs // (batch * len(crew)))


Submit = Callable[[list[Client], int], Awaitable[None]]
Work = Callable[[Client, int, Asked], Awaitable[None]]


def drains(host: Host, store: str, jobs: int, clients: int, rounds: int, submit: Submit, work: Work) -> list[Asked]:
    """Jobs of a dialect that clients take and complete, each until there is nothing left: one drain a round."""
    found = []
    for _ in range(rounds):
        with host.database(store) as url:
            prepare(url)
            with process(our_server(url)) as (pid, port):
                found.append(asyncio.run(_dialect_drain(host, store, pid, port, jobs, clients, submit, work)))
    return found


async def _dialect_drain(
    host: Host, store: str, pid: int, port: int, jobs: int, clients: int, submit: Submit, work: Work
) -> Asked:
    async with connected(port, clients, {}) as crew:
        # The first requests pay for what is loaded late.
        await submit(crew, clients)
        await asyncio.gather(*(work(client, n, Asked()) for n, client in enumerate(crew)))
        await submit(crew, jobs)
        asked = Asked()
        cpu, began = cpu_s(pid) + host.server_cpu_s(store), time.perf_counter()
        await asyncio.gather(*(work(client, n, asked) for n, client in enumerate(crew)))
        asked.wall_s = time.perf_counter() - began
        asked.cpu_s = cpu_s(pid) + host.server_cpu_s(store) - cpu
        assert asked.jobs == jobs, f"{asked.jobs} of {jobs} jobs were done"
        return asked


@asynccontextmanager
async def connected(port: int, clients: int, answers: dict[str, bytes]) -> AsyncIterator[list[Client]]:
    pairs = [await asyncio.open_connection("127.0.0.1", port, limit=2**24) for _ in range(clients)]
    try:
        yield [Client(reader, writer, answers) for reader, writer in pairs]
    finally:
        for _, writer in pairs:
            writer.close()


def our_server(url: str) -> list[str]:
    return [sys.executable, "-m", "onetray", "serve", "--port", "0", "--database", url, "--log-level", "warning"]


def _told(answers: dict[str, bytes]) -> bytes:
    return json.dumps({path: answer.decode() for path, answer in answers.items()}).encode()


@contextmanager
def process(command: list[str], told: bytes = b"", root: Path = ROOT) -> Iterator[tuple[int, int]]:
    """A server in a process of its own: its id and its port, which it says in its first line."""
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as given:
        given.write(told)
        given.seek(0)
        # Another version's code comes first; its dependencies are those of this one.
        environment = os.environ | {"PYTHONPATH": str(root / "src")}
        process = subprocess.Popen(command, cwd=root, env=environment, stdin=given, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        try:
            said = process.stdout.readline().decode()
            if "http://" not in said:
                log.seek(0)
                raise RuntimeError(f"{command[:4]} did not start: {log.read().decode(errors='replace')[-2000:]}")
            yield process.pid, int(said.partition("http://127.0.0.1:")[2].split(";")[0])
        finally:
            process.terminate()
            process.stdout.close()
            process.wait(PATIENCE_S)


def _figures(sides: dict[str, list[Asked]]) -> Figures:
    found: Figures = {name: figures_of(turns) for name, turns in sides.items()}
    bare = sides[BARE]
    for name, turns in sides.items():
        if name != BARE:
            # The sides of one turn ran within a second: whatever slowed one of them down slowed the others down.
            pairs = list(zip(turns, bare, strict=True))
            found[name]["to_bare"] = round(median(_rate(ours) / _rate(other) for ours, other in pairs), 3)
            found[name]["cpu_to_bare"] = round(median(_cpu_each(ours) / _cpu_each(other) for ours, other in pairs), 2)
    return found


def _rate(asked: Asked) -> float:
    return len(asked.waits_s) / asked.wall_s


def _cpu_each(asked: Asked) -> float:
    return asked.cpu_s / len(asked.waits_s)


def figures_of(turns: list[Asked]) -> dict[str, float]:
    ms = [wait * 1000 for asked in turns for wait in asked.waits_s]
    requests = sum(len(asked.waits_s) for asked in turns)
    return {
        "jobs_per_s": round(median(asked.jobs / asked.wall_s for asked in turns), 1),
        "requests_per_s": round(median(map(_rate, turns)), 1),
        "p50_ms": round(percentile(ms, 50), 3),
        "p95_ms": round(percentile(ms, 95), 3),
        "p99_ms": round(percentile(ms, 99), 3),
        "cpu_us_per_request": round(sum(asked.cpu_s for asked in turns) / requests * 1e6, 1),
        "client_cpu_us": round(sum(asked.client_cpu_s for asked in turns) / requests * 1e6, 1),
    }
