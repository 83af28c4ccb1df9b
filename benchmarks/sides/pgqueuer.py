"""pgqueuer on asyncpg, with its notifications, connections held open, large batches, and uvloop."""

from __future__ import annotations

import signal
import sys
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

from benchmarks.sides import Submitter, at_once, handle, leave_with_the_input

role, url = sys.argv[1:]
BATCH = 500


async def main() -> None:
    async with asyncpg.create_pool(url, min_size=10, max_size=10) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        if role == "set_up":
            await queries.install()
        elif role == "submit":
            await Submitter(
                lambda number: queries.enqueue("noop", _body(number), 0),
                lambda numbers: queries.enqueue(
                    ["noop"] * len(numbers), [_body(number) for number in numbers], [0] * len(numbers)
                ),
                lambda: pool.fetchval("SELECT count(*) FROM pgqueuer"),
            ).listen_async()
        else:
            await work(QueueManager(queries))


async def work(manager: QueueManager) -> None:
    @manager.entrypoint("noop")
    async def noop(job: Job) -> None:
        await handle(int(job.payload or b"0"))

    signal.signal(signal.SIGTERM, lambda *_: manager.shutdown.set())
    leave_with_the_input()
    most = at_once(0)
    # It asks for room for two batches at least; without a limit as many run at once as were fetched.
    batch = min(BATCH, most // 2) if most else BATCH
    await manager.run(batch_size=batch, dequeue_timeout=timedelta(seconds=30), max_concurrent_tasks=most or None)


def _body(number: int) -> bytes:
    return str(number).encode()


uvloop.run(main())
