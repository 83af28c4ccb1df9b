"""Hand out work: each task to one worker, under a lease.

Owns the claim. What is claimable was decided before: exactly the tasks that have a ready row.
"""

from __future__ import annotations

from typing import Any

import orjson

from onetray import points
from onetray.clock import SECOND
from onetray.commands import Claim
from onetray.engine.scope import Scope
from onetray.lifecycle import HELD, TASK
from onetray.model import Assignment, Verdict


def claim(scope: Scope, work: list[tuple[int, Claim]]) -> None:
    for i, command in work:
        scope.answer(i, Verdict(_claim(scope, command)))


def _claim(scope: Scope, command: Claim) -> list[Assignment]:
    names = scope.tx.names
    ns = names.namespace(command.namespace)
    queue = names.queue(ns, command.queue) if ns is not None else None
    if ns is None or queue is None:
        return []
    if command.request_key is not None:
        again = _claimed_before(scope, command, ns)
        if again is not None:
            return again
    kinds = None
    if command.kinds is not None:
        kinds = [k for k in (names.kind(ns, name) for name in command.kinds) if k is not None]
        if not kinds:
            return []
    picked = scope.tx.pick(queue, kinds, command.limit)
    return _assign(scope, command, ns, queue, picked) if picked else []


def _assign(scope: Scope, command: Claim, ns: int, queue: int, picked: list[tuple[Any, ...]]) -> list[Assignment]:
    tx, names, now, n = scope.tx, scope.tx.names, scope.tx.now, len(picked)
    lengths = [_lease_us(scope, command, r[4]) for r in picked]
    distinct = sorted(set(lengths))
    leases = dict(zip(distinct, tx.new_leases(len(distinct)), strict=True))
    lease_of = [leases[length] for length in lengths]
    tx.batch("insert_lease", {
        "key": [leases[length] for length in distinct], "ns": [ns] * len(distinct),
        "worker": [command.worker] * len(distinct), "expires_at": [now + length for length in distinct],
        "length": distinct, "request_key": [command.request_key] * len(distinct),
        "tasks": [orjson.dumps([r[1] for r, own in zip(picked, lengths, strict=True) if own == length]).decode()
            for length in distinct],
        "part": list(range(len(distinct))),
    })  # fmt: skip
    keys = [r[1] for r in picked]
    tx.batch("delete_ready", {"queue": [queue] * n, "rank": [r[0] for r in picked], "key": keys})
    nothing = [None] * n
    tx.move((TASK.claim,), {
        "key": keys, "version": [r[5] for r in picked], "worker": [command.worker] * n, "lease": lease_of,
        "at": [now] * n, "actor": [f"worker:{command.worker}"] * n, "cause": nothing, "trace": nothing,
        "detail": nothing,
    })  # fmt: skip
    points.hit("claimed")
    return [
        Assignment(
            key, id_, names.kind_name(kind), command.queue, command.namespace, command.worker, fence, attempts + 1,
            lease, now + length, payload, input_, correlation or id_, trace, names.policy(policy),
        )
        for (_, key, id_, kind, policy, _, fence, attempts, payload, input_, correlation, trace, *_), lease, length
        in zip(picked, lease_of, lengths, strict=True)
    ]  # fmt: skip


def _lease_us(scope: Scope, command: Claim, policy: int) -> int:
    if command.lease_s is not None:
        return int(command.lease_s * SECOND)
    return scope.tx.names.policy(policy).lease_us


def _claimed_before(scope: Scope, command: Claim, ns: int) -> list[Assignment] | None:
    """What is left of the same claim, for a worker that asks again with its request key; None for a new key."""
    tx, names = scope.tx, scope.tx.names
    tx.lock_request(ns, command.worker, str(command.request_key))
    found = tx.query("leases_of_request", ns=ns, worker=command.worker, request_key=command.request_key)
    until = {key: expires_at for key, _, expires_at in found if expires_at >= tx.now}
    if not until:
        # The janitor has yet to take these back; their key is free for a new claim.
        if found:
            tx.query("forget_requests", keys=[key for key, _, _ in found])
        return None
    keys = [k for key, tasks, _ in found if key in until for k in orjson.loads(tasks)]
    return [
        Assignment(
            key, id_, names.kind_name(kind), names.queue_name(queue), command.namespace, command.worker, fence,
            attempts, lease, until[lease], payload, input_, correlation or id_, trace, names.policy(policy), state,
        )
        for key, id_, kind, policy, fence, attempts, payload, input_, correlation, trace, lease, state, queue
        in tx.query("claimed_again", keys=keys)
        if lease in until and state in HELD
    ]  # fmt: skip
