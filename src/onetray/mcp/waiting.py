"""Wait for a job to end, or for work to claim, while the client is there and the server has room for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from onetray.domain.commands import Claim, Release, ticket
from onetray.domain.lifecycle import PAUSED
from onetray.domain.task import Assignment, Task
from onetray.mcp.call import Call
from onetray.mcp.jobs import Job, is_over, progress_of, read_job
from onetray.notify.waiters import group_of

FIRST_POLL_S, LAST_POLL_S = 0.05, 1.0
"""How often a waiting call reads its job: less and less often."""


@contextmanager
def slot(call: Call) -> Iterator[bool]:
    """Whether the call may wait: a server lets only so many."""
    if call.backend.waits is None:
        yield True
        return
    with call.backend.waits.slot(call.principal) as may_wait:
        yield may_wait


async def until_over(call: Call, id_: str, wait_s: float) -> Job:
    """The job once it has ended or asks something, or as it is after `wait_s`. Notifies the client of its progress."""
    deadline, pause_s, told = time.monotonic() + wait_s, FIRST_POLL_S, 0.0
    with slot(call) as may_wait:
        while True:
            job = await asyncio.to_thread(read_job, call, id_)
            left_s = deadline - time.monotonic()
            if is_over(job) or job.state in PAUSED or not may_wait or left_s <= 0 or await is_pointless(call):
                return job
            if call.client.progress is not None and isinstance(job, Task):
                told = await _tell_progress(call, job, told)
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, LAST_POLL_S)


async def _tell_progress(call: Call, job: Task, told: float) -> float:
    """Progress must increase: other reports are not sent."""
    progress = await asyncio.to_thread(progress_of, call, job)
    if progress is None or progress["done"] <= told:
        return told
    assert call.client.progress is not None
    await call.client.progress(progress["done"], progress.get("total"), progress.get("message"))
    return float(progress["done"])


async def is_pointless(call: Call) -> bool:
    """Whether nobody will read the answer, or the server stops."""
    return call.backend.waiting.closed or (call.client.is_gone is not None and await call.client.is_gone())


async def claimed(call: Call, command: Claim, wait_s: float) -> list[Assignment]:
    """Claim tasks, waiting up to `wait_s` for some."""
    queue, deadline = (command.namespace, command.queue), time.monotonic() + wait_s
    seen = call.engine.wake.work_in([queue])
    found = await _claim(call, command)
    if found or not wait_s:
        return found
    with slot(call) as may_wait, call.backend.waiting.waiter([queue], group_of(command.kinds)) as waiter:
        while may_wait and (left_s := deadline - time.monotonic()) > 0 and not await is_pointless(call):
            if await waiter.wait(seen, min(left_s, LAST_POLL_S)):
                seen = waiter.seen()
                found = await _claim(call, command)
                waiter.polled(reached_limit=len(found) == command.limit)
                if found:
                    break
    return found


async def _claim(call: Call, command: Claim) -> list[Assignment]:
    """Claim once. If the caller cancels its request meanwhile, the tasks go back at once."""
    claim = asyncio.ensure_future(call.send(command))
    try:
        found: list[Assignment] = await asyncio.shield(claim)
    except asyncio.CancelledError:
        claim.add_done_callback(partial(_give_back, call))
        raise
    return found


def _give_back(call: Call, claim: asyncio.Future[list[Assignment]]) -> None:
    if claim.cancelled() or claim.exception() is not None or not claim.result():
        return
    releases = [Release(**ticket(a), reason="the caller cancelled its claim") for a in claim.result()]
    asyncio.get_running_loop().run_in_executor(None, call.engine.run, releases)
