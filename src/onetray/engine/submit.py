"""Put tasks into their queues, many at once, once for each idempotency key.

Owns how a task begins: its row, its ready or due row, its first event.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import orjson
from uuid_utils import uuid7

from onetray.clock import SECOND
from onetray.commands import Submit, run_at_us
from onetray.engine.moves import DEADLINE, QUEUE_TTL, RUN, Moves, actor
from onetray.engine.scope import Scope
from onetray.errors import KeyReused
from onetray.lifecycle import QUEUED, TASK
from onetray.model import Receipt, Verdict
from onetray.store.base import Tx
from onetray.store.names import Names


@dataclass(slots=True)
class Spec:
    """A task that is about to exist."""

    ns: int
    queue: int
    kind: int
    policy: int
    priority: int
    max_attempts: int
    run_at: int | None
    payload: str
    actor: str
    correlation_id: str | None = None
    trace: str | None = None
    cause: str | None = None
    retry_of: int | None = None
    delay_s: float | None = None
    key: int = 0
    id: str = field(default_factory=lambda: str(uuid7()))


def intern(names: Names, command: Submit, policy_ttl_s: float) -> Spec:
    """Turn a command's names into numbers. Done before the transaction: it may have to add some."""
    ns = names.intern_namespace(command.namespace)
    kind = names.intern_kind(ns, command.kind)
    if command.policy is None:
        policy_key = names.policy_of_kind(kind, policy_ttl_s)
    else:
        policy_key = names.intern_policy(command.policy)
    policy = names.policy(policy_key)
    if command.max_attempts is not None and command.max_attempts != policy.max_attempts:
        policy_key = names.intern_policy(policy.with_(max_attempts=command.max_attempts))
        policy = names.policy(policy_key)
    return Spec(
        ns=ns, queue=names.intern_queue(ns, command.queue), kind=kind, policy=policy_key, priority=command.priority,
        max_attempts=policy.max_attempts, run_at=command.run_at, delay_s=command.delay_s,
        payload=command.payload_json, actor=actor(command.actor, command.actor_name),
        correlation_id=command.correlation_id, trace=command.trace, cause=command.cause,
    )  # fmt: skip


def submit(scope: Scope, work: list[tuple[int, Submit, Spec]]) -> None:
    fresh = _take_keys(scope, work)
    for (i, command, _), receipt in zip(fresh, write_tasks(scope.tx, [spec for _, _, spec in fresh]), strict=True):
        scope.answer(i, Verdict(receipt._replace(actor=command.actor)))


def write_tasks(tx: Tx, specs: list[Spec]) -> list[Receipt]:
    """Write new tasks with all that belongs to them."""
    if not specs:
        return []
    now, n, moves = tx.now, len(specs), Moves(tx)
    _number(tx, specs)
    for spec in specs:
        if spec.run_at is None:
            spec.run_at = run_at_us(now, None, spec.delay_s)
        _note_due(tx, moves, spec, now)
    keys, nows, ones = [s.key for s in specs], [now] * n, [1] * n
    zeros, nothing, ns = [0] * n, [None] * n, [s.ns for s in specs]
    correlation, trace = [s.correlation_id for s in specs], [s.trace for s in specs]
    tasks = {
        "key": keys, "id": [s.id for s in specs], "job": keys, "ns": ns, "queue": [s.queue for s in specs],
        "kind": [s.kind for s in specs], "policy": [s.policy for s in specs], "version": ones, "fence": ones,
        "priority": [s.priority for s in specs], "attempts": zeros,
        "max_attempts": [s.max_attempts for s in specs], "spared": zeros, "created_at": nows, "updated_at": nows,
        "run_at": [s.run_at for s in specs], "state": [QUEUED] * n, "retry_of": [s.retry_of for s in specs],
        "correlation_id": correlation, "trace": trace, "payload": [s.payload for s in specs],
    }  # fmt: skip
    claimable = [s for s in specs if s.run_at is not None and s.run_at <= now]
    ready = {
        "queue": [s.queue for s in claimable],
        "rank": [-s.priority for s in claimable],
        "key": [s.key for s in claimable],
        "kind": [s.kind for s in claimable],
    }
    events = {
        "entity": keys, "job": keys, "ts": nows, "ns": ns, "version": ones, "fence": ones, "attempts": zeros,
        "type": [TASK.submit.event] * n, "was": nothing, "state": [QUEUED] * n, "actor": [s.actor for s in specs],
        "correlation_id": correlation, "cause": [s.cause for s in specs], "trace": trace, "payload": nothing,
    }  # fmt: skip
    tx.insert_tasks(tasks, ready, events)
    moves.flush()
    return [Receipt(s.id, QUEUED, 1, 1) for s in specs]


def _number(tx: Tx, specs: list[Spec]) -> None:
    """Give a key to those that have none yet."""
    new = [s for s in specs if not s.key]
    if new:
        for spec, key in zip(new, tx.new_keys(len(new)), strict=True):
            spec.key = key


def _note_due(tx: Tx, moves: Moves, spec: Spec, now: int) -> None:
    policy = tx.names.policy(spec.policy)
    assert spec.run_at is not None
    if spec.run_at > now:
        moves.due(spec.run_at, spec.key, RUN, 1)
    if policy.queue_ttl_s is not None:
        moves.due(max(spec.run_at, now) + int(policy.queue_ttl_s * SECOND), spec.key, QUEUE_TTL, 1)
    if policy.deadline_s is not None:
        moves.due(now + int(policy.deadline_s * SECOND), spec.key, DEADLINE, 0)


def body_hash(command: Submit) -> str:
    """The same for the same body, whatever the order of its keys."""
    body = [command.queue, orjson.loads(command.payload_json)]
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _take_keys(scope: Scope, work: list[tuple[int, Submit, Spec]]) -> list[tuple[int, Submit, Spec]]:
    """Answer those whose idempotency key is taken; return the rest, which now own their keys."""
    keyed = [w for w in work if w[1].idempotency_key is not None]
    if not keyed:
        return work
    # All in the order they came in: the keys are also the order in the queue.
    _number(scope.tx, [spec for _, _, spec in work])
    firsts: dict[tuple[int, str], tuple[int, Submit, Spec]] = {}
    for w in keyed:
        firsts.setdefault((w[2].kind, str(w[1].idempotency_key)), w)
    _insert_keys(scope, firsts)
    batch = {"kind": [k for k, _ in firsts], "key": [key for _, key in firsts]}
    mine = {w[2].key for w in firsts.values()}
    taken = {(r[0], r[1]): r[2:] for r in scope.tx.batch("keys_taken", batch) if r[2] not in mine}
    fresh = []
    for w in work:
        i, command, spec = w
        if command.idempotency_key is None:
            fresh.append(w)
            continue
        key = (spec.kind, command.idempotency_key)
        if key in taken:
            scope.answer(i, _replay(command, *taken[key][1:]))
        elif firsts[key] is w:
            fresh.append(w)
        else:
            first = firsts[key]
            scope.answer(i, _replay(command, body_hash(first[1]), first[2].id, QUEUED, 1, 1))
    return fresh


def _insert_keys(scope: Scope, firsts: dict[tuple[int, str], tuple[int, Submit, Spec]]) -> None:
    """Claim the keys in sorted order, so that two batches cannot wait for each other."""
    tx = scope.tx
    ordered = sorted(firsts)
    tx.batch(
        "take_key",
        {
            "kind": [kind for kind, _ in ordered],
            "key": [key for _, key in ordered],
            "job": [firsts[at][2].key for at in ordered],
            "body_hash": [body_hash(firsts[at][1]) for at in ordered],
            "expires_at": [
                tx.now + int(tx.names.policy(firsts[at][2].policy).idempotency_ttl_s * SECOND) for at in ordered
            ],
        },
        now=tx.now,
    )


def _replay(command: Submit, hashed: str, id_: str, state: str, fence: int, version: int) -> Verdict:
    if hashed != body_hash(command):
        return Verdict(
            error=KeyReused(
                f"the idempotency key {command.idempotency_key!r} was used with another body",
                idempotency_key=command.idempotency_key,
                task=id_,
            )
        )
    return Verdict(Receipt(id_, state, fence, version, command.actor, repeated=True))
