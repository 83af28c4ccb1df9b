"""Settings of a process that does nothing but run a worker: garbage collection, memory, thread switches.

Owns what is changed while the worker runs, and restores it. A worker inside a program leaves them alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from types import TracebackType

SWITCH_INTERVAL_S = 0.0002
"""With Python's default of 5 ms a busy event loop delays every answer of the database by as much."""
GC_THRESHOLD, GC_THRESHOLD_PER_TASK = 2_000, 10
_M_ARENA_MAX = -8


class ProcessTuning:
    def __init__(self) -> None:
        self._thresholds: tuple[int, int, int] | None = None
        """Those of the garbage collector before. None while nothing is changed."""
        self._switch_interval_s = 0.0

    def __enter__(self) -> ProcessTuning:
        _share_memory()
        gc.freeze()
        self._thresholds, self._switch_interval_s = gc.get_threshold(), sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH_INTERVAL_S, self._switch_interval_s))
        self.adjust_gc(0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._thresholds is not None
        gc.set_threshold(*self._thresholds)
        sys.setswitchinterval(self._switch_interval_s)
        self._thresholds = None

    def adjust_gc(self, held: int) -> None:
        """Collect cycles less often while many tasks are held.

        Python collects when there are so many new objects. Those of a held task are freed by their reference counts
        when it ends, and a worker that holds thousands has handlers that run for microseconds.
        """
        if self._thresholds is not None:
            first, *others = self._thresholds
            gc.set_threshold(max(GC_THRESHOLD, first) + GC_THRESHOLD_PER_TASK * held, *others)


def _share_memory() -> None:
    """Limit malloc to two arenas: glibc gives each thread its own, and none reuses what another has freed."""
    with contextlib.suppress(OSError, AttributeError):  # Another C library.
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
