"""One connection to a SQLite database: its settings, how it waits for locks, how it is closed.

sqlite.py decides which connections there are.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable

import apsw

BUSY_S = 30.0
SHORT_STEPS, FIRST_STEP_S, STEP_GROWTH = 15, 0.00002, 1.25
"""The first steps take 3 ms in all: Linux sleeps 0.06 ms longer than it is told to."""
LONG_STEP_S = (0.0005, 0.005)


def prepare(connection: apsw.Connection, pragmas: Iterable[str]) -> None:
    """Apply the settings to a new connection."""
    connection.set_busy_handler(_busy_handler())
    # With STAT4, SQLite plans by the values of parameters and prepares a statement again for each new value: a pick
    # took ten times as long. A plan gains nothing from it, as nobody runs ANALYZE.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    for pragma in pragmas:
        _execute_when_free(connection, f"PRAGMA {pragma}")


def _busy_handler() -> Callable[[int], bool]:
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


def _execute_when_free(connection: apsw.Connection, sql: str) -> None:
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


def roll_back(connection: apsw.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def close(connection: apsw.Connection) -> None:
    """Close a connection. If another thread is reading from it, interrupt that read and wait for its end."""
    until = time.monotonic() + 5.0
    while True:
        try:
            connection.close(True)
            return
        except apsw.ThreadingViolationError:
            if time.monotonic() > until:
                raise
            connection.interrupt()
            time.sleep(0.001)
