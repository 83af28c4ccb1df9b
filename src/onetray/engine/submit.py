"""Put tasks into their queues, many at once, once for each idempotency key.

Owns how a task begins: its row, its ready or due row, its first event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import orjson
from uuid_utils import uuid7

from onetray.clock import SECOND
from onetray.commands import Command, Submit, run_at_us
from onetray.engine.moves import DEADLINE, QUEUE_TTL, RUN, Moves, actor
from onetray.engine.scope import Scope
from onetray.errors import KeyReused
from onetray.flowcommands import SubmitFlow
from onetray.flowmodel import Placed, TaskSpec
from onetray.lifecycle import FLOW, PENDING, QUEUED, TASK
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
    max_attempts: int
    priority: int
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
    job: int = 0
    stage: int | None = None
    name: str | None = None
    unmet: int = 0
    control: int = 0
    context: int | None = None
    spawned_by: int | None = None
    held: bool = False
    """Whether its flow keeps it from being claimed."""


def intern(names: Names, commands: Sequence[Command], policy_ttl_s: float) -> dict[int, Spec]:
    """Turn the names in submits into numbers. Done before the transaction: it may have to add some."""
    known: dict[tuple[object, ...], Numbers] = {}
    specs: dict[int, Spec] = {}
    for i, c in enumerate(commands):
        if isinstance(c, Submit):
            asked = c.namespace, c.queue, c.kind, c.max_attempts, id(c.policy)
            numbers = known.get(asked)
            if numbers is None:
                numbers = known[asked] = numbers_of(names, c, c.namespace, policy_ttl_s)
            specs[i] = Spec(
                *numbers, c.priority, c.run_at, c.payload_json, actor(c.actor, c.actor_name), c.correlation_id,
                c.trace, c.cause, None, c.delay_s,
            )  # fmt: skip
    return specs


class Numbers(NamedTuple):
    ns: int
    queue: int
    kind: int
    policy: int
    max_attempts: int


def numbers_of(names: Names, command: Submit | TaskSpec, namespace: str, policy_ttl_s: float) -> Numbers:
    ns = names.intern_namespace(namespace)
    kind = names.intern_kind(ns, command.kind)
    if command.policy is None:
        policy_key = names.policy_of_kind(kind, policy_ttl_s)
    else:
        policy_key = names.intern_policy(command.policy)
    policy = names.policy(policy_key)
    if command.max_attempts is not None and command.max_attempts != policy.max_attempts:
        policy_key = names.intern_policy(policy.with_(max_attempts=command.max_attempts))
        policy = names.policy(policy_key)
    return Numbers(ns, names.intern_queue(ns, command.queue), kind, policy_key, policy.max_attempts)


def submit(scope: Scope, work: list[tuple[int, Submit, Spec]]) -> None:
    fresh = take_keys(scope, work)
    for (i, c, _), receipt in zip(fresh, write_tasks(scope, [spec for _, _, spec in fresh]), strict=True):
        scope.verdicts[i] = Verdict(receipt if c.actor == receipt.actor else receipt._replace(actor=c.actor))


def write_tasks(scope: Scope, specs: list[Spec]) -> list[Receipt]:
    """Write new tasks with all that belongs to them: single ones, or members of stages whose flows are locked."""
    if not specs:
        return []
    tx = scope.tx
    number(tx, specs)
    now, moves = tx.now, Moves(scope)
    members = specs[0].stage is not None
    for spec in specs if members else ():
        spec.held = scope.family.holds_back(spec)
    _note_due(tx, moves, specs, now)
    keys = [s.key for s in specs]
    jobs = [s.job for s in specs] if members else keys
    where = _alike(specs, "ns", "queue", "kind", "policy", "priority", "max_attempts", "run_at")
    whence = _alike(specs, "correlation_id", "trace", "retry_of", "actor", "cause")
    first = {"version": 1, "fence": 1, "attempts": 0, "state": QUEUED}
    tasks = {
        "key": keys, "id": [s.id for s in specs], "job": jobs, "payload": [s.payload for s in specs], **where, **first,
        **_only(whence, "correlation_id", "trace", "retry_of"), "spared": 0, "created_at": now, "updated_at": now,
    }  # fmt: skip
    if members:
        tasks |= {
            name: [getattr(s, name) for s in specs]
            for name in ("stage", "name", "unmet", "control", "context", "spawned_by")
        }
    claimable = [s for s in specs if s.run_at is not None and s.run_at <= now and not s.held]
    ready = {
        "key": [s.key for s in claimable],
        "rank": [-s.priority for s in claimable],
        **_alike(claimable, "queue", "kind"),
    }
    events = {
        "entity": keys, "job": jobs, **first, **_only(whence, "correlation_id", "trace", "actor", "cause"),
        "ts": now, "ns": where["ns"], "type": TASK.submit.event, "was": None, "payload": None,
    }  # fmt: skip
    tx.insert_tasks(tasks, ready, events)
    moves.flush()
    return [Receipt(s.id, QUEUED, 1, 1) for s in specs]


def _alike(specs: list[Spec], *fields: str) -> dict[str, Any]:
    """Columns, given once when all of them are the same for all tasks: every mixture is a statement of its own."""
    columns = {field: [getattr(s, field) for s in specs] for field in fields}
    if specs and all(values.count(values[0]) == len(values) for values in columns.values()):
        return {field: values[0] for field, values in columns.items()}
    return columns


def _only(columns: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: columns[name] for name in names}


class Keyed(Protocol):
    """Something that is about to exist: a task, or a flow."""

    kind: int
    policy: int
    key: int
    id: str


K = TypeVar("K", bound=Keyed)
C = TypeVar("C", Submit, SubmitFlow)


def number(tx: Tx, specs: Sequence[Keyed]) -> None:
    """Give a key to those that have none yet."""
    new = [s for s in specs if not s.key]
    if new:
        for spec, key in zip(new, tx.new_keys(len(new)), strict=True):
            spec.key = key


def _note_due(tx: Tx, moves: Moves, specs: list[Spec], now: int) -> None:
    """Say when each task may run, and note what the janitor has to do about it."""
    policies = {key: tx.names.policy(key) for key in {s.policy for s in specs}}
    for spec in specs:
        if spec.run_at is None:
            spec.run_at = run_at_us(now, None, spec.delay_s)
        if spec.run_at > now and not spec.held:
            moves.due(spec.run_at, spec.key, RUN, 1)
        policy = policies[spec.policy]
        if policy.queue_ttl_s is not None and not spec.held:
            moves.due(max(spec.run_at, now) + int(policy.queue_ttl_s * SECOND), spec.key, QUEUE_TTL, 1)
        if policy.deadline_s is not None:
            moves.due(now + int(policy.deadline_s * SECOND), spec.key, DEADLINE, 0)


def body_hash(command: Submit | SubmitFlow) -> str:
    """The same for the same body, whatever the order of its keys."""
    return hashlib.sha256(orjson.dumps(command.body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def take_keys(scope: Scope, work: list[tuple[int, C, K]]) -> list[tuple[int, C, K]]:
    """Answer those whose idempotency key is taken; return the rest, which now own their keys."""
    keyed = [w for w in work if w[1].idempotency_key is not None]
    if not keyed:
        return work
    # All in the order they came in: the keys are also the order in the queue.
    number(scope.tx, [spec for _, _, spec in work])
    firsts: dict[tuple[int, str], tuple[int, C, K]] = {}
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
            scope.answer(i, _replay(command, body_hash(first[1]), first[2].id, _first_state(command), 1, 1))
    return fresh


def _first_state(command: Submit | SubmitFlow) -> str:
    return QUEUED if isinstance(command, Submit) else PENDING


def _insert_keys(scope: Scope, firsts: dict[tuple[int, str], tuple[int, C, K]]) -> None:
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


def _replay(command: Submit | SubmitFlow, hashed: str, id_: str, state: str, fence: int, version: int) -> Verdict:
    if hashed != body_hash(command):
        return Verdict(
            error=KeyReused(
                f"the idempotency key {command.idempotency_key!r} was used with another body",
                idempotency_key=command.idempotency_key,
                task=id_,
            )
        )
    if isinstance(command, SubmitFlow):
        return Verdict(Placed(id_, FLOW.entity, state, version, command.actor, repeated=True))
    return Verdict(Receipt(id_, state, fence, version, command.actor, repeated=True))
