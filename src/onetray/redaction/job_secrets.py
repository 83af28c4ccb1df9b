"""Hide from readers of a job what its kinds, or its flow, redact.

Owns which fields may hold a secret, and where its text is hidden: in the whole job. The secrets of a flow are those of
all its tasks, since one task's result is the next one's input, and those in its own inputs: its data, contexts, answers
to approvals. Handlers and the program that embeds the engine read the real values, without this module.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, TypeVar

import orjson

from onetray.domain.declared_flow import declaration_of
from onetray.domain.flow import Context, Flow, FlowError, MemberReport, Progress, Stage
from onetray.domain.listing import DeadGroup, DeadLetterSummary, JobLabel, JobSummary, MemberSummary
from onetray.domain.policy import Policy
from onetray.domain.redactor import HIDDEN, Paths, Secrets, in_flow
from onetray.domain.task import Blocker, DeadLetter, Event, LogLine, Task, TaskProgress, value_of
from onetray.store.base import Store
from onetray.store.shown_rows import FlowInputRow, RedactedTaskRow

T = TypeVar("T")

MAX_TASKS, MAX_INPUTS, MAX_BYTES = 1_000, 2_000, 16_000_000
"""Limits of one job: tasks that redact, inputs of its flow (stages, contexts), and the bytes of both. In a larger job
every field that may hold a secret is hidden."""
ANSWER_BYTES = 16_000_000
"""The limit of bytes for all jobs of one answer. In the jobs past it every field that may hold a secret is hidden."""
MAX_CACHED = 4
"""How many jobs' secrets to cache: a stream reads the same job again and again."""

USER_FIELDS: dict[type, tuple[str, ...]] = {
    Task: ("payload", "input", "result", "error", "metadata", "held_by", "held_why", "labels"),
    Flow: ("data", "metadata", "error", "labels"),
    Stage: ("data", "metadata", "result", "metrics", "error", "approval", "answer"),
    Event: ("payload", "cause"),
    LogLine: ("line", "data"),
    TaskProgress: ("message",),
    FlowError: ("message",),
    MemberReport: ("line", "data", "message"),
    DeadLetter: ("last_error",),
    DeadLetterSummary: ("error_class", "message"),
    MemberSummary: ("error",),
    Blocker: ("message", "held_by", "facts"),
    Context: ("payload", "label"),
    JobSummary: (),
    JobLabel: ("name", "value"),
}
"""The fields of each type with content from users. A value of any other type raises TypeError."""
OWNER_FIELD: dict[type, str] = {
    Task: "id", Flow: "id", Stage: "flow_id", Event: "job_id", DeadLetter: "task_id", DeadLetterSummary: "id",
    MemberSummary: "id", Context: "flow_id", JobSummary: "id", JobLabel: "id",
}  # fmt: skip
"""The field with the id of the job, task or flow that a value belongs to. For other types the caller passes the id."""
MARK = '"redact":["'
"""Is in the body of every policy that redacts."""
JSON_FIELDS: dict[type, tuple[str, ...]] = {
    Task: ("payload", "input", "result", "metadata"), Flow: ("metadata",),
    Stage: ("data", "metadata", "result", "metrics"), LogLine: ("data",), MemberReport: ("data",),
    Context: ("payload",),
}  # fmt: skip
"""The fields of each type with JSON from users, to which paths apply."""
CONFIG, APPROVAL = "config", "approval"
"""The names under which handlers, and so paths, find the data of the flow and the answer to an approval."""
_INPUT = "input"


@dataclass(slots=True)
class JobSecrets:
    """What to hide in one job."""

    secrets: Secrets
    by_task: dict[str, Paths] = field(default_factory=dict)
    """The paths of tasks that redact, by their ids."""
    of_flow: Paths = field(default_factory=Paths)
    """The paths of the flow, for its other tasks."""
    of_all: Paths = field(default_factory=Paths)
    """All paths together, for values that belong to no single task."""

    def redact(self, value: Any) -> Any:
        kind = type(value)
        paths = self.by_task.get(value.id, self.of_flow) if kind is Task else self.of_all
        changes = {name: value_of(getattr(value, name)) for name in USER_FIELDS[kind]}
        changes |= {name: paths.hide(changes[name]) for name in JSON_FIELDS.get(kind, ())}
        if kind is Flow:
            changes["data"] = _hidden_as(CONFIG, changes["data"], paths)
        elif kind is Stage:
            changes["answer"] = _hidden_as(APPROVAL, changes["answer"], paths)
        elif kind is FlowError and value.cut:
            # A secret at its end may be cut, so that it would not be recognized.
            changes["message"] = HIDDEN
        elif kind is Event and isinstance(changes["payload"], dict) and _INPUT in changes["payload"]:
            changes["payload"] = _hidden_as(APPROVAL, changes["payload"], paths)
        # Empty labels and facts stay a dict: a job that hides everything would replace them by a text.
        changes = {name: new if new == {} else self.secrets.scrub(new) for name, new in changes.items()}
        if kind is Stage:
            changes["errors"] = tuple(map(self.redact, value.errors))
        if kind is DeadLetter:
            # A reader could check guesses of the secret against the hash.
            changes["payload_hash"] = HIDDEN
        return replace(value, **changes)

    def redact_json(self, value: Any) -> Any:
        """Redact a result, or any text or JSON, of the job."""
        return self.secrets.scrub(self.of_all.hide(value_of(value)))


def _hidden_as(name: str, value: Any, paths: Paths) -> Any:
    """Apply paths to a value that handlers find under this name."""
    return None if value is None else paths.hide({name: value})[name]


class JobRedaction:
    """Redacts values of one database for readers."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def redacted(self, value: T, of: str | Sequence[str] | None = None) -> T:
        """Redact a value of the engine, a list of them, or None. Returns the same object if nothing is redacted.

        `of` is the id of the task, stage or flow that the value belongs to, if it does not contain that itself; for a
        list, one id for all or one for each.
        """
        if isinstance(value, list):
            return _redact_all(self.store, value, of) if value else value  # type: ignore[return-value]
        if isinstance(value, Progress):
            return replace(value, stages=tuple(_redact_all(self.store, list(value.stages), of)))
        return value if value is None else _redact_all(self.store, [value], of)[0]

    def redacted_json(self, values: list[Any], of: str) -> list[Any]:
        """Redact results, or any text or JSON, of one task, stage or flow."""
        policies = _policies(self.store) if values else {}
        secrets = _secrets_of(self.store, policies, {of}).get(of) if policies else None
        return values if secrets is None else [secrets.redact_json(value) for value in values]

    def redacts(self, namespace: str, kind: str | None, flow: str | None) -> bool:
        """Whether a kind, or a declared flow or one of its stages, has redacted fields."""
        kinds = [] if kind is None else [kind]
        if flow is not None:
            rows = self.store.read("declared_flow", namespace=namespace, flow=flow)
            kinds = [flow, *(stage.kind for row in rows for stage in declaration_of(row.body).stages)]
        names = self.store.names
        ns = names.namespace(namespace)
        keys = [] if ns is None else [key for name in kinds if (key := names.kind(ns, name)) is not None]
        return any(names.policy(names.policy_of_kind(key, 0.0)).redact for key in keys)


def _policies(store: Store) -> dict[int, set[str]]:
    """The policies that redact, with their paths. Not cached: a task may just have been submitted with a new one."""
    return {key: set(Policy.from_body(body).redact) for key, body in store.read("redacting_policies", mark=MARK)}


def _redact_all(store: Store, values: list[Any], of: str | Sequence[str] | None) -> list[Any]:
    for value in values:
        if type(value) not in USER_FIELDS and not isinstance(value, DeadGroup):
            raise TypeError(f"declare in USER_FIELDS which fields of {type(value).__name__} may hold a secret")
    # A summary of a job has no content from users. A single task was read together with whether its kind redacts.
    plain = {value.id for value in values if type(value) is Task and not value.redacts}
    if len(plain) == len(values) or not any(USER_FIELDS.get(type(value), ("message",)) for value in values):
        return values
    if isinstance(values[0], DeadGroup):
        policies = _policies(store)
        return _redact_groups(store, policies, values) if policies else values
    each = [of] * len(values) if of is None or isinstance(of, str) else of
    owners = [_owner_id(value, id_) for value, id_ in zip(values, each, strict=True)]
    wanted = set(owners) - plain
    policies = _policies(store) if wanted else {}
    secrets = _secrets_of(store, policies, wanted) if policies else {}
    if not secrets:
        return values
    return [secrets[owner].redact(v) if owner in secrets else v for v, owner in zip(values, owners, strict=True)]


def _owner_id(value: Any, of: str | None) -> str:
    id_ = getattr(value, OWNER_FIELD[type(value)]) if type(value) in OWNER_FIELD else of
    if id_ is None:
        raise TypeError(f"pass of=, the id of the job that this {type(value).__name__} belongs to")
    return str(id_).lower()


def _redact_groups(store: Store, policies: dict[int, set[str]], groups: list[DeadGroup]) -> list[DeadGroup]:
    """Hide the whole message of kinds that redact: it is cut, so that a secret in it may not be recognized."""
    kinds = list({g.kind for g in groups})
    redacting = {name for (name,) in store.read("redacting_kinds", kinds=kinds, policies=list(policies))}
    return [replace(g, message=HIDDEN) if g.kind in redacting and g.message is not None else g for g in groups]


def _secrets_of(store: Store, policies: dict[int, set[str]], ids: set[str]) -> dict[str, JobSecrets]:
    """The secrets of the jobs of these tasks, stages and flows, if a job has any."""
    listed = [id_.lower() for id_ in ids]
    jobs = {id_: job for name in ("keys_of", "flows_of_ids", "flows_of_stages")
            for id_, _, job in store.read(name, ids=listed)}  # fmt: skip
    by_job = _of_jobs(store, policies, set(jobs.values()), _Budget(ANSWER_BYTES))
    return {id_: by_job[jobs[id_.lower()]] for id_ in ids if jobs.get(id_.lower()) in by_job}


class _Budget:
    """How many bytes of jobs may still be read for one answer: a list may contain a thousand large jobs."""

    def __init__(self, limit: int) -> None:
        self.left = limit


def _of_jobs(store: Store, policies: dict[int, set[str]], jobs: set[int], budget: _Budget) -> dict[int, JobSecrets]:
    """The secrets of each job, including those of the flows that it retries or compensates.

    It contains their results, and its own paths need not cover these.
    """
    origins: dict[int, set[int | None]] = {job: {job} for job in jobs}
    for job, origin in store.read("origins_of_flows", jobs=list(jobs)):
        origins[job].add(origin)
    params = {"jobs": [job for job in set().union(*origins.values()) if job is not None], "policies": list(policies)}
    flows = {row.key: _paths(policies, row.policy, row.kind_policy) for row in store.read("redacting_flows", **params)}
    sizes = store.read("redacted_sizes", **params, limit=MAX_TASKS + 1)
    redacting = flows.keys() | {job for job, _ in sizes}
    origins = {job: keys for job, keys in origins.items() if not redacting.isdisjoint(keys)}
    if not origins:
        return {}
    keys = [key for key in set().union(*origins.values()) if key is not None]
    input_sizes = store.read("flow_input_sizes", jobs=keys, limit=MAX_INPUTS + 1)
    size = sum(size for _, size in sizes + input_sizes)
    if len(sizes) > MAX_TASKS or len(input_sizes) > MAX_INPUTS or size > min(MAX_BYTES, budget.left):
        if len(jobs) == 1 or not budget.left:
            if size <= MAX_BYTES:
                budget.left = 0  # Otherwise each remaining job would be read by itself.
            return dict.fromkeys(origins, JobSecrets(Secrets(everything=True)))
        # Divide all jobs: those past the limit are not among the rows.
        first = set(sorted(jobs)[: len(jobs) // 2])
        return _of_jobs(store, policies, first, budget) | _of_jobs(store, policies, jobs - first, budget)
    budget.left -= size
    # Twice the limit: rows may have been added since.
    tasks = _by_job(store.read("redacted_tasks", **params, limit=2 * MAX_TASKS))
    inputs = _by_job(store.read("flow_inputs", jobs=keys, limit=2 * MAX_INPUTS)) if input_sizes else {}
    return {job: _of_job(policies, keys, flows, inputs, tasks) for job, keys in origins.items()}


def _of_job(
    policies: dict[int, set[str]], origins: set[int | None], flows: dict[int, set[str]],
    inputs: dict[int, list[FlowInputRow]], tasks: dict[int, list[RedactedTaskRow]],
) -> JobSecrets:  # fmt: skip
    """The secrets of a job, with those of the flows that it retries or compensates."""
    if None in origins:
        # A pruned flow: its secrets are unknown.
        return JobSecrets(Secrets(everything=True))
    keys = sorted(key for key in origins if key is not None)
    redacting: RedactingTasks = [
        (row.id, _paths(policies, row.policy, row.kind_policy), [row.payload, row.input, row.result, row.checkpoint])
        for key in keys for row in tasks.get(key, ())
    ]  # fmt: skip
    of_flow = set().union(*(flows.get(key, set()) for key in keys))
    if len(keys) > 1:
        # Values of one task's fields are now in the payloads of other tasks.
        of_flow = of_flow.union(*(paths for _, paths, _ in redacting))
    return _cached_secrets(of_flow, [row for key in keys for row in inputs.get(key, ())], redacting)


def _paths(policies: dict[int, set[str]], own: int | None, kind: int) -> set[str]:
    """The paths of its own policy and of its kind's: it may have been submitted before its app declared the kind."""
    return (policies.get(own, set()) if own is not None else set()) | policies.get(kind, set())


Row = TypeVar("Row", FlowInputRow, RedactedTaskRow)


def _by_job(rows: list[Row]) -> dict[int, list[Row]]:
    by_job: dict[int, list[Row]] = {}
    for row in rows:
        by_job.setdefault(row.job, []).append(row)
    return by_job


RedactingTasks = list[tuple[str, set[str], list[str | None]]]
"""The tasks of a job that redact: their ids, their paths, and their JSON."""
_CACHE: OrderedDict[bytes, JobSecrets] = OrderedDict()
"""By a hash of everything that they are computed from."""


def _cached_secrets(flow: set[str], inputs: list[FlowInputRow], tasks: RedactingTasks) -> JobSecrets:
    sorted_tasks = [(id_, sorted(paths), texts) for id_, paths, texts in tasks]
    sources = orjson.dumps([sorted(flow), list(map(tuple, inputs)), sorted_tasks])
    key = blake2b(sources, digest_size=16).digest()
    secrets = _CACHE.pop(key, None) or _compute_secrets(flow, inputs, tasks)
    _CACHE[key] = secrets
    while len(_CACHE) > MAX_CACHED:
        # Another thread may have emptied it.
        with suppress(KeyError):
            _CACHE.popitem(last=False)
    return secrets


def _compute_secrets(flow: set[str], inputs: list[FlowInputRow], tasks: RedactingTasks) -> JobSecrets:
    # Only flows have inputs.
    spread = in_flow if inputs else frozenset
    paths = {own: Paths(spread(own | flow)) for own in {frozenset(own) for _, own, _ in tasks}}
    of_all = Paths(spread(flow.union(*paths)))
    secrets: set[str] = set()
    for _, own, texts in tasks:
        secrets.update(*(paths[frozenset(own)].secrets(orjson.loads(text)) for text in texts if text is not None))
    for row in inputs:
        for name, text in ((CONFIG, row.data), ("", row.metadata), (APPROVAL, row.answer)):
            if text is not None:
                value = orjson.loads(text)
                secrets |= of_all.secrets({name: value} if name else value)
    by_task = {id_: paths[frozenset(own)] for id_, own, _ in tasks}
    return JobSecrets(Secrets(secrets), by_task, Paths(spread(flow)), of_all)
