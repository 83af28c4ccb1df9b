"""Dead letters: the records of tasks that were set aside.

Owns their fields. report_verbs.py moves the task, control_verbs.py redrives it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import orjson

from onetray.domain.lifecycle import HELD
from onetray.store.base import Tx
from onetray.store.rows import TaskRow

PATTERN_CHARS = 80
"""Dead letters are grouped by this many first characters of their message, with numbers and ids masked."""
CLASS_CHARS = 200
"""As many of the name of the error's class: an entry of an index has room for so much."""
_VARYING = re.compile(
    r"[\da-fA-F]{8}-[\da-fA-F]{4}-[\da-fA-F]{4}-[\da-fA-F]{4}-[\da-fA-F]{12}|0x[\da-fA-F]+"
    r"|\b(?=[a-fA-F]*\d)[\da-fA-F]{8,}\b|\d+"
)
"""UUIDs, addresses, hashes, numbers."""


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
    errors = [orjson.loads(letter.error_json) for letter in letters]
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
        "kind": [letter.row.kind for letter in letters],
        "error_class": [(error.get("class") or "")[:CLASS_CHARS] for error in errors],
        "pattern": [pattern_of(error.get("message") or "") for error in errors],
    }
    tx.batch("insert_dead_letter", columns)


def pattern_of(message: str) -> str:
    """The beginning of a message, with `#` for each number and id in it: what messages of the same error share."""
    return _VARYING.sub("#", message[: 4 * PATTERN_CHARS])[:PATTERN_CHARS]


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
