"""Jobnik's API at /v1 of a real server: clients that dequeue and complete tasks, as Jobnik's workers do.

Jobnik's own manager did 63 to 77 jobs a second on PostgreSQL, on this class of machine, with eight such clients.
"""

from __future__ import annotations

from typing import Any

import orjson

from benchmarks.host import Host
from benchmarks.http import Asked, Client, Figures, drains, figures_of

TYPE, CHUNK = "resize", 500
MANAGER_JOBS_PER_S = 77
"""The better of the manager's figures."""


def jobnik(host: Host, store: str, jobs: int, clients: int, rounds: int) -> Figures:
    """Figures of the server, and how many times as many jobs it does as Jobnik's manager."""

    async def submit(crew: list[Client], tasks: int) -> None:
        await _submit(crew[0], tasks)

    figures = figures_of(
        drains(host, store, jobs, clients, rounds, submit, lambda client, _, asked: _work(client, asked))
    )
    return {**figures, "to_manager": round(figures["jobs_per_s"] / MANAGER_JOBS_PER_S, 2)}


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
