"""Requests per second of a real server on the loopback interface, beside a bare route that parses and answers the same.

Owns the clients, and what they ask. Each side has its turn in each round, on a fresh database; the bare one gives
again what the server has answered, so both carry the same bytes.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from benchmarks.figures import percentile
from benchmarks.host import Host, cpu_s
from benchmarks.limit import prepare

ROOT = Path(__file__).parents[1]
SERVER, BARE = "onetray", "bare"
SUBMIT, MANY = "/api/v1/jobs", "/api/v1/jobs/batch"
CLAIM, REPORT = "/api/v1/tasks/claim", "/api/v1/tasks/reports"
BARE_COMMAND = [sys.executable, "-m", "benchmarks.bare"]
PATIENCE_S = 30.0
Figures = dict[str, Any]


@dataclass
class Asked:
    """What was asked in one phase: how long each request took, all of them, and the CPU time of the server."""

    waits_s: list[float] = field(default_factory=list)
    jobs: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0


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


def http(host: Host, store: str, batch: int, jobs: int, clients: int, rounds: int) -> Figures:
    """Submits, and claims with reports, of one size: figures of the server, and their ratio to the bare route's."""
    found: dict[str, dict[str, list[Asked]]] = {name: {SERVER: [], BARE: []} for name in ("submit", "claim_report")}
    answers: dict[str, bytes] = {}
    for _ in range(rounds):
        with host.database(store) as url:
            prepare(url)
            with process(our_server(url)) as (pid, port):
                _add(found, SERVER, asyncio.run(_phases(host, store, pid, port, batch, jobs, clients, answers)))
        with process(BARE_COMMAND, _told(answers)) as (pid, port):
            _add(found, BARE, asyncio.run(_phases(host, "bare", pid, port, batch, jobs, clients, {})))
    return {name: _figures(sides) for name, sides in found.items()}


def _add(found: dict[str, dict[str, list[Asked]]], side: str, phases: dict[str, Asked]) -> None:
    for name, asked in phases.items():
        found[name][side].append(asked)


async def _phases(
    host: Host, store: str, pid: int, port: int, batch: int, jobs: int, clients: int, answers: dict[str, bytes]
) -> dict[str, Asked]:
    async with connected(port, clients, answers) as crew:
        # The first requests pay for what is loaded late; what they submit is done with.
        await _submits(crew[:1], batch, batch, Asked())
        await _drain(crew[0], batch, Asked(), batch)
        found = {}
        for name, phase in (("submit", _submits), ("claim_report", _drains)):
            asked = found[name] = Asked()
            cpu, began = cpu_s(pid) + host.server_cpu_s(store), time.perf_counter()
            await phase(crew, batch, jobs, asked)
            asked.wall_s = time.perf_counter() - began
            asked.cpu_s = cpu_s(pid) + host.server_cpu_s(store) - cpu
        return found


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
def process(command: list[str], told: bytes = b"") -> Iterator[tuple[int, int]]:
    """A server in a process of its own: its id and its port, which it says in its first line."""
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as given:
        given.write(told)
        given.seek(0)
        process = subprocess.Popen(command, cwd=ROOT, stdin=given, stdout=subprocess.PIPE, stderr=log)
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
    ours, bare = ({**figures_of(asked)} for asked in (sides[SERVER], sides[BARE]))
    ours["to_bare"] = round(ours["requests_per_s"] / bare["requests_per_s"], 3)
    return {SERVER: ours, BARE: bare}


def figures_of(rounds: list[Asked]) -> dict[str, float]:
    ms = [wait * 1000 for asked in rounds for wait in asked.waits_s]
    requests = sum(len(asked.waits_s) for asked in rounds)
    return {
        "jobs_per_s": round(median(asked.jobs / asked.wall_s for asked in rounds), 1),
        "requests_per_s": round(median(len(asked.waits_s) / asked.wall_s for asked in rounds), 1),
        "p50_ms": round(percentile(ms, 50), 3),
        "p95_ms": round(percentile(ms, 95), 3),
        "p99_ms": round(percentile(ms, 99), 3),
        "cpu_us_per_request": round(sum(asked.cpu_s for asked in rounds) / requests * 1e6, 1),
    }
