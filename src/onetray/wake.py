"""Wake whoever waits for something to be written, in this process or in another.

Owns the generation counter and the threads that carry the news. It carries no data and may be late or absent:
whoever waits gives a timeout and looks for itself.

    seen = wake.generation
    …look…
    wake.wait(seen, timeout)    # returns at once when something was written since

Whoever wants to claim waits for work alone: most of what is written, claims and reports, brings none.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from uuid_utils import uuid4

from onetray.store.ears import Ear

logger = logging.getLogger("onetray.wake")

TELL_EVERY_S = 0.01
POLL_S = 1.0
DEAF_POLL_S = 0.2


class Source(Protocol):
    """Where news come from: a store, or a server. See Store."""

    alone: bool
    tells: bool
    news_every_s: float
    on_commit: list[Callable[[bool, bool], None]]

    def tell(self, work: bool) -> None: ...

    def ear(self) -> Ear | None: ...


class Wake:
    def __init__(self, store: Source) -> None:
        self._store = store
        self.boot = str(uuid4())
        """Which wake-up the numbers are of: another one counts anew."""
        self._changed = threading.Condition()
        self._fed = threading.Condition(self._changed._lock)  # type: ignore[attr-defined]
        self.generation = self.work = 0
        self.closed = False
        self._waiting = self._waiting_for_work = 0
        self._work_untold = False
        self._work_came = threading.Event()
        self._wanted = threading.Event()
        self._untold = threading.Event()
        self._stopping = threading.Event()
        self._ear: Ear | None = None
        self._threads: list[threading.Thread] = []
        self._listens = self._tells = False
        store.on_commit.append(self.ring)

    @property
    def poll_s(self) -> float:
        """How long to wait at most: less when other processes cannot be heard."""
        alone_or_heard = self._store.alone or (self._ear is not None and self._ear.hears)
        return POLL_S if alone_or_heard else DEAF_POLL_S

    def ring(self, work: bool = True, told: bool = False) -> None:
        """Something was committed here: wake this process now, the others in a moment unless they know."""
        self.heard(work)
        if self._store.tells and not told:
            if work:
                self._work_untold = True
                self._work_came.set()
            if not self._untold.is_set():
                self._untold.set()
                if not self._tells:
                    self._begin_to_tell()

    def heard(self, work: bool = True) -> None:
        """Something was committed somewhere: wake this process."""
        with self._changed:
            self.generation += 1
            if self._waiting:
                self._changed.notify_all()
            if work:
                self.work += 1
                if self._waiting_for_work:
                    self._fed.notify_all()

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until the generation is not `seen` any more, or the time is over. Answers the generation."""
        with self._listening():
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self.generation != seen or self.closed, timeout)
            finally:
                self._waiting -= 1
            return self.generation

    def wait_for_work(self, seen: int, timeout: float) -> None:
        """Wait until there may be more to claim than when `work` was `seen`, or the time is over."""
        with self._listening():
            self._waiting_for_work += 1
            try:
                self._fed.wait_for(lambda: self.work != seen or self.closed, timeout)
            finally:
                self._waiting_for_work -= 1

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Hold the lock, and have other processes listened to meanwhile."""
        if not self._listens:
            self._begin_to_listen()
        with self._changed:
            self._wanted.set()
            try:
                yield
            finally:
                if not self._waiting and not self._waiting_for_work and not self.closed:
                    self._wanted.clear()

    def close(self) -> None:
        """Wake everybody for the last time, and stop the threads."""
        with self._changed:
            if self.closed:
                return
            self.closed = True
            self._changed.notify_all()
            self._fed.notify_all()
        self._store.on_commit.remove(self.ring)
        self._stopping.set()
        if self._ear is not None:
            self._ear.stop()
        self._wanted.set()
        self._untold.set()
        self._work_came.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=5)

    def _begin_to_tell(self) -> None:
        with self._changed:
            if not self._tells and not self.closed:
                self._tells = True
                self._start(self._tell, "onetray-notifier")

    def _begin_to_listen(self) -> None:
        with self._changed:
            if self._listens or self.closed:
                return
            self._listens = True
            self._ear = self._store.ear()
            if self._ear is not None:
                self._start(self._listen, "onetray-listener")

    def _start(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as e:
            # The commit stands: that nobody is told of it must not look like a failure.
            logger.warning("%s could not be started, others have to poll: %s", name, e)
        else:
            self._threads.append(thread)

    def _listen(self) -> None:
        assert self._ear is not None
        try:
            self._ear.run(self.heard, self._wanted)
        except Exception:
            self._ear.hears = False
            logger.exception("the listener ended; polling instead")

    def _tell(self) -> None:
        """Tell the other processes, once for all that was committed since the last time."""
        while not self._stopping.is_set():
            self._untold.wait()
            # Cleared first: what is committed from here on is told the next time.
            self._untold.clear()
            work, self._work_untold = self._work_untold, False
            self._work_came.clear()
            try:
                self._store.tell(work)
            except Exception as e:
                logger.debug("the others could not be told: %s", e)
                self._stopping.wait(1.0)
            self._stopping.wait(TELL_EVERY_S)
            self._work_came.wait(max(0.0, self._store.news_every_s - TELL_EVERY_S))
