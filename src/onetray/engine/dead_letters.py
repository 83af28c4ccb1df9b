"""Dead letters: the records of tasks that were set aside.

Owns their fields. report_verbs.py moves the task, control_verbs.py redrives it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson

from onetray.domain.lifecycle import HELD
from onetray.store.base import Tx
from onetray.store.rows import TaskRow


@dataclass(slots=True)
class NewDeadLetter:
    row: TaskRow
    reason_code: str
    stage: str
    error_json: str


def write_dead_letters(tx: Tx, letters: list[NewDeadLetter]) -> None:
    keys = [letter.row.key for letter in letters]
    facts = {row.key: row for row in tx.query("facts_for_dead_letter", keys=keys)}
    holders = _last_holders(tx, [letter.row for letter in letters])
    columns: dict[str, list[Any]] = {
        "key": keys,
        "ns": [letter.row.ns for letter in letters],
        "at": [tx.now] * len(letters),
        "reason_code": [letter.reason_code for letter in letters],
        "stage": [letter.stage for letter in letters],
        "last_error": [letter.error_json for letter in letters],
        "attempts": [letter.row.attempts for letter in letters],
        "last_owner": [holders[key][0] for key in keys],
        "last_lease_expires_at": [holders[key][1] for key in keys],
        "correlation_id": [facts[key].correlation_id or facts[key].id for key in keys],
        "trace_id": [_trace_id(facts[key].trace) for key in keys],
        "payload_hash": [hashlib.sha256(facts[key].payload.encode()).hexdigest() for key in keys],
    }
    tx.batch("insert_dead_letter", columns)


def _trace_id(trace: str | None) -> str | None:
    return trace.split("-")[1] if trace else None


def _last_holders(tx: Tx, rows: list[TaskRow]) -> dict[int, tuple[str | None, int | None]]:
    """The last owner of each task and its lease's expiry: from the row, or from the newest event with an owner."""
    holders = {row.key: (row.owner, row.lease_expires_at) for row in rows}
    without_owner = [row.key for row in rows if row.owner is None]
    if without_owner:
        for key, payload in tx.query("last_holders", keys=without_owner, held=list(HELD)):
            facts = orjson.loads(payload)
            if "owner" in facts:
                holders[key] = facts["owner"], facts.get("lease_expires_at")
    return holders
