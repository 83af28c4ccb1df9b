"""One job for each key: what a submit is answered when its key is taken.

Owns idempotency keys (the same submit again is the same job, for as long as the key lives) and unique keys (one job
that has not ended). Idempotency keys are looked at first. Both are taken in sorted order, so that two batches cannot
wait for each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import orjson

from onetray.domain.clock import SECOND
from onetray.domain.commands import Submit
from onetray.domain.errors import KeyReused
from onetray.domain.flow import Placed
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.lifecycle import FLOW, PENDING, QUEUED, TASK
from onetray.domain.task import Receipt, Verdict
from onetray.engine.batch_context import BatchContext
from onetray.store.base import Tx
from onetray.store.rows import KeyHolderRow


class KeyedSubmit(Protocol):
    """Something that is about to exist: a task, or a flow."""

    kind: int
    policy: int
    key: int
    id: str


K = TypeVar("K", bound=KeyedSubmit)
C = TypeVar("C", Submit, SubmitFlow)


class KeyedJob(NamedTuple):
    """The job that a key leads to, as it stands."""

    key: int
    id: str
    entity: str
    state: str
    fence: int
    version: int


def number(tx: Tx, specs: Sequence[KeyedSubmit]) -> None:
    """Give a key to those that have none yet, in the order they came in: it is also the order in the queue."""
    new = [s for s in specs if not s.key]
    if new:
        for spec, key in zip(new, tx.new_keys(len(new)), strict=True):
            spec.key = key


def body_hash(command: Submit | SubmitFlow) -> str:
    """The same for the same body, whatever the order of its keys."""
    return hashlib.sha256(orjson.dumps(command.body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def take_keys(batch: BatchContext, work: list[tuple[int, C, K]]) -> list[tuple[int, C, K]]:
    """Answer those whose keys are taken; return the rest, which now own their keys."""
    if all(c.idempotency_key is None and c.unique_key is None for _, c, _ in work):
        return work
    number(batch.tx, [spec for _, _, spec in work])
    fresh, echoes = _take_idempotency(batch, work)
    fresh = _take_unique(batch, fresh)
    for i, command, first in echoes:
        batch.answer(i, _echo(batch, command, first))
    return fresh


def _take_idempotency(
    batch: BatchContext, work: list[tuple[int, C, K]]
) -> tuple[list[tuple[int, C, K]], list[tuple[int, C, tuple[int, C, K]]]]:
    """Those whose key is theirs now or who have none; and those that repeat an earlier one of the same batch."""
    firsts: dict[tuple[int, str], tuple[int, C, K]] = {}
    for w in work:
        if w[1].idempotency_key is not None:
            firsts.setdefault((w[2].kind, w[1].idempotency_key), w)
    if not firsts:
        return work, []
    _insert_keys(batch, firsts)
    mine = {w[2].key for w in firsts.values()}
    taken = {
        (row.kind, row.key): row for row in batch.tx.batch("keys_taken", _places([*firsts])) if row.job not in mine
    }
    fresh, echoes = [], []
    for w in work:
        i, command, spec = w
        key = (spec.kind, command.idempotency_key or "")
        if command.idempotency_key is None:
            fresh.append(w)
        elif key in taken:
            job = _keyed_job(taken[key])
            batch.answer(i, _reused(command, taken[key].body_hash, job.id) or _again(command, job))
        elif firsts[key] is w:
            fresh.append(w)
        else:
            echoes.append((i, command, firsts[key]))
    return fresh, echoes


def _echo(batch: BatchContext, command: C, first: tuple[int, C, K]) -> Verdict:
    """The answer to one that repeats an earlier one of its batch, wherever that one's unique key has led it."""
    i, other, spec = first
    said = batch.verdicts[i].value
    refused = _reused(command, body_hash(other), spec.id if said is None else said.id)
    if refused is not None:
        return refused
    return _again(command, _new(other, spec)) if said is None else Verdict(said._replace(actor=command.actor))


def _insert_keys(batch: BatchContext, firsts: dict[tuple[int, str], tuple[int, C, K]]) -> None:
    tx = batch.tx
    ordered = sorted(firsts)
    tx.batch(
        "take_key",
        {
            **_places(ordered),
            "job": [firsts[at][2].key for at in ordered],
            "body_hash": [body_hash(firsts[at][1]) for at in ordered],
            "expires_at": [
                tx.now + int(tx.names.policy(firsts[at][2].policy).idempotency_ttl_s * SECOND) for at in ordered
            ],
        },
        now=tx.now,
    )


def _places(keys: list[tuple[int, str]]) -> dict[str, Any]:
    return {"kind": [kind for kind, _ in keys], "key": [key for _, key in keys]}


def _take_unique(batch: BatchContext, work: list[tuple[int, C, K]]) -> list[tuple[int, C, K]]:
    """Answer those whose unique key is held by a job that has not ended; return the rest."""
    firsts: dict[tuple[int, str], tuple[int, C, K]] = {}
    for w in work:
        if w[1].unique_key is not None:
            firsts.setdefault((w[2].kind, w[1].unique_key), w)
    if not firsts:
        return work
    held = _held(batch.tx, {at: w[2].key for at, w in firsts.items()})
    fresh, led = [], []
    for w in work:
        i, command, spec = w
        at = (spec.kind, command.unique_key or "")
        if command.unique_key is None or (firsts[at] is w and at not in held):
            fresh.append(w)
            continue
        job = held[at] if at in held else _new(*firsts[at][1:])
        batch.answer(i, _again(command, job))
        if command.idempotency_key is not None:
            led.append((spec.kind, command.idempotency_key, job.key))
    if led:
        batch.tx.batch("point_key", {**_places([at[:2] for at in led]), "job": [job for _, _, job in led]})
    return fresh


def _held(tx: Tx, wanted: dict[tuple[int, str], int]) -> dict[tuple[int, str], KeyedJob]:
    """Lock these keys for the jobs that want them: who keeps them from it. All others are theirs now."""
    ordered = sorted(wanted)
    tx.batch("lock_unique", {**_places(ordered), "job": [wanted[at] for at in ordered]})
    held: dict[tuple[int, str], KeyedJob] = {}
    left = []
    for row in tx.batch("unique_held", _places(ordered)):
        if row.job == wanted[row.kind, row.key]:
            continue
        if row.id is None or row.finished_at is not None:
            left.append((row.kind, row.key))
        else:
            held[row.kind, row.key] = _keyed_job(row)
    if left:
        tx.batch("take_unique", {**_places(left), "job": [wanted[at] for at in left]})
    return held


def _keyed_job(row: KeyHolderRow) -> KeyedJob:
    return KeyedJob(
        row.job, row.id or "", TASK.entity if row.single else FLOW.entity, row.state, row.fence, row.version
    )


def _new(command: Submit | SubmitFlow, spec: KeyedSubmit) -> KeyedJob:
    """A job of this batch that is about to be written. A flow says later how far it got."""
    if isinstance(command, Submit):
        return KeyedJob(spec.key, spec.id, TASK.entity, QUEUED, 1, 1)
    return KeyedJob(spec.key, spec.id, FLOW.entity, PENDING, 0, 1)


def _again(command: Submit | SubmitFlow, job: KeyedJob) -> Verdict:
    if isinstance(command, SubmitFlow):
        return Verdict(Placed(job.id, job.entity, job.state, job.version, command.actor, repeated=True))
    return Verdict(Receipt(job.id, job.state, job.fence, job.version, command.actor, repeated=True))


def _reused(command: Submit | SubmitFlow, hashed: str, id_: str) -> Verdict | None:
    """The refusal of a key that came with another body."""
    if hashed == body_hash(command):
        return None
    return Verdict(
        error=KeyReused(
            f"the idempotency key {command.idempotency_key!r} was used with another body",
            idempotency_key=command.idempotency_key,
            task=id_,
        )
    )
