"""What the holder of a task keeps beside it: how far it is, and what its next attempt will want to know.

Owns both rows. Neither is a transition: no event tells of them.
"""

from __future__ import annotations

from typing import Any

from onetray.commands import Checkpoint, Progress
from onetray.engine.moves import Moves
from onetray.engine.reports import accepted, refused
from onetray.engine.scope import Scope
from onetray.model import Row


def progress(scope: Scope, work: list[tuple[int, Progress, Row]]) -> None:
    _keep(
        scope,
        work,
        "set_progress",
        lambda said: {
            "done": float(said.done),
            "out_of": None if said.total is None else float(said.total),
            "message": said.message,
        },
    )


def checkpoint(scope: Scope, work: list[tuple[int, Checkpoint, Row]]) -> None:
    _keep(scope, work, "set_checkpoint", lambda said: {"body": said.body_json})


def _keep(scope: Scope, work: list[tuple[int, Any, Row]], statement: str, columns: Any) -> None:
    moves = Moves(scope)
    for i, command, row in work:
        no = refused(scope, command, row)
        if no is None:
            moves.put(statement, key=row.key, at=scope.tx.now, attempt=row.attempts, **columns(command))
        scope.answer(i, no or accepted(row))
    moves.flush()
