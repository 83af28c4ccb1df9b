"""Keys of submits, and the verdict of a submit whose key is taken.

Owns idempotency keys (until the key expires, a repeated submit returns the same job) and unique keys (at most one open
job). Keys that dialects reserve (reserved_keys.py) are checked first, then idempotency keys, unique keys, windows
(submit_windows.py) and aliases (aliases.py): a submit that returns an earlier job needs none of the later ones. All are
taken in sorted order, so that two batches cannot deadlock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import orjson

from onetray.domain.clock import SECOND
from onetray.domain.commands import Submit
from onetray.domain.errors import AliasTaken, AlreadyOpen, KeyReused
from onetray.domain.flow import Placed
from onetray.domain.flow_commands import SINGLETON, SubmitFlow
from onetray.domain.lifecycle import FLOW, PENDING, QUEUED, TASK
from onetray.domain.task import Receipt, Verdict
from onetray.engine.aliases import NewAlias, take_aliases
from onetray.engine.batch_context import BatchContext
from onetray.engine.reserved_keys import reserve_keys
from onetray.engine.submit_windows import forget_windows, take_windows
from onetray.store.base import Tx
from onetray.store.rows import KeyHolderRow


class KeyedSubmit(Protocol):
    """A new task or flow that is not written yet."""

    kind: int
    policy: int
    key: int
    id: str

    @property
    def has_aliases(self) -> bool: ...

    def new_aliases(self, tx: Tx) -> list[NewAlias]: ...


K = TypeVar("K", bound=KeyedSubmit)
C = TypeVar("C", Submit, SubmitFlow)


class KeyedJob(NamedTuple):
    """The job that a key points to."""

    key: int
    id: str
    entity: str
    state: str
    fence: int
    version: int


class Keyed(Protocol):
    """Something new that needs a key."""

    key: int


def allocate_keys(tx: Tx, specs: Sequence[Keyed]) -> None:
    """Allocate the missing keys, in the order of the submits: it is also the order in the queue."""
    new = [s for s in specs if not s.key]
    if new:
        for spec, key in zip(new, tx.new_keys(len(new)), strict=True):
            spec.key = key


def body_hash(command: Submit | SubmitFlow) -> str:
    """Does not depend on the order of the body's keys."""
    return hashlib.sha256(orjson.dumps(command.body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def take_keys(batch: BatchContext, work: list[tuple[int, C, K]]) -> list[tuple[int, C, K]]:
    """Set the verdicts of submits whose keys are taken. Returns the others, which now own their keys."""
    if not batch.windows and all(
        c.idempotency_key is None and c.unique_key is None and not spec.has_aliases for _, c, spec in work
    ):
        return work
    work = reserve_keys(batch, work)
    allocate_keys(batch.tx, [spec for _, _, spec in work])
    fresh, repeats = _take_idempotency(batch, work)
    fresh = _take_aliases(batch, take_windows(batch, _take_unique(batch, fresh)))
    for i, command, first in repeats:
        batch.answer(i, _repeat_of(batch, command, first))
    return fresh


def _take_idempotency(
    batch: BatchContext, work: list[tuple[int, C, K]]
) -> tuple[list[tuple[int, C, K]], list[tuple[int, C, tuple[int, C, K]]]]:
    """Returns the submits that own their key now or have none, and those that repeat an earlier one of the batch."""
    firsts: dict[tuple[int, str], tuple[int, C, K]] = {}
    for w in work:
        if w[1].idempotency_key is not None:
            firsts.setdefault((w[2].kind, w[1].idempotency_key), w)
    if not firsts:
        return work, []
    _insert_keys(batch, firsts)
    new_keys = {w[2].key for w in firsts.values()}
    taken = {
        (row.kind, row.key): row for row in batch.tx.batch("keys_taken", _columns([*firsts])) if row.job not in new_keys
    }
    fresh, repeats = [], []
    for w in work:
        i, command, spec = w
        key = (spec.kind, command.idempotency_key or "")
        if command.idempotency_key is None:
            fresh.append(w)
        elif key in taken:
            job = _keyed_job(taken[key])
            batch.answer(i, _refuse_other_body(command, taken[key].body_hash, job.id) or _repeated(command, job))
        elif firsts[key] is w:
            fresh.append(w)
        else:
            repeats.append((i, command, firsts[key]))
    return fresh, repeats


def _repeat_of(batch: BatchContext, command: C, first: tuple[int, C, K]) -> Verdict:
    """The verdict of a submit that repeats an earlier one of its batch, which may have got the job of a unique key."""
    i, other, spec = first
    if isinstance(batch.verdicts[i].error, AlreadyOpen | AliasTaken):
        return batch.verdicts[i]
    receipt = batch.verdicts[i].value
    refusal = _refuse_other_body(command, body_hash(other), spec.id if receipt is None else receipt.id)
    if refusal is not None:
        return refusal
    if receipt is None:
        return _repeated(command, _new_job(other, spec))
    return Verdict(receipt._replace(actor=command.actor))


def _insert_keys(batch: BatchContext, firsts: dict[tuple[int, str], tuple[int, C, K]]) -> None:
    tx = batch.tx
    ordered = sorted(firsts)
    tx.batch(
        "take_key",
        {
            **_columns(ordered),
            "job": [firsts[at][2].key for at in ordered],
            "body_hash": [body_hash(firsts[at][1]) for at in ordered],
            "expires_at": [tx.now + int(_ttl_s(tx, *firsts[at][1:]) * SECOND) for at in ordered],
        },
        now=tx.now,
    )


def _ttl_s(tx: Tx, command: Submit | SubmitFlow, spec: KeyedSubmit) -> float:
    if isinstance(command, Submit) and command.reserves is not None:
        return command.reserves.ttl_s
    return tx.names.policy(spec.policy).idempotency_ttl_s


def _columns(keys: list[tuple[int, str]]) -> dict[str, Any]:
    return {"kind": [kind for kind, _ in keys], "key": [key for _, key in keys]}


def _take_unique(batch: BatchContext, work: list[tuple[int, C, K]]) -> list[tuple[int, C, K]]:
    """Set the verdicts of submits whose unique key belongs to an open job. Returns the others."""
    firsts: dict[tuple[int, str], tuple[int, C, K]] = {}
    for w in work:
        if w[1].unique_key is not None:
            firsts.setdefault((w[2].kind, w[1].unique_key), w)
    if not firsts:
        return work
    held = _lock_unique(batch.tx, {at: w[2].key for at, w in firsts.items()})
    fresh, repointed, freed = [], [], []
    for w in work:
        i, command, spec = w
        at = (spec.kind, command.unique_key or "")
        if command.unique_key is None or (firsts[at] is w and at not in held):
            fresh.append(w)
            continue
        job = held[at] if at in held else _new_job(*firsts[at][1:])
        refusal = _refuse_second(command, job)
        batch.answer(i, refusal or _repeated(command, job))
        if command.idempotency_key is not None and refusal is not None:
            freed.append((spec.kind, command.idempotency_key))
        elif command.idempotency_key is not None:
            repointed.append((spec.kind, command.idempotency_key, job.key))
    if freed:
        batch.tx.batch("free_key", _columns(freed))
    if repointed:
        batch.tx.batch("link_key", {**_columns([at[:2] for at in repointed]), "job": [job for _, _, job in repointed]})
    return fresh


def _take_aliases(batch: BatchContext, work: list[tuple[int, C, K]]) -> list[tuple[int, C, K]]:
    """Set the verdicts of submits whose alias is taken. Returns the others."""
    tx = batch.tx
    refused = take_aliases(tx, {i: spec.new_aliases(tx) for i, _, spec in work if spec.has_aliases})
    if not refused:
        return work
    for i, error in refused.items():
        batch.answer(i, Verdict(error=error))
    gone = {spec.id: spec.key for i, _, spec in work if i in refused}
    for v in batch.verdicts:
        if getattr(v.value, "id", None) in gone:
            # Another submit was answered with the job of a unique key that is not written now: run each by itself.
            raise next(iter(refused.values()))
    forget_windows(batch, gone.values())
    for keys in ("unique_keys", "idempotency"):
        tx.query(f"prune_{keys}", keys=sorted(gone.values()))
    return [w for w in work if w[0] not in refused]


def take_singleton(tx: Tx, kind: int, name: str, job: int) -> None:
    """Make a new flow the only open one of its name, if flows of that name are singletons.

    Raises AlreadyOpen, before anything is written."""
    at = (kind, SINGLETON)
    if not tx.batch("unique_held", _columns([at])):
        return
    held = _lock_unique(tx, {at: job}).get(at)
    if held is not None:
        raise _already_open(name, held)


def _lock_unique(tx: Tx, wanted: dict[tuple[int, str], int]) -> dict[tuple[int, str], KeyedJob]:
    """Lock these unique keys. Returns the open jobs that own some of them; the new jobs own the others now."""
    ordered = sorted(wanted)
    tx.batch("lock_unique", {**_columns(ordered), "job": [wanted[at] for at in ordered]})
    held: dict[tuple[int, str], KeyedJob] = {}
    free = []
    for row in tx.batch("unique_held", _columns(ordered)):
        if row.job == wanted[row.kind, row.key]:
            continue
        if row.id is None or row.finished_at is not None:
            free.append((row.kind, row.key))
        else:
            held[row.kind, row.key] = _keyed_job(row)
    if free:
        tx.batch("take_unique", {**_columns(free), "job": [wanted[at] for at in free]})
    return held


def _keyed_job(row: KeyHolderRow) -> KeyedJob:
    return KeyedJob(
        row.job, row.id or "", TASK.entity if row.single else FLOW.entity, row.state, row.fence, row.version
    )


def _new_job(command: Submit | SubmitFlow, spec: KeyedSubmit) -> KeyedJob:
    """A new job of this batch. The state of a flow is filled in after it is written."""
    if isinstance(command, Submit):
        return KeyedJob(spec.key, spec.id, TASK.entity, QUEUED, 1, 1)
    return KeyedJob(spec.key, spec.id, FLOW.entity, PENDING, 0, 1)


def _repeated(command: Submit | SubmitFlow, job: KeyedJob) -> Verdict:
    if isinstance(command, SubmitFlow):
        return Verdict(Placed(job.id, job.entity, job.state, job.version, command.actor, repeated=True))
    return Verdict(Receipt(job.id, job.state, job.fence, job.version, command.actor, repeated=True))


def _refuse_second(command: Submit | SubmitFlow, job: KeyedJob) -> Verdict | None:
    if not isinstance(command, SubmitFlow) or not command.singleton:
        return None
    return Verdict(error=_already_open(command.name, job))


def _already_open(name: str, job: KeyedJob) -> AlreadyOpen:
    return AlreadyOpen(
        f"the flow {name!r} is {job.state} as {job.id}, and only one may be open: wait, or cancel it",
        job=job.id,
        state=job.state,
    )


def _refuse_other_body(command: Submit | SubmitFlow, stored_hash: str, id_: str) -> Verdict | None:
    if stored_hash == body_hash(command):
        return None
    return Verdict(
        error=KeyReused(
            f"the idempotency key {command.idempotency_key!r} was used with another body",
            idempotency_key=command.idempotency_key,
            task=id_,
        )
    )
