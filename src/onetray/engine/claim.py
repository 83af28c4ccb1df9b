"""Hand out work: each task to one worker, under a lease.

Owns the claim. What is claimable was decided before: exactly the tasks that have a ready row.
"""

from __future__ import annotations

from typing import Any

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
from onetray.store.base import Rows, Tx


def claim(scope: BatchContext, work: list[tuple[int, Claim]]) -> None:
    for i, command in work:
        scope.answer(i, Verdict(_claim(scope, command)))


def _claim(scope: BatchContext, command: Claim) -> list[Assignment]:
    tx, names = scope.tx, scope.tx.names
    ns = names.namespace(command.namespace)
    queue = names.queue(ns, command.queue) if ns is not None else None
    if ns is None or queue is None:
        return []
    kinds = None
    if command.kinds is not None:
        kinds = [k for k in (names.kind(ns, name) for name in command.kinds) if k is not None]
    before: Rows = []
    if command.request_key is not None:
        tx.lock_request(ns, command.worker, command.request_key)
        # With the next question, if there is one.
        ask = tx.query if kinds == [] else tx.ask
        before = ask("leases_of_request", ns=ns, worker=command.worker, request_key=command.request_key)
    picked = [] if kinds == [] else _pick(tx, queue, kinds, command.limit)
    again = _claimed_before(scope, command, before) if before else None
    if again is not None:
        # What was picked is only locked, and free again in a moment.
        return again
    if not picked and kinds != []:
        picked = pick_past_breakers(tx, ns, queue, kinds, command.limit)
    return _assign(scope, command, ns, queue, picked) if picked else []


def _pick(tx: Tx, queue: int, kinds: list[int] | None, limit: int) -> Rows:
    """Lock what may be claimed. Most workers know every kind in their queues, and need not look for each by itself."""
    if kinds is None or queue not in tx.mixed:
        found = tx.pick(queue, None, limit)
        if kinds is None or all(r[3] in kinds for r in found):
            return found
        # Those of other kinds are only locked, and free again in a moment.
        tx.mixed.add(queue)
    return tx.pick(queue, kinds, limit)


def _assign(
    scope: BatchContext, command: Claim, ns: int, queue: int, picked: list[tuple[Any, ...]]
) -> list[Assignment]:
    tx, names, now = scope.tx, scope.tx.names, scope.tx.now
    policies = {key: names.policy(key) for key in {r[4] for r in picked}}
    length_of = {key: _lease_us(command, policy) for key, policy in policies.items()}
    lengths = sorted(set(length_of.values()))
    leases = dict(zip(lengths, tx.new_leases(len(lengths)), strict=True))
    keys, lease_of = [r[1] for r in picked], [leases[length_of[r[4]]] for r in picked]
    tx.batch("insert_lease", {
        "key": list(leases.values()), "ns": [ns] * len(leases), "worker": [command.worker] * len(leases),
        "expires_at": [now + length for length in leases], "length": list(leases),
        "request_key": [command.request_key] * len(leases), "part": list(range(len(leases))),
        "tasks": [_listed(lease, keys, lease_of) for lease in leases.values()],
    })  # fmt: skip
    tx.batch("delete_ready", {
        "queue": queue, "rank": once([r[0] for r in picked]), "key": keys, "kind": once([r[3] for r in picked]),
    })  # fmt: skip
    tx.move((TASK.claim,), {
        "key": keys, "version": once([r[5] for r in picked]), "worker": command.worker,
        "lease": lease_of if len(leases) > 1 else lease_of[0], "at": now, "actor": actor(WORKER, command.worker),
        "cause": None, "trace": None, "detail": None,
    })  # fmt: skip
    failpoints.hit("claimed")
    scope.entered.difference_update(keys)
    kinds = {key: names.kind_name(key) for key in {r[3] for r in picked}}
    # A success of the others has to be told to their flow, or to the breaker of their kind.
    plain = {key for key, policy in policies.items() if policy.breaker_failures is None}
    return [
        Assignment(
            key, id_, kinds[kind], command.queue, command.namespace, command.worker, fence, attempts + 1, lease,
            now + length_of[policy], payload, input_, correlation or id_, trace, policies[policy],
            length_of[policy] / SECOND, ASSIGNED, 0 if job == key else job,
            version + 1 if job == key and policy in plain else 0,
        )
        for (_, key, id_, kind, policy, version, fence, attempts, payload, input_, correlation, trace, job, *_), lease
        in zip(picked, lease_of, strict=True)
    ]  # fmt: skip


def _listed(lease: int, keys: list[int], lease_of: list[int]) -> str:
    """The tasks of a lease, as JSON."""
    return orjson.dumps([key for key, own in zip(keys, lease_of, strict=True) if own == lease]).decode()


def _lease_us(command: Claim, policy: Policy) -> int:
    return policy.lease_us if command.lease_s is None else int(command.lease_s * SECOND)


def _claimed_before(scope: BatchContext, command: Claim, found: Rows) -> list[Assignment] | None:
    """What is left of the same claim, for a worker that asks again with its request key; None for a new key."""
    tx, names = scope.tx, scope.tx.names
    until = {key: expires_at for key, _, expires_at, _ in found if expires_at >= tx.now}
    if not until:
        # The janitor has yet to take these back; their key is free for a new claim.
        tx.query("forget_requests", keys=[key for key, *_ in found])
        return None
    lengths = {key: length for key, *_, length in found}
    keys = [k for key, tasks, *_ in found if key in until for k in orjson.loads(tasks)]
    return [
        Assignment(
            key, id_, names.kind_name(kind), names.queue_name(queue), command.namespace, command.worker, fence,
            attempts, lease, until[lease], payload, input_, correlation or id_, trace, names.policy(policy),
            lengths[lease] / SECOND, state, 0 if job == key else job,
        )
        for key, id_, kind, policy, fence, attempts, payload, input_, correlation, trace, lease, state, queue, job
        in tx.query("claimed_again", keys=keys)
        if lease in until and state in HELD
    ]  # fmt: skip
