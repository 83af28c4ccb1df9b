"""The tools of parallel-mcp at /mcp of a real server: clients that claim and complete tasks by single requests.

parallel-mcp itself did 200 to 470 claims with completions a second in its own process, on this class of machine,
without HTTP between.
"""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.host import Host
from benchmarks.http import Asked, Client, Figures, drains, figures_of

IN_PROCESS_JOBS_PER_S = 470
"""The better of parallel-mcp's figures."""


def mcp(host: Host, store: str, jobs: int, clients: int, rounds: int) -> Figures:
    """Figures of the server, and how many times as many jobs it does as parallel-mcp in process."""
    figures = figures_of(drains(host, store, jobs, clients, rounds, _enqueue, _work))
    return {**figures, "to_in_process": round(figures["jobs_per_s"] / IN_PROCESS_JOBS_PER_S, 2)}


async def _enqueue(crew: list[Client], tasks: int) -> None:
    run = (await _call(crew[0], "create_run", Asked()))["run"]["id"]

    async def enqueue(client: Client, first: int) -> None:
        for n in range(first, tasks, len(crew)):
            await _call(client, "enqueue_task", Asked(), runId=run, kind="noop", input={"number": n})

    await asyncio.gather(*(enqueue(client, first) for first, client in enumerate(crew)))


async def _work(client: Client, number: int, asked: Asked) -> None:
    """Claim and complete until there is nothing left."""
    worker = f"w{number}"
    while claim := (await _call(client, "claim_next_task", asked, workerId=worker))["claim"]:
        held = {"taskId": claim["task"]["id"], "leaseId": claim["lease"]["id"], "workerId": worker}
        await _call(client, "complete_task", asked, **held, output={"sent": True})
        asked.jobs += 1


async def _call(client: Client, tool: str, asked: Asked, **arguments: Any) -> Any:
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    result = (await client.post("/mcp", request, asked))["result"]
    if result["isError"]:
        raise RuntimeError(f"{tool} was refused: {result['content'][0]['text'][:500]}")
    return result["structuredContent"]
