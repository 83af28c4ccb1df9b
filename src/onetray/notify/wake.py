"""Wake whoever waits for something to be written, in this process or in another.

Owns the generation counter, who waits for work, and the threads that carry the news. It carries no data and may be late
or absent: whoever waits gives a timeout and looks for itself.

    seen = wake.generation
    …look…
    wake.wait(seen, timeout)    # returns at once when something was written since

Whoever wants to claim waits for work in its queues alone: most of what is written, claims and reports, brings none.
One is woken for each task that became claimable, of those who wait for the same kinds in its queue:

    waiter = wake.waiter([("default", "mail")])
    seen = waiter.seen()
    …look…
    waiter.looked()
    waiter.wait(seen, timeout)

A wake-up that is not followed by a look must be passed on, or its task waits for somebody to poll.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from uuid_utils import uuid4

from onetray.notify.base import Listener, WantedWork, WorkListener
from onetray.notify.new_work import NewWork, Queue

logger = logging.getLogger("onetray.wake")

TELL_EVERY_S = 0.01
POLL_S = 1.0
DEAF_POLL_S = 0.2

Group = tuple[str, ...] | None
"""What those who wait have in common that can take the same tasks of a queue: the kinds they know."""


def group_of(kinds: Iterable[str] | None) -> Group:
    return None if kinds is None else tuple(sorted(kinds))


class WakeSource(Protocol):
    """Where news come from: a store, or a server. See Store."""

    alone: bool
    notifies: bool
    notify_every_s: float
    on_commit: list[Callable[[NewWork[int], bool], None]]

    def notify(self, work: NewWork[int]) -> None: ...

    def named(self, work: NewWork[int]) -> NewWork[Queue]: ...

    def with_work(self, queues: Collection[Queue]) -> Collection[Queue]: ...

    def listener(self) -> Listener | None: ...

    def work_listener(self, wanted: Callable[[], WantedWork]) -> WorkListener | None: ...


class Waiter:
    """Somebody who waits for work in some queues."""

    def __init__(
        self, wake: Wake, queues: Iterable[Queue], kinds: Group, call: Callable[[], object], polls: bool
    ) -> None:
        self._wake, self.queues, self.kinds, self.polls = wake, frozenset(queues), kinds, polls
        self.call = call
        self.queue: Queue | None = None
        """The queue that it was woken for, until it has looked."""
        self.more = False
        """Whether nobody knows how much there is: if it finds all it asked for, others look, too."""

    def seen(self) -> int:
        """To be asked before a look, and given to `enter`: what comes in between is not missed."""
        return self._wake.work_in(self.queues)

    def enter(self, seen: int) -> bool:
        """Stand in line to be woken. No, if there was work since `seen` was asked for: look again."""
        return self._wake.enter(self, seen)

    def leave(self) -> None:
        self._wake.leave(self)

    def looked(self, found_all: bool = False) -> None:
        """The wake-up is used. If there may be more than was asked for, others are woken, too."""
        queue, self.queue = self.queue, None
        if queue is not None and self.more and found_all:
            self._wake.wake_next(queue, self.kinds, 2, more=True)

    def pass_on(self) -> None:
        """Leave the line, and hand a wake-up that was not used to the next one."""
        self._wake.leave(self)
        queue, self.queue = self.queue, None
        if queue is not None:
            self._wake.wake_next(queue, self.kinds, 1, more=self.more)


class ThreadWaiter(Waiter):
    """One that is a thread."""

    def __init__(self, wake: Wake, queues: Iterable[Queue], kinds: Group) -> None:
        self._woken = threading.Event()
        super().__init__(wake, queues, kinds, self._woken.set, polls=True)

    def wait(self, seen: int, timeout: float) -> None:
        """Wait until there may be more to claim than when `seen` was asked for, or the time is over."""
        if self.enter(seen):
            self._woken.wait(timeout)
            self.leave()
        self._woken.clear()

    def let_go(self) -> None:
        """End its wait, without a wake-up."""
        self._woken.set()


class WaitingLines:
    """Who waits for work, by queue and by the kinds they know, first come first woken. Under the lock of the Wake."""

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
        """The next ones of a line, woken for this queue. When `polling`, of those alone who do not poll themselves."""
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
        """One of each line in these queues. Nobody knows how much there is."""
        lines = [(queue, kinds) for queue in queues for kinds in self._of.get(queue, ())]
        return [waiter for queue, kinds in lines for waiter in self.take(queue, kinds, 1, more=True, polling=polling)]

    def queues(self, polling: bool = False) -> set[Queue]:
        """Where somebody waits. When `polling`, somebody who does not poll."""
        if not polling:
            return set(self._of)
        return {queue for waiter in self._waiting if not waiter.polls for queue in waiter.queues}


class Wake:
    def __init__(self, store: WakeSource) -> None:
        self._store = store
        self.boot = str(uuid4())
        """Which wake-up the numbers are of: another one counts anew."""
        self._changed = threading.Condition()
        self.generation = self.work = 0
        self._work_of: Counter[Queue] = Counter()
        self._work_anywhere = 0
        self.closed = False
        self._waiting = 0
        self._lines = WaitingLines()
        self._work_untold: NewWork[int] = NewWork()
        self._work_came = threading.Event()
        self._wanted, self._work_wanted = threading.Event(), threading.Event()
        self._wanted_queues: set[Queue] = set()
        self._untold = threading.Event()
        self._stopping = threading.Event()
        self._ear: Listener | None = None
        self._work_ear: WorkListener | None = None
        self._threads: list[threading.Thread] = []
        self._listens = self._listens_for_work = self._tells = False
        store.on_commit.append(self.ring)

    @property
    def poll_s(self) -> float:
        """How long to wait at most: less when other processes cannot be heard."""
        ears = [ear for ear in (self._ear, self._work_ear) if ear is not None]
        is_heard = bool(ears) and all(ear.hears for ear in ears)
        return POLL_S if self._store.alone or is_heard else DEAF_POLL_S

    def ring(self, work: NewWork[int], told: bool = False) -> None:
        """Something was committed here: wake this process now, the others in a moment unless they know."""
        self.notify(self._store.named(work) if work else None)
        if self._store.notifies and not told:
            if work:
                with self._changed:
                    self._work_untold.add(work)
                self._work_came.set()
            if not self._untold.is_set():
                self._untold.set()
                if not self._tells:
                    self._begin_to_tell()

    def notify(self, work: NewWork[Queue] | None = None) -> set[Queue]:
        """Something was committed somewhere: wake this process. Answers the queues with work that nobody waits for."""
        with self._changed:
            self.generation += 1
            if self._waiting:
                self._changed.notify_all()
            if not work:
                return set()
            self.work += 1
            self._work_anywhere += work.anywhere
            for queue in work.queues:
                self._work_of[queue] += 1
            woken = self._lines.take_for(work)
            # Whoever comes to wait from here on looks once more: the numbers above have risen.
            anywhere = self._lines.queues() if work.anywhere else set()
        for waiter in woken:
            waiter.call()
        self._wake_where_work_is(anywhere)
        return work.queues - {waiter.queue for waiter in woken}

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until the generation is not `seen` any more, or the time is over. Answers the generation."""
        with self._listening():
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self.generation != seen or self.closed, timeout)
            finally:
                self._waiting -= 1
            return self.generation

    # Those who wait for work.

    def waiter(self, queues: Iterable[Queue], kinds: Group = None) -> ThreadWaiter:
        """A thread that wants to wait for work."""
        return ThreadWaiter(self, queues, kinds)

    def work_in(self, queues: Collection[Queue]) -> int:
        """A number that rises whenever there may be more to claim in one of these queues."""
        return self._work_anywhere + sum(self._work_of[queue] for queue in queues)

    def enter(self, waiter: Waiter, seen: int) -> bool:
        if not self._listens_for_work:
            self._begin_to_listen_for_work()
        with self._changed:
            if self.closed or self.work_in(waiter.queues) != seen:
                return False
            self._lines.add(waiter)
            (self._wanted if self._work_ear is None else self._work_wanted).set()
            if waiter.queues <= self._wanted_queues:
                return True
            self._wanted_queues |= waiter.queues
        if self._work_ear is not None:
            self._work_ear.ask_again()
        return True

    def wanted(self) -> WantedWork:
        """What others are to be listened to for: all queues that were waited for so far, and by whom now."""
        with self._changed:
            groups = {waiter.kinds for waiter in self._lines.all()}
            return WantedWork(frozenset(self._wanted_queues), groups.pop() if len(groups) == 1 else (self.boot,))

    def leave(self, waiter: Waiter) -> None:
        with self._changed:
            self._lines.remove(waiter)
            self._rest()

    def wake_next(self, queue: Queue, kinds: Group, many: int, more: bool) -> None:
        """Wake others for work that was told of before."""
        with self._changed:
            woken = self._lines.take(queue, kinds, many, more)
        for waiter in woken:
            waiter.call()

    def poll(self) -> None:
        """Have one look of all who wait for the same work and do not look by themselves. If it finds some, more do."""
        with self._changed:
            waited_for = self._lines.queues(polling=True)
        self._wake_where_work_is(waited_for, polling=True)

    def _wake_where_work_is(self, queues: set[Queue], polling: bool = False) -> None:
        """Wake one of each line in those of the queues that hold something, in one question for all of them."""
        with_work: Collection[Queue] = queues
        # To look in one queue costs no more than to ask whether to.
        if len(queues) > 1:
            try:
                with_work = self._store.with_work(queues)
            except Exception as e:
                logger.debug("nobody knows where there is work, so all look: %s", e)
        with self._changed:
            woken = self._lines.take_in(with_work, polling)
        for waiter in woken:
            waiter.call()

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
                self._rest()

    def _rest(self) -> None:
        """Stop listening when nobody waits."""
        if self.closed:
            return
        if not self._lines:
            self._work_wanted.clear()
        if not self._waiting and not (self._lines and self._work_ear is None):
            self._wanted.clear()

    def close(self) -> None:
        """Wake everybody for the last time, and stop the threads."""
        with self._changed:
            if self.closed:
                return
            self.closed = True
            self._changed.notify_all()
            waiting = list(self._lines.all())
        for waiter in waiting:
            waiter.call()
        self._store.on_commit.remove(self.ring)
        self._stopping.set()
        for ear in (self._ear, self._work_ear):
            if ear is not None:
                ear.stop()
        self._wanted.set()
        self._work_wanted.set()
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
            self._ear = self._store.listener()
            if self._ear is not None:
                self._start(self._listen, "onetray-listener")

    def _begin_to_listen_for_work(self) -> None:
        """With an ear of its own, where work is told apart from all else that is written."""
        with self._changed:
            if self._listens_for_work or self.closed:
                return
            self._listens_for_work = True
            self._work_ear = self._store.work_listener(self.wanted)
            if self._work_ear is not None:
                self._start(self._listen_for_work, "onetray-work-listener")
                return
        if not self._listens:
            self._begin_to_listen()

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
        self._listen_with(self._ear, self._wanted)

    def _listen_for_work(self) -> None:
        assert self._work_ear is not None
        self._listen_with(self._work_ear, self._work_wanted)

    def _listen_with(self, ear: Listener, wanted: threading.Event) -> None:
        try:
            ear.run(self.notify, wanted)
        except Exception:
            ear.hears = False
            logger.exception("the listener ended; polling instead")

    def _tell(self) -> None:
        """Tell the other processes, once for all that was committed since the last time."""
        while not self._stopping.is_set():
            self._untold.wait()
            # Cleared first: what is committed from here on is told the next time.
            self._untold.clear()
            with self._changed:
                work, self._work_untold = self._work_untold, NewWork()
            self._work_came.clear()
            try:
                self._store.notify(work)
            except Exception as e:
                logger.debug("the others could not be told: %s", e)
                with self._changed:
                    self._work_untold.add(work)
                self._untold.set()
                self._stopping.wait(1.0)
            self._stopping.wait(TELL_EVERY_S)
            self._work_came.wait(max(0.0, self._store.notify_every_s - TELL_EVERY_S))
