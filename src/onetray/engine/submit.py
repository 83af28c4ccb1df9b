"""Put tasks into their queues, many at once.

Owns how a task begins: its row, its ready or due row, its first event, its labels. Whether it begins at all, under the
key that it was given, is decided in keys.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from uuid_utils import uuid7

from onetray.clock import SECOND
from onetray.commands import Command, Submit, run_at_us
from onetray.engine.keys import number, take_keys
from onetray.engine.moves import DEADLINE, QUEUE_TTL, RUN, Moves, actor
from onetray.engine.scope import Scope
from onetray.flowmodel import TaskSpec
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
    write_labels(scope.tx, [(spec, c.labels) for _, c, spec in fresh if c.labels])


def write_labels(tx: Tx, labelled: Sequence[tuple[Labelled, dict[str, str]]]) -> None:
    """Write the labels of new jobs. Most have none, and cost nothing."""
    rows = [(job.key, name, value, job.ns) for job, labels in labelled for name, value in labels.items()]
    if rows:
        columns = zip(("job", "name", "value", "ns"), map(list, zip(*rows, strict=True)), strict=True)
        tx.batch("insert_label", dict(columns))


class Labelled(Protocol):
    """A job that is about to exist: a single task, or a flow."""

    key: int
    ns: int


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
