"""Who waits for work: threads and requests, in lines by queue and by the kinds that they can take.

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
"""The kinds that a waiter can take. Waiters of one group can take the same tasks of a queue."""


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
        """The queue that it was woken for, until it has looked there."""
        self.more = False
        """Whether the amount of work is unknown: if a claim finds as much as it asked for, others are woken, too."""

    def seen(self) -> int:
        """A counter to read before looking, and to pass to `enter`: work that arrives in between is not missed."""
        return self._wake.work_in(self.queues)

    def enter(self, seen: int) -> bool:
        """Get in line to be woken. Returns False if work has arrived since `seen` was read: look again."""
        return self._wake.enter(self, seen)

    def leave(self) -> None:
        self._wake.leave(self)

    def looked(self, found_all: bool = False) -> None:
        """Mark the wake-up as used. Wake others if there may be more work than this waiter asked for."""
        queue, self.queue = self.queue, None
        if queue is not None and self.more and found_all:
            self._wake.wake_next(queue, self.kinds, 2, more=True)

    def pass_on(self) -> None:
        """Leave the line, and give an unused wake-up to the next waiter."""
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

    def let_go(self) -> None:
        """End the wait without a wake-up."""
        self._woken.set()


class WaitingLines:
    """Waiters by queue and group, woken in the order of their arrival. Guarded by the lock of Wake."""

    def __init__(self) -> None:
        self._of: dict[Queue, dict[Group, dict[Waiter, None]]] = {}
        self._waiting: set[Waiter] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiter: Waiter) -> None:
        self._waiting.add(waiter)
        for queue in waiter.queues:
            self._of.setdefault(queue, {}).setdefault(waiter.kinds, {})[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        if waiter not in self._waiting:
            return
        self._waiting.remove(waiter)
        for queue in waiter.queues:
            groups = self._of[queue]
            del groups[waiter.kinds][waiter]
            if not groups[waiter.kinds]:
                del groups[waiter.kinds]
            if not groups:
                del self._of[queue]

    def all(self) -> set[Waiter]:
        return self._waiting

    def take(self, queue: Queue, kinds: Group, many: int, more: bool, polling: bool = False) -> list[Waiter]:
        """Take the next waiters out of a line. When `polling`, skip those that poll by themselves."""
        taken: list[Waiter] = []
        for waiter in self._of.get(queue, {}).get(kinds, ()):
            if len(taken) >= many:
                break
            if not (polling and waiter.polls):
                taken.append(waiter)
        for waiter in taken:
            self.remove(waiter)
            waiter.queue, waiter.more = queue, more
        return taken

    def take_for(self, work: NewWork[Queue]) -> list[Waiter]:
        taken: list[Waiter] = []
        for queue, many in work.counted.items():
            for kinds in list(self._of.get(queue, ())):
                taken += self.take(queue, kinds, many, more=False)
        return taken + self.take_in(work.uncounted)

    def take_in(self, queues: Iterable[Queue], polling: bool = False) -> list[Waiter]:
        """Take one waiter from each line of these queues: the amount of work is unknown."""
        lines = [(queue, kinds) for queue in queues for kinds in self._of.get(queue, ())]
        return [waiter for queue, kinds in lines for waiter in self.take(queue, kinds, 1, more=True, polling=polling)]

    def queues(self, polling: bool = False) -> set[Queue]:
        """Queues with waiters. When `polling`, only with waiters that do not poll by themselves."""
        if not polling:
            return set(self._of)
        return {queue for waiter in self._waiting if not waiter.polls for queue in waiter.queues}
