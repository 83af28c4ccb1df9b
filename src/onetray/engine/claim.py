"""Claim tasks: assign each to one worker, under a lease.

The claimable tasks are exactly those with a ready row, which the other verbs write.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import orjson

from onetray import failpoints
from onetray.domain.clock import SECOND
from onetray.domain.commands import Claim
from onetray.domain.lifecycle import HELD, RUNNING, TASK
from onetray.domain.machine import WORKER, Transition
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment, Verdict
from onetray.engine.batch_context import BatchContext, FlowUnlocked
from onetray.engine.breakers import pick_past_breakers
from onetray.engine.fast_claim import assignment_of, claim_full, lease_us
from onetray.engine.flows.advance import settle
from onetray.engine.limited_claim import LimitedClaim
from onetray.engine.pending_writes import TIMEOUT, PendingWrites, actor, once
from onetray.store.base import Tx
from onetray.store.rows import ClaimedRow, LeaseRow


def claim(batch: BatchContext, work: list[tuple[int, Claim]]) -> None:
    """Run the claims. Those that can share a pick are one write, but each has its own lease."""
    vain = {i for i, command in work if command.only_new and not _has_new_work(batch.tx, command)}
    for i in vain:
        batch.answer(i, Verdict([]))
    work = [(i, command) for i, command in work if i not in vain] if vain else work
    for group in _groups(work, batch.limits.batch):
        found = _claim(batch, [command for _, command in group])
        for (i, _), assignments in zip(group, found, strict=True):
            batch.answer(i, Verdict(assignments))


def _has_new_work(tx: Tx, command: Claim) -> bool:
    """Whether this transaction has made tasks of the claim's queue claimable."""
    ns = tx.names.namespace(command.namespace)
    queue = tx.names.queue(ns, command.queue) if ns is not None else None
    return tx.work.anywhere or queue in tx.work.queues


def _groups(work: list[tuple[int, Claim]], most: int) -> list[list[tuple[int, Claim]]]:
    """Claims of the same tasks, in order, for at most so many. One with a request key is alone: it may be repeated."""
    if len(work) == 1:
        return [work]
    groups: list[list[tuple[int, Claim]]] = []
    last: dict[object, tuple[list[tuple[int, Claim]], int]] = {}
    for item in work:
        _, command = item
        sameness = command.namespace, command.queue, command.kinds, command.start
        group, size = last.get(sameness, ([], most))
        if command.request_key is not None or size + command.limit > most:
            group, size = [], 0
            groups.append(group)
        group.append(item)
        if command.request_key is None:
            last[sameness] = group, size + command.limit
    return groups


def _claim(batch: BatchContext, commands: list[Claim]) -> list[list[Assignment]]:
    """The tasks of each claim. All have the same namespace, queue and kinds."""
    tx, names, command = batch.tx, batch.tx.names, commands[0]
    nothing: list[list[Assignment]] = [[] for _ in commands]
    ns = names.namespace(command.namespace)
    queue = names.queue(ns, command.queue) if ns is not None else None
    if ns is None or queue is None:
        return nothing
    kinds = None
    if command.kinds is not None:
        kinds = [k for k in (names.kind(ns, name) for name in command.kinds) if k is not None]
    leases: list[LeaseRow] = []
    if command.request_key is not None:
        tx.lock_request(ns, command.worker, command.request_key)
        # `query_later` sends the query together with the next one, if there is one.
        query = tx.query if kinds == [] else tx.query_later
        leases = query("leases_of_request", ns=ns, worker=command.worker, request_key=command.request_key)
    limit = sum([c.limit for c in commands])
    full = claim_full(tx, command, limit) if len(commands) == 1 and kinds != [] else None
    if full is not None:
        batch.unclaimed_new.difference_update([assignment.key for assignment in full])
        return [full]
    # In a queue with limits it would find nothing.
    picked = [] if kinds == [] or queue in tx.limited else _pick(tx, queue, kinds, limit)
    repeated = _repeat_claim(batch, command, leases) if leases else None
    if repeated is not None:
        # The picked tasks were only locked; the commit unlocks them.
        return [repeated]
    limited = None
    if not picked and kinds != []:
        picked, limited = _pick_past_gates(batch, commands, ns, queue, kinds, limit)
    for each in commands:
        each.found_limits = limited is not None
    to_start = _stages_to_start(batch, picked) if command.start else {}
    if to_start:
        picked = _with_locked_flows(batch, picked, to_start)
    claimed = _assign(batch, commands, ns, queue, picked, limited) if picked else nothing
    if limited is not None:
        limited.finish(picked)
    if to_start:
        batch.locked.start_stages({stage for stage, flow in to_start.items() if flow in batch.locked.flows})
        settle(batch)
    return claimed


def _pick_past_gates(
    batch: BatchContext, commands: list[Claim], ns: int, queue: int, kinds: list[int] | None, limit: int
) -> tuple[list[ClaimedRow], LimitedClaim | None]:
    """Pick tasks where the plain pick found none: there are none, breakers are open, or the queue has limits."""
    tx, limited_limit = batch.tx, sum([_limited_limit(c) for c in commands])
    claim = LimitedClaim(batch, ns, queue, kinds, limit, limited_limit)
    was_limited = queue in tx.limited
    gates = claim.look() if was_limited else tx.query("claim_gates", queue=queue)[0]
    if gates.paused:
        return [], None
    if gates.limited:
        tx.limited.add(queue)
        if not was_limited:
            gates = claim.look()
        return claim.pick(gates), claim
    if was_limited:
        tx.limited.discard(queue)
        picked = _pick(tx, queue, kinds, limit)
        if picked:
            return picked, None
    return (pick_past_breakers(tx, ns, queue, kinds, limit) if gates.breakers else []), None


def _limited_limit(claim: Claim) -> int:
    return claim.limit if claim.limited_limit is None else min(claim.limit, claim.limited_limit)


def _stages_to_start(batch: BatchContext, picked: list[ClaimedRow]) -> dict[int, int]:
    """The stages that start with one of these tasks, and the flow of each. Most stages run already."""
    flow_of = {row.stage: row.job for row in picked if row.stage is not None and not row.control}
    unknown = flow_of.keys() - batch.locked.stages.keys()
    running = {stage for stage in flow_of.keys() - unknown if batch.locked.runs(stage)}
    if unknown:
        running |= {key for (key,) in batch.tx.query("running_stages", keys=sorted(unknown), running=RUNNING)}
    return {stage: flow for stage, flow in flow_of.items() if stage not in running}


def _with_locked_flows(batch: BatchContext, picked: list[ClaimedRow], to_start: dict[int, int]) -> list[ClaimedRow]:
    """The tasks that this transaction can start: a flow in which a stage starts has to be locked.

    Flows are locked before their tasks, but only the tasks say which flows. So lock them without waiting. If another
    transaction has locked one, run the batch again with that one locked first.
    """
    unlocked = batch.locked.lock_free(set(to_start.values()))
    can_start = [row for row in picked if row.job not in unlocked or row.stage not in to_start]
    if unlocked and not (batch.runs_again and can_start):
        raise FlowUnlocked(unlocked)
    return can_start


def _pick(tx: Tx, queue: int, kinds: list[int] | None, limit: int) -> list[ClaimedRow]:
    """Lock claimable tasks. Without a filter by kind at first: most workers handle every kind in their queues."""
    if kinds is None or queue not in tx.mixed:
        rows = tx.pick(queue, None, limit)
        if kinds is None or {row.kind for row in rows} <= set(kinds):
            return rows
        # Tasks of other kinds were only locked; the commit unlocks them.
        tx.mixed.add(queue)
    return tx.pick(queue, kinds, limit)


class Share:
    """The tasks of one claim, and their leases: one for each length that the policies ask for."""

    __slots__ = ("claim", "leases", "lengths", "rows")

    def __init__(self, claim: Claim, rows: list[ClaimedRow], policies: dict[int, Policy]) -> None:
        of = [row.policy for row in rows]
        length_of = {key: lease_us(claim, policies[key]) for key in set(of)}
        self.claim, self.rows = claim, rows
        self.lengths = [length_of[key] for key in of]
        self.leases = dict.fromkeys(sorted(set(self.lengths)), 0)
        """The key of each lease, by its length."""

    def tasks_json(self, length: int) -> str:
        """The keys of the tasks of a lease, as JSON."""
        keys = [row.key for row in self.rows]
        if len(self.leases) > 1:
            keys = [key for key, its_length in zip(keys, self.lengths, strict=True) if its_length == length]
        return orjson.dumps(keys).decode()


def _shares(
    commands: list[Claim], picked: list[ClaimedRow], policies: dict[int, Policy], limited: LimitedClaim | None
) -> list[Share]:
    """Share out the picked tasks: first come, first served."""
    if limited is not None and len(commands) > 1:
        return [Share(*part, policies) for part in _share_out_limited(commands, picked, limited)]
    shares, start = [], 0
    for command in commands:
        rows = picked[start : start + command.limit]
        shares.append(Share(command, rows, policies))
        start += len(rows)
    return shares


def _share_out_limited(
    commands: list[Claim], picked: list[ClaimedRow], limited: LimitedClaim
) -> list[tuple[Claim, list[ClaimedRow]]]:
    """Give each claim as many tasks under limits as it may have, then the others to whoever has room."""
    of: dict[int, int] = {}
    room = [command.limit for command in commands]
    for is_limited in (True, False):
        left = [min(_limited_limit(c), r) for c, r in zip(commands, room, strict=True)] if is_limited else room
        taker = 0
        for row in picked:
            if limited.covers(row) is is_limited:
                while not left[taker]:
                    taker += 1
                of[row.key] = taker
                left[taker] -= 1
                if is_limited:
                    room[taker] -= 1
    return [(command, [row for row in picked if of[row.key] == i]) for i, command in enumerate(commands)]


def _assign(
    batch: BatchContext,
    commands: list[Claim],
    ns: int,
    queue: int,
    picked: list[ClaimedRow],
    limited: LimitedClaim | None,
) -> list[list[Assignment]]:
    tx, names, now = batch.tx, batch.tx.names, batch.tx.now
    policies = {key: names.policy(key) for key in {row.policy for row in picked}}
    shares = _shares(commands, picked, policies, limited)
    picked = [row for share in shares for row in share.rows]
    slots = {} if limited is None else limited.slots(picked)
    _insert_leases(tx, shares, ns)
    of = _columns(picked)
    keys = of["key"]
    tx.batch("delete_ready", {
        "queue": queue if limited is None else once([-row.lane if row.lane else queue for row in picked]),
        "rank": once(of["rank"]), "key": keys, "kind": once(of["kind"]),
    })  # fmt: skip
    hops = (TASK.claim, TASK.start) if commands[0].start else (TASK.claim,)
    worker = once([worker for share in shares for worker in [share.claim.worker] * len(share.rows)])
    tx.move(hops, {
        "key": keys, "version": once(of["version"]), "worker": worker,
        "lease": once([share.leases[length] for share in shares for length in share.lengths]), "at": now,
        "actor": [actor(WORKER, w) for w in worker] if isinstance(worker, list) else actor(WORKER, worker),
        "fence": once(of["fence"]), "attempts": once([attempts + 1 for attempts in of["attempts"]]), "ns": ns,
        "job": of["job"], "cause": None, "trace": None, "detail": None,
        **({"slots": [slots.get(key) for key in keys]} if slots else {}),
    })  # fmt: skip
    if commands[0].start:
        _write_timeouts(batch, picked, policies)
    failpoints.hit("claimed")
    batch.unclaimed_new.difference_update(keys)
    kinds = {key: names.kind_name(key) for key in set(of["kind"])}
    return [_assignments(share, hops, now, kinds, policies, slots) for share in shares]


def _columns(rows: list[ClaimedRow]) -> dict[str, list[Any]]:
    """The rows by column, all at once: that costs less than three comprehensions."""
    return dict(zip(ClaimedRow._fields, map(list, zip(*rows, strict=True)), strict=True))


def _assignments(
    share: Share, hops: tuple[Transition, ...], now: int, kinds: dict[int, str], policies: dict[int, Policy],
    slots: Container[int],
) -> list[Assignment]:  # fmt: skip
    claim = share.claim
    return [
        assignment_of(
            row, claim, kinds[row.kind], policies[row.policy], share.leases[length], length, now, hops, row.key in slots
        )
        for row, length in zip(share.rows, share.lengths, strict=True)
    ]


def _insert_leases(tx: Tx, shares: list[Share], ns: int) -> None:
    """Give each claim leases of its own: a heartbeat renews no task of another one."""
    new = [(share, length, part) for share in shares for part, length in enumerate(share.leases)]
    keys = tx.new_leases(len(new))
    for (share, length, _), key in zip(new, keys, strict=True):
        share.leases[length] = key
    tx.batch("insert_lease", {
        "key": keys, "ns": [ns] * len(new), "worker": [share.claim.worker for share, _, _ in new],
        "expires_at": [tx.now + length for _, length, _ in new], "length": [length for _, length, _ in new],
        "request_key": [share.claim.request_key for share, _, _ in new], "part": [part for _, _, part in new],
        "expiry_counts": [int(share.claim.expiry_counts) for share, _, _ in new],
        "tasks": [share.tasks_json(length) for share, length, _ in new],
    })  # fmt: skip


def _write_timeouts(batch: BatchContext, started: list[ClaimedRow], policies: dict[int, Policy]) -> None:
    writes = PendingWrites(batch)
    for row in started:
        timeout_s = policies[row.policy].timeout_s
        if timeout_s is not None:
            writes.due(batch.tx.now + int(timeout_s * SECOND), row.key, TIMEOUT, row.fence)
    writes.flush()


def _repeat_claim(batch: BatchContext, command: Claim, leases: list[LeaseRow]) -> list[Assignment] | None:
    """The tasks that a worker still holds of an earlier claim with the same request key. None if its leases expired."""
    tx, names = batch.tx, batch.tx.names
    valid = {lease.key: lease for lease in leases if lease.expires_at >= tx.now}
    if not valid:
        # The janitor has not expired these leases yet. The request key is free for a new claim.
        tx.query("clear_request_keys", keys=[lease.key for lease in leases])
        return None
    rows = tx.query("claimed_again", keys=[key for lease in valid.values() for key in orjson.loads(lease.tasks)])
    return [
        Assignment(
            row.key, row.id, names.kind_name(row.kind), names.queue_name(row.queue), command.namespace, command.worker,
            row.fence, row.attempts, lease.key, lease.expires_at, row.payload, row.input, row.correlation_id or row.id,
            row.trace, names.policy(row.policy), lease.length / SECOND, row.state, 0 if row.job == row.key else row.job,
            idempotency_key=row.idempotency_key or row.id,
        )
        for row in rows
        if row.state in HELD and row.lease is not None and (lease := valid.get(row.lease)) is not None
    ]  # fmt: skip
