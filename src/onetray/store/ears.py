"""What an ear is: it hears that another process has written. And the one for SQLite, which looks at the file.

Owns no truth: whoever waits also looks for itself from time to time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from onetray.store.doorbell import Bell, Button
from onetray.store.work import Queue, Work, everywhere, read

logger = logging.getLogger("onetray.wake")

LOOK_S = 0.02
"""How often to look at the file where no doorbell rings."""
LOOK_ANYWAY_S = 0.05
"""How often where one does: a process in a container of its own can write to the file and not be heard."""
OURS_S = 0.25
"""How often a change that nobody rang for, and that may be of our own making, is taken for another process's."""


class Ear(Protocol):
    hears: bool
    """Whether it can be relied on at the moment."""

    def run(self, heard: Callable[[Work[Queue]], set[Queue]], wanted: threading.Event) -> None:
        """Call `heard` whenever another process may have written, until stopped, and say what there may be to claim.
        `wanted` says if anybody waits."""
        ...

    def stop(self) -> None: ...


class Wanted(NamedTuple):
    """What those who wait for work wait for."""

    queues: frozenset[Queue]
    group: tuple[str, ...] | None
    """What they can take: the same for those who know the same kinds."""


class WorkEar(Ear, Protocol):
    """One that hears of nothing but work in the queues that are wanted."""

    def ask_again(self) -> None:
        """Other queues are wanted now."""
        ...


class FileEar:
    """Watches a number that changes with every commit of another connection, while anybody waits for it."""

    hears = True

    def __init__(
        self, path: str, sender: str, changes: Callable[[], int], commits: Callable[[], int],
        named: Callable[[Work[int]], Work[Queue]],
    ) -> None:  # fmt: skip
        """`sender` is whose rings are not told again, `commits` counts what this process has written itself, and
        `named` puts names for the numbers of queues."""
        self._path, self._sender, self._named = path, sender, named
        self._changes, self._commits = changes, commits
        self._stopping = threading.Event()

    def run(self, heard: Callable[[Work[Queue]], set[Queue]], wanted: threading.Event) -> None:
        bell, rung = self._bell(), list[str]()
        # Kept while nobody waits: what was written between a look at the data and the wait is heard, too.
        known, own, anywhere_at = None, self._commits(), float("-inf")
        try:
            while not self._stopping.is_set():
                wanted.wait()
                (own_before, own), (before, known) = (own, self._commits()), (known, self._look(known))
                told = [work for work in (read(text, self._sender) for text in rung) if work is not None]
                if known != before and not told:
                    # What is noticed without a ring may be anything. If this process has written itself meanwhile, that
                    # is likely all of it: then not each time.
                    now = time.monotonic()
                    is_ours = own != own_before and bell is not None and now - anywhere_at < OURS_S
                    anywhere_at = anywhere_at if is_ours else now
                    told = [Work() if is_ours else everywhere()]
                if told:
                    self._tell(told, heard)
                if bell is None:
                    self._stopping.wait(LOOK_S)
                else:
                    rung = bell.wait(LOOK_ANYWAY_S)
        finally:
            if bell is not None:
                bell.close()

    def _tell(self, told: list[Work[int]], heard: Callable[[Work[Queue]], set[Queue]]) -> None:
        work: Work[int] = Work()
        for one in told:
            work.add(one)
        heard(self._named(work))

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
            button.press("")
