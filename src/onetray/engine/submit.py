"""Submit tasks, many at once.

Owns the rows of a new task: the task, its ready or due row, its first event, its labels. submit_keys.py decides whether
a key already has a job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from uuid_utils import uuid7

from onetray.domain.checks import as_json
from onetray.domain.clock import SECOND, run_at_us
from onetray.domain.commands import Command, Submit
from onetray.domain.flow import TaskSpec
from onetray.domain.lifecycle import QUEUED, SUCCEEDED, TASK
from onetray.domain.limits import lane_value
from onetray.domain.policy import Policy
from onetray.domain.task import Receipt, Verdict, Written
from onetray.domain.verbs import SubmitMany
from onetray.engine.aliases import NewAlias
from onetray.engine.batch_context import BatchContext
from onetray.engine.pending_writes import DEADLINE, QUEUE_TTL, RUN, PendingWrites, actor
from onetray.engine.submit_keys import allocate_keys, take_keys
from onetray.engine.submit_windows import lock_windows, write_windows
from onetray.store.base import Tx
from onetray.store.copied_rows import TaskToCopy
from onetray.store.interned import InternedNames
from onetray.store.lanes import add_lanes_in


@dataclass(slots=True)
class Spec:
    """A new task that is not written yet."""

    ns: int
    queue: int
    kind: int
    policy: int
    max_attempts: int
    priority: int | None
    """None until it is written: that of its flow."""
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
    """None until it is written: the current one of its flow."""
    context_id: str | None = None
    """The id of another one."""
    spawned_by: int | None = None
    metadata: str | None = None
    tracestate: str | None = None
    alias: str | None = None
    attempts: int = 0
    """Those of its predecessor that count against its budget."""
    held: bool = False
    """Whether its flow or stage keeps it from being claimable."""
    idempotency_key: str | None = None
    """What its handler passes to other systems; None: its id."""
    checkpoint_of: int | None = None
    """The task whose checkpoint it gets."""
    lane: int | None = None
    """The lane in which it waits, if its policy has keys of limits or is fair."""

    @property
    def line(self) -> int:
        """Where its ready row stands: see TaskRow.line."""
        return self.queue if self.lane is None else -self.lane

    @property
    def rank(self) -> int:
        """The order of claims: lowest first."""
        return -(self.priority or 0)

    @property
    def has_aliases(self) -> bool:
        return self.alias is not None

    def new_aliases(self, tx: Tx) -> list[NewAlias]:
        if self.alias is None:
            return []
        allocate_keys(tx, [self])
        return [NewAlias(self.ns, self.alias, TASK.entity, self.key, self.id)]


def spec_like(task: TaskToCopy, ns: int, by: str, cause: str, trace: str | None) -> Spec:
    """A new task with the work of another one."""
    return Spec(
        ns, task.queue, task.kind, task.policy, task.max_attempts, task.priority, None, task.payload, by,
        trace=trace or task.trace, cause=cause, retry_of=task.key, idempotency_key=task.idempotency_key or task.id,
        checkpoint_of=task.key, name=task.name, spawned_by=task.spawned_by,
        metadata=task.metadata, tracestate=None if trace else task.tracestate,
    )  # fmt: skip


def optional_text_of(value: Any) -> str | None:
    """A value as the JSON that is stored; None for None."""
    return None if value is None else as_json(value)


class SpecMany(NamedTuple):
    """New tasks that differ only in their payloads."""

    command: SubmitMany
    numbers: TaskNumbers
    lanes: list[int] | None = None
    """The lane of each."""


Specs = dict[int, Spec | SpecMany]
"""New tasks, by the place of their command in the batch."""


def intern(names: InternedNames, commands: Sequence[Command], policy_ttl_s: float) -> Specs:
    """Replace the names in submits by their numbers. Runs before the transaction, because it may have to add names."""
    known: dict[tuple[object, ...], TaskNumbers] = {}
    specs: Specs = {}
    for i, c in enumerate(commands):
        if isinstance(c, Submit):
            names_of_task = c.namespace, c.queue, c.kind, c.max_attempts, id(c.policy)
            numbers = known.get(names_of_task)
            if numbers is None:
                numbers = known[names_of_task] = intern_task(names, c, c.namespace, policy_ttl_s)
            specs[i] = Spec(
                *numbers, c.priority, c.run_at, c.payload_json, actor(c.actor, c.actor_name), c.correlation_id,
                c.trace, c.cause, None, c.delay_s, metadata=optional_text_of(c.metadata), tracestate=c.tracestate,
                alias=c.alias, idempotency_key=c.idempotency_key,
            )  # fmt: skip
        elif isinstance(c, SubmitMany):
            numbers = intern_task(names, c.like, c.like.namespace, policy_ttl_s)
            specs[i] = SpecMany(c, numbers, _lanes_of_many(names, numbers, c.bodies))
    intern_lanes(names, [spec for spec in specs.values() if isinstance(spec, Spec)])
    return specs


def _lanes_of_many(names: InternedNames, numbers: TaskNumbers, bodies: Sequence[str]) -> list[int] | None:
    policy = names.policy(numbers.policy)
    if not policy.lane_paths:
        return None
    values = [lane_value(policy.lane_paths, body) for body in bodies]
    lanes = names.lanes.intern(numbers.ns, numbers.queue, numbers.kind, policy.fair_by, list(dict.fromkeys(values)))
    return [lanes[value] for value in values]


def intern_lanes(names: InternedNames, specs: Sequence[Spec]) -> None:
    """Find the lanes of new tasks, by the values of their keys. Tasks of most kinds have none."""
    keyed = {key for key in {spec.policy for spec in specs} if names.policy(key).lane_paths}
    groups: dict[tuple[int, int, int, int], dict[str, list[Spec]]] = {}
    for spec in specs:
        if spec.policy in keyed:
            value = lane_value(names.policy(spec.policy).lane_paths, spec.payload)
            place = spec.ns, spec.queue, spec.kind, spec.policy
            groups.setdefault(place, {}).setdefault(value, []).append(spec)
    for (ns, queue, kind, policy), by_value in groups.items():
        lanes = names.lanes.intern(ns, queue, kind, names.policy(policy).fair_by, list(by_value))
        for value, alike in by_value.items():
            for spec in alike:
                spec.lane = lanes[value]


class TaskNumbers(NamedTuple):
    ns: int
    queue: int
    kind: int
    policy: int
    max_attempts: int


def intern_task(names: InternedNames, command: Submit | TaskSpec, namespace: str, policy_ttl_s: float) -> TaskNumbers:
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
    return TaskNumbers(ns, names.intern_queue(ns, command.queue), kind, policy_key, policy.max_attempts)


def submit(batch: BatchContext, commands: Sequence[Command], specs: Specs) -> None:
    work: list[tuple[int, Submit, Spec]] = []
    for i, spec in specs.items():
        if isinstance(spec, SpecMany):
            batch.answer(i, Verdict(_submit_many(batch, *spec)))
        elif isinstance(c := commands[i], Submit):
            work.append((i, c, spec))
    fresh = take_keys(batch, work)
    for (i, c, spec), receipt in zip(fresh, write_tasks(batch, [spec for _, _, spec in fresh]), strict=True):
        receipt = receipt if c.actor == receipt.actor else receipt._replace(actor=c.actor)
        if c.tells_written:
            receipt = receipt._replace(written=Written(batch.tx.now, batch.tx.names.policy(spec.policy)))
        batch.verdicts[i] = Verdict(receipt)
    write_labels(batch.tx, [(spec, c.labels) for _, c, spec in fresh if c.labels])
    write_windows(batch)


def lock_windows_of(batch: BatchContext, commands: Sequence[Command], specs: Specs) -> list[int]:
    """Lock what debounced and throttled submits share. Returns the tasks to lock with those of other commands."""
    windowed = [
        (c, spec.kind)
        for i, spec in specs.items()
        if isinstance(c := commands[i], Submit) and c.has_window and isinstance(spec, Spec)
    ]
    return lock_windows(batch, windowed) if windowed else []


def write_labels(tx: Tx, labelled: Sequence[tuple[LabelledJob, dict[str, str]]]) -> None:
    """Write the labels of new jobs."""
    rows = [(job.key, name, value, job.ns) for job, labels in labelled for name, value in labels.items()]
    if rows:
        columns = zip(("job", "name", "value", "ns"), map(list, zip(*rows, strict=True)), strict=True)
        tx.batch("insert_label", dict(columns))


class LabelledJob(Protocol):
    """A new job: a single task or a flow."""

    key: int
    ns: int


def write_tasks(batch: BatchContext, specs: list[Spec]) -> list[Receipt]:
    """Write new tasks and their other rows: all single tasks, or all members of stages whose flows are locked."""
    if not specs:
        return []
    tx = batch.tx
    allocate_keys(tx, specs)
    add_lanes(tx, [spec for spec in specs if spec.lane is None])
    now, writes = tx.now, PendingWrites(batch)
    members = specs[0].stage is not None
    for spec in specs if members else ():
        spec.held = batch.locked.holds_back(spec)
    _add_due_rows(tx, writes, specs, now)
    keys = [s.key for s in specs]
    rows = {
        "key": keys, "id": [s.id for s in specs], "job": [s.job for s in specs] if members else keys,
        "payload": [s.payload for s in specs],
    }  # fmt: skip
    place = _columns_of(specs, "ns", "queue", "kind", "policy", "priority", "max_attempts", "run_at")
    origin = _columns_of(specs, "correlation_id", "trace", "retry_of", "idempotency_key", "actor", "cause")
    member = {name: [getattr(s, name) for s in specs] for name in _MEMBER_COLUMNS} if members else {}
    if any(s.attempts for s in specs):
        rows["attempts"] = [s.attempts for s in specs]
    if any(s.lane for s in specs):
        rows["lane"] = [s.lane for s in specs]
    claimable = [s for s in specs if s.run_at is not None and s.run_at <= now and not s.held]
    of_ready = _columns_of(claimable, "line", "kind", "rank")
    ready = {"key": [s.key for s in claimable], "queue": of_ready.pop("line"), **of_ready}
    batch.unclaimed_new.update(ready["key"])
    _insert(batch, {**rows, **place, **origin, **member}, ready)
    _describe(tx, [(s.key, s.metadata, s.tracestate) for s in specs if s.metadata or s.tracestate])
    _copy_checkpoints(tx, [(s.key, s.checkpoint_of) for s in specs if s.checkpoint_of is not None])
    writes.flush()
    return [Receipt(s.id, QUEUED, 1, 1) for s in specs]


_EVENT_COLUMNS = ("job", "ns", "actor", "cause")
_NEW = {"version": 1, "fence": 1, "attempts": 0, "state": QUEUED}
NEW_TASK = {**_NEW, "spared": 0, "lane": None}
NEW_EVENT = {**_NEW, "type": TASK.submit.event, "was": None, "trace": None, "payload": None}
"""Without the trace of the task, which is read from its row."""
_MEMBER_COLUMNS = ("stage", "name", "unmet", "control", "context", "spawned_by")


def _insert(batch: BatchContext, tasks: dict[str, Any], ready: dict[str, Any]) -> None:
    """Write new tasks, the ready rows of the claimable ones, and the first events."""
    tx = batch.tx
    shared = {name: tasks[name] for name in (*_EVENT_COLUMNS, "attempts") if name in tasks}
    events = {"entity": tasks["key"], **NEW_EVENT, **shared, "ts": tx.now}
    rows = {name: values for name, values in tasks.items() if name not in ("actor", "cause")}
    tx.insert_tasks({**NEW_TASK, **rows, "created_at": tx.now, "updated_at": tx.now}, ready, events)
    batch.limit_changes.enter(ready)


def add_lanes(tx: Tx, specs: list[Spec]) -> None:
    """Find or add the lanes of new tasks that were not interned before: of a redrive, a condition, a compensation."""
    for spec in specs:
        policy = tx.names.policy(spec.policy)
        if policy.lane_paths:
            value = lane_value(policy.lane_paths, spec.payload)
            spec.lane = add_lanes_in(tx, spec.ns, spec.queue, spec.kind, policy.fair_by, [value])[value]


def _describe(tx: Tx, described: list[tuple[int, str | None, str | None]]) -> None:
    """Write metadata and trace states of new tasks. Most have neither, and cost nothing."""
    if described:
        columns = zip(("key", "metadata", "tracestate"), map(list, zip(*described, strict=True)), strict=True)
        tx.batch("describe_tasks", dict(columns))


def _copy_checkpoints(tx: Tx, successors: list[tuple[int, int]]) -> None:
    """Give the checkpoints of tasks that did not succeed to their successors."""
    if successors:
        columns = {"key": [key for key, _ in successors], "task": [task for _, task in successors]}
        tx.batch("copy_checkpoints", columns, succeeded=SUCCEEDED)


def _submit_many(batch: BatchContext, command: SubmitMany, numbers: TaskNumbers, lanes: list[int] | None) -> list[str]:
    """Write tasks that differ only in their payloads. Returns their ids, in order."""
    like, tx, count = command.like, batch.tx, len(command.bodies)
    keys, ids = tx.new_keys(count), [str(uuid7()) for _ in range(count)]
    now, writes = tx.now, PendingWrites(batch)
    run_at = run_at_us(now, like.run_at, like.delay_s)
    for at, what, fence in _due_rows(tx.names.policy(numbers.policy), run_at, now):
        for key in keys:
            writes.due(at, key, what, fence)
    tasks = {
        "key": keys, "id": ids, "job": keys, "payload": command.bodies, **numbers._asdict(), "run_at": run_at,
        "priority": like.priority, "correlation_id": like.correlation_id, "trace": like.trace, "retry_of": None,
        "idempotency_key": None,
        "actor": actor(like.actor, like.actor_name), "cause": like.cause,
    }  # fmt: skip
    claimable = keys if run_at <= now else []
    batch.unclaimed_new.update(claimable)
    lines: int | list[int] = numbers.queue
    if lanes is not None:
        tasks["lane"] = lanes
        lines = [-lane for lane in lanes] if claimable else numbers.queue
    _insert(batch, tasks, {"key": claimable, "queue": lines, "kind": numbers.kind, "rank": -like.priority})
    if like.metadata is not None or like.tracestate is not None:
        _describe(tx, [(key, optional_text_of(like.metadata), like.tracestate) for key in keys])
    writes.flush()
    return ids


def _columns_of(specs: list[Spec], *fields: str) -> dict[str, Any]:
    """Columns; as single values only if all of them are the same for all tasks: every mixture is another statement."""
    if len(specs) == 1:
        return {field: getattr(specs[0], field) for field in fields}
    columns = {field: [getattr(s, field) for s in specs] for field in fields}
    if specs and all(values.count(values[0]) == len(values) for values in columns.values()):
        return {field: values[0] for field, values in columns.items()}
    return columns


def _add_due_rows(tx: Tx, writes: PendingWrites, specs: list[Spec], now: int) -> None:
    """Set `run_at` of each task, and add its due rows."""
    policies = {key: tx.names.policy(key) for key in {s.policy for s in specs}}
    for spec in specs:
        if spec.run_at is None:
            spec.run_at = run_at_us(now, None, spec.delay_s)
        for at, what, fence in _due_rows(policies[spec.policy], spec.run_at, now, spec.held):
            writes.due(at, spec.key, what, fence)


def _due_rows(policy: Policy, run_at: int, now: int, held: bool = False) -> Iterator[tuple[int, str, int]]:
    """The due rows of a new task: when, what, and for which fence."""
    if run_at > now and not held:
        yield run_at, RUN, 1
    if policy.queue_ttl_s is not None and not held:
        yield max(run_at, now) + int(policy.queue_ttl_s * SECOND), QUEUE_TTL, 1
    if policy.deadline_s is not None:
        yield now + int(policy.deadline_s * SECOND), DEADLINE, 0
