"""Listeners notice commits of other processes: their protocol, and the listener for SQLite.

A listener may miss a commit: every waiter also polls.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from onetray.notify.multicast import MulticastReceiver, MulticastSender
from onetray.notify.new_work import NewWork, Queue, everywhere, parse_new_work

logger = logging.getLogger("onetray.wake")

POLL_FILE_S = 0.02
"""The interval without multicast."""
POLL_FILE_WITH_MULTICAST_S = 0.05
"""The interval with multicast: datagrams from a process in another container may not arrive."""


OnCommit = Callable[[NewWork[Queue]], set[Queue]]
"""A listener calls it with the new work of a commit. Returns the queues that have no waiter in this process."""


class Listener(Protocol):
    is_connected: bool
    """Whether it currently receives notifications."""

    def run(self, on_commit: OnCommit, has_waiters: threading.Event) -> None:
        """Call `on_commit` whenever another process may have committed, until stopped. May pause while `has_waiters`
        is not set."""
        ...

    def want_commits(self) -> None:
        """Also notice commits that add no work, from now on. Before that, it may leave them out."""
        ...

    def stop(self) -> None: ...


class WantedWork(NamedTuple):
    """The queues in which this process waits for work."""

    queues: frozenset[Queue]
    group: tuple[str, ...] | None
    """The kinds that the waiters can run, if these are the same for all of them."""


class WorkListener(Listener, Protocol):
    """A listener for new work in the wanted queues only."""

    def refresh(self) -> None:
        """Read the wanted queues again: they have changed."""
        ...


class FileListener:
    """Notices commits to a SQLite file: by multicast, and by a counter that changes with commits of other processes."""

    is_connected = True

    def __init__(
        self, path: str, sender: str, changes: Callable[[], int], named: Callable[[NewWork[int]], NewWork[Queue]]
    ) -> None:
        """`sender` is this process: it ignores its own datagrams. `named` resolves the keys of queues to names."""
        self._path, self._sender, self._named, self._changes = path, sender, named, changes
        self._stopping = threading.Event()

    def run(self, on_commit: OnCommit, has_waiters: threading.Event) -> None:
        receiver, datagrams = self._receiver(), list[str]()
        # Kept while there is no waiter, to notice a commit between a waiter's last read and its wait.
        counter: int | None = None
        read_at = notified_at = float("-inf")
        is_unexplained = False
        try:
            while not self._stopping.is_set():
                has_waiters.wait()
                new = [work for work in (parse_new_work(text, self._sender) for text in datagrams) if work is not None]
                if new:
                    notified_at = time.monotonic()
                    on_commit(self._named(_sum(new)))
                # Not right after a datagram: the read would delay the claim of the waiter that was woken for it.
                if not new or time.monotonic() - read_at > POLL_FILE_WITH_MULTICAST_S:
                    before, counter, read_at = counter, self._read_counter(counter), time.monotonic()
                    # A datagram may arrive before its commit: the counter may change only after the next read.
                    is_explained = read_at - notified_at < 2 * POLL_FILE_WITH_MULTICAST_S
                    is_new = counter != before and not is_explained
                    # Commits before the first read of the counter were missed.
                    if before is None or (is_unexplained and not is_explained) or (is_new and receiver is None):
                        on_commit(everywhere())
                        is_new = False
                    # The writer may be about to send a datagram. Without one by the next read, assume work anywhere.
                    is_unexplained = is_new
                if receiver is None:
                    self._stopping.wait(POLL_FILE_S)
                else:
                    datagrams = receiver.wait(POLL_FILE_WITH_MULTICAST_S)
        finally:
            if receiver is not None:
                receiver.close()

    def _receiver(self) -> MulticastReceiver | None:
        try:
            return MulticastReceiver(self._path)
        except OSError as e:
            logger.debug("no multicast on this machine, polling the file more often: %s", e)
            return None

    def _read_counter(self, last: int | None) -> int | None:
        try:
            return self._changes()
        except Exception as e:
            logger.debug("cannot read the change counter of the file: %s", e)
            self._stopping.wait(0.5)
            return last

    def want_commits(self) -> None:
        """It notices all commits anyway: the counter does not say which of them add work."""

    def stop(self) -> None:
        self._stopping.set()
        with contextlib.suppress(OSError), contextlib.closing(MulticastSender(self._path)) as sender:
            sender.send("")


def _sum(parts: list[NewWork[int]]) -> NewWork[int]:
    total: NewWork[int] = NewWork()
    for part in parts:
        total.add(part)
    return total
