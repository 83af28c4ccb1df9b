"""What an ear is: it hears that another process has written. And the one for SQLite, which looks at the file.

Owns no truth: whoever waits also looks for itself from time to time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from onetray.store.doorbell import Bell, Button

logger = logging.getLogger("onetray.wake")

LOOK_S = 0.02
"""How often to look at the file where no doorbell rings."""
LOOK_ANYWAY_S = 0.05
"""How often where one does: a process in a container of its own can write to the file and not be heard."""


class Ear(Protocol):
    hears: bool
    """Whether it can be relied on at the moment."""

    def run(self, heard: Callable[[bool], None], wanted: threading.Event) -> None:
        """Call `heard` whenever another process may have written, until stopped, and say whether there may be more to
        claim. `wanted` says if anybody waits."""
        ...

    def stop(self) -> None: ...


class FileEar:
    """Watches a number that changes with every commit of another connection, while anybody waits for it."""

    hears = True

    def __init__(self, path: str, changes: Callable[[], int]) -> None:
        self._path, self._changes = path, changes
        self._stopping = threading.Event()

    def run(self, heard: Callable[[bool], None], wanted: threading.Event) -> None:
        bell, work = self._bell(), True
        # Kept while nobody waits: what was written between a look at the data and the wait is heard, too.
        known: int | None = None
        try:
            while not self._stopping.is_set():
                wanted.wait()
                now = self._look(known)
                if now != known:
                    known = now
                    heard(work)
                if bell is None:
                    self._stopping.wait(LOOK_S)
                else:
                    # What is noticed without a ring may be anything.
                    work = bell.wait(LOOK_ANYWAY_S) is not False
        finally:
            if bell is not None:
                bell.close()

    def _bell(self) -> Bell | None:
        try:
            return Bell(self._path)
        except OSError as e:
            logger.debug("there is no doorbell, the file is looked at more often: %s", e)
            return None

    def _look(self, known: int | None) -> int | None:
        try:
            return self._changes()
        except Exception as e:
            logger.debug("the file could not be looked at: %s", e)
            self._stopping.wait(0.5)
            return known

    def stop(self) -> None:
        self._stopping.set()
        with contextlib.suppress(OSError), contextlib.closing(Button(self._path)) as button:
            button.press()
