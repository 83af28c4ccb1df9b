"""Claim in one statement: the only task that is queued, for an idle worker that was woken for it, or as many tasks as a
busy worker wants.

Decides which claims may be tried that way. The store takes the tasks or leaves everything as it is; then the claim runs
as any other (claim.py). Also owns what the worker gets for each task of any claim.
"""

from __future__ import annotations

from onetray import failpoints
from onetray.domain.clock import SECOND
from onetray.domain.commands import Claim
from onetray.domain.lifecycle import TASK
from onetray.domain.machine import WORKER, Transition
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment, Verdict
from onetray.engine.pending_writes import actor
from onetray.store.base import LoneClaim, LoneTask, Store, Tx
from onetray.store.event_log import BLOCK
from onetray.store.interned import InternedNames
from onetray.store.rows import ClaimedRow

MAX_POLICIES = 100
"""The statement gets the lease of each known policy. With more policies than these, it is not used."""
_HOPS = (TASK.claim,)


def claim_one(store: Store, command: Claim) -> Verdict | None:
    """Claim a task that is alone in its queue, without a transaction around it. None if the store cannot."""
    if not store.claims_one or not command.expects_one or command.request_key is None:
        return None
    claim = _lone_claim(store, command)
    # Once only: if its answer is lost, the usual way finds its tasks under the request key.
    command.expects_one = False
    return None if claim is None else _verdict(store.names, command, store.claim_one(claim))


def claim_one_within(tx: Tx, command: Claim) -> Verdict | None:
    """The same in a transaction. None: nothing was written, and the claim has to run as any other."""
    claim = _lone_claim(tx, command) if command.expects_one and command.request_key is not None else None
    return None if claim is None else _verdict(tx.names, command, tx.claim_one(claim))


def claim_full(tx: Tx, command: Claim, limit: int) -> list[Assignment] | None:
    """Claim as many tasks as the command wants, in one statement. None: nothing was written, claim as usual."""
    claim = None if command.start or tx.is_callers or limit > BLOCK else _lone_claim(tx, command)
    full = None if claim is None else tx.claim_full(claim, limit)
    if full is None:
        return None
    command.found_limits = False
    rows, lease, length, at = full
    kinds = {key: tx.names.kind_name(key) for key in {row.kind for row in rows}}
    policies = {key: tx.names.policy(key) for key in {row.policy for row in rows}}
    return [
        assignment_of(row, command, kinds[row.kind], policies[row.policy], lease, length, at, _HOPS, False)
        for row in rows
    ]


def _lone_claim(at: Store | Tx, command: Claim) -> LoneClaim | None:
    names = at.names
    ns = names.namespace(command.namespace)
    queue = names.queue(ns, command.queue) if ns is not None else None
    policies = names.known_policies()
    if ns is None or queue is None or failpoints.hook is not None:
        return None
    if queue in at.limited or not 0 < len(policies) <= MAX_POLICIES:
        return None
    kinds = None
    if command.kinds is not None:
        if queue in at.mixed:
            return None
        kinds = [k for k in [names.kind(ns, name) for name in command.kinds] if k is not None]
    return LoneClaim(
        queue, ns, command.worker, command.request_key, actor(WORKER, command.worker), int(command.expiry_counts),
        kinds, list(policies), [lease_us(command, policy) for policy in policies.values()],
    )  # fmt: skip


def _verdict(names: InternedNames, command: Claim, task: LoneTask | None) -> Verdict | None:
    if task is None:
        return None
    command.found_limits = False
    row, kind, policy = task.row, names.kind_name(task.row.kind), names.policy(task.row.policy)
    return Verdict([assignment_of(row, command, kind, policy, task.lease, task.length, row.seen_at, _HOPS, False)])


def assignment_of(
    row: ClaimedRow, claim: Claim, kind: str, policy: Policy, lease: int, length: int, now: int,
    hops: tuple[Transition, ...], has_slots: bool,
) -> Assignment:  # fmt: skip
    is_single = row.job == row.key
    return Assignment(
        row.key, row.id, kind, claim.queue, claim.namespace, claim.worker, row.fence, row.attempts + 1,
        lease, now + length, row.payload, row.input, row.correlation_id or row.id, row.trace,
        policy, length / SECOND, hops[-1].target, 0 if is_single else row.job,
        # Other successes must update a flow or a breaker: without a version they do not take the fast path.
        row.version + len(hops) if is_single and policy.breaker_failures is None else 0,
        idempotency_key=row.idempotency_key or row.id, has_slots=has_slots,
    )  # fmt: skip


def lease_us(command: Claim, policy: Policy) -> int:
    return policy.lease_us if command.lease_s is None else int(command.lease_s * SECOND)
