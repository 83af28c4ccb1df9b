"""Whether PostgreSQL's commits have reached the standbys that synchronous replication requires.

Owns that check, and the server's warnings about it. A COMMIT waits for the standbys. A cancelled wait ends with a
warning, a terminated backend without an answer. Either way the transaction is committed on this server, but perhaps on
no standby: a failover would lose it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any

from psycopg import Error
from psycopg.pq import ExecStatus

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.errors import Diagnostic

# Standbys confirm the log in order: one that has this commit has every earlier one. The commit changes no table.
_ONE_MORE_COMMIT = b"SELECT pg_logical_emit_message(true, 'onetray', 'confirms what was committed before')"
_MIN_WAIT_S = 0.1
_CANCEL_S = 5.0


class Warnings:
    """Remembers whether the server has sent a warning since the last reset."""

    def __init__(self) -> None:
        self.seen = False

    def note(self, notice: Diagnostic) -> None:
        # Any warning: that of a cancelled wait has no SQLSTATE of its own, and its text is in the server's language.
        # Another warning only causes an unnecessary check.
        self.seen |= notice.severity_nonlocalized == "WARNING"


def confirmed(connection: Connection[Any], warnings: Warnings, until: float) -> bool:
    """Whether the standbys have everything committed so far: commits once more and waits for the confirmation.

    At the deadline, it cancels the wait and closes the connection.
    """
    warnings.seen = False
    pgconn = connection.pgconn
    pgconn.send_query(_ONE_MORE_COMMIT)
    pgconn.flush()
    succeeded = True
    with DefaultSelector() as selector:
        selector.register(pgconn.socket, EVENT_READ)
        while True:
            while pgconn.is_busy():
                if not selector.select(max(_MIN_WAIT_S, until - time.monotonic())):
                    _give_up(connection)
                    return False
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                return succeeded and not warnings.seen
            succeeded &= result.status == ExecStatus.TUPLES_OK


def _give_up(connection: Connection[Any]) -> None:
    # Otherwise the backend would keep waiting for a standby, and occupy one of the server's connections.
    with suppress(Error):
        connection.cancel_safe(timeout=_CANCEL_S)
    connection.close()
