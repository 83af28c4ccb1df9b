"""The programs that are set side by side: each submits jobs or works on them, and says when.

Owns what such a program is told and what it says. It runs as `python -m benchmarks.sides.NAME ROLE URL`, one process
for each role: `set_up` ends by itself, `submit` and `work` when their input ends. Lines come in:

    17           submit the job with this number
    single 100   submit so many jobs, one after another
    bulk 1000    submit so many with the program's call for many
    left         say how many jobs are not done yet

A line goes out for each, with nanoseconds: when the call was made, or for single and bulk how long they took. Another
goes out when a handler begins. The clock is the machine's, so that two processes can be compared.

Two variables change what a worker does: with ONETRAY_BENCH_HANDLER_MS each handler sleeps after it began, and
ONETRAY_BENCH_AT_ONCE says how many run at once. Without them a handler does nothing, and as many run at once as are
fastest then.

The peers run in an environment without onetray, so nothing here imports it. The programs for Node speak the same
language: see say.mjs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

SUBMITTED, BEGAN, SINGLE, BULK, LEFT = "submitted", "began", "single", "bulk", "left"
CHUNK = 1_000
"""How many jobs a call for many is given at a time."""


HANDLER_MS, AT_ONCE = "ONETRAY_BENCH_HANDLER_MS", "ONETRAY_BENCH_AT_ONCE"
HANDLER_S = float(os.environ.get(HANDLER_MS, 0)) / 1000


def began(number: int) -> None:
    """What a handler does, unless it is to sleep."""
    _say(BEGAN, number, time.monotonic_ns())


async def handle(number: int) -> None:
    """The handler of a program that can await."""
    began(number)
    if HANDLER_S:
        await asyncio.sleep(HANDLER_S)


def handle_here(number: int) -> None:
    """The handler of a program that cannot."""
    began(number)
    if HANDLER_S:
        time.sleep(HANDLER_S)


def at_once(fastest: int) -> int:
    """How many handlers may run at once: what was asked for, or what is fastest when they do nothing."""
    return int(os.environ.get(AT_ONCE, fastest))


def leave_with_the_input() -> None:
    """Have a worker stopped as by an operator when its input ends, also when whoever started it was killed."""

    def wait() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


class Submitter:
    """A program's calls: for one job, for many, and for how many are left. Some have none for many."""

    def __init__(self, one: Callable[[int], Any], many: Callable[[range], Any] | None, left: Callable[[], Any]) -> None:
        self._one, self._many, self._left = one, many, left

    def listen(self) -> None:
        """Do what each line says, until the input ends."""
        for line in iter(sys.stdin.readline, ""):
            steps, answer = self._steps(line.split()), None
            while (answer := _next(steps, answer)) is not _END:
                pass

    async def listen_async(self) -> None:
        """The same for a program whose calls are awaited."""
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            steps, answer = self._steps(line.split()), None
            while (call := _next(steps, answer)) is not _END:
                answer = await call

    def _steps(self, words: list[str]) -> Generator[Any, Any, None]:
        """The calls that a line asks for, one at a time: whoever drives this gives back what they answer."""
        start = time.monotonic_ns()
        match words:
            case ["single", count]:
                for number in range(int(count)):
                    yield self._one(number)
                _say(SINGLE, int(count), time.monotonic_ns() - start)
            case ["bulk", count]:
                for first in range(0, int(count), CHUNK):
                    yield from self._chunk(range(first, min(first + CHUNK, int(count))))
                _say(BULK, int(count), time.monotonic_ns() - start)
            case ["left"]:
                _say(LEFT, (yield self._left()), time.monotonic_ns())
            case [number]:
                yield self._one(int(number))
                _say(SUBMITTED, int(number), start)

    def _chunk(self, numbers: range) -> Generator[Any, Any, None]:
        if self._many is not None:
            yield self._many(numbers)
        else:
            for number in numbers:
                yield self._one(number)


_END = object()


def _next(steps: Generator[Any, Any, None], answer: Any) -> Any:
    try:
        return steps.send(answer)
    except StopIteration:
        return _END


def _say(what: str, number: int, ns: int) -> None:
    # One write, so that the lines of two processes in one file stay whole.
    os.write(1, f"{what} {number} {ns}\n".encode())
