"""Put tasks into their queues, many at once.

Owns how a task begins: its row, its ready or due row, its first event, its labels. Whether it begins at all, under the
key that it was given, is decided in submit_keys.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from uuid_utils import uuid7

from onetray import failpoints
from onetray.domain.clock import SECOND, run_at_us
from onetray.domain.commands import Command, Submit
from onetray.domain.flow import TaskSpec
from onetray.domain.lifecycle import QUEUED, TASK
from onetray.domain.policy import Policy
from onetray.domain.task import Receipt, Verdict
from onetray.domain.verbs import SubmitMany
from onetray.engine.batch_context import BatchContext
from onetray.engine.pending_writes import DEADLINE, QUEUE_TTL, RUN, PendingWrites, actor
from onetray.engine.submit_keys import allocate_keys, take_keys
from onetray.store.base import Store, Tx
from onetray.store.interned import InternedNames
from onetray.store.rows import TaskToCopy


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

    @property
    def rank(self) -> int:
        """Its place among the claimable: lowest first."""
        return -self.priority


def spec_like(task: TaskToCopy, ns: int, by: str, cause: str, trace: str | None) -> Spec:
    """A task that does the work of another once more."""
    return Spec(
        ns, task.queue, task.kind, task.policy, task.max_attempts, task.priority, None, task.payload, by,
        trace=trace or task.trace, cause=cause, retry_of=task.key, name=task.name, spawned_by=task.spawned_by,
    )  # fmt: skip


class Many(NamedTuple):
    """Tasks that are about to exist and differ in their payloads alone."""

    command: SubmitMany
    numbers: Numbers


Specs = dict[int, Spec | Many]
"""What is about to exist, by the place of its command in the batch."""


def intern(names: InternedNames, commands: Sequence[Command], policy_ttl_s: float) -> Specs:
    """Turn the names in submits into numbers. Done before the transaction: it may have to add some."""
    known: dict[tuple[object, ...], Numbers] = {}
    specs: Specs = {}
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
        elif isinstance(c, SubmitMany):
            specs[i] = Many(c, numbers_of(names, c.like, c.like.namespace, policy_ttl_s))
    return specs


class Numbers(NamedTuple):
    ns: int
    queue: int
    kind: int
    policy: int
    max_attempts: int


def numbers_of(names: InternedNames, command: Submit | TaskSpec, namespace: str, policy_ttl_s: float) -> Numbers:
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


def submit(batch: BatchContext, commands: Sequence[Command], specs: Specs) -> None:
    work: list[tuple[int, Submit, Spec]] = []
    for i, spec in specs.items():
        if isinstance(spec, Many):
            batch.answer(i, Verdict(_submit_many(batch, *spec)))
        elif isinstance(c := commands[i], Submit):
            work.append((i, c, spec))
    fresh = take_keys(batch, work)
    for (i, c, _), receipt in zip(fresh, write_tasks(batch, [spec for _, _, spec in fresh]), strict=True):
        batch.verdicts[i] = Verdict(receipt if c.actor == receipt.actor else receipt._replace(actor=c.actor))
    write_labels(batch.tx, [(spec, c.labels) for _, c, spec in fresh if c.labels])


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


def write_tasks(batch: BatchContext, specs: list[Spec]) -> list[Receipt]:
    """Write new tasks with all that belongs to them: single ones, or members of stages whose flows are locked."""
    if not specs:
        return []
    tx = batch.tx
    allocate_keys(tx, specs)
    now, writes = tx.now, PendingWrites(batch)
    members = specs[0].stage is not None
    for spec in specs if members else ():
        spec.held = batch.locked.holds_back(spec)
    _note_due(tx, writes, specs, now)
    keys = [s.key for s in specs]
    rows = {
        "key": keys, "id": [s.id for s in specs], "job": [s.job for s in specs] if members else keys,
        "payload": [s.payload for s in specs],
    }  # fmt: skip
    where = _alike(specs, "ns", "queue", "kind", "policy", "priority", "max_attempts", "run_at")
    whence = _alike(specs, "correlation_id", "trace", "retry_of", "actor", "cause")
    member = {name: [getattr(s, name) for s in specs] for name in _OF_MEMBERS} if members else {}
    claimable = [s for s in specs if s.run_at is not None and s.run_at <= now and not s.held]
    ready = {"key": [s.key for s in claimable], **_alike(claimable, "queue", "kind", "rank")}
    batch.unclaimed_new.update(ready["key"])
    _insert(tx, {**rows, **where, **whence, **member}, ready)
    writes.flush()
    return [Receipt(s.id, QUEUED, 1, 1) for s in specs]


_OF_EVENTS = ("job", "ns", "correlation_id", "trace", "actor", "cause")
_FIRST = {"version": 1, "fence": 1, "attempts": 0, "state": QUEUED}
_NEW_TASK = {**_FIRST, "spared": 0}
_NEW_EVENT = {**_FIRST, "type": TASK.submit.event, "was": None, "payload": None}
_OF_MEMBERS = ("stage", "name", "unmet", "control", "context", "spawned_by")


def _insert(tx: Tx, tasks: dict[str, Any], ready: dict[str, Any]) -> None:
    """Write new tasks, those of them that are claimable, and the event of each."""
    events = {"entity": tasks["key"], **{name: tasks[name] for name in _OF_EVENTS}, **_NEW_EVENT, "ts": tx.now}
    rows = {name: values for name, values in tasks.items() if name not in ("actor", "cause")}
    tx.insert_tasks({**rows, **_NEW_TASK, "created_at": tx.now, "updated_at": tx.now}, ready, events)


def _submit_many(batch: BatchContext, command: SubmitMany, numbers: Numbers) -> list[str]:
    """Write tasks that differ in their payloads alone; answers their ids, in order."""
    like, tx, count = command.like, batch.tx, len(command.bodies)
    keys, ids = tx.new_keys(count), [str(uuid7()) for _ in range(count)]
    now, writes = tx.now, PendingWrites(batch)
    run_at = run_at_us(now, like.run_at, like.delay_s)
    for at, what, fence in _dues(tx.names.policy(numbers.policy), run_at, now):
        for key in keys:
            writes.due(at, key, what, fence)
    tasks = {
        "key": keys, "id": ids, "job": keys, "payload": command.bodies, **numbers._asdict(), "run_at": run_at,
        "priority": like.priority, "correlation_id": like.correlation_id, "trace": like.trace, "retry_of": None,
        "actor": actor(like.actor, like.actor_name), "cause": like.cause,
    }  # fmt: skip
    claimable = keys if run_at <= now else []
    batch.unclaimed_new.update(claimable)
    place = {"queue": numbers.queue, "kind": numbers.kind, "rank": -like.priority}
    _insert(tx, tasks, {"key": claimable, **place})
    writes.flush()
    return ids


def _alike(specs: list[Spec], *fields: str) -> dict[str, Any]:
    """Columns, given once when all of them are the same for all tasks: every mixture is a statement of its own."""
    if len(specs) == 1:
        return {field: getattr(specs[0], field) for field in fields}
    columns = {field: [getattr(s, field) for s in specs] for field in fields}
    if specs and all(values.count(values[0]) == len(values) for values in columns.values()):
        return {field: values[0] for field, values in columns.items()}
    return columns


def _note_due(tx: Tx, writes: PendingWrites, specs: list[Spec], now: int) -> None:
    """Say when each task may run, and note what the janitor has to do about it."""
    policies = {key: tx.names.policy(key) for key in {s.policy for s in specs}}
    for spec in specs:
        if spec.run_at is None:
            spec.run_at = run_at_us(now, None, spec.delay_s)
        for at, what, fence in _dues(policies[spec.policy], spec.run_at, now, spec.held):
            writes.due(at, spec.key, what, fence)


def _dues(policy: Policy, run_at: int, now: int, held: bool = False) -> Iterator[tuple[int, str, int]]:
    """What the janitor has to do about a new task: when, what, and at which fence."""
    if run_at > now and not held:
        yield run_at, RUN, 1
    if policy.queue_ttl_s is not None and not held:
        yield max(run_at, now) + int(policy.queue_ttl_s * SECOND), QUEUE_TTL, 1
    if policy.deadline_s is not None:
        yield now + int(policy.deadline_s * SECOND), DEADLINE, 0


def submit_one(store: Store, commands: Sequence[Command], names_ttl_s: float) -> list[Verdict] | None:
    """Carry out a single plain submit in one statement, where the store can; None when it is not such a one."""
    if len(commands) != 1 or not store.takes_one or failpoints.hook is not None:
        return None
    c = commands[0]
    if type(c) is not Submit or c.delay_s is not None or c.run_at is not None:
        return None
    if c.idempotency_key is not None or c.unique_key is not None or c.labels:
        return None
    numbers = numbers_of(store.names, c, c.namespace, names_ttl_s)
    policy = store.names.policy(numbers.policy)
    if policy.queue_ttl_s is not None or policy.deadline_s is not None:
        return None
    id_ = str(uuid7())
    shared = {"ns": numbers.ns, "correlation_id": c.correlation_id, "trace": c.trace}
    task = {"id": id_, "priority": c.priority, "payload": c.payload_json, "retry_of": None}
    event = {"actor": actor(c.actor, c.actor_name), "cause": c.cause}
    store.submit_one({**numbers._asdict(), **shared, **_NEW_TASK, **task}, {**shared, **_NEW_EVENT, **event})
    return [Verdict(Receipt(id_, QUEUED, 1, 1, c.actor))]
