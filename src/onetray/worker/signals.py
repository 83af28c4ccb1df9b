"""SIGTERM and SIGINT stop a worker that runs in a program's main thread.

Owns the signal handlers while the worker runs, and puts back what was there. A program's own handlers stay.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)
"""What Python itself has set. Whatever else is set, also to ignore a signal, is somebody's choice."""


@contextmanager
def stop_on_signals(ask_to_stop: Callable[[], None]) -> Iterator[None]:
    """Have signals ask for a stop, where the program leaves them to Python. Only a main thread can set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(*_: object) -> None:
        ask_to_stop()

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS if signal.getsignal(number) in DEFAULTS}
    try:
        for number in before:
            signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)
