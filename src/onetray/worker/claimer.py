"""Claim work: as much as can be begun, and a little ahead when tasks are short.

Owns the thread that claims. How far ahead follows from how fast tasks were finished lately: a worker with slow tasks
takes nothing that another could begin at once.
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

from onetray.domain.commands import Claim, Command, Submit
from onetray.domain.errors import Forbidden, Unauthorized, Unavailable
from onetray.domain.task import Assignment, Verdict
from onetray.engine.piggyback import PiggybackClaim
from onetray.notify.wake import group_of
from onetray.worker.heartbeat import REFUSED, renew_claims

if TYPE_CHECKING:
    from onetray.engine.api import EngineApi
    from onetray.worker.attempt import Attempt
    from onetray.worker.executor import Executor
    from onetray.worker.leases import HeldLeases

logger = logging.getLogger("onetray.worker")

AHEAD_S = 0.1
"""How much work is held ahead, in time."""
TOO_LONG_S = 1.0
"""What was claimed ahead and has waited for so long is given back: tasks have become slower, others may have room."""
MOST_AHEAD = 700
AT_ONCE = 500
FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 5.0
FULL_S = 0.05
"""How often to see whether a queue of which few may be held has a place again."""
RIDE_S = 0.02
"""How long to leave it to reports to take a claim along."""


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """A queue to claim from, and how many of its tasks may be held at once."""

    queue: str
    most: int | None = None


class Claimer:
    """Claims for one worker: in transactions of its own, or as a rider in those of reports and submits."""

    def __init__(
        self,
        engine: EngineApi,
        floor: Executor,
        held: HeldLeases,
        claim_of: Callable[[str, int, str], Claim],
        namespace: str,
        sources: tuple[ClaimSource, ...],
        take: Callable[[list[Assignment], float], None],
        give_back: Callable[[list[Attempt], str], None],
        reports_wait: Callable[[], bool],
    ) -> None:
        self._engine, self._floor, self._held, self._take = engine, floor, held, take
        self._give_back, self._reports_wait = give_back, reports_wait
        self._claim_of, self._namespace, self._sources = claim_of, namespace, sources
        self._turn = 0
        self._stopping = False
        self._lock = threading.Lock()
        self._asked = dict.fromkeys((source.queue for source in sources), 0)
        """How many tasks of each queue the claims under way ask for."""
        self._dry: dict[str, tuple[int, float]] = {}
        """The queues whose last claim found too little: how much work had been told of before it, and when it was."""
        self._unsure: deque[PiggybackClaim] = deque()
        self._waiter = engine.wake.waiter(
            [(namespace, source.queue) for source in sources], group_of(claim_of(sources[0].queue, 1, "").kinds)
        )
        self._rate, self._counted, self._looked_at = 0.0, 0, time.monotonic()
        self._thread = threading.Thread(target=self._work, name="onetray-claimer", daemon=True)

    def start(self) -> None:
        self._engine.rides.join(self)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._engine.rides.leave(self)
        self._waiter.let_go()
        with self._floor.changed:
            self._floor.changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait until nothing is claimed any more, by others neither."""
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while not self._stopping or any(self._asked.values()):
            # Not in line for a full queue: whoever has a place there is to be woken instead.
            self._waiter.queues = frozenset(
                (self._namespace, source.queue) for source in self._sources if not self._is_full(source)
            )
            seen = self._waiter.seen()
            try:
                if self._unsure:
                    self._make_sure(self._unsure.popleft())
                elif self._stopping:
                    time.sleep(0.01)
                elif self._room() <= 0:
                    self._waiter.pass_on()
                    with self._floor.changed:
                        if self._room() <= 0 and not self._stopping:
                            self._floor.changed.wait(0.5)
                    self._give_back_old()
                elif self._reports_wait() or any(self._asked.values()):
                    # Reports are about to be sent, and take the next claim along.
                    time.sleep(RIDE_S)
                elif not self._claim() and not self._stopping:
                    # Nothing more is there: whoever writes something rings. Nobody rings for a place in a full queue.
                    is_full = any(self._is_full(source) for source in self._sources)
                    # Of the queue that it was woken for it may hold no more: another worker may.
                    self._waiter.pass_on()
                    self._wait(seen, FULL_S if is_full else self._engine.wake.poll_s)
                    continue
            except (Unauthorized, Forbidden) as e:
                # Nothing is broken here, and the next look may be allowed again: no trace of every one.
                logger.error("claiming was refused: %s", e)
                self._rest()
            except Exception:
                logger.exception("claiming failed")
                self._rest()
            # Woken, and yet it has not looked: another worker may have a place.
            self._waiter.pass_on()
        self._waiter.pass_on()

    def _rest(self) -> None:
        self._waiter.pass_on()
        time.sleep(1.0)

    def _wait(self, seen: int, timeout_s: float) -> None:
        self._waiter.wait(seen, timeout_s)
        if self._waiter.queue is not None:
            # Told of before, perhaps, and passed on by another one: it is to be looked for all the same.
            self._dry.pop(self._waiter.queue[1], None)

    # As a rider.

    def board(self, beside: Command) -> PiggybackClaim | None:
        """The next claim, if there is room, and perhaps something to be found."""
        with self._lock:
            if self._stopping or (room := self._room_left()) <= 0:
                return None
            if isinstance(beside, Submit):
                sources = [s for s in self._sources if s.queue == beside.queue and beside.namespace == self._namespace]
            else:
                sources = [s for s in self._in_turn() if not self._is_dry(s)]
            for source in sources:
                limit = self._reserve(source, -(-room // len(sources)))
                if limit > 0:
                    claim = self._claim_of(source.queue, limit, str(uuid4()))
                    return PiggybackClaim(self, claim, time.monotonic(), self._told_of(source.queue))
        return None

    def arrive(self, ride: PiggybackClaim, verdict: Verdict) -> None:
        if verdict.error is not None:
            # Perhaps carried out, perhaps not. To find out may take long, and is not for this thread.
            self._unsure.append(ride)
            return
        try:
            got = self._taken(verdict.value, ride.asked_at)
            self._found(ride.claim.queue, ride.claim.limit, got, ride.seen)
        except Exception:
            logger.exception("what was claimed could not be taken in: it is left to its lease")
        finally:
            self._over(ride.claim.queue, ride.claim.limit)

    def _make_sure(self, ride: PiggybackClaim) -> None:
        """The same claim again, by its key: what the lost answer told of is not left to its lease."""
        try:
            self._claim_with(ride.claim, repeated=True)
        finally:
            self._over(ride.claim.queue, ride.claim.limit)

    def _give_back_old(self) -> None:
        too_old = time.monotonic() - TOO_LONG_S
        if self._floor.waits_since() < too_old:
            self._give_back(self._floor.take_back(too_old), "it waited for a place for too long")

    def _room(self) -> int:
        with self._lock:
            return self._room_left()

    def _room_left(self) -> int:
        """How many tasks to ask for now. None while enough are waiting for a place, or asked for."""
        floor = self._floor
        running, waiting = len(floor.running), len(floor.waiting) + sum(self._asked.values())
        ahead = self._ahead()
        if running >= floor.concurrency and waiting > ahead // 2:
            return 0
        return floor.concurrency + ahead - running - waiting

    def _ahead(self) -> int:
        now, finished = time.monotonic(), self._floor.finished
        passed = now - self._looked_at
        if passed >= 0.02:
            fresh = (finished - self._counted) / passed
            self._rate += (fresh - self._rate) * min(1.0, passed / 0.1)
            self._looked_at, self._counted = now, finished
        return min(MOST_AHEAD, int(self._rate * AHEAD_S))

    def _claim(self) -> bool:
        """Ask every queue in turn that may have something. Whether there may be more."""
        more = False
        for source in self._in_turn():
            with self._lock:
                skipped = self._stopping or self._is_dry(source)
                limit, seen = 0 if skipped else self._reserve(source, self._room_left()), self._told_of(source.queue)
            if limit > 0:
                try:
                    got = self._claim_with(self._claim_of(source.queue, limit, str(uuid4())))
                finally:
                    self._over(source.queue, limit)
                if self._waiter.queue == (self._namespace, source.queue):
                    self._waiter.looked(found_all=got == limit)
                more |= self._found(source.queue, limit, got, seen)
        return more

    def _found(self, queue: str, limit: int, got: int, seen: int) -> bool:
        """Note what a claim found, and how much work had been told of before it. Whether there may be more."""
        if got < limit:
            self._dry[queue] = seen, time.monotonic()
        return got == limit

    def _is_dry(self, source: ClaimSource) -> bool:
        """Whether there was too little at the last look, and nobody has told of more since."""
        seen, at = self._dry.get(source.queue, (-1, 0.0))
        return seen == self._told_of(source.queue) and time.monotonic() - at < 0.9 * self._engine.wake.poll_s

    def _told_of(self, queue: str) -> int:
        """A number that rises whenever there may be more to claim in a queue."""
        return self._engine.wake.work_in(((self._namespace, queue),))

    def _is_full(self, source: ClaimSource) -> bool:
        return source.most is not None and self._held.of_queue(source.queue) >= source.most

    def _reserve(self, source: ClaimSource, room: int) -> int:
        """How many to ask a queue for, counted as asked for until the answer was taken in."""
        limit = min(room, AT_ONCE)
        if source.most is not None:
            limit = min(limit, source.most - self._held.of_queue(source.queue) - self._asked[source.queue])
        limit = max(0, limit)
        self._asked[source.queue] += limit
        return limit

    def _over(self, queue: str, limit: int) -> None:
        with self._lock:
            self._asked[queue] -= limit

    def _in_turn(self) -> tuple[ClaimSource, ...]:
        """All queues, beginning with another one each time."""
        first, self._turn = self._turn, (self._turn + 1) % len(self._sources)
        return self._sources[first:] + self._sources[:first]

    def _claim_with(self, command: Claim, repeated: bool = False) -> int:
        wait = FIRST_WAIT_S
        while True:
            asked_at = time.monotonic()
            try:
                claimed: list[Assignment] = self._engine.call(command)
            except Unavailable as e:
                if self._stopping:
                    return 0
                # The same claim again, by its key: what the lost answer told of is not left to its lease.
                level = logging.WARNING if wait == FIRST_WAIT_S else logging.DEBUG
                logger.log(level, "claiming waits for the database: %s", e)
                time.sleep(wait)
                wait, repeated = min(2 * wait, LONGEST_WAIT_S), True
                continue
            return self._taken(claimed, asked_at, repeated)

    def _taken(self, claimed: list[Assignment], asked_at: float, repeated: bool = False) -> int:
        if claimed and (repeated or time.monotonic() - asked_at > claimed[0].lease_s / 4):
            asked_at, claimed = self._confirmed(claimed)
        if claimed:
            self._take(claimed, asked_at)
        return len(claimed)

    def _confirmed(self, claimed: list[Assignment]) -> tuple[float, list[Assignment]]:
        """Renew leases whose claim was answered late: what is left of them is not known here. Keeps what is ours."""
        asked_at, claims = time.monotonic(), _by_lease(claimed)
        ours: list[Assignment] = []
        for claim, verdicts in zip(claims, renew_claims(self._engine, claims), strict=True):
            renewed = [verdict.value for verdict in verdicts if verdict.error is None]
            refused = {a.id for a, v in zip(claim, verdicts, strict=False) if isinstance(v.error, REFUSED)}
            if renewed:
                ours += [a for a in claim if a.id not in refused.union(*(beaten.lost for beaten in renewed))]
            else:
                error = verdicts[0].error
                logger.warning("a claim was answered too late, its tasks are left to their lease: %s", error)
        return asked_at, ours


def _by_lease(claimed: list[Assignment]) -> list[list[Assignment]]:
    claims: dict[int, list[Assignment]] = {}
    for assignment in claimed:
        claims.setdefault(assignment.lease, []).append(assignment)
    return list(claims.values())
