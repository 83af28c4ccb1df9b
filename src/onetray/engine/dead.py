"""Dead letters: set a task aside with everything that is needed to understand it.

Owns the letter's fields. Redriving one is in controls.py.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from onetray.engine.moves import ENGINE, Moves, told
from onetray.engine.scope import Scope
from onetray.lifecycle import HELD, TASK
from onetray.model import Row


def bury(
    scope: Scope, moves: Moves, row: Row, reason: str, stage: str, error_json: str, by_of: Any, cause: str | None = None
) -> Row:
    """Move a task to the dead letters and write its letter."""
    tx = scope.tx
    ((_, id_, correlation, trace, payload, _),) = tx.query("facts_for_dead_letter", keys=[row.key])
    owner, until = _last_holder(scope, row)
    moves.put(
        "insert_dead_letter", key=row.key, ns=row.ns, at=tx.now, reason_code=reason, stage=stage,
        last_error=error_json, attempts=row.attempts, last_owner=owner, last_lease_expires_at=until,
        correlation_id=correlation or id_, trace_id=trace.split("-")[1] if trace else None,
        payload_hash=hashlib.sha256(payload.encode()).hexdigest(),
    )  # fmt: skip
    moved = moves.add(
        TASK.dead_letter, row, ENGINE, cause=cause, trace=by_of.trace, error=error_json,
        detail=told(report=by_of.verb, reason_code=reason, stage=stage, owner=owner, lease_expires_at=until,
        error=orjson.Fragment(error_json)),
    )  # fmt: skip
    return scope.now_is(moved)


def _last_holder(scope: Scope, row: Row) -> tuple[str | None, int | None]:
    if row.owner is not None:
        return row.owner, row.lease_expires_at
    found: tuple[str | None, int | None] = (None, None)
    for _, payload in scope.tx.query("last_holders", keys=[row.key], held=list(HELD)):
        facts = orjson.loads(payload)
        if "owner" in facts:
            found = facts["owner"], facts.get("lease_expires_at")
    return found
