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
from onetray.store.base import LoneClaim, Store

MAX_POLICIES = 100
"""The statement gets the lease of each known policy. With more policies than these, it is not used."""


def claim_one(store: Store, command: Claim) -> Verdict | None:
    """Claim a task that is alone in its queue. None if the claim has to run as any other."""
    if not store.claims_one or not command.expects_one or command.request_key is None or failpoints.hook is not None:
        return None
    names = store.names
    ns = names.namespace(command.namespace)
    queue = names.queue(ns, command.queue) if ns is not None else None
    policies = names.known_policies()
    if ns is None or queue is None or queue in store.limited or not 0 < len(policies) <= MAX_POLICIES:
        return None
    kinds = None
    if command.kinds is not None:
        if queue in store.mixed:
            return None
        kinds = [k for k in (names.kind(ns, name) for name in command.kinds) if k is not None]
    claim = LoneClaim(
        queue, ns, command.worker, command.request_key, actor(WORKER, command.worker), int(command.expiry_counts), kinds,
        list(policies), [lease_us(command, policy) for policy in policies.values()],
    )  # fmt: skip
    # Once only: if its answer is lost, the usual way finds its tasks under the request key.
    command.expects_one = False
    task = store.claim_one(claim)
    if task is None:
        return None
    command.found_limits = False
    row = task.row
    kind, policy = names.kind_name(row.kind), names.policy(row.policy)
    return Verdict([assignment_of(row, command, kind, policy, task.lease, task.length, row.seen_at, (TASK.claim,), False)])
