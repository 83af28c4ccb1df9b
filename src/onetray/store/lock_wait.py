"""Wait for the lock of a SQLite database that another process holds.

Owns how long the steps of that wait are.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import apsw

BUSY_S = 30.0
SHORT_STEPS, FIRST_STEP_S, STEP_GROWTH = 15, 0.00002, 1.25
"""The first steps take 3 ms in all: Linux sleeps 0.06 ms longer than it is told to."""
LONG_STEP_S = (0.0005, 0.005)


def busy_handler() -> Callable[[int], bool]:
    """Wait for the lock in short random steps: SQLite's own steps grow to 100 ms and starve some waiters.

    The first steps are shorter than an fsync: a worker that was told of a task may be waiting for its commit.
    """
    began = 0.0

    def wait(tries: int) -> bool:
        nonlocal began
        if tries == 0:
            began = time.monotonic()
        is_short = tries < SHORT_STEPS
        time.sleep(FIRST_STEP_S * STEP_GROWTH**tries if is_short else random.uniform(*LONG_STEP_S))
        return time.monotonic() - began < BUSY_S

    return wait


def execute_when_free(connection: apsw.Connection, sql: str) -> None:
    """Retry a statement while the database is locked: SQLite calls no busy handler when a new file changes to WAL."""
    until = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute(sql).fetchall()
            return
        except apsw.BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(random.uniform(0.001, 0.01))
