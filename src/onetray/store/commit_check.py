"""Whether a PostgreSQL transaction took effect whose COMMIT got no response.

Owns that check. The transaction's id alone is not enough: a server that crashes before it has flushed the log forgets
that it assigned the id, and assigns it again, so another transaction's commit could be taken for ours. So one row that
the transaction wrote is checked as well. If it wrote no row that stays unchanged, the id counts only as long as the
server has not crashed since.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from onetray.domain.machine import Transition
from onetray.store.base import Columns

if TYPE_CHECKING:
    from psycopg import Connection

_IN_THE_FUTURE = "22023"
_STATUS = "SELECT pg_xact_status(%s::xid8)"
_XMIN = "xmin::text = (%(xid)s::numeric %% 4294967296)::text"
_SERVER_RUN = """
    SELECT CAST(extract(epoch FROM pg_postmaster_start_time()) AS text),
        CAST(extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()) AS text)
"""
# Ids are generated here and are unique; keys of new tasks come from a sequence, which a crash may set back, too.
_TASK = "SELECT 1 FROM onetray.task WHERE id = %(id)s::uuid"
_FLOW = "SELECT 1 FROM onetray.flow WHERE id = %(id)s::uuid"
_STAGE = "SELECT 1 FROM onetray.stage WHERE id = %(id)s::uuid"
# The event of this version has the type, the time and the actor of ours. Not by xmin: retention may have removed other
# entries from the row of the log meanwhile.
_MOVE = """
    SELECT 1 FROM onetray.{entity} AS t JOIN onetray.event_batch AS b ON b.id = (
        SELECT max(x.id) FROM onetray.event_batch AS x
        WHERE x.id <= (CAST(string_to_array(coalesce((SELECT string_agg(p.events, ',' ORDER BY p.version) || ','
            FROM onetray.event_page AS p WHERE p.entity = t.key), '') || t.events, ',') AS bigint[]))[%(version)s])
    WHERE t.key = %(key)s AND t.version >= %(version)s AND b.type = %(type)s AND b.ts = %(ts)s
        AND coalesce(b.actor, %(actor)s) = %(actor)s
"""
_NOTE = f"SELECT 1 FROM onetray.event_batch WHERE entity = %(entity)s AND state IS NULL AND {_XMIN} LIMIT 1"
_LINE = f"SELECT 1 FROM onetray.log WHERE task = %(task)s AND cursor = %(cursor)s AND {_XMIN}"


class WrittenRow(NamedTuple):
    """A row that exists if, and only if, its transaction took effect."""

    sql: str
    params: dict[str, Any]


def row_of_submit(tasks: Columns) -> WrittenRow:
    return WrittenRow(_TASK, {"id": tasks["id"][0]})


def row_of_move(hops: tuple[Transition, ...], columns: Columns) -> WrittenRow:
    """The last event of the first entity."""
    key, version, actor = (
        values[0] if isinstance(values := columns[name], list) else values for name in ("key", "version", "actor")
    )
    at = columns["at"]
    return WrittenRow(
        _MOVE.replace("{entity}", hops[-1].entity),
        {
            "key": key, "version": version + len(hops), "type": hops[-1].event, "actor": actor,
            "ts": max(at) if isinstance(at, list) else at,
        },
    )  # fmt: skip


def row_of_batch(statement: str, columns: Columns) -> WrittenRow | None:
    """A new flow, stage, note or log line. Statements that write none of them can be repeated without harm."""
    if statement in ("insert_flow", "insert_stage"):
        return WrittenRow(_FLOW if statement == "insert_flow" else _STAGE, {"id": columns["id"][0]})
    if statement in ("insert_note", "insert_flow_note"):
        return WrittenRow(_NOTE, {"entity": columns["key"][0]})
    if statement == "insert_log":
        return WrittenRow(_LINE, {"task": columns["key"][0], "cursor": columns["cursor"][0]})
    return None


class ServerRun(NamedTuple):
    """Identifies a server's run until it crashes: a crash resets its statistics."""

    started_at: str
    counts_since: str | None

    @classmethod
    def of(cls, connection: Connection[Any]) -> ServerRun:
        ((started_at, counts_since),) = connection.execute(_SERVER_RUN, prepare=False).fetchall()
        return cls(started_at, counts_since)


class CommitOutcome(Enum):
    """Whether a transaction took effect whose COMMIT got no response."""

    WRITTEN = "committed"
    NOT_WRITTEN = "not committed, and never will be"
    UNDER_WAY = "not decided yet"
    UNKNOWN = "its id is committed, but may have been assigned again"


def outcome_of(connection: Connection[Any], xid: str, written_row: WrittenRow | None, run: ServerRun) -> CommitOutcome:
    try:
        ((status,),) = connection.execute(_STATUS, (xid,)).fetchall()
    except Exception as e:
        if getattr(e, "sqlstate", None) != _IN_THE_FUTURE:
            raise
        return CommitOutcome.NOT_WRITTEN  # A crash reset the ids, and this one is not assigned yet.
    if status not in ("committed", "aborted"):
        return CommitOutcome.UNDER_WAY
    if status == "aborted":
        return CommitOutcome.NOT_WRITTEN
    if written_row is None:
        return CommitOutcome.WRITTEN if ServerRun.of(connection) == run else CommitOutcome.UNKNOWN
    exists = connection.execute(written_row.sql, {**written_row.params, "xid": xid}).fetchall()
    return CommitOutcome.WRITTEN if exists else CommitOutcome.NOT_WRITTEN
