"""What an ear is: it hears that another process has written. And the one for SQLite, which looks at the file.

Owns no truth: whoever waits also looks for itself from time to time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger("onetray.wake")

LOOK_S = 0.02


class Ear(Protocol):
    hears: bool
    """Whether it can be relied on at the moment."""

    def run(self, heard: Callable[[], None], wanted: threading.Event) -> None:
        """Call `heard` whenever another process may have written, until stopped. `wanted` says if anybody waits."""
        ...

    def stop(self) -> None: ...


class FileEar:
    """Watches a number that changes with every commit of another connection, while anybody waits for it."""

    hears = True

    def __init__(self, changes: Callable[[], int]) -> None:
        self._changes = changes
        self._stopping = threading.Event()

    def run(self, heard: Callable[[], None], wanted: threading.Event) -> None:
        # Kept while nobody waits: what was written between a look at the data and the wait is heard, too.
        known: int | None = None
        while not self._stopping.is_set():
            wanted.wait()
            now = self._look(known)
            if now != known:
                known = now
                heard()
            self._stopping.wait(LOOK_S)

    def _look(self, known: int | None) -> int | None:
        try:
            return self._changes()
        except Exception as e:
            logger.debug("the file could not be looked at: %s", e)
            self._stopping.wait(0.5)
            return known

    def stop(self) -> None:
        self._stopping.set()
