"""Jobnik's API at /v1 of a real server: clients that dequeue and complete tasks, as Jobnik's workers do.

Jobnik's own manager did 63 to 77 jobs a second on PostgreSQL, on this class of machine, with eight such clients.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson

from benchmarks.host import Host, cpu_s
from benchmarks.http import Asked, Client, Figures, connected, figures_of, our_server, process
from benchmarks.limit import prepare

TYPE, CHUNK = "resize", 500
MANAGER_JOBS_PER_S = 77
"""The better of the manager's figures."""


def jobnik(host: Host, store: str, jobs: int, clients: int, rounds: int) -> Figures:
    """Figures of the server, and how many times as many jobs it does as Jobnik's manager."""
    found = []
    for _ in range(rounds):
        with host.database(store) as url:
            prepare(url)
            with process(our_server(url)) as (pid, port):
                found.append(asyncio.run(_round(host, store, pid, port, jobs, clients)))
    figures = figures_of(found)
    return {**figures, "to_manager": round(figures["jobs_per_s"] / MANAGER_JOBS_PER_S, 2)}


async def _round(host: Host, store: str, pid: int, port: int, jobs: int, clients: int) -> Asked:
    async with connected(port, clients, {}) as crew:
        # The first requests pay for what is loaded late.
        await _submit(crew[0], clients)
        await asyncio.gather(*(_work(client, Asked()) for client in crew))
        await _submit(crew[0], jobs)
        asked = Asked()
        cpu, began = cpu_s(pid) + host.server_cpu_s(store), time.perf_counter()
        await asyncio.gather(*(_work(client, asked) for client in crew))
        asked.wall_s = time.perf_counter() - began
        asked.cpu_s = cpu_s(pid) + host.server_cpu_s(store) - cpu
        assert asked.jobs == jobs, f"{asked.jobs} of {jobs} jobs were done"
        return asked


async def _submit(client: Client, tasks: int) -> None:
    job = await _post(client, "/v1/jobs", {"name": "photos", "data": {}})
    stage = await _post(client, f"/v1/jobs/{job['id']}/stage", {"type": TYPE, "data": {}})
    for first in range(0, tasks, CHUNK):
        bodies = [{"data": {"number": n}} for n in range(first, min(first + CHUNK, tasks))]
        await _post(client, f"/v1/stages/{stage['id']}/tasks", bodies)


async def _post(client: Client, path: str, body: Any) -> Any:
    return await client.post(path, body, Asked())


async def _work(client: Client, asked: Asked) -> None:
    """Dequeue and complete until there is nothing left."""
    while True:
        status, answer = await client.send("PATCH", f"/v1/stages/{TYPE}/tasks/dequeue", None, asked)
        if status == 404:
            return
        path = f"/v1/tasks/{orjson.loads(answer)['id']}/status"
        status, answer = await client.send("PUT", path, {"status": "COMPLETED"}, asked)
        if status != 200:
            raise RuntimeError(f"{path} was answered with {status}: {answer[:500]!r}")
        asked.jobs += 1
