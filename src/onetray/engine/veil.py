"""What somebody is shown of a job: everything but what its kinds have asked to be redacted.

Owns which fields may hold somebody's secret, and how far one is looked for: in all of its job. The secrets of a flow
are those of all its tasks, since one task's result is the next one's input. Handlers and the program that embeds the
engine get the real values: they do not come through here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from onetray.flowmodel import Context, Flow, Progress, Stage
from onetray.listmodel import DeadGroup, DeadLine, Job, Member
from onetray.model import Blocker, DeadLetter, Event, LogLine, Policy, Task, TaskProgress
from onetray.redaction import HIDDEN, Paths, Secrets, shown

if TYPE_CHECKING:
    from onetray.store.base import Rows, Store

T = TypeVar("T")

MOST_TASKS, MOST_BYTES = 1_000, 16_000_000
"""Tasks of one job whose secrets are looked for, and the bytes of their payloads, inputs and results. Of a job that has
more, nothing is shown that could hold one."""
REMEMBERED = 4
"""Jobs whose secrets are remembered: a stream shows the same job again and again."""

FREE: dict[type, tuple[str, ...]] = {
    Task: ("payload", "input", "result", "error", "held_by", "held_why", "labels"),
    Flow: ("data", "metadata", "error", "labels"),
    Stage: ("data", "metadata", "result", "metrics", "error", "approval", "answer"),
    Event: ("payload", "cause"),
    LogLine: ("line", "data"),
    TaskProgress: ("message",),
    DeadLetter: ("last_error",),
    DeadLine: ("error_class", "message"),
    Member: ("error",),
    Blocker: ("message", "held_by", "facts"),
    Context: ("payload", "label"),
    Job: (),
}
"""What of each value somebody else has written. A value that is not named here is not shown."""
NAMED_BY: dict[type, str] = {
    Task: "id", Flow: "id", Stage: "flow_id", Event: "job_id", DeadLetter: "task_id", DeadLine: "id", Member: "id",
    Context: "flow_id", Job: "id",
}  # fmt: skip
"""Where a value says whose it is. Of the others it has to be said."""
MARK = '"redact":["'
"""Stands in the body of a policy that redacts."""
_BY_PATH = ("payload", "input", "result")


@dataclass(slots=True)
class Veil:
    """What is hidden of one job."""

    secrets: Secrets
    paths: dict[str, set[str]] = field(default_factory=dict)
    """By the ids of its tasks."""

    def over(self, value: Any) -> Any:
        kind = type(value)
        changes = {name: getattr(value, name) for name in FREE[kind]}
        if kind is Task and value.id in self.paths:
            changes |= {name: shown(changes[name], self.paths[value.id]) for name in _BY_PATH}
        elif kind is Stage:
            changes["result"] = shown(changes["result"], self.paths_of(None))
        changes = {name: self._scrubbed(found) for name, found in changes.items()}
        if kind is DeadLetter:
            # Whoever can guess the secret could try it out on the hash.
            changes["payload_hash"] = HIDDEN
        return replace(value, **changes)

    def paths_of(self, id_: str | None) -> set[str]:
        """Those of a task; of all of them, for what tells of many."""
        return self.paths[id_] if id_ in self.paths else set().union(*self.paths.values())

    def _scrubbed(self, found: Any) -> Any:
        # What has no text in it keeps its type: labels, facts.
        return found if found == {} else self.secrets.scrub(found)


class Veils:
    """The part of the engine that says what others are shown."""

    store: Store

    def veiled(self, value: T, of: str | Sequence[str] | None = None) -> T:
        """A value of the engine's, a list of them, or None, as it is shown to others.

        `of` is the id of the task, stage or flow that it belongs to, for values that do not say so themselves; or one
        for each value of a list.
        """
        if value is None:
            return value
        policies = _policies(self.store)
        if isinstance(value, list):
            return _all(self.store, policies, value, of)  # type: ignore[return-value]
        if isinstance(value, Progress):
            return replace(value, stages=tuple(_all(self.store, policies, list(value.stages), of)))
        return _all(self.store, policies, [value], of)[0]  # type: ignore[no-any-return]

    def veiled_json(self, value: Any, of: str) -> Any:
        """The same for a result, or any text or JSON, of a task, a stage or a flow."""
        return self.veiled_each([value], of)[0]

    def veiled_each(self, values: list[Any], of: str) -> list[Any]:
        """The same for many of one task, stage or flow, in one look."""
        policies = _policies(self.store)
        veil = _veils(self.store, policies, {of}).get(of) if policies else None
        if veil is None:
            return values
        return [veil.secrets.scrub(shown(value, veil.paths_of(of))) for value in values]


def _policies(store: Store) -> dict[int, set[str]]:
    """The policies that redact. Asked each time: a task may have come under a new one a moment ago."""
    return {key: set(Policy.from_body(body).redact) for key, body in store.read("redacting_policies", mark=MARK)}


def _all(store: Store, policies: dict[int, set[str]], values: list[Any], of: str | Sequence[str] | None) -> list[Any]:
    for value in values:
        if type(value) not in FREE and not isinstance(value, DeadGroup):
            raise TypeError(f"say in engine/veil.py what of a {type(value).__name__} may hold a secret")
    if not policies or not values:
        return values
    if isinstance(values[0], DeadGroup):
        return _groups(store, policies, values)
    each = [of] * len(values) if of is None or isinstance(of, str) else of
    names = [_name(value, id_) for value, id_ in zip(values, each, strict=True)]
    veils = _veils(store, policies, set(names))
    return [veils[name].over(v) if name in veils else v for v, name in zip(values, names, strict=True)]


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


def _veils(store: Store, policies: dict[int, set[str]], ids: set[str]) -> dict[str, Veil]:
    """What is hidden of each of these tasks, stages and flows, where anything is."""
    listed = [id_.lower() for id_ in ids]
    jobs = {id_: job for name in ("keys_of", "flows_of_ids", "flows_of_stages")
            for id_, _, job in store.read(name, ids=listed)}  # fmt: skip
    by_job = _of_jobs(store, policies, set(jobs.values()))
    return {id_: by_job[jobs[id_.lower()]] for id_ in ids if jobs.get(id_.lower()) in by_job}


def _of_jobs(store: Store, policies: dict[int, set[str]], jobs: set[int]) -> dict[int, Veil]:
    which = {"jobs": list(jobs), "policies": list(policies), "limit": MOST_TASKS + 1}
    sizes = store.read("redacted_sizes", **which)
    if not sizes:
        return {}
    if len(sizes) <= MOST_TASKS and sum(size for _, size in sizes) <= MOST_BYTES:
        by_job: dict[int, Rows] = {}
        for row in store.read("redacted_tasks", **which):
            by_job.setdefault(row[0], []).append(row)
        return {job: _remembered(of_job, policies) for job, of_job in by_job.items()}
    if len(jobs) == 1:
        return dict.fromkeys(jobs, Veil(Secrets(everything=True)))
    return {job: veil for one in jobs for job, veil in _of_jobs(store, policies, {one}).items()}


_VEILS: OrderedDict[bytes, Veil] = OrderedDict()
"""By what they were made from."""


def _remembered(rows: Rows, policies: dict[int, set[str]]) -> Veil:
    made_from = orjson.dumps([rows, sorted((key, sorted(paths)) for key, paths in policies.items())])
    name = blake2b(made_from, digest_size=16).digest()
    veil = _VEILS.pop(name, None) or _veil(rows, policies)
    _VEILS[name] = veil
    while len(_VEILS) > REMEMBERED:
        # Another thread may have been quicker.
        with suppress(KeyError):
            _VEILS.popitem(last=False)
    return veil


def _veil(rows: Rows, policies: dict[int, set[str]]) -> Veil:
    texts: set[str] = set()
    paths: dict[str, set[str]] = {}
    for _, id_, own, kinds, *told in rows:
        # The kind's, too: a task may have been submitted before its app was first there to say.
        paths[id_] = policies.get(own, set()) | policies.get(kinds, set())
        texts |= _secrets(told, paths[id_])
    return Veil(Secrets(texts), paths)


def _secrets(told: Iterable[str | None], paths: set[str]) -> set[str]:
    named = Paths(paths)
    return {s for text in told if text is not None for s in named.secrets(orjson.loads(text))}
