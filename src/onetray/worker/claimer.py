"""Claim work: as much as can be begun, and a little ahead when tasks are short.

Owns the thread that claims. How far ahead follows from how fast tasks were finished lately: a worker with slow tasks
takes nothing that another could begin at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uuid_utils import uuid4

from onetray.commands import Beat, Claim, ticket
from onetray.errors import Unavailable
from onetray.model import Assignment

if TYPE_CHECKING:
    from onetray.engine import Engine
    from onetray.engine.parking import Parked
    from onetray.worker.floor import Floor
    from onetray.worker.held import Held
    from onetray.worker.run import Run

logger = logging.getLogger("onetray.worker")

AHEAD_S = 0.1
"""How much work is held ahead, in time."""
TOO_LONG_S = 1.0
"""What was claimed ahead and has waited for so long is given back: tasks have become slower, others may have room."""
MOST_AHEAD = 1_000
AT_ONCE = 500
LONGEST_WAIT_S = 5.0
RIDE_S = 0.02
"""How long to wait for reports to take a claim along."""


@dataclass(frozen=True, slots=True)
class Source:
    """A queue to claim from, and how many of its tasks may be held at once."""

    queue: str
    most: int | None = None


class Claimer:
    def __init__(
        self,
        engine: Engine,
        floor: Floor,
        held: Held,
        claim_of: Callable[[str, int, str], Claim],
        sources: tuple[Source, ...],
        take: Callable[[list[Assignment], float], None],
        give_back: Callable[[list[Run], str], None],
        reports_wait: Callable[[], bool],
    ) -> None:
        self._engine, self._floor, self._held, self._take = engine, floor, held, take
        self._give_back, self._reports_wait = give_back, reports_wait
        self._claim_of, self._sources = claim_of, sources
        self._turn = 0
        self._stopping = False
        self._rate, self._counted, self._looked_at = 0.0, 0, time.monotonic()
        self._thread = threading.Thread(target=self._work, name="onetray-claimer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._engine.wake.heard()
        with self._floor.changed:
            self._floor.changed.notify_all()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while not self._stopping:
            wake = self._engine.wake
            seen, room = wake.work, self._room()
            if room <= 0:
                with self._floor.changed:
                    if self._room() <= 0 and not self._stopping:
                        self._floor.changed.wait(0.5)
                self._give_back_old()
                continue
            try:
                missing = self._ride(room) if self._reports_wait() else self._claim(min(room, AT_ONCE))
                if missing > 0 and not self._stopping:
                    # Nothing more is there: whoever writes something rings.
                    self._wait(seen, missing)
            except Exception:
                logger.exception("claiming failed")
                time.sleep(1.0)

    def _ride(self, room: int) -> int:
        """Claim in the transaction of reports that are about to be sent anyway. Answers how many were not found."""
        parked = self._park(room)
        for one in parked:
            one.wait(RIDE_S)
        given = [(one.claim.limit, self._collect(one)) for one in parked]
        return sum(limit - got for limit, got in given if got is not None)

    def _wait(self, seen: int, room: int) -> None:
        """Wait for work. Whoever submits some in this process claims it for this worker in the same transaction."""
        parked = self._park(room)
        try:
            self._engine.wake.wait_for_work(seen, self._engine.wake.poll_s)
        finally:
            for one in parked:
                self._collect(one)

    def _park(self, room: int) -> list[Parked]:
        """Leave claims for each queue, of its share of the room: for as many batches of reports as are under way."""
        share, park = -(-room // len(self._sources)), self._engine.parking.park
        parked = []
        for source in self._in_turn():
            left = self._limit(source, min(share, 2 * AT_ONCE))
            while left > 0:
                limit = min(left, AT_ONCE)
                parked.append(park(self._claim_of(source.queue, limit, str(uuid4()))))
                left -= limit
        return parked

    def _collect(self, parked: Parked) -> int | None:
        """Take what a claim has given; None if nobody has taken it along."""
        if self._engine.parking.withdraw(parked):
            return None
        parked.wait()
        assert parked.verdict is not None
        if parked.verdict.error is not None:
            # Perhaps carried out, perhaps not: the same again, by its key.
            return self._claim_with(parked.claim, repeated=True)
        return self._taken(parked.verdict.value, parked.asked_at)

    def _give_back_old(self) -> None:
        too_old = time.monotonic() - TOO_LONG_S
        if self._floor.waits_since() < too_old:
            self._give_back(self._floor.take_back(too_old), "it waited for a place for too long")

    def _room(self) -> int:
        """How many tasks to ask for now. None while enough are waiting for a place."""
        floor = self._floor
        running, waiting = len(floor.running), len(floor.waiting)
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

    def _claim(self, room: int) -> int:
        """Ask every queue in turn. Answers how many were not found."""
        got = 0
        for source in self._in_turn():
            limit = self._limit(source, room - got)
            if limit > 0 and not self._stopping:
                got += self._claim_with(self._claim_of(source.queue, limit, str(uuid4())))
        return room - got

    def _in_turn(self) -> tuple[Source, ...]:
        """All queues, beginning with another one each time."""
        first, self._turn = self._turn, (self._turn + 1) % len(self._sources)
        return self._sources[first:] + self._sources[:first]

    def _limit(self, source: Source, room: int) -> int:
        return room if source.most is None else min(room, source.most - self._held.of_queue(source.queue))

    def _claim_with(self, command: Claim, repeated: bool = False) -> int:
        wait = 0.05
        while True:
            asked_at = time.monotonic()
            try:
                claimed: list[Assignment] = self._engine.call(command)
            except Unavailable as e:
                if self._stopping:
                    return 0
                # The same claim again, by its key: what the lost answer told of is not left to its lease.
                logger.warning("claiming waits for the database: %s", e)
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
        asked_at, speakers = time.monotonic(), {a.lease: a for a in claimed}
        verdicts = self._engine.run([Beat(**ticket(a)) for a in speakers.values()])
        over, lost = set(), set()
        for lease, verdict in zip(speakers, verdicts, strict=True):
            if verdict.error is not None:
                logger.warning("a claim was answered too late, its tasks are left to their lease: %s", verdict.error)
                over.add(lease)
            else:
                lost.update(verdict.value.lost)
        return asked_at, [a for a in claimed if a.lease not in over and a.id not in lost]
