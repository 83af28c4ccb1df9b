"""Claims from a queue with limits or lanes: which tasks may start now, in which order.

A task starts only if every limit that covers it has a slot: those of its queue and its kind, and, if it waits in a
lane, those of its values. Lanes take turns. The claim locks open lanes without waiting, then the counters of their
limits, sorted, and then picks tasks. A lane whose counter is full is blocked until a slot comes back: no claim looks at
it meanwhile. slots.py opens lanes and gives slots back.

A claim in the transaction of reports takes over the slots that these free: they go to the lanes that wait for them, and
neither counters nor lanes are written twice.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable

import orjson

from onetray import failpoints
from onetray.domain.limits import value_json
from onetray.engine.batch_context import BatchContext
from onetray.engine.breakers import mark_probes, past_breakers
from onetray.engine.claimed_lanes import write_lanes
from onetray.engine.slot_counters import LockedLane, SlotCounter, counter_keys, free_slots, in_turn
from onetray.engine.slots import STEP, first_turns, open_locked, write_buckets
from onetray.store.limit_rows import BlockedLaneRow, BucketRow, GatesRow, LaneRow, RuleRow
from onetray.store.rows import ClaimedRow

LEAST_LANES = 4
"""A claim of few tasks locks more lanes than it needs: some may be blocked."""
ROUNDS = 5
"""How often a claim locks further lanes because those that it has give it too few tasks."""


class LimitedClaim:
    """One claim, or several of the same tasks, from a queue with limits or lanes."""

    def __init__(
        self, batch: BatchContext, ns: int, queue: int, kinds: list[int] | None, limit: int, limited_limit: int
    ) -> None:
        self._batch, self._tx = batch, batch.tx
        self._ns, self._queue, self._kinds, self._limit = ns, queue, kinds, limit
        self._limited_left = limited_limit
        """How many more tasks under a limit it may take. Others may be claimed ahead of need."""
        self._rules: list[RuleRow] = []
        self._peeked: list[BucketRow] = []
        self._unkeyed: set[int] = set()
        """The counters of limits without a key."""
        self._plain, self._laned = set[int](), set[int]()
        self._counters: dict[int, SlotCounter] = {}
        self._lanes: dict[int, LockedLane] = {}
        self._of_kind: dict[int, list[SlotCounter]] = defaultdict(list)
        """The counters without a key, by kind."""
        self._most: dict[int, int] = {}
        """How many tasks of each kind it may take: a kind whose breaker is tried has one."""
        self._breakers = False
        self._full: set[int] = set()
        """The limits without a key that had no slot at the look."""
        self._skipped = False
        """Whether to wake a claim again: another transaction held what this one needed."""
        self._fresh, self._asked = 0, LEAST_LANES
        """How many open lanes the last look has found, and how many it has asked for."""
        self._counters_of: dict[int, list[SlotCounter]] = {}
        """The counters of each picked task."""

    # What may be taken.

    def look(self) -> GatesRow:
        """Read what the queue has: limits, and kinds with tasks. Returns what keeps plain claims from it."""
        tx, scope = self._tx, {"ns": self._ns, "queue": self._queue}
        if tx.skips_locked:
            # Before the rules are read: a new limit waits for the claims that may not know it.
            tx.query_later("claim_begins")
        gates: list[GatesRow] = tx.query_later("claim_gates", queue=self._queue)
        self._rules = tx.query_later("rules_of_claim", **scope)
        self._peeked = tx.query_later("peek_buckets", **scope)
        laned = tx.query_later("open_lane_kinds", queue=self._queue)
        self._plain = {kind for (kind,) in tx.query("ready_kinds_of_queue", queue=self._queue)}
        self._laned = {kind for (kind,) in laned}
        self._unkeyed = {row.key for row in self._peeked}
        return gates[0]

    def pick(self, gates: GatesRow) -> list[ClaimedRow]:
        tx, peeked, plain, laned = self._tx, self._peeked, self._plain, self._laned
        keyed = {rule.kind for rule in self._rules if rule.path} if self._takes_over() else set[int]()
        if self._kinds is not None:
            plain, laned, keyed = (kinds.intersection(self._kinds) for kinds in (plain, laned, keyed))
        to_try = self._limit_kinds(plain | laned | keyed, gates)
        free = self._peek(peeked)
        plain, laned, keyed = plain & free, laned & free, keyed & free
        lanes = self._lock_lanes(laned)
        kinds = plain | keyed | {lane.row.kind for lane in lanes}
        lanes += self._lock_counters(lanes, [row.key for row in peeked if self._is_needed(row, kinds)], keyed)
        self._wait_for_slots()
        picked = self._pick_all(plain, laned | {lane.row.kind for lane in lanes}, lanes)
        if to_try:
            mark_probes(tx, [row for row in picked if row.kind in to_try])
        if self._skipped:
            tx.work.uncounted.add(self._queue)
        return picked

    def _takes_over(self) -> bool:
        """Whether this claim takes over the slots that the reports of this transaction free."""
        changes = self._batch.limit_changes
        if changes.freed and (changes.has_locks or self._limited_left <= 0):
            changes.write()
        return bool(changes.freed)

    def _limit_kinds(self, kinds: set[int], gates: GatesRow) -> list[int]:
        """Set how many tasks of each kind may be taken while breakers are open. Returns the kinds to be tried."""
        self._most, to_try = dict.fromkeys(kinds, self._limit), list[int]()
        self._breakers = bool(gates.breakers)
        if gates.breakers and kinds:
            open_until = dict(self._tx.query("breakers_of_kinds", kinds=sorted(kinds)))
            self._most, to_try = past_breakers(self._tx, {k: open_until.get(k) for k in kinds}, self._limit)
        return to_try

    def _peek(self, peeked: list[BucketRow]) -> set[int]:
        """The kinds that no full or uncounted limit without a key covers, by a look without a lock."""
        rules, kinds = {rule.key: rule for rule in self._rules}, set(self._most)
        for rule in self._rules:
            if not rule.counted:
                kinds -= self._covered(rule)
        for row in peeked:
            of = rules.get(row.rule)
            row = row._replace(running=row.running - self._batch.limit_changes.freed.get(row.key, 0))
            if of is not None and of.counted and free_slots(of, row, row.seen_at) <= 0:
                self._full.add(of.key)
                kinds -= self._covered(of)
        return kinds

    def _wait_for_slots(self) -> None:
        """Note that tasks wait for the limits that were full at the look. One that has a slot now is tried again."""
        for counter in self._counters.values():
            if counter.rule.key in self._full:
                counter.turned_away = counter.is_full
                self._skipped |= not counter.is_full

    def _covered(self, rule: RuleRow) -> set[int]:
        return {rule.kind} if rule.kind else set(self._most)

    def _is_needed(self, row: BucketRow, kinds: set[int]) -> bool:
        """Whether to lock a counter without a key: for its slots, or to note that this queue waits for it."""
        rule = next((rule for rule in self._rules if rule.key == row.rule), None)
        if rule is None or not rule.counted or not self._covered(rule).intersection(self._most):
            return False
        is_wanted = bool(kinds) if rule.queue else rule.kind in kinds
        return is_wanted or self._queue not in orjson.loads(row.waiters)

    # Locks.

    def _lock_lanes(self, kinds: Iterable[int]) -> list[LockedLane]:
        """Lock the open lanes that are next, without waiting."""
        wanted = max(self._limit - len(self._counters_of), LEAST_LANES)
        kinds, but = sorted(kinds), sorted(self._lanes)
        tx, found = self._tx, list[LaneRow]()
        if len(kinds) == 1:
            found = tx.query("lock_open_lanes", queue=self._queue, kind=kinds[0], limit=wanted, but=but)
        elif kinds:
            # Read first, then lock only the lanes to be served: others stay free for other claims.
            heads = heapq.nsmallest(wanted, (
                head for kind in kinds
                for head in tx.query("heads_of_open_lanes", queue=self._queue, kind=kind, limit=wanted, but=but)
            ))  # fmt: skip
            if heads:
                found = tx.query("lock_lanes_by_key", keys=sorted(head.key for head in heads))
        changes = self._batch.limit_changes
        if kinds and not found and not self._lanes and tx.skips_locked and not changes.has_locks and not changes.freed:
            found = self._wait_for_lane(kinds[0])
        changes.has_lanes |= bool(found)
        self._fresh, self._asked = len(found), wanted
        lanes = [LockedLane(row) for row in found]
        self._lanes |= {lane.row.key: lane for lane in lanes}
        failpoints.hit("lanes_locked")
        return lanes

    def _wait_for_lane(self, kind: int) -> list[LaneRow]:
        """Other claims serve all open lanes: wait for the first. This transaction holds nothing that they need."""
        for head in self._tx.query("heads_of_open_lanes", queue=self._queue, kind=kind, limit=1, but=[]):
            self._batch.limit_changes.has_lanes = True
            return self._tx.query("lock_open_lane", key=head.key)
        return []

    def _lock_counters(
        self, lanes: list[LockedLane], unkeyed: Iterable[int] = (), keyed: Iterable[int] = ()
    ) -> list[LockedLane]:
        """Lock the counters of lanes, and those without a key, and read the rules as they are then.

        Returns the lanes of the kinds `keyed` that have waited for slots of this transaction.
        """
        tx, changes = self._tx, self._batch.limit_changes
        values = {
            (rule.key, value_json(lane.values[rule.path]))
            for lane in lanes for rule in self._rules if rule.path in lane.values and rule.kind == lane.row.kind
        }  # fmt: skip
        waits = not changes.has_counters
        # What the batch frees, too: all counters are locked at once, sorted.
        freed = dict(changes.freed) if waits else {}
        keys = sorted({*unkeyed, *counter_keys(tx, sorted(values)), *freed} - self._counters.keys())
        waiting: list[BlockedLaneRow] = []
        if keys:
            changes.has_counters = True
            rows: list[BucketRow] = tx.query_later("lock_buckets" if waits else "lock_free_buckets", keys=keys)
            wanted = {key: min(number, STEP) for key, number in freed.items() if key not in self._unkeyed}
            if tx.skips_locked:
                # Others may have changed them before this transaction had its locks.
                query = tx.query_later if wanted else tx.query
                self._rules = query("rules_of_claim", ns=self._ns, queue=self._queue)
            if wanted:
                waiting = tx.lock_blocked_lanes(wanted)
            if len(rows) < len(keys):
                self._skipped = True
                if waits:
                    # They were deleted because nothing used them: look them up again next time.
                    tx.names.lanes.counters.forget(set(keys) - {row.key for row in rows})
            self._add_counters(rows)
            failpoints.hit("slots_locked")
        by_value = {(c.rule.key, c.row.value): c for c in self._counters.values()}
        for lane in lanes:
            self._give_counters(lane, by_value)
        return self._take_over(waiting, {*keyed}) if waiting else []

    def _take_over(self, waiting: list[BlockedLaneRow], keyed: set[int]) -> list[LockedLane]:
        """Take the lanes that wait for the freed slots. Opens those of other queues, and leaves each a slot."""
        waiting = [row for row in waiting if row.blocked_on in self._counters]
        own = [row for row in waiting if row.queue == self._queue and row.kind in keyed]
        others = [row for row in waiting if row.queue != self._queue or row.kind not in keyed]
        open_locked(self._tx, others, Counter(row.blocked_on for row in others))
        for row in others:
            self._skipped |= self._counters[row.blocked_on].reserve(1)
        if not own:
            return []
        turns = first_turns(self._tx, own)
        lanes = [
            LockedLane(
                LaneRow(row.key, row.queue, row.kind, row.value, row.fair, row.weight, row.rank, turns[row.key]),
                self._counters[row.blocked_on],
            )
            for row in own
        ]
        self._batch.limit_changes.has_lanes = True
        self._lanes |= {lane.row.key: lane for lane in lanes}
        self._lock_counters(lanes)
        return lanes

    def _add_counters(self, rows: list[BucketRow]) -> None:
        rules, freed = {rule.key: rule for rule in self._rules}, self._batch.limit_changes.freed
        self._tx.not_before(max((row.seen_at for row in rows), default=0))
        for row in rows:
            if (rule := rules.get(row.rule)) is not None:
                counter = self._counters[row.key] = SlotCounter(rule, row, self._tx.now, freed.pop(row.key, 0))
                if not rule.path:
                    self._skipped |= counter.reserve_for_others(self._queue)
                    for kind in self._covered(rule):
                        self._of_kind[kind].append(counter)

    def _give_counters(self, lane: LockedLane, by_value: dict[tuple[int, str], SlotCounter]) -> None:
        """Find the counters of a lane. One that could not be locked leaves the lane for another claim."""
        lane.counters = list(self._of_kind[lane.row.kind])
        for rule in self._rules:
            if rule.kind == lane.row.kind and rule.path and rule.path in lane.values:
                counter = by_value.get((rule.key, value_json(lane.values[rule.path])))
                if counter is None:
                    lane.is_drained = self._skipped = True
                else:
                    lane.counters.append(counter)

    def _lacks_counters(self, kind: int) -> bool:
        """Whether a counter without a key could not be locked, or is new since the look."""
        needed = [rule for rule in self._rules if not rule.path and (rule.queue or rule.kind == kind)]
        return len(self._of_kind[kind]) < len(needed)

    # Tasks.

    def _pick_all(self, plain: set[int], laned: set[int], lanes: list[LockedLane]) -> list[ClaimedRow]:
        """Pick tasks of the queue and of its lanes: by priority; of the same, at least half of each while there are."""
        for kind in filter(self._lacks_counters, plain | laned):
            self._most.pop(kind, None)
            self._skipped = True
        if not plain:
            return self._pick_lanes(laned, self._limit)
        if not lanes:
            return self._pick_plain(plain, self._limit)
        first_lane = min(lane.row.rank for lane in lanes)
        first_plain = next((rank for rank, _ in self._tx.query("head_of_queue", queue=self._queue)), None)
        share = self._limit if first_plain is None or first_plain > first_lane else 0
        if first_plain == first_lane:
            share = (self._limit + self._batch.rng.randrange(2)) // 2
        picked = self._pick_lanes(laned, share) if share else []
        picked += self._pick_plain(plain, self._limit - len(picked))
        if len(picked) < self._limit:
            picked += self._pick_lanes(laned, self._limit - len(picked))
        return sorted(picked, key=lambda row: row.rank)

    def _pick_plain(self, kinds: set[int], limit: int) -> list[ClaimedRow]:
        """Pick tasks of the queue that are in no lane."""
        kinds = {kind for kind in kinds if self._most.get(kind)}
        if not kinds or not limit:
            return []
        if all(self._most[kind] >= self._limit and not self._of_kind[kind] for kind in kinds):
            # By kind, if a task of a kind under a limit, or whose breaker is open, may have come in since.
            is_plain = self._kinds is None and not any(rule.kind and not rule.path for rule in self._rules)
            wanted = None if is_plain and not self._breakers else sorted(kinds)
            return self._keep(self._tx.pick(self._queue, wanted, limit, past_breakers=True))
        heads = sorted(
            (rank, task, kind) for kind in sorted(kinds)
            for rank, task in self._tx.query(
                "heads_of_kind", queue=self._queue, kind=kind, limit=min(limit, self._most[kind])
            )
        )  # fmt: skip
        wanted_of: Counter[int] = Counter()
        for _, _, kind in heads:
            if sum(wanted_of.values()) < limit and self._take(self._of_kind[kind], kind):
                wanted_of[kind] += 1
        picked: list[ClaimedRow] = []
        for kind, number in wanted_of.items():
            rows = self._tx.pick(self._queue, [kind], number, past_breakers=True)
            self._return(self._of_kind[kind], kind, number - len(rows))
            picked += rows
        return self._keep(sorted(picked))

    def _pick_lanes(self, kinds: set[int], limit: int) -> list[ClaimedRow]:
        """Pick tasks of lanes, lane by lane in turn. Locks further lanes if these have too few."""
        before = len(self._counters_of)
        for _ in range(ROUNDS):
            found = self._serve_once(limit - (len(self._counters_of) - before))
            is_enough = self._limited_left <= 0 and all(lane.counters for lane in self._lanes.values())
            if len(self._counters_of) - before >= limit or is_enough:
                break
            if not found or not self._can_serve():
                if self._fresh < self._asked:
                    break
                kinds = {kind for kind in kinds if self._most.get(kind)}
                lanes = self._lock_lanes(kinds)
                if not lanes:
                    break
                self._lock_counters(lanes)
        else:
            # There may be more: whoever is woken goes on.
            self._skipped = True
        return in_turn(self._lanes.values(), before, self._counters_of)

    def _can_serve(self) -> bool:
        return any(not lane.is_drained and not lane.is_blocked for lane in self._lanes.values())

    def _serve_once(self, limit: int) -> bool:
        """Share out slots among the lanes and pick their tasks. Returns whether there were any."""
        quotas = self._share_out(limit)
        if not quotas:
            return False
        rows: dict[int, list[ClaimedRow]] = defaultdict(list)
        # Tasks that are picked already are still the first ones.
        wanted = {key: number + len(self._lanes[key].picked) for key, number in quotas.items()}
        for row in self._tx.pick_from_lanes(wanted):
            if row.key not in self._counters_of:
                assert row.lane is not None
                rows[row.lane].append(row)
        for key, number in quotas.items():
            lane = self._lanes[key]
            new = lane.of_its_rank(rows[key])
            lane.is_drained = len(rows[key]) < number
            self._return(lane.counters, lane.row.kind, number - len(new))
            lane.picked += new
            for row in new:
                self._counters_of[row.key] = lane.counters
        return bool(rows)

    def _share_out(self, limit: int) -> Counter[int]:
        """How many tasks each lane gives, in turn."""
        heaps: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for lane in self._lanes.values():
            if not lane.is_drained and not lane.is_blocked:
                heaps[lane.row.kind].append(lane.place(len(lane.picked)))
        for heap in heaps.values():
            heapq.heapify(heap)
        quotas: Counter[int] = Counter()
        served: Counter[int] = Counter()
        while limit > 0 and heaps:
            kind = min(heaps, key=lambda k: (heaps[k][0][0], served[k]))
            lane = self._lanes[heaps[kind][0][2]]
            if self._take(lane.counters, kind):
                quotas[lane.row.key] += 1
                served[kind] += 1
                limit -= 1
                heapq.heapreplace(heaps[kind], lane.place(len(lane.picked) + quotas[lane.row.key]))
                continue
            lane.blocked_on = next((c for c in lane.counters if c.free <= 0 and c.rule.path), None)
            if lane.blocked_on is not None:
                lane.blocked_on.turned_away = True
                heapq.heappop(heaps[kind])
            if lane.blocked_on is None or not heaps[kind]:
                # No other lane of the kind can start a task, either; or there is none.
                del heaps[kind]
        return quotas

    def _take(self, counters: list[SlotCounter], kind: int) -> bool:
        """Take a slot of each counter for a task of this kind, if all have one."""
        has_all = True
        for counter in counters:
            if counter.free <= 0:
                counter.turned_away, has_all = True, False
        if not has_all or self._most.get(kind, 0) <= 0 or (counters and self._limited_left <= 0):
            return False
        for counter in counters:
            counter.take(1)
        self._most[kind] -= 1
        self._limited_left -= bool(counters)
        return True

    def _return(self, counters: list[SlotCounter], kind: int, number: int) -> None:
        """Return slots that were taken for tasks that are not there."""
        for counter in counters:
            counter.take(-number)
        self._most[kind] += number
        self._limited_left += number if counters else 0

    def _keep(self, rows: list[ClaimedRow]) -> list[ClaimedRow]:
        """Note the counters of picked tasks of the queue."""
        for row in rows:
            self._counters_of[row.key] = self._of_kind[row.kind]
        return rows

    # After the claim.

    def slots(self, picked: list[ClaimedRow]) -> dict[int, str]:
        """By task, the counters in which it is counted while it is held. Those without are left out."""
        slots: dict[int, str] = {}
        for row in picked:
            if keys := [counter.row.key for counter in self._counters_of[row.key] if counter.has_slots]:
                slots[row.key] = f",{','.join(map(str, keys))},"
        return slots

    def covers(self, row: ClaimedRow) -> bool:
        """Whether a picked task is under a limit."""
        return bool(self._counters_of[row.key])

    def finish(self, claimed: list[ClaimedRow]) -> None:
        """Write counters and lanes, after the ready rows of the claimed tasks are deleted."""
        kept = {row.key for row in claimed}
        for key, counters in self._counters_of.items():
            if key not in kept:
                for counter in counters:
                    counter.take(-1)
        changed = [row for counter in self._counters.values() if (row := counter.after(self._tx, self._queue))]
        write_buckets(self._tx, changed)
        write_lanes(self._tx, self._queue, [*self._lanes.values()], [*self._counters.values()], kept, self._limit)
        failpoints.hit("slots_taken")
