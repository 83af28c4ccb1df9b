"""Threads and requests that wait for work, in lines by queue and by the kinds that they can run.

Owns the order in which they are woken. wake.py decides when.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from onetray.notify.new_work import NewWork, Queue

if TYPE_CHECKING:
    from onetray.notify.wake import Wake

Group = tuple[str, ...] | None
"""The kinds that a waiter can run. Waiters of one group compete for the same tasks."""


def group_of(kinds: Iterable[str] | None) -> Group:
    return None if kinds is None else tuple(sorted(kinds))


class Waiter:
    """A thread or a request that waits for work in some queues."""

    def __init__(
        self, wake: Wake, queues: Iterable[Queue], kinds: Group, call: Callable[[], object], polls: bool
    ) -> None:
        self._wake, self.queues, self.kinds, self.polls = wake, frozenset(queues), kinds, polls
        self.call = call
        self.queue: Queue | None = None
        """The queue that it was woken for, until it has polled it."""
        self.more = False
        """Whether the amount of work is unknown: after a claim that reaches its limit, wake other waiters, too."""

    def seen(self) -> int:
        """Read this counter before a claim and pass it to `enter`, so that work that arrives in between is noticed."""
        return self._wake.work_in(self.queues)

    def enter(self, seen: int) -> bool:
        """Get in line to be woken. Returns False if work has arrived since `seen` was read: claim again."""
        return self._wake.enter(self, seen)

    def leave(self) -> None:
        self._wake.leave(self)

    def polled(self, reached_limit: bool = False) -> None:
        """Mark the wake-up as used. Wake others if the claim reached its limit, so that there may be more work."""
        queue, self.queue = self.queue, None
        if queue is not None and self.more and reached_limit:
            self._wake.wake_next(queue, self.kinds, 2, more=True)

    def leave_and_wake_next(self) -> None:
        """Leave the line, and wake the next waiter if this one was woken and has not polled."""
        self._wake.leave(self)
        queue, self.queue = self.queue, None
        if queue is not None:
            self._wake.wake_next(queue, self.kinds, 1, more=self.more)


class ThreadWaiter(Waiter):
    """A thread that waits for work."""

    def __init__(self, wake: Wake, queues: Iterable[Queue], kinds: Group) -> None:
        self._woken = threading.Event()
        super().__init__(wake, queues, kinds, self._woken.set, polls=True)

    def wait(self, seen: int, timeout: float) -> None:
        """Wait until work arrives that is newer than `seen`, or until the timeout."""
        if self.enter(seen):
            self._woken.wait(timeout)
            self.leave()
        self._woken.clear()

    def interrupt(self) -> None:
        """End the wait without a wake-up."""
        self._woken.set()


class WaitingLines:
    """Waiters by queue and group, woken in the order of their arrival. Guarded by the lock of Wake."""

    def __init__(self) -> None:
        self._lines: dict[Queue, dict[Group, dict[Waiter, None]]] = {}
        self._waiting: set[Waiter] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiter: Waiter) -> None:
        self._waiting.add(waiter)
        for queue in waiter.queues:
            self._lines.setdefault(queue, {}).setdefault(waiter.kinds, {})[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        if waiter not in self._waiting:
            return
        self._waiting.remove(waiter)
        for queue in waiter.queues:
            groups = self._lines[queue]
            del groups[waiter.kinds][waiter]
            if not groups[waiter.kinds]:
                del groups[waiter.kinds]
            if not groups:
                del self._lines[queue]

    def all(self) -> set[Waiter]:
        return self._waiting

    def take(self, queue: Queue, kinds: Group, count: int, more: bool, polling: bool = False) -> list[Waiter]:
        """Take the next waiters out of a line. With `polling`, skip those that poll by themselves."""
        taken: list[Waiter] = []
        for waiter in self._lines.get(queue, {}).get(kinds, ()):
            if len(taken) >= count:
                break
            if not (polling and waiter.polls):
                taken.append(waiter)
        for waiter in taken:
            self.remove(waiter)
            waiter.queue, waiter.more = queue, more
        return taken

    def take_for(self, work: NewWork[Queue]) -> list[Waiter]:
        taken: list[Waiter] = []
        for queue, count in work.counted.items():
            for kinds in list(self._lines.get(queue, ())):
                taken += self.take(queue, kinds, count, more=False)
        return taken + self.take_in(work.uncounted)

    def take_in(self, queues: Iterable[Queue], polling: bool = False) -> list[Waiter]:
        """Take one waiter from each line of these queues: the amount of work is unknown."""
        lines = [(queue, kinds) for queue in queues for kinds in self._lines.get(queue, ())]
        return [waiter for queue, kinds in lines for waiter in self.take(queue, kinds, 1, more=True, polling=polling)]

    def queues(self, polling: bool = False) -> set[Queue]:
        """Queues with waiters. With `polling`, only those with waiters that do not poll by themselves."""
        if not polling:
            return set(self._lines)
        return {queue for waiter in self._waiting if not waiter.polls for queue in waiter.queues}
