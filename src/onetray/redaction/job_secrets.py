"""What others see of a job: everything but what its kinds, or its flow, redact.

Owns which fields may hold somebody's secret, and how far one is looked for: in all of its job. The secrets of a flow
are those of all its tasks, since one task's result is the next one's input, and of what the flow itself was given: its
data, contexts, answers to approvals. Handlers and the program that embeds the engine get the real values: they do not
come through here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, TypeVar

import orjson

from onetray.domain.flow import Context, Flow, Progress, Stage
from onetray.domain.listing import DeadGroup, DeadLetterSummary, JobSummary, MemberSummary
from onetray.domain.policy import Policy
from onetray.domain.redactor import HIDDEN, Paths, Secrets, in_flow
from onetray.domain.task import Blocker, DeadLetter, Event, LogLine, Task, TaskProgress, value_of
from onetray.store.base import Store
from onetray.store.shown_rows import FlowInputRow, RedactedTaskRow

T = TypeVar("T")

MOST_TASKS, MOST_PARTS, MOST_BYTES = 1_000, 2_000, 16_000_000
"""Tasks of one job whose secrets are looked for, stages and contexts of one flow, and the bytes of all that. Of a job
that has more, nothing is shown that could hold one."""
ANSWER_BYTES = 16_000_000
"""The same bytes of all jobs that one answer is about. Of those past it, nothing is shown that could hold a secret."""
MOST_REMEMBERED = 4
"""Jobs whose secrets are remembered: a stream shows the same job again and again."""

FREE: dict[type, tuple[str, ...]] = {
    Task: ("payload", "input", "result", "error", "held_by", "held_why", "labels"),
    Flow: ("data", "metadata", "error", "labels"),
    Stage: ("data", "metadata", "result", "metrics", "error", "approval", "answer"),
    Event: ("payload", "cause"),
    LogLine: ("line", "data"),
    TaskProgress: ("message",),
    DeadLetter: ("last_error",),
    DeadLetterSummary: ("error_class", "message"),
    MemberSummary: ("error",),
    Blocker: ("message", "held_by", "facts"),
    Context: ("payload", "label"),
    JobSummary: (),
}
"""The fields of each value that somebody else has written. A value of any other type is refused."""
NAMED_BY: dict[type, str] = {
    Task: "id", Flow: "id", Stage: "flow_id", Event: "job_id", DeadLetter: "task_id", DeadLetterSummary: "id",
    MemberSummary: "id", Context: "flow_id", JobSummary: "id",
}  # fmt: skip
"""Where a value says whose it is. Of the others it has to be said."""
MARK = '"redact":["'
"""Stands in the body of a policy that redacts."""
BY_PATH: dict[type, tuple[str, ...]] = {
    Task: ("payload", "input", "result"), Flow: ("metadata",), Stage: ("data", "metadata", "result", "metrics"),
    LogLine: ("data",), Context: ("payload",),
}  # fmt: skip
"""What of each value is JSON of somebody's own, in which paths name something."""
CONFIG, APPROVAL = "config", "approval"
"""What handlers call the data of their flow, and the answer of whoever approved."""
_INPUT = "input"


@dataclass(slots=True)
class JobSecrets:
    """What is hidden of one job."""

    secrets: Secrets
    by_task: dict[str, Paths] = field(default_factory=dict)
    """Those of tasks that redact, by their ids."""
    of_flow: Paths = field(default_factory=Paths)
    """Those of the flow, for its other tasks."""
    of_all: Paths = field(default_factory=Paths)
    """All of them together, for what is no task's own."""

    def over(self, value: Any) -> Any:
        kind = type(value)
        paths = self.by_task.get(value.id, self.of_flow) if kind is Task else self.of_all
        changes = {name: value_of(getattr(value, name)) for name in FREE[kind]}
        changes |= {name: paths.hide(changes[name]) for name in BY_PATH.get(kind, ())}
        if kind is Flow:
            changes["data"] = _hidden_as(CONFIG, changes["data"], paths)
        elif kind is Stage:
            changes["answer"] = _hidden_as(APPROVAL, changes["answer"], paths)
        elif kind is Event and isinstance(changes["payload"], dict) and _INPUT in changes["payload"]:
            changes["payload"] = _hidden_as(APPROVAL, changes["payload"], paths)
        changes = {name: self._scrubbed(found) for name, found in changes.items()}
        if kind is DeadLetter:
            # Whoever can guess the secret could try it out on the hash.
            changes["payload_hash"] = HIDDEN
        return replace(value, **changes)

    def json(self, value: Any) -> Any:
        """A result, or any text or JSON, of the job."""
        return self.secrets.scrub(self.of_all.hide(value_of(value)))

    def _scrubbed(self, found: Any) -> Any:
        # What has no text in it keeps its type: labels, facts.
        return found if found == {} else self.secrets.scrub(found)


def _hidden_as(name: str, value: Any, paths: Paths) -> Any:
    """A value as handlers know it, by a name."""
    return None if value is None else paths.hide({name: value})[name]


class JobRedaction:
    """Redacts what others than handlers see of the jobs of one database."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def redacted(self, value: T, of: str | Sequence[str] | None = None) -> T:
        """A value of the engine's, a list of them, or None, as others see it.

        `of` is the id of the task, stage or flow that it belongs to, for values that do not name it themselves; or one
        for each value of a list. Where nothing is redacted it is the same object.
        """
        if isinstance(value, list):
            return _all(self.store, value, of) if value else value  # type: ignore[return-value]
        if isinstance(value, Progress):
            return replace(value, stages=tuple(_all(self.store, list(value.stages), of)))
        return value if value is None else _all(self.store, [value], of)[0]

    def redacted_json(self, values: list[Any], of: str) -> list[Any]:
        """The same for results, or any text or JSON, of one task, stage or flow."""
        policies = _policies(self.store) if values else {}
        hidden = _secrets_of(self.store, policies, {of}).get(of) if policies else None
        return values if hidden is None else [hidden.json(value) for value in values]


def _policies(store: Store) -> dict[int, set[str]]:
    """The policies that redact. Asked each time: a task may have come under a new one a moment ago."""
    return {key: set(Policy.from_body(body).redact) for key, body in store.read("redacting_policies", mark=MARK)}


def _all(store: Store, values: list[Any], of: str | Sequence[str] | None) -> list[Any]:
    for value in values:
        if type(value) not in FREE and not isinstance(value, DeadGroup):
            raise TypeError(f"say in redaction/job_secrets.py what of a {type(value).__name__} may hold a secret")
    # A summary of a job holds nothing that somebody has written.
    policies = _policies(store) if any(FREE.get(type(value), ("message",)) for value in values) else {}
    if not policies:
        return values
    if isinstance(values[0], DeadGroup):
        return _groups(store, policies, values)
    each = [of] * len(values) if of is None or isinstance(of, str) else of
    names = [_name(value, id_) for value, id_ in zip(values, each, strict=True)]
    hidden = _secrets_of(store, policies, set(names))
    return [hidden[name].over(v) if name in hidden else v for v, name in zip(values, names, strict=True)]


def _name(value: Any, of: str | None) -> str:
    name = getattr(value, NAMED_BY[type(value)]) if type(value) in NAMED_BY else of
    if name is None:
        raise TypeError(f"say whose {type(value).__name__} it is: of=")
    return str(name).lower()


def _groups(store: Store, policies: dict[int, set[str]], groups: list[DeadGroup]) -> list[DeadGroup]:
    """A group tells what many tasks have said, cut short: of kinds that redact it is not told at all."""
    kinds = list({g.kind for g in groups})
    found = {name for (name,) in store.read("redacting_kinds", kinds=kinds, policies=list(policies))}
    return [replace(g, message=HIDDEN) if g.kind in found and g.message is not None else g for g in groups]


def _secrets_of(store: Store, policies: dict[int, set[str]], ids: set[str]) -> dict[str, JobSecrets]:
    """What is hidden of each of these tasks, stages and flows, where anything is."""
    listed = [id_.lower() for id_ in ids]
    jobs = {id_: job for name in ("keys_of", "flows_of_ids", "flows_of_stages")
            for id_, _, job in store.read(name, ids=listed)}  # fmt: skip
    by_job = _of_jobs(store, policies, set(jobs.values()), _Budget(ANSWER_BYTES))
    return {id_: by_job[jobs[id_.lower()]] for id_ in ids if jobs.get(id_.lower()) in by_job}


class _Budget:
    """How many bytes of jobs are read for one answer: a list may be about a thousand large ones."""

    def __init__(self, most: int) -> None:
        self.left = most


def _of_jobs(store: Store, policies: dict[int, set[str]], jobs: set[int], budget: _Budget) -> dict[int, JobSecrets]:
    """What is hidden of each job: its own secrets, and those of the flows that it retries or undoes.

    Their results are passed on to it, and what its tasks say of them is in no path of its own.
    """
    families: dict[int, set[int | None]] = {job: {job} for job in jobs}
    for job, origin in store.read("origins_of_flows", jobs=list(jobs)):
        families[job].add(origin)
    which = {"jobs": [job for job in set().union(*families.values()) if job is not None], "policies": list(policies)}
    flows = {row.key: _paths(policies, row.policy, row.kind_policy) for row in store.read("redacting_flows", **which)}
    sizes = store.read("redacted_sizes", **which, limit=MOST_TASKS + 1)
    redacting = flows.keys() | {job for job, _ in sizes}
    families = {job: family for job, family in families.items() if not redacting.isdisjoint(family)}
    if not families:
        return {}
    members = [job for job in set().union(*families.values()) if job is not None]
    given = store.read("flow_input_sizes", jobs=members, limit=MOST_PARTS + 1)
    size = sum(size for _, size in sizes + given)
    most = min(MOST_BYTES, budget.left)
    if len(sizes) > MOST_TASKS or len(given) > MOST_PARTS or size > most:
        if len(jobs) == 1 or not budget.left:
            if size <= MOST_BYTES:
                budget.left = 0  # Or the rest would be asked about one by one.
            return dict.fromkeys(families, JobSecrets(Secrets(everything=True)))
        # Of all of them, again: those past the limit were not seen.
        first = set(sorted(jobs)[: len(jobs) // 2])
        return _of_jobs(store, policies, first, budget) | _of_jobs(store, policies, jobs - first, budget)
    budget.left -= size
    # Some may have been added since.
    tasks = _by_job(store.read("redacted_tasks", **which, limit=2 * MOST_TASKS))
    parts = _by_job(store.read("flow_inputs", jobs=members, limit=2 * MOST_PARTS)) if given else {}
    return {job: _of_family(policies, family, flows, parts, tasks) for job, family in families.items()}


def _of_family(
    policies: dict[int, set[str]], family: set[int | None], flows: dict[int, set[str]],
    parts: dict[int, list[FlowInputRow]], tasks: dict[int, list[RedactedTaskRow]],
) -> JobSecrets:  # fmt: skip
    """What is hidden of a job with the flows that it retries or undoes."""
    if None in family:
        # One of them was pruned, and nobody knows any more what its secrets were.
        return JobSecrets(Secrets(everything=True))
    known = sorted(job for job in family if job is not None)
    redacted: Members = [
        (row.id, _paths(policies, row.policy, row.kind_policy), [row.payload, row.input, row.result, row.checkpoint])
        for job in known for row in tasks.get(job, ())
    ]  # fmt: skip
    of_flow = set().union(*(flows.get(job, set()) for job in known))
    if len(known) > 1:
        # What was one task's own is now in the payloads of others.
        of_flow = of_flow.union(*(paths for _, paths, _ in redacted))
    return _remembered(of_flow, [part for job in known for part in parts.get(job, ())], redacted)


def _paths(policies: dict[int, set[str]], own: int | None, kinds: int) -> set[str]:
    """Those of the policy that it was submitted under; and the kind's, since it may have come before its app did."""
    return (policies.get(own, set()) if own is not None else set()) | policies.get(kinds, set())


Row = TypeVar("Row", FlowInputRow, RedactedTaskRow)


def _by_job(rows: list[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.job, []).append(row)
    return found


Members = list[tuple[str, set[str], list[str | None]]]
"""The tasks of a job that redact: their ids, their paths, and their JSON."""
_REMEMBERED: OrderedDict[bytes, JobSecrets] = OrderedDict()
"""By what they were made from."""


def _remembered(flow: set[str], parts: list[FlowInputRow], tasks: Members) -> JobSecrets:
    members = [(id_, sorted(paths), texts) for id_, paths, texts in tasks]
    sources = orjson.dumps([sorted(flow), list(map(tuple, parts)), members])
    name = blake2b(sources, digest_size=16).digest()
    found = _REMEMBERED.pop(name, None) or _new_secrets(flow, parts, tasks)
    _REMEMBERED[name] = found
    while len(_REMEMBERED) > MOST_REMEMBERED:
        # Another thread may have been quicker.
        with suppress(KeyError):
            _REMEMBERED.popitem(last=False)
    return found


def _new_secrets(flow: set[str], parts: list[FlowInputRow], tasks: Members) -> JobSecrets:
    # What was given to the flow is there for a flow alone.
    spread = in_flow if parts else frozenset
    paths = {own: Paths(spread(own | flow)) for own in {frozenset(own) for _, own, _ in tasks}}
    of_all = Paths(spread(flow.union(*paths)))
    texts: set[str] = set()
    for _, own, told in tasks:
        texts.update(*(paths[frozenset(own)].secrets(orjson.loads(text)) for text in told if text is not None))
    for part in parts:
        for name, text in ((CONFIG, part.data), ("", part.metadata), (APPROVAL, part.answer)):
            if text is not None:
                value = orjson.loads(text)
                texts |= of_all.secrets({name: value} if name else value)
    by_task = {id_: paths[frozenset(own)] for id_, own, _ in tasks}
    return JobSecrets(Secrets(texts), by_task, Paths(spread(flow)), of_all)
