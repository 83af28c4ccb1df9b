"""Wake up threads and requests that wait for a commit, in this process or in another.

Owns the generation counter, the lines of waiters, and the threads that listen to other processes and notify them. A
wake-up carries no data and may be late or lost: every waiter has a timeout after which it polls.

    seen = wake.generation
    …read the database…
    wake.wait(seen, timeout)    # returns at once if something was committed since

A claimer waits for work in its own queues: most commits (claims, reports) add none. Each task that becomes claimable
wakes one waiter of each group of kinds in its queue:

    waiter = wake.waiter([("default", "mail")])
    seen = waiter.seen()
    …claim…
    waiter.polled()
    waiter.wait(seen, timeout)

A waiter that was woken and does not claim must call `leave_and_wake_next`. Otherwise the task waits for the next poll.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from uuid_utils import uuid4

from onetray.notify.base import Listener, WantedWork, WorkListener
from onetray.notify.new_work import NewWork, Queue
from onetray.notify.waiters import Group, ThreadWaiter, Waiter, WaitingLines

logger = logging.getLogger("onetray.wake")

NOTIFY_EVERY_S = 0.01
NOTIFY_LATER_S = 0.004
"""How long other processes may wait to be notified of a claim, or of a commit whose work was announced: a thread that
sends this at once, or receives it, delays the handler that is about to begin by a tenth of a millisecond."""
POLL_S = 1.0
POLL_WITHOUT_LISTENER_S = 0.2
MAX_WANTED_QUEUES = 100
"""A process keeps listening for work in queues without a waiter, up to this number of queues."""


class WakeSource(Protocol):
    """A store, or a remote server, whose commits wake waiters. See Store."""

    single_process: bool
    notifies_others: bool
    notify_every_s: float
    on_commit: list[Callable[[NewWork[int], bool], None]]
    before_commit: list[Callable[[NewWork[int]], None]]

    def notify_others(self, work: NewWork[int]) -> None: ...

    def named(self, work: NewWork[int]) -> NewWork[Queue]: ...

    def with_work(self, queues: Collection[Queue]) -> Collection[Queue]: ...

    def listener(self) -> Listener | None: ...

    def work_listener(self, wanted: Callable[[], WantedWork]) -> WorkListener | None: ...


class Wake:
    def __init__(self, store: WakeSource) -> None:
        self._store = store
        self.boot = str(uuid4())
        """Identifies this instance to remote clients: the counters of another instance start again at 0."""
        self._changed = threading.Condition()
        self.generation = self.work = 0
        self._work_of: Counter[Queue] = Counter()
        self._work_anywhere = 0
        self.closed = False
        self._waiting = 0
        self._lines = WaitingLines()
        self._unsent_work: NewWork[int] = NewWork()
        self._has_unsent_work = threading.Event()
        self._sending = threading.Lock()
        self._notified_at = float("-inf")
        self._has_waiters, self._has_work_waiters = threading.Event(), threading.Event()
        self._wanted_queues: set[Queue] = set()
        self._has_unsent_commit, self._is_urgent = threading.Event(), threading.Event()
        self._of_thread = threading.local()
        self._stopping = threading.Event()
        self._listener: Listener | None = None
        self._work_listener: WorkListener | None = None
        self._threads: list[threading.Thread] = []
        self.on_due: list[Callable[[int], None]] = []
        """Called with the time of a row that is due soon, after a commit of any process. They must be quick."""
        self._listens = self._listens_for_work = self._listens_for_commits = self._notifies_others = False
        store.on_commit.append(self.committed)
        store.before_commit.append(self.committing)

    @property
    def poll_s(self) -> float:
        """The longest wait before a poll: shorter while no listener is connected to other processes."""
        listeners = [listener for listener in (self._listener, self._work_listener) if listener is not None]
        is_connected = bool(listeners) and all(listener.is_connected for listener in listeners)
        return POLL_S if self._store.single_process or is_connected else POLL_WITHOUT_LISTENER_S

    def committing(self, work: NewWork[int]) -> None:
        """Notify the other processes of work that is about to be committed, if that is cheap.

        They wait for the lock that the transaction still holds, so they find its tasks. Meanwhile their threads wake
        up, which takes as long as the commit.
        """
        if self._store.notifies_others and self._may_notify_at_once():
            work.announced = self._send(work)

    def committed(self, work: NewWork[int], others_know: bool = False) -> None:
        """Wake this process after a commit of its own, and notify the others soon, unless they know already.

        If they know of the work since before the commit, they are notified of the commit: some may wait to read it.
        """
        self.notify(self._store.named(work) if work else None)
        if not self._store.notifies_others or others_know:
            return
        if work and not work.announced:
            with self._changed:
                self._unsent_work.add(work)
            if self._notify_at_once():
                return
            self._has_unsent_work.set()
            self._is_urgent.set()
        elif getattr(self._of_thread, "claims", False):
            self._of_thread.has_committed = True
            return
        elif not work.announced:
            self._is_urgent.set()
        self._notify_others_soon()

    @contextmanager
    def claiming(self, urgent: bool = False) -> Iterator[None]:
        """While a thread claims tasks and hands them over, its commits notify no other process. They do so afterwards,
        at once if they are urgent."""
        self._of_thread.claims, self._of_thread.has_committed = True, False
        try:
            yield
        finally:
            self._of_thread.claims = False
            if self._of_thread.has_committed:
                if urgent:
                    self._is_urgent.set()
                self._notify_others_soon()

    def _notify_others_soon(self) -> None:
        if not self._has_unsent_commit.is_set():
            self._has_unsent_commit.set()
            if not self._notifies_others:
                self._start_notifying_others()

    def _notify_at_once(self) -> bool:
        """Notify the other processes in this thread, if that is cheap and they were not notified just now.

        A thread of its own for it costs a pickup a tenth of a millisecond, and more in a program that is busy.
        """
        return self._may_notify_at_once() and self._send_unsent_work()

    def _may_notify_at_once(self) -> bool:
        return not self._store.notify_every_s and time.monotonic() - self._notified_at >= NOTIFY_EVERY_S

    def _send_unsent_work(self) -> bool:
        with self._changed:
            work, self._unsent_work = self._unsent_work, NewWork()
        if self._send(work):
            return True
        with self._changed:
            self._unsent_work.add(work)
        return False

    def _send(self, work: NewWork[int]) -> bool:
        with self._sending:
            self._notified_at = time.monotonic()
            try:
                self._store.notify_others(work)
            except Exception as e:
                logger.debug("cannot notify the other processes: %s", e)
                return False
        return True

    def notify(self, work: NewWork[Queue] | None = None) -> set[Queue]:
        """Wake this process after a commit of any process. Returns the queues with new work but without a waiter."""
        if work and work.due_at is not None:
            for hook in self.on_due:
                hook(work.due_at)
        with self._changed:
            self.generation += 1
            if self._waiting:
                self._changed.notify_all()
            if not work or not (work.queues or work.anywhere):
                return set()
            self.work += 1
            self._work_anywhere += work.anywhere
            for queue in work.queues:
                self._work_of[queue] += 1
            woken = self._lines.take_for(work)
            # A waiter that enters from here on claims once more: the counters above have increased.
            anywhere = self._lines.queues() if work.anywhere else set()
        for waiter in woken:
            waiter.call()
        self._wake_where_work_is(anywhere)
        return work.queues - {waiter.queue for waiter in woken}

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until the generation differs from `seen`, or until the timeout. Returns the generation."""
        with self._listening():
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self.generation != seen or self.closed, timeout)
            finally:
                self._waiting -= 1
            return self.generation

    # Waiting for work.

    def waiter(self, queues: Iterable[Queue], kinds: Group = None) -> ThreadWaiter:
        """Create a waiter for the calling thread."""
        return ThreadWaiter(self, queues, kinds)

    def work_in(self, queues: Collection[Queue]) -> int:
        """A counter that increases whenever work arrives in one of these queues."""
        return self._work_anywhere + sum(self._work_of[queue] for queue in queues)

    def enter(self, waiter: Waiter, seen: int) -> bool:
        """See Waiter.enter."""
        if not self._listens_for_work:
            self._start_listening_for_work()
        with self._changed:
            if self.closed or self.work_in(waiter.queues) != seen:
                return False
            self._lines.add(waiter)
            if self._work_listener is None:
                self._has_waiters.set()
                return True
            self._has_work_waiters.set()
            if waiter.queues <= self._wanted_queues:
                return True
            self._want(waiter.queues)
        self._work_listener.refresh()
        return True

    def _want(self, queues: frozenset[Queue]) -> None:
        """Also listen for work in these queues."""
        self._wanted_queues |= queues
        if len(self._wanted_queues) > MAX_WANTED_QUEUES:
            self._wanted_queues = self._lines.queues()

    def wanted(self) -> WantedWork:
        """What the work listener listens for: the queues of recent waiters, and the group of the current ones."""
        with self._changed:
            groups = {waiter.kinds for waiter in self._lines.all()}
            return WantedWork(frozenset(self._wanted_queues), groups.pop() if len(groups) == 1 else (self.boot,))

    def leave(self, waiter: Waiter) -> None:
        with self._changed:
            self._lines.remove(waiter)
            self._pause_listening()

    def wake_next(self, queue: Queue, kinds: Group, count: int, more: bool) -> None:
        """Wake the next waiters of a line, without a new commit."""
        with self._changed:
            woken = self._lines.take(queue, kinds, count, more)
        for waiter in woken:
            waiter.call()

    def poll(self) -> None:
        """Wake one waiter of each line that does not poll by itself. If it finds work, it wakes more."""
        with self._changed:
            queues = self._lines.queues(polling=True)
        self._wake_where_work_is(queues, polling=True)

    def _wake_where_work_is(self, queues: set[Queue], polling: bool = False) -> None:
        """Find the queues with claimable tasks by one query, and wake one waiter of each of their lines."""
        with_work: Collection[Queue] = queues
        # For one queue a claim is as cheap as this query.
        if len(queues) > 1:
            try:
                with_work = self._store.with_work(queues)
            except Exception as e:
                logger.debug("cannot find the queues with work, so one waiter of each queue polls: %s", e)
        with self._changed:
            woken = self._lines.take_in(with_work, polling)
        for waiter in woken:
            waiter.call()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Hold the lock, and listen to other processes."""
        if not self._listens:
            self._start_listening()
        if not self._listens_for_commits:
            self._start_listening_for_commits()
        with self._changed:
            self._has_waiters.set()
            try:
                yield
            finally:
                self._pause_listening()

    def _pause_listening(self) -> None:
        """Let listeners pause if there are no waiters."""
        if self.closed:
            return
        if not self._lines:
            self._has_work_waiters.clear()
        if not self._waiting and not (self._lines and self._work_listener is None):
            self._has_waiters.clear()

    def close(self) -> None:
        """Wake all waiters for the last time, and stop the threads."""
        with self._changed:
            if self.closed:
                return
            self.closed = True
            self._changed.notify_all()
            waiters = list(self._lines.all())
        for waiter in waiters:
            waiter.call()
        self._store.on_commit.remove(self.committed)
        self._store.before_commit.remove(self.committing)
        self._stopping.set()
        for listener in (self._listener, self._work_listener):
            if listener is not None:
                listener.stop()
        self._has_waiters.set()
        self._has_work_waiters.set()
        self._has_unsent_commit.set()
        self._is_urgent.set()
        self._has_unsent_work.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=5)

    def _start_notifying_others(self) -> None:
        with self._changed:
            if not self._notifies_others and not self.closed:
                self._notifies_others = True
                self._start(self._notify_others, "onetray-notifier")

    def _start_listening(self) -> None:
        with self._changed:
            if self._listens or self.closed:
                return
            self._listens = True
            self._listener = self._store.listener()
            if self._listener is not None:
                self._start(self._listen, "onetray-listener")

    def _start_listening_for_commits(self) -> None:
        """Somebody waits for any commit, not only for work. A process that only runs tasks need not hear of them."""
        with self._changed:
            if self._listens_for_commits or self.closed:
                return
            self._listens_for_commits = True
            if self._listener is not None:
                self._listener.want_commits()

    def _start_listening_for_work(self) -> None:
        """Use a separate listener if the source has one for work only."""
        with self._changed:
            if self._listens_for_work or self.closed:
                return
            self._listens_for_work = True
            self._work_listener = self._store.work_listener(self.wanted)
            if self._work_listener is not None:
                self._start(self._listen_for_work, "onetray-work-listener")
                return
        if not self._listens:
            self._start_listening()

    def _start(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as e:
            # The commit has succeeded: a missing notification must not look like its failure.
            logger.warning("cannot start the thread %s, so other processes have to poll: %s", name, e)
        else:
            self._threads.append(thread)

    def _listen(self) -> None:
        assert self._listener is not None
        self._listen_with(self._listener, self._has_waiters)

    def _listen_for_work(self) -> None:
        assert self._work_listener is not None
        self._listen_with(self._work_listener, self._has_work_waiters)

    def _listen_with(self, listener: Listener, has_waiters: threading.Event) -> None:
        try:
            listener.run(self.notify, has_waiters)
        except Exception:
            listener.is_connected = False
            logger.exception("the listener failed; polling instead")

    def _notify_others(self) -> None:
        """Notify the other processes, once for all commits since the last time."""
        while not self._stopping.is_set():
            self._has_unsent_commit.wait()
            self._is_urgent.wait(NOTIFY_LATER_S)
            # Cleared before the work is read: the next round sends later commits.
            self._is_urgent.clear()
            self._has_unsent_commit.clear()
            self._has_unsent_work.clear()
            if not self._send_unsent_work():
                self._has_unsent_commit.set()
                self._stopping.wait(1.0)
            self._stopping.wait(NOTIFY_EVERY_S)
            self._has_unsent_work.wait(max(0.0, self._store.notify_every_s - NOTIFY_EVERY_S))
