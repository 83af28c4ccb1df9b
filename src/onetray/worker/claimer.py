"""Claim tasks: as many as can begin now, and a few ahead (prefetch) when tasks are short.

Owns the claiming thread. The prefetch follows from how fast tasks have ended lately: a worker with slow tasks claims
none that another worker could begin at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uuid_utils import uuid4

from onetray.domain.commands import Claim, Command, Submit, Succeed
from onetray.domain.errors import Forbidden, Unauthorized, Unavailable
from onetray.domain.task import Assignment, Verdict
from onetray.engine.piggyback import PiggybackClaim
from onetray.notify.waiters import group_of
from onetray.worker.heartbeat import REFUSED, renew_claims

if TYPE_CHECKING:
    from onetray.config import WorkerTuning
    from onetray.engine.api import EngineApi
    from onetray.store.retry_transaction import Outage
    from onetray.worker.attempt import Attempt
    from onetray.worker.attempt_batch import BatchGatherer
    from onetray.worker.executor import Executor
    from onetray.worker.leases import HeldLeases

logger = logging.getLogger("onetray.worker")

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.05, 5.0
LIMITED_AHEAD_S = 0.05
"""How long before they begin tasks under a limit may be claimed."""
FIRST_ENDS = 100
"""Of a worker that was idle: after so many ends its rate is measured, without waiting for the usual time."""
LATE_REPORT_S = 0.1
"""A claim of new tasks reserves capacity for so long: its report may wait for a lock, and mostly opens no stage."""
FULL_QUEUE_POLL_S = 0.05
"""How often to check whether a queue is below its limit again."""


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """A queue to claim from, and how many of its tasks may be held at once (None: no limit)."""

    queue: str
    max_held: int | None = None


class Claimer:
    """Claims for one worker: in its own transactions, or piggybacked on those of reports and submits."""

    def __init__(
        self,
        engine: EngineApi,
        executor: Executor | BatchGatherer,
        held: HeldLeases,
        claim_of: Callable[[str, int, str], Claim],
        namespace: str,
        sources: tuple[ClaimSource, ...],
        accept: Callable[[list[Assignment], float], None],
        release: Callable[[list[Attempt], str], None],
        reports_to_send: Callable[[], int],
        tuning: WorkerTuning,
        outage: Outage,
    ) -> None:
        self._engine, self._executor, self._held, self._accept = engine, executor, held, accept
        self._release, self._reports_to_send, self._tuning = release, reports_to_send, tuning
        self._outage = outage
        self._claim_of, self._namespace, self._sources = claim_of, namespace, sources
        self._turn = 0
        self._stopping = False
        self._lock = threading.Lock()
        self._requested = dict.fromkeys((source.queue for source in sources), 0)
        """How many tasks of each queue are requested by claims in flight."""
        self._of_new: set[PiggybackClaim] = set()
        """Those of them that run only if their transaction makes tasks claimable."""
        self._empty_queues: dict[str, tuple[int, float, int]] = {}
        """Queues whose last claim got less than it requested: the wake-up count before it, when it was, and how many
        more tasks it could have taken, of those under limits. Without limits that is always more than 0."""
        self._limited: set[str] = set()
        """Those of them that gave tasks under limits: reports of such tasks free slots for others that wait."""
        self._unanswered: deque[PiggybackClaim] = deque()
        self._waiter = engine.wake.waiter(
            [(namespace, source.queue) for source in sources], group_of(claim_of(sources[0].queue, 1, "").kinds)
        )
        self._finish_rate, self._finished_before, self._measured_at = 0.0, 0, time.monotonic()
        self._thread = threading.Thread(target=self._run, name="onetray-claimer", daemon=True)

    def start(self) -> None:
        if self._tuning.piggyback:
            self._engine.piggyback.join(self)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._engine.piggyback.leave(self)
        self._waiter.interrupt()
        self._notify_of_capacity()

    def join(self, timeout_s: float) -> None:
        """Wait until no claim is in flight, piggybacked ones included."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping or any(self._requested.values()):
            # Do not take wake-ups for a queue that is at its limit: another worker may be below.
            self._waiter.queues = frozenset(
                (self._namespace, source.queue) for source in self._sources if not self._is_full(source)
            )
            seen = self._waiter.seen()
            try:
                if self._unanswered:
                    self._repeat_claim(self._unanswered.popleft())
                elif self._stopping:
                    time.sleep(0.01)
                elif self._capacity() <= 0:
                    self._waiter.leave_and_wake_next()
                    with self._executor.changed:
                        if self._capacity() <= 0 and not self._unanswered and not self._stopping:
                            self._executor.changed.wait(0.5)
                    self._release_old_prefetch()
                elif self._tuning.piggyback and (self._reports_to_send() or self._expected() > 0):
                    # Reports are about to be sent and will carry the next claim.
                    time.sleep(self._tuning.piggyback_wait_s)
                elif not self._claim() and not self._stopping:
                    # The queues are empty, and new tasks cause a wake-up. A queue that falls below its limit does not.
                    # Nor do tasks that end, where others may wait that cannot be claimed ahead of need.
                    is_full = any(self._is_full(s) or self._only_limited_wait(s.queue) for s in self._sources) or any(
                        left <= 0 for _, _, left in list(self._empty_queues.values())
                    )
                    # This worker may be at the limit of the queue that it was woken for: wake another one.
                    self._waiter.leave_and_wake_next()
                    self._wait(seen, FULL_QUEUE_POLL_S if is_full else self._engine.wake.poll_s)
                    continue
            except (Unauthorized, Forbidden) as e:
                # Without a traceback: a token may be valid again at the next try.
                logger.error("the claim was refused: %s", e)
                self._pause_after_error()
            except Exception:
                logger.exception("claiming failed")
                self._pause_after_error()
            # If this thread was woken and has not claimed, another worker may be able to.
            self._waiter.leave_and_wake_next()
        self._waiter.leave_and_wake_next()

    def _pause_after_error(self) -> None:
        self._waiter.leave_and_wake_next()
        time.sleep(1.0)

    def _wait(self, seen: int, timeout_s: float) -> None:
        self._waiter.wait(seen, timeout_s)
        if self._waiter.queue is not None:
            # The wake-up count may not have changed, if another worker passed its wake-up on: claim all the same.
            self._empty_queues.pop(self._waiter.queue[1], None)

    # Piggyback claims.

    def next_claim(self, command: Command) -> PiggybackClaim | None:
        """The next claim, to be run in the transaction of `command`. None without capacity or expected tasks."""
        with self._lock:
            if self._stopping or (capacity := self._capacity_left()) <= 0:
                return None
            only_new = False
            if isinstance(command, Submit):
                target = (command.namespace, command.queue)
                sources = [s for s in self._sources if (self._namespace, s.queue) == target]
            else:
                rotated = self._rotated()
                sources = [s for s in rotated if self._has_slots(s) or not self._is_known_empty(s)]
                if not sources and isinstance(command, Succeed) and command.flow:
                    # It may be the last task of its stage: then its transaction opens the next one.
                    sources, only_new = [s for s in rotated if not self._only_limited_wait(s.queue)][:1], True
            startable = self._startable()
            for source in sources:
                limit = self._reserve(source, -(-capacity // len(sources)))
                if limit > 0:
                    claim = self._claim_of(source.queue, limit, str(uuid4()))
                    claim.limited_limit = min(limit, startable)
                    claim.expects_one, claim.only_new = isinstance(command, Submit), only_new
                    piggyback = PiggybackClaim(self, claim, time.monotonic(), self._wakeup_count(source.queue))
                    if only_new:
                        self._of_new.add(piggyback)
                    return piggyback
        return None

    def deliver(self, piggyback: PiggybackClaim, verdict: Verdict) -> None:
        with self._lock:
            self._of_new.discard(piggyback)
        if verdict.error is not None:
            # The claim may have been committed. Finding out may take long, so the claiming thread does it.
            # It waits for a wake-up, or for the capacity that this claim has reserved.
            self._unanswered.append(piggyback)
            self._waiter.interrupt()
            self._notify_of_capacity()
            return
        try:
            claimed_count = self._accept_all(verdict.value, piggyback.requested_at)
            if claimed_count or not piggyback.claim.only_new:
                self._note_result(piggyback.claim, claimed_count, piggyback.seen)
        except Exception:
            logger.exception("claimed tasks could not be queued: they return when their lease expires")
        finally:
            self._return_reserved(piggyback.claim.queue, piggyback.claim.limit)
            self._notify_of_capacity()

    def _notify_of_capacity(self) -> None:
        """End the claiming thread's wait for capacity: `_return_reserved` does not."""
        with self._executor.changed:
            self._executor.changed.notify_all()

    def _repeat_claim(self, piggyback: PiggybackClaim) -> None:
        """Repeat a claim under its request key: it returns the tasks of the lost answer."""
        piggyback.claim.only_new = False
        try:
            self._claim_with(piggyback.claim, repeated=True)
        finally:
            self._return_reserved(piggyback.claim.queue, piggyback.claim.limit)

    def _release_old_prefetch(self) -> None:
        too_old = time.monotonic() - self._tuning.max_prefetch_age_s
        if self._executor.oldest_claimed_at() < too_old:
            self._release(self._executor.withdraw(too_old), "it was prefetched and not started in time")

    def _capacity(self) -> int:
        with self._lock:
            return self._capacity_left()

    def _capacity_left(self) -> int:
        """How many tasks to request now: 0 while enough are waiting or already requested."""
        executor = self._executor
        running, waiting = len(executor.running), len(executor.waiting) + self._expected()
        ahead = self._prefetch()
        if running >= executor.concurrency and waiting > ahead // 2:
            return 0
        if self._reports_to_send() > self._tuning.max_unreported:
            # Handlers are faster than the database: what they have done and not reported must not grow without end.
            return 0
        return executor.concurrency + ahead - running - waiting

    def _expected(self) -> int:
        """How many tasks claims in flight may bring, without those of new tasks that take long."""
        requested = sum(list(self._requested.values()))
        if self._of_new:
            late = time.monotonic() - LATE_REPORT_S
            requested -= sum([p.claim.limit for p in list(self._of_new) if p.requested_at < late])
        return requested

    def _startable(self) -> int:
        """How many more tasks could begin at once, or within LIMITED_AHEAD_S at the present rate.

        Only so many may be under a limit: others could use its slots meanwhile.
        """
        executor, ahead = self._executor, int(self._finish_rate * LIMITED_AHEAD_S)
        claimed = len(executor.running) + len(executor.waiting) + self._expected()
        return max(0, executor.concurrency + ahead - claimed)

    def _prefetch(self) -> int:
        now, finished = time.monotonic(), self._executor.finished
        passed = now - self._measured_at
        # Right after idleness the first ends are enough: the next claims are sent within milliseconds.
        if passed >= 0.02 or (not self._finish_rate and finished - self._finished_before >= FIRST_ENDS):
            fresh = (finished - self._finished_before) / max(passed, 0.001)
            # It rises at once, so that a worker with short tasks is soon ahead of them, and falls slowly.
            self._finish_rate = max(fresh, self._finish_rate + (fresh - self._finish_rate) * min(1.0, passed / 0.1))
            self._measured_at, self._finished_before = now, finished
        return min(self._tuning.max_prefetch, int(self._finish_rate * self._tuning.prefetch_s))

    def _claim(self) -> bool:
        """Claim from every queue that may have tasks. Returns whether there may be more."""
        more = False
        for source in self._rotated():
            with self._lock:
                skip = self._stopping or self._is_known_empty(source)
                startable = self._startable()
                limit = 0 if skip else self._reserve(source, self._capacity_left())
                seen = self._wakeup_count(source.queue)
            if limit > 0:
                claim = self._claim_of(source.queue, limit, str(uuid4()))
                claim.limited_limit = min(limit, startable)
                claim.expects_one = self._waiter.queue == (self._namespace, source.queue) and not self._waiter.more
                try:
                    with self._engine.wake.claiming():
                        claimed_count = self._claim_with(claim)
                finally:
                    self._return_reserved(source.queue, limit)
                if self._waiter.queue == (self._namespace, source.queue):
                    self._waiter.polled(reached_limit=claimed_count == limit)
                more |= self._note_result(claim, claimed_count, seen)
        return more

    def _note_result(self, claim: Claim, claimed_count: int, seen: int) -> bool:
        """Remember a queue that had too few tasks. Returns whether there may be more."""
        if claimed_count < claim.limit:
            # Without limits it has taken all that there was: `limited_limit` left nothing behind.
            most = claim.limit if claim.found_limits is False else claim.limited_limit or 0
            self._empty_queues[claim.queue] = seen, time.monotonic(), most - claimed_count
        if claimed_count == claim.limit or (not claimed_count and claim.limited_limit):
            self._limited.discard(claim.queue)
        return claimed_count == claim.limit

    def _is_known_empty(self, source: ClaimSource) -> bool:
        """Whether the last claim got too few tasks, with no wake-up since.

        More tasks can begin now than that claim left free: there may be some that must not be claimed ahead of need.
        """
        if self._only_limited_wait(source.queue):
            return True
        seen, at, left = self._empty_queues.get(source.queue, (-1, 0.0, 0))
        if seen != self._wakeup_count(source.queue) or time.monotonic() - at >= 0.9 * self._engine.wake.poll_s:
            return False
        return left > 0 or self._startable() <= 0

    def _has_slots(self, source: ClaimSource) -> bool:
        """Whether reports free slots for tasks of this queue that could begin."""
        return source.queue in self._limited and self._startable() > 0

    def _only_limited_wait(self, queue: str) -> bool:
        """Whether a claim would be in vain: what is left in the queue waits for limits, and nothing could begin."""
        return self._tuning.piggyback and queue in self._limited and self._startable() <= 0

    def _wakeup_count(self, queue: str) -> int:
        """A number that rises whenever a queue may have new claimable tasks."""
        return self._engine.wake.work_in(((self._namespace, queue),))

    def _is_full(self, source: ClaimSource) -> bool:
        return source.max_held is not None and self._held.of_queue(source.queue) >= source.max_held

    def _reserve(self, source: ClaimSource, capacity: int) -> int:
        """How many tasks to request from a queue. They count as requested until `_return_reserved`."""
        limit = min(capacity, self._tuning.max_claim)
        if source.max_held is not None:
            limit = min(limit, source.max_held - self._held.of_queue(source.queue) - self._requested[source.queue])
        limit = max(0, limit)
        self._requested[source.queue] += limit
        return limit

    def _return_reserved(self, queue: str, limit: int) -> None:
        with self._lock:
            self._requested[queue] -= limit

    def _rotated(self) -> tuple[ClaimSource, ...]:
        """All queues, starting with the next one each time."""
        first, self._turn = self._turn, (self._turn + 1) % len(self._sources)
        return self._sources[first:] + self._sources[:first]

    def _claim_with(self, command: Claim, repeated: bool = False) -> int:
        backoff_s = MIN_BACKOFF_S
        while True:
            sent_at = time.monotonic()
            try:
                claimed: list[Assignment] = self._engine.call(command)
            except Unavailable as e:
                if self._stopping:
                    return 0
                # Repeated under its request key, the claim returns the tasks of a lost answer.
                self._outage.failed("claims wait", e, sent_at)
                time.sleep(backoff_s)
                backoff_s, repeated = min(2 * backoff_s, MAX_BACKOFF_S), True
                continue
            self._outage.answered()
            return self._accept_all(claimed, sent_at, repeated)

    def _accept_all(self, claimed: list[Assignment], sent_at: float, repeated: bool = False) -> int:
        if claimed and (repeated or time.monotonic() - sent_at > claimed[0].lease_s / 4):
            sent_at, claimed = self._confirm_leases(claimed)
        if claimed:
            if True in [assignment.has_slots for assignment in claimed]:
                self._limited.add(claimed[0].queue)
            if not self._executor.running and not self._executor.waiting:
                with self._lock:
                    # The rate counts from here: not the time in which there was nothing to do.
                    self._prefetch()
            self._accept(claimed, sent_at)
        return len(claimed)

    def _confirm_leases(self, claimed: list[Assignment]) -> tuple[float, list[Assignment]]:
        """Renew leases whose claim was answered late and may have expired. Returns the tasks that are still held."""
        sent_at, claims = time.monotonic(), _by_lease(claimed)
        held: list[Assignment] = []
        for claim, verdicts in zip(claims, renew_claims(self._engine, claims), strict=True):
            renewed = [verdict.value for verdict in verdicts if verdict.error is None]
            refused = {a.id for a, v in zip(claim, verdicts, strict=False) if isinstance(v.error, REFUSED)}
            if renewed:
                held += [a for a in claim if a.id not in refused.union(*(beat.lost for beat in renewed))]
            else:
                error = verdicts[0].error
                logger.warning("a claim was answered too late, its tasks return when their lease expires: %s", error)
        return sent_at, held


def _by_lease(claimed: list[Assignment]) -> list[list[Assignment]]:
    claims: dict[int, list[Assignment]] = {}
    for assignment in claimed:
        claims.setdefault(assignment.lease, []).append(assignment)
    return list(claims.values())
