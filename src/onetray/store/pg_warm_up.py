"""Warm up a new connection: run what claims and successes run, without rows, so that the first real ones are faster.

The first run of a statement costs its server process a plan and the catalog's entries of all tables and indexes: about
5 ms for a claim and its reports. Everything is rolled back; it takes one number of the sequence of event ids.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import psycopg

from onetray.domain.lifecycle import ASSIGNED, TASK
from onetray.store.base import Columns
from onetray.store.pg_pipeline import Query, bind_postgres, run_queries
from onetray.store.postgres_tx import LOCK_REQUEST, NEXT, PREPARE

if TYPE_CHECKING:
    from onetray.store.pg_connections import ServerConnection
    from onetray.store.statements import Statements

logger = logging.getLogger("onetray.store")

# Types as in real batches: a statement is prepared anew for other ones. `key` and `began` differ for each task.
_OF_ALL: Columns = {
    "key": [], "version": 1, "fence": 1, "attempts": 1, "ns": 1, "worker": "", "lease": 1, "result": None, "at": 1,
}  # fmt: skip
_LEASE = ("key", "ns", "worker", "expires_at", "length", "request_key", "part", "expiry_counts", "tasks")
_EVENT = {
    "place": "0", "size": "1", "ts": "1", "ns": "1", "type": TASK.claim.event, "was": None, "state": ASSIGNED,
    "actor": "", "entity": "1", "job": None, "version": "1", "fence": "1", "attempts": "1", "cause": None,
    "trace": None, "payload": None, "varied": None, "event": None,
}  # fmt: skip


def warm_up(connection: ServerConnection, statements: Statements) -> None:
    """Run the statements of a claim and a report. Only to save time: an error has no effect."""
    try:
        run_queries(connection, _queries(statements))
        # A real one ends like this.
        run_queries(connection, [("BEGIN", {}), ("COMMIT", {})])
    except psycopg.Error as e:
        logger.debug("a connection could not be warmed up: %s", e)
        if not connection.closed:
            connection.rollback()


def _queries(statements: Statements) -> list[Query]:
    pick = {"queue": 0, "rank": 0, "task": 0, "limit": 1, "past_breakers": 0}

    def named(name: str, **params: Any) -> Query:
        statement = statements.by_name[name]
        return statement.sql, bind_postgres(statement, {"now": None, **params})

    def batch(name: str, columns: Columns) -> Query:
        statement = statements.for_batch(name, columns)
        return statement.sql, bind_postgres(statement, {"now": None, **columns})

    claim = statements.move((TASK.claim,), _OF_ALL)
    succeed = statements.move((TASK.start, TASK.succeed), {**_OF_ALL, "began": []}, held=True)
    return [
        ("BEGIN", {}),
        (PREPARE, {"now": None}),
        named("expiries", keys=[]),
        (succeed.sql, {**bind_postgres(succeed, {**_OF_ALL, "began": []}), "size": 0}),
        (LOCK_REQUEST, {"request": "onetray", "ns": 0}),
        named("leases_of_request", ns=0, worker="", request_key=""),
        named("claim_any", **pick),
        named("claim_head", **pick),
        batch("insert_lease", {name: [] for name in _LEASE}),
        batch("delete_ready", {"queue": 0, "rank": 0, "key": [], "kind": 0}),
        (claim.sql, {**bind_postgres(claim, _OF_ALL), "size": 0}),
        (NEXT, {"sequence": "onetray.event_id", "count": 1}),
        (statements.by_name["insert_event_batch"].sql, _EVENT),
        ("ROLLBACK", {}),
    ]
