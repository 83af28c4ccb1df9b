"""Submit plain tasks on the fast path: with one statement, or few, and no preparations for other commands.

Owns which submits are plain: those that write a task that is claimable at once, its event, and nothing else. All others
take the normal path (submit.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from uuid_utils import uuid7

from onetray import failpoints
from onetray.domain.commands import Command, Submit
from onetray.domain.lifecycle import QUEUED
from onetray.domain.task import Receipt, Verdict
from onetray.engine.pending_writes import actor
from onetray.engine.submit import NEW_EVENT, NEW_TASK, TaskNumbers, intern_task
from onetray.store.base import Store, Tx
from onetray.store.event_log import BLOCK, ROW_CHARS


def submit_one(
    store: Store, c: Command, names_ttl_s: float, then: Callable[[Tx, int], object] | None = None
) -> Verdict | None:
    """Run one plain submit in one statement, and `then` in its transaction, with the task's key.

    Returns None for any other command, or if the store cannot do so.
    """
    if not store.takes_one or failpoints.hook is not None or (then is not None and not store.takes_more_with_one):
        return None
    if type(c) is not Submit or not _writes_only_a_task(c):
        return None
    numbers = _plain_numbers(store, c, names_ttl_s)
    if numbers is None:
        return None
    id_ = str(uuid7())
    shared = {"ns": numbers.ns, "correlation_id": c.correlation_id, "trace": c.trace}
    task = {"id": id_, "priority": c.priority, "payload": c.payload_json, "retry_of": None, "idempotency_key": None}
    event = {"actor": actor(c.actor, c.actor_name), "cause": c.cause}
    store.submit_one({**numbers._asdict(), **shared, **NEW_TASK, **task}, {**shared, **NEW_EVENT, **event}, then)
    return Verdict(Receipt(id_, QUEUED, 1, 1, c.actor))


def submit_several(store: Store, commands: Sequence[Command], names_ttl_s: float) -> list[Verdict] | None:
    """Run a batch of plain submits in one statement. Returns None if one is not plain, or if the store cannot do so."""
    if not store.takes_several or failpoints.hook is not None or not 1 < len(commands) <= BLOCK:
        return None
    known: dict[tuple[object, ...], TaskNumbers | None] = {}
    rows = []
    submits = [c for c in commands if type(c) is Submit and _writes_only_a_task(c)]
    if len(submits) < len(commands):
        return None
    for c in submits:
        names = c.namespace, c.queue, c.kind, c.max_attempts, id(c.policy)
        if names not in known:
            known[names] = _plain_numbers(store, c, names_ttl_s)
        numbers = known[names]
        if numbers is None:
            return None
        rows.append((*numbers, c.priority, c.correlation_id, c.trace, actor(c.actor, c.actor_name), c.cause))
    columns = _columns(rows)
    if isinstance(columns["cause"], list) and sum(map(len, filter(None, columns["cause"]))) > ROW_CHARS:
        # The log has to have several rows for them.
        return None
    ids = [str(uuid7()) for _ in submits]
    texts = {"id": ids, "payload": [c.payload_json for c in submits]}
    store.submit_several({**NEW_EVENT, **NEW_TASK, **columns, **texts, "retry_of": None, "idempotency_key": None})
    return [Verdict(Receipt(id_, QUEUED, 1, 1, c.actor)) for id_, c in zip(ids, submits, strict=True)]


_COLUMNS = (*TaskNumbers._fields, "priority", "correlation_id", "trace", "actor", "cause")


def _columns(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    """Single values if all rows are the same, which is one statement; else lists, which is another."""
    if rows.count(rows[0]) == len(rows):
        return dict(zip(_COLUMNS, rows[0], strict=True))
    return dict(zip(_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))


def _writes_only_a_task(c: Submit) -> bool:
    return (
        c.delay_s is None
        and c.run_at is None
        and c.idempotency_key is None
        and c.unique_key is None
        and not c.labels
        and c.alias is None
        and c.metadata is None
        and c.tracestate is None
        and not c.tells_written
        and not c.has_window
    )


def _plain_numbers(store: Store, c: Submit, names_ttl_s: float) -> TaskNumbers | None:
    """The numbers of a task; None if its policy needs more rows."""
    numbers = intern_task(store.names, c, c.namespace, names_ttl_s)
    policy = store.names.policy(numbers.policy)
    if policy.queue_ttl_s is not None or policy.deadline_s is not None or policy.lane_paths:
        return None
    return numbers
