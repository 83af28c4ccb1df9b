"""How a process ends from outside: by signals, and by a terminal or a reader of its output that goes away.

SIGTERM, SIGINT and SIGHUP request a graceful stop, a second SIGTERM or SIGINT an immediate one. A second SIGHUP changes
nothing: a shell sends one, too, when its terminal is closed, and systemd may send one after SIGTERM.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PYTHON_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)
"""Python's own handlers. Any other handler, including SIG_IGN, was chosen by the program and stays."""
READER_GONE = (errno.EPIPE, errno.EIO)
"""Errors of a write to a pipe without a reader, and to a terminal that was closed."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that stop a program of onetray: SIGHUP only if it is not ignored, as under nohup."""
    return tuple(n for n in STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN)


def on_signal(ask_to_stop: Callable[[], None]) -> Callable[[int], None]:
    """What to call with the number of a signal. Every call of `ask_to_stop` after the first one means: at once."""
    was_requested = False

    def handle(number: int) -> None:
        nonlocal was_requested
        if number != signal.SIGHUP or not was_requested:
            was_requested = True
            ask_to_stop()

    return handle


def stop_program_on_signals(ask_to_stop: Callable[[], None]) -> None:
    """Let signals request a stop of this program. Call it in the main thread."""
    handle = on_signal(ask_to_stop)
    for number in stop_signals():
        signal.signal(number, lambda number, _: handle(number))


@contextmanager
def stop_on_signals(ask_to_stop: Callable[[], None]) -> Iterator[None]:
    """Let signals request a stop, unless the program handles them. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handle = on_signal(ask_to_stop)

    def handle_signal(number: int, _: object) -> None:
        handle(number)

    previous = {n: signal.getsignal(n) for n in STOP_SIGNALS if signal.getsignal(n) in PYTHON_DEFAULTS}
    try:
        for number in previous:
            signal.signal(number, handle_signal)
        yield
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is handle_signal:
                signal.signal(number, handler)


class _Output(io.FileIO):
    """A standard stream. When its reader has gone, it is replaced by /dev/null: also for processes started later."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as e:
            if e.errno not in READER_GONE:
                raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return memoryview(data).nbytes


def outlive_readers() -> None:
    """Let this process, and the handlers in it, go on when the terminal or the reader of its output has gone."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            raw = _Output(stream.fileno(), "wb", closefd=False)
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue  # It was closed at the start, or is no file.
        through = stream.write_through
        buffer: Any = raw if through else io.BufferedWriter(raw)
        # The old one stays in sys.__stdout__, so that its file is not closed.
        new = io.TextIOWrapper(buffer, stream.encoding, stream.errors, None, stream.line_buffering, through)
        setattr(sys, name, new)
