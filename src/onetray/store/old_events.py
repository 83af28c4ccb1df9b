"""Move the events of an older database, which had a row for each, into the log of batches.

Owns the steps between the migrations 13 and 14. Each step is one short transaction: a process that is killed loses at
most one, and the next migration goes on where it ended. The events keep their ids, so cursors stay valid.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from onetray.domain.lifecycle import MACHINES
from onetray.store.base import Store, Tx
from onetray.store.event_log import BLOCK, rows_of
from onetray.store.schema import MIGRATION_LOCK
from onetray.store.sql_template import POSTGRES, SQLITE

logger = logging.getLogger("onetray.store")

NUMBER = 14
"""The migration that needs them done."""
STEP = 5_000
"""How many events one transaction moves."""
# Another process that migrates waits for the lock, as it does for a migration. It may have dropped the table by then.
_ARE_LEFT = {
    SQLITE: ("SELECT count(*) FROM sqlite_schema WHERE name = 'old_event'",),
    POSTGRES: (
        f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})",
        # By a query: to_regclass may answer from a cache that is older than the lock.
        "SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE n.nspname = 'onetray' AND c.relname = 'old_event'",
    ),
}
_FIRST = """
SELECT id, entity, job, ts, ns, type, was, state, actor, version, fence, attempts, cause, trace, payload, correlation_id
FROM onetray.old_event ORDER BY id LIMIT :step
"""


class OldEvent(NamedTuple):
    id: int
    entity: int
    job: int
    ts: int
    ns: int
    type: str
    was: str | None
    state: str | None
    actor: str
    version: int | None
    fence: int
    attempts: int
    cause: str | None
    trace: str | None
    payload: str | None
    correlation_id: str | None


def move_old_events(store: Store) -> None:
    """Move all of them. Does nothing if there are none."""
    moved = 0
    while count := store.write(lambda tx: _step(tx, store.dialect)):
        moved += count
        if moved % (20 * STEP) == 0:
            logger.info("moved %d events into batches", moved)


def _step(tx: Tx, dialect: str) -> int:
    *_, ((are_left,),) = [tx.fetch(sql, {}) for sql in _ARE_LEFT[dialect]]
    if not are_left:
        return 0
    events = [OldEvent._make(row) for row in tx.fetch(_FIRST, {"step": STEP})]
    if not events:
        return 0
    for run in _runs(events):
        _write(tx, run)
    _list_events(tx, events)
    tx.fetch("DELETE FROM onetray.old_event WHERE id <= :last", {"last": events[-1].id})
    return len(events)


def _runs(events: list[OldEvent]) -> Iterator[list[OldEvent]]:
    """Events that one row of the log can have: consecutive ids, one type, one state. A note stands alone."""
    run: list[OldEvent] = []
    for event in events:
        last = run[-1] if run else event
        if run and (
            event.id != last.id + 1 or (event.type, event.state) != (last.type, last.state) or event.state is None
            or len(run) == BLOCK
        ):  # fmt: skip
            yield run
            run = []
        run.append(event)
    yield run


def _write(tx: Tx, run: list[OldEvent]) -> None:
    first = run[0]
    columns: dict[str, Any] = {
        name: [getattr(event, name) for event in run]
        for name in ("entity", "job", "ts", "ns", "was", "actor", "version", "fence", "attempts", "cause", "trace")
    }
    columns |= {"type": first.type, "state": first.state, "payload": [_payload(event) for event in run]}
    for row in rows_of(columns):
        tx.write_batch(first.id + row.place, row.columns, row.flows)


def _payload(event: OldEvent) -> str | None:
    """The note of a deletion keeps the correlation id of its job, whose row is gone."""
    if event.type != "job.deleted" or event.payload is None:
        return event.payload
    return orjson.dumps({**orjson.loads(event.payload), "correlation_id": event.correlation_id}).decode()


def _list_events(tx: Tx, events: list[OldEvent]) -> None:
    """Add the ids of transitions to the rows of their entities."""
    lists: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        table = event.type.partition(".")[0]
        if event.state is not None and table in MACHINES:
            lists[table][event.entity].append(str(event.id))
    for table, by_entity in lists.items():
        columns = {"key": list(by_entity), "events": [",".join(ids) for ids in by_entity.values()]}
        tx.batch(f"list_events_of_{table}", columns)
