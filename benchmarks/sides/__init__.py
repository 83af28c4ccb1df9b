"""The programs that are set side by side: each submits jobs or works on them, and says when.

Owns what such a program is told and what it says. It runs as `python -m benchmarks.sides.NAME ROLE URL`, one process
for each role: `set_up` ends by itself, `submit` and `work` when their input ends. Numbers come in, one on a line.
A line goes out when a job is submitted (with the time just before the call) and when its handler begins.

The peers run in an environment without onetray, so nothing here imports it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable

SUBMITTED, BEGAN = "submitted", "began"


def began(number: int) -> None:
    """What a handler does, all of it."""
    _say(BEGAN, number, time.time_ns())


def leave_with_the_input() -> None:
    """Have a worker stopped as by an operator when its input ends, also when whoever started it was killed."""

    def wait() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def submit_each(submit: Callable[[int], object]) -> None:
    """Submit a job for each number that is read."""
    for line in iter(sys.stdin.readline, ""):
        number, at = int(line), time.time_ns()
        submit(number)
        _say(SUBMITTED, number, at)


async def submit_each_async(submit: Callable[[int], Awaitable[object]]) -> None:
    """The same for a program on an event loop."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        number, at = int(line), time.time_ns()
        await submit(number)
        _say(SUBMITTED, number, at)


def _say(what: str, number: int, at: int) -> None:
    # One write, so that the lines of two processes on one pipe stay whole.
    os.write(1, f"{what} {number} {at}\n".encode())
