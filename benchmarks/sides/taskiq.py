"""taskiq on a Redis stream, which acknowledges jobs, with uvloop."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress

import uvloop
from redis.asyncio import Redis
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from benchmarks.sides import Submitter, at_once, handle, leave_with_the_input

role, url = sys.argv[1:]
# From the first entry on: the jobs are there before the worker.
broker = RedisStreamBroker(url=url, xread_count=1000, consumer_id="0")


@broker.task(task_name="noop")
async def noop(number: int) -> None:
    await handle(number)


async def main() -> None:
    if role == "work":
        await work()
        return
    await broker.startup()
    if role == "submit":
        redis = Redis.from_url(url)
        await Submitter(lambda number: noop.kiq(number), many, lambda: left(redis)).listen_async()
        await redis.aclose()
    await broker.shutdown()


async def many(numbers: range) -> None:
    """It has no call for many: as many at once as are fastest."""
    for first in range(0, len(numbers), 50):
        await asyncio.gather(*(noop.kiq(number) for number in numbers[first : first + 50]))


async def left(redis: Redis) -> int:
    group = (await redis.xinfo_groups("taskiq"))[0]
    return int(group["pending"]) + int(group["lag"] or 0)


async def work() -> None:
    leave_with_the_input()
    task = asyncio.create_task(run_receiver_task(broker, max_async_tasks=at_once(200), run_startup=True))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


uvloop.run(main())
