"""Hand out work: each task to one worker, under a lease.

Owns the claim. What is claimable was decided before: exactly the tasks that have a ready row.
"""

from __future__ import annotations

import orjson

from onetray import failpoints
from onetray.domain.clock import SECOND
from onetray.domain.commands import Claim
from onetray.domain.lifecycle import ASSIGNED, HELD, TASK
from onetray.domain.machine import WORKER
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment, Verdict
from onetray.engine.batch_context import BatchContext
from onetray.engine.breakers import pick_past_breakers
from onetray.engine.pending_writes import actor, once
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
    before: list[LeaseRow] = []
    if command.request_key is not None:
        tx.lock_request(ns, command.worker, command.request_key)
        # With the next question, if there is one.
        ask = tx.query if kinds == [] else tx.ask
        before = ask("leases_of_request", ns=ns, worker=command.worker, request_key=command.request_key)
    picked = [] if kinds == [] else _pick(tx, queue, kinds, command.limit)
    again = _claimed_before(batch, command, before) if before else None
    if again is not None:
        # What was picked is only locked, and free again in a moment.
        return again
    if not picked and kinds != []:
        picked = pick_past_breakers(tx, ns, queue, kinds, command.limit)
    return _assign(batch, command, ns, queue, picked) if picked else []


def _pick(tx: Tx, queue: int, kinds: list[int] | None, limit: int) -> list[ClaimedRow]:
    """Lock what may be claimed. Most workers know every kind in their queues, and need not look for each by itself."""
    if kinds is None or queue not in tx.mixed:
        found = tx.pick(queue, None, limit)
        if kinds is None or all(row.kind in kinds for row in found):
            return found
        # Those of other kinds are only locked, and free again in a moment.
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
        "tasks": [_listed(lease, keys, lease_of) for lease in leases.values()],
    })  # fmt: skip
    tx.batch("delete_ready", {
        "queue": queue, "rank": once([row.rank for row in picked]), "key": keys,
        "kind": once([row.kind for row in picked]),
    })  # fmt: skip
    tx.move((TASK.claim,), {
        "key": keys, "version": once([row.version for row in picked]), "worker": command.worker,
        "lease": lease_of if len(leases) > 1 else lease_of[0], "at": now, "actor": actor(WORKER, command.worker),
        "cause": None, "trace": None, "detail": None,
    })  # fmt: skip
    failpoints.hit("claimed")
    batch.entered.difference_update(keys)
    kinds = {key: names.kind_name(key) for key in {row.kind for row in picked}}
    # A success of the others has to be told to their flow, or to the breaker of their kind.
    plain = {key for key, policy in policies.items() if policy.breaker_failures is None}
    return [
        Assignment(
            row.key, row.id, kinds[row.kind], command.queue, command.namespace, command.worker, row.fence,
            row.attempts + 1, lease, now + length_of[row.policy], row.payload, row.input, row.correlation_id or row.id,
            row.trace, policies[row.policy], length_of[row.policy] / SECOND, ASSIGNED,
            0 if row.job == row.key else row.job,
            row.version + 1 if row.job == row.key and row.policy in plain else 0,
        )
        for row, lease in zip(picked, lease_of, strict=True)
    ]  # fmt: skip


def _listed(lease: int, keys: list[int], lease_of: list[int]) -> str:
    """The tasks of a lease, as JSON."""
    return orjson.dumps([key for key, own in zip(keys, lease_of, strict=True) if own == lease]).decode()


def _lease_us(command: Claim, policy: Policy) -> int:
    return policy.lease_us if command.lease_s is None else int(command.lease_s * SECOND)


def _claimed_before(batch: BatchContext, command: Claim, found: list[LeaseRow]) -> list[Assignment] | None:
    """What is left of the same claim, for a worker that asks again with its request key; None for a new key."""
    tx, names = batch.tx, batch.tx.names
    alive = {lease.key: lease for lease in found if lease.expires_at >= tx.now}
    if not alive:
        # The janitor has yet to take these back; their key is free for a new claim.
        tx.query("forget_requests", keys=[lease.key for lease in found])
        return None
    rows = tx.query("claimed_again", keys=[key for lease in alive.values() for key in orjson.loads(lease.tasks)])
    return [
        Assignment(
            row.key, row.id, names.kind_name(row.kind), names.queue_name(row.queue), command.namespace, command.worker,
            row.fence, row.attempts, lease.key, lease.expires_at, row.payload, row.input, row.correlation_id or row.id,
            row.trace, names.policy(row.policy), lease.length / SECOND, row.state, 0 if row.job == row.key else row.job,
        )
        for row in rows
        if row.state in HELD and row.lease is not None and (lease := alive.get(row.lease)) is not None
    ]  # fmt: skip
