"""How tests wait: for something that comes about, with a limit; without an end; or until others had their turn."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

LOOK_EVERY_S = 0.005
MOST_BETWEEN_LOOKS_S = 0.1


class WaitedTooLong(AssertionError):
    """What was waited for did not come about."""


def wait_until(holds: Callable[[], Any], timeout_s: float = 60.0) -> None:
    """Wait for something that notifies nobody."""
    began = time.monotonic()
    while not holds():
        waited = time.monotonic() - began
        if waited > timeout_s:
            raise WaitedTooLong("waited too long")
        # Who waits for long looks less often: many looks ask a database, and take time from what is waited for.
        time.sleep(min(max(LOOK_EVERY_S, waited / 10), MOST_BETWEEN_LOOKS_S))


async def until(holds: Callable[[], Any], timeout_s: float = 60.0) -> None:
    """The same on an event loop."""
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(LOOK_EVERY_S)


async def forever() -> None:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()


def hold_thread(limit_s: float = 1000.0) -> None:
    """Wait until the process is ended, or for so long that nobody leaves it behind."""
    threading.Event().wait(limit_s)


async def yield_once() -> None:
    """Let everything else on the loop have its turn."""
    await asyncio.sleep(0)


def waiting(url: str) -> int:
    """How many transactions of this PostgreSQL database wait for a lock."""
    import psycopg  # Every process of the tests' app imports this module, and most of them have no use for it.

    with psycopg.connect(url, autocommit=True) as connection:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return int(connection.execute(sql).fetchall()[0][0])


def somebody_waits(url: str) -> bool:
    return waiting(url) > 0
