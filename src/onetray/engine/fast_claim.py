"""Claim the only task that is queued, in one statement: for an idle worker that was woken for one task.

Decides which claims may be tried that way. The store takes the task or leaves everything as it is; then the claim runs
as any other (claim.py).
"""

from __future__ import annotations

from onetray import failpoints
from onetray.domain.commands import Claim
from onetray.domain.lifecycle import TASK
from onetray.domain.machine import WORKER
from onetray.domain.task import Verdict
from onetray.engine.claim import assignment_of, lease_us
from onetray.engine.pending_writes import actor
from onetray.store.base import LoneClaim, LoneTask, Store, Tx
from onetray.store.interned import InternedNames

MAX_POLICIES = 100
"""The statement gets the lease of each known policy. With more policies than these, it is not used."""
_HOPS = (TASK.claim,)


def claim_one(store: Store, command: Claim) -> Verdict | None:
    """Claim a task that is alone in its queue, without a transaction around it. None if the store cannot."""
    if not store.claims_one or not command.expects_one:
        return None
    claim = _lone_claim(store, command)
    # Once only: if its answer is lost, the usual way finds its tasks under the request key.
    command.expects_one = False
    return None if claim is None else _verdict(store.names, command, store.claim_one(claim))


def claim_one_within(tx: Tx, command: Claim) -> Verdict | None:
    """The same in a transaction. None: nothing was written, and the claim has to run as any other."""
    claim = _lone_claim(tx, command) if command.expects_one else None
    return None if claim is None else _verdict(tx.names, command, tx.claim_one(claim))


def _lone_claim(at: Store | Tx, command: Claim) -> LoneClaim | None:
    names = at.names
    ns = names.namespace(command.namespace)
    queue = names.queue(ns, command.queue) if ns is not None else None
    policies = names.known_policies()
    if ns is None or queue is None or command.request_key is None or failpoints.hook is not None:
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
