"""Set a task aside: the move to the dead letters."""

from __future__ import annotations

from typing import Any

import orjson

from onetray.engine.letters import Letter
from onetray.engine.moves import ENGINE, Moves, told
from onetray.engine.scope import Scope
from onetray.lifecycle import TASK
from onetray.model import Row


def bury(
    scope: Scope,
    moves: Moves,
    row: Row,
    reason: str,
    stage: str,
    error_json: str,
    *,
    after: Any,
    by: str = ENGINE,
    cause: str | None = None,
) -> Row:
    """Move a task to the dead letters after a command, and have its letter written."""
    if row.stage is not None and reason == "exhausted_retries" and scope.family.flows[row.job].compensates is not None:
        reason = "compensation_failed"
    moves.letters.append(Letter(row, reason, stage, error_json))
    moved = moves.add(
        TASK.dead_letter,
        row,
        by,
        cause=cause or reason,
        trace=after.trace,
        error=error_json,
        detail=told(
            report=after.verb,
            reason_code=reason,
            stage=stage,
            owner=row.owner,
            lease_expires_at=row.lease_expires_at,
            error=orjson.Fragment(error_json),
        ),
    )
    return scope.now_is(moved)
