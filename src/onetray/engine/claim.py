"""Claim tasks: assign each to one worker, under a lease.

The claimable tasks are exactly those with a ready row, which the other verbs write.
"""

from __future__ import annotations

import orjson

from onetray import failpoints
from onetray.domain.clock import SECOND
from onetray.domain.commands import Claim
from onetray.domain.lifecycle import HELD, RUNNING, TASK
from onetray.domain.machine import WORKER
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment, Verdict
from onetray.engine.batch_context import BatchContext, FlowUnlocked
from onetray.engine.breakers import pick_past_breakers
from onetray.engine.flows.advance import settle
from onetray.engine.pending_writes import TIMEOUT, PendingWrites, actor, once
from onetray.store.base import Tx
from onetray.store.rows import ClaimedRow, LeaseRow


def claim(batch: BatchContext, work: list[tuple[int, Claim]]) -> None:
    for i, command in work:
        batch.answer(i, Verdict(_claim(batch, command)))


def _claim(batch: BatchContext, command: Claim) -> list[Assignment]:
    tx, names = batch.tx, batch.tx.names
    ns = names.namespace(command.namespace)
    queue = names.queue(ns, command.queue) if ns is not None else None
    if ns is None or queue is None:
        return []
    kinds = None
    if command.kinds is not None:
        kinds = [k for k in (names.kind(ns, name) for name in command.kinds) if k is not None]
    leases: list[LeaseRow] = []
    if command.request_key is not None:
        tx.lock_request(ns, command.worker, command.request_key)
        # `query_later` sends the query together with the next one, if there is one.
        query = tx.query if kinds == [] else tx.query_later
        leases = query("leases_of_request", ns=ns, worker=command.worker, request_key=command.request_key)
    picked = [] if kinds == [] else _pick(tx, queue, kinds, command.limit)
    repeated = _repeat_claim(batch, command, leases) if leases else None
    if repeated is not None:
        # The picked tasks were only locked; the commit unlocks them.
        return repeated
    if not picked and kinds != []:
        picked = pick_past_breakers(tx, ns, queue, kinds, command.limit)
    to_start = _stages_to_start(batch, picked) if command.start else {}
    if to_start:
        picked = _with_locked_flows(batch, picked, to_start)
    claimed = _assign(batch, command, ns, queue, picked) if picked else []
    if to_start:
        batch.locked.start_stages({stage for stage, flow in to_start.items() if flow in batch.locked.flows})
        settle(batch)
    return claimed


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
        if kinds is None or all(row.kind in kinds for row in rows):
            return rows
        # Tasks of other kinds were only locked; the commit unlocks them.
        tx.mixed.add(queue)
    return tx.pick(queue, kinds, limit)


def _assign(batch: BatchContext, command: Claim, ns: int, queue: int, picked: list[ClaimedRow]) -> list[Assignment]:
    tx, names, now = batch.tx, batch.tx.names, batch.tx.now
    policies = {key: names.policy(key) for key in {row.policy for row in picked}}
    length_of = {key: _lease_us(command, policy) for key, policy in policies.items()}
    lengths = sorted(set(length_of.values()))
    leases = dict(zip(lengths, tx.new_leases(len(lengths)), strict=True))
    keys, lease_of = [row.key for row in picked], [leases[length_of[row.policy]] for row in picked]
    tx.batch("insert_lease", {
        "key": list(leases.values()), "ns": [ns] * len(leases), "worker": [command.worker] * len(leases),
        "expires_at": [now + length for length in leases], "length": list(leases),
        "request_key": [command.request_key] * len(leases), "part": list(range(len(leases))),
        "expiry_counts": [int(command.expiry_counts)] * len(leases),
        "tasks": [_tasks_json(lease, keys, lease_of) for lease in leases.values()],
    })  # fmt: skip
    tx.batch("delete_ready", {
        "queue": queue, "rank": once([row.rank for row in picked]), "key": keys,
        "kind": once([row.kind for row in picked]),
    })  # fmt: skip
    hops = (TASK.claim, TASK.start) if command.start else (TASK.claim,)
    tx.move(hops, {
        "key": keys, "version": once([row.version for row in picked]), "worker": command.worker,
        "lease": lease_of if len(leases) > 1 else lease_of[0], "at": now, "actor": actor(WORKER, command.worker),
        "fence": once([row.fence for row in picked]), "attempts": once([row.attempts + 1 for row in picked]), "ns": ns,
        "job": [row.job for row in picked], "cause": None, "trace": None, "detail": None,
    })  # fmt: skip
    if command.start:
        _write_timeouts(batch, picked, policies)
    failpoints.hit("claimed")
    batch.unclaimed_new.difference_update(keys)
    kinds = {key: names.kind_name(key) for key in {row.kind for row in picked}}
    # Other successes must update a flow or a breaker: without a version they do not take the fast path.
    without_breaker = {key for key, policy in policies.items() if policy.breaker_failures is None}
    return [
        Assignment(
            row.key, row.id, kinds[row.kind], command.queue, command.namespace, command.worker, row.fence,
            row.attempts + 1, lease, now + length_of[row.policy], row.payload, row.input, row.correlation_id or row.id,
            row.trace, policies[row.policy], length_of[row.policy] / SECOND, hops[-1].target,
            0 if row.job == row.key else row.job,
            row.version + len(hops) if row.job == row.key and row.policy in without_breaker else 0,
        )
        for row, lease in zip(picked, lease_of, strict=True)
    ]  # fmt: skip


def _write_timeouts(batch: BatchContext, started: list[ClaimedRow], policies: dict[int, Policy]) -> None:
    writes = PendingWrites(batch)
    for row in started:
        timeout_s = policies[row.policy].timeout_s
        if timeout_s is not None:
            writes.due(batch.tx.now + int(timeout_s * SECOND), row.key, TIMEOUT, row.fence)
    writes.flush()


def _tasks_json(lease: int, keys: list[int], lease_of: list[int]) -> str:
    """The keys of a lease's tasks, as JSON."""
    return orjson.dumps([key for key, its_lease in zip(keys, lease_of, strict=True) if its_lease == lease]).decode()


def _lease_us(command: Claim, policy: Policy) -> int:
    return policy.lease_us if command.lease_s is None else int(command.lease_s * SECOND)


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
        )
        for row in rows
        if row.state in HELD and row.lease is not None and (lease := valid.get(row.lease)) is not None
    ]  # fmt: skip
