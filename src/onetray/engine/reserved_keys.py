"""Keys of dialects that their submits reserve: each belongs to one body, whatever its kind.

Owns the reservation. Which job a key has is an idempotency key's to say: submit_keys.py.
"""

from __future__ import annotations

from typing import TypeVar

from onetray.domain.clock import SECOND
from onetray.domain.commands import ReservedKey, Submit
from onetray.domain.errors import KeyReused
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.task import Verdict
from onetray.engine.batch_context import BatchContext
from onetray.engine.http_keys import FORGET

C = TypeVar("C", Submit, SubmitFlow)
K = TypeVar("K")


def reserve_keys(batch: BatchContext, work: list[tuple[int, C, K]]) -> list[tuple[int, C, K]]:
    """Set the verdicts of submits whose key belongs to another body. Returns the others."""
    wanted = [(w, reserved) for w in work if (reserved := _reserved_by(w[1])) is not None]
    if not wanted:
        return work
    first: dict[tuple[str, str], ReservedKey] = {}
    for _, reserved in wanted:
        first.setdefault((reserved.owner, reserved.key), reserved)
    hash_of = _reserve(batch, [first[at] for at in sorted(first)])
    refused = {w[0]: r.key for w, r in wanted if hash_of[r.owner, r.key] != r.body_hash}
    for i, key in refused.items():
        batch.answer(i, Verdict(error=used_with_another_body(key)))
    return [w for w in work if w[0] not in refused] if refused else work


def _reserved_by(command: Submit | SubmitFlow) -> ReservedKey | None:
    return command.reserves if isinstance(command, Submit) else None


def _reserve(batch: BatchContext, keys: list[ReservedKey]) -> dict[tuple[str, str], str]:
    """Reserve the keys that are free. Returns the hash of the body that each of them belongs to now."""
    tx = batch.tx
    columns = {"caller": [r.owner for r in keys], "key": [r.key for r in keys]}
    tx.batch("reserve_requests", {
        **columns, "route": [r.route for r in keys], "body_hash": [r.body_hash for r in keys],
        "expires_at": [tx.now + int(r.ttl_s * SECOND) for r in keys],
    }, now=tx.now)  # fmt: skip
    found = {(row.caller, row.key): row.body_hash for row in tx.batch("reserved_requests", columns)}
    tx.query("delete_expired_requests", at=tx.now, limit=FORGET)
    return found


def used_with_another_body(key: str) -> KeyReused:
    return KeyReused(f"the Idempotency-Key {key} was used with another body: use a new one", idempotency_key=key)
