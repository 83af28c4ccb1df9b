"""What an ear is: it hears that another process has written. And the one for SQLite, which looks at the file.

Owns no truth: whoever waits also looks for itself from time to time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from onetray.notify.doorbell import DoorbellListener, DoorbellSender
from onetray.notify.new_work import NewWork, Queue, everywhere, parse_new_work

logger = logging.getLogger("onetray.wake")

LOOK_S = 0.02
"""How often to look at the file where no doorbell rings."""
LOOK_ANYWAY_S = 0.05
"""How often where one does: a process in a container of its own can write to the file and not be heard."""


class Listener(Protocol):
    hears: bool
    """Whether it can be relied on at the moment."""

    def run(self, heard: Callable[[NewWork[Queue]], set[Queue]], wanted: threading.Event) -> None:
        """Call `heard` whenever another process may have written, until stopped, and say what there may be to claim.
        `wanted` says if anybody waits."""
        ...

    def stop(self) -> None: ...


class WantedWork(NamedTuple):
    """What those who wait for work wait for."""

    queues: frozenset[Queue]
    group: tuple[str, ...] | None
    """What they can take: the same for those who know the same kinds."""


class WorkListener(Listener, Protocol):
    """One that hears of nothing but work in the queues that are wanted."""

    def ask_again(self) -> None:
        """Other queues are wanted now."""
        ...


class FileListener:
    """Watches a number that changes with every commit of others, while anybody waits for it."""

    hears = True

    def __init__(
        self, path: str, sender: str, changes: Callable[[], int], named: Callable[[NewWork[int]], NewWork[Queue]]
    ) -> None:
        """`sender` is whose rings are not told again, and `named` puts names for the numbers of queues."""
        self._path, self._sender, self._named, self._changes = path, sender, named, changes
        self._stopping = threading.Event()

    def run(self, heard: Callable[[NewWork[Queue]], set[Queue]], wanted: threading.Event) -> None:
        bell, rung = self._bell(), list[str]()
        # Kept while nobody waits: what was written between a look at the data and the wait is heard, too.
        known, unexplained = None, False
        try:
            while not self._stopping.is_set():
                wanted.wait()
                before, known = known, self._look(known)
                told = [work for work in (parse_new_work(text, self._sender) for text in rung) if work is not None]
                has_changed = known != before
                if not told and (unexplained or (has_changed and bell is None)):
                    told = [everywhere()]
                # Whoever has written may be about to ring. What nobody has rung for by the next look may be anything.
                unexplained = has_changed and not told
                if told:
                    self._tell(told, heard)
                if bell is None:
                    self._stopping.wait(LOOK_S)
                else:
                    rung = bell.wait(LOOK_ANYWAY_S)
        finally:
            if bell is not None:
                bell.close()

    def _tell(self, told: list[NewWork[int]], heard: Callable[[NewWork[Queue]], set[Queue]]) -> None:
        work: NewWork[int] = NewWork()
        for one in told:
            work.add(one)
        heard(self._named(work))

    def _bell(self) -> DoorbellListener | None:
        try:
            return DoorbellListener(self._path)
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
        with contextlib.suppress(OSError), contextlib.closing(DoorbellSender(self._path)) as button:
            button.press("")
