"""pgqueuer on asyncpg, with its notifications, connections held open, and uvloop."""

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

from benchmarks.sides import began, leave_with_the_input, submit_each_async

role, url = sys.argv[1:]


async def main() -> None:
    async with asyncpg.create_pool(url, min_size=10, max_size=10) as pool:
        driver = AsyncpgPoolDriver(pool)
        queries = Queries(driver)
        if role == "set_up":
            await queries.install()
        elif role == "submit":
            await submit_each_async(lambda number: queries.enqueue("noop", str(number).encode(), 0))
        else:
            await work(QueueManager(queries))


async def work(manager: QueueManager) -> None:
    @manager.entrypoint("noop")
    async def noop(job: Job) -> None:
        began(int(job.payload or b"0"))

    signal.signal(signal.SIGTERM, lambda *_: manager.shutdown.set())
    leave_with_the_input()
    await manager.run(batch_size=10, dequeue_timeout=timedelta(seconds=30))


uvloop.run(main())
