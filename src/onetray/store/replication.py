"""Whether PostgreSQL's commits have reached the standbys that synchronous replication requires.

Owns the server's warnings about it, and the question. A COMMIT waits for the standbys; a wait that is cancelled ends
with a warning, and one whose backend is ended, with silence. Either way the transaction is committed on this server and
perhaps on no other: after a failover it would be gone.
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
_LEAST_S = 0.1
_CANCEL_S = 5.0


class Warnings:
    """Remembers whether the server has sent a warning since the last reset."""

    def __init__(self) -> None:
        self.seen = False

    def note(self, notice: Diagnostic) -> None:
        # Any warning: that of a cancelled wait has no SQLSTATE of its own, and its text is in the server's language.
        # One that means something else costs a question, and no wrong answer.
        self.seen |= notice.severity_nonlocalized == "WARNING"


def confirmed(connection: Connection[Any], warnings: Warnings, until: float) -> bool:
    """Whether the standbys have everything committed so far: makes one more commit and waits for its confirmation.

    At the deadline, the wait is cancelled and the connection closed.
    """
    warnings.seen = False
    pgconn = connection.pgconn
    pgconn.send_query(_ONE_MORE_COMMIT)
    pgconn.flush()
    done = True
    with DefaultSelector() as selector:
        selector.register(pgconn.socket, EVENT_READ)
        while True:
            while pgconn.is_busy():
                if not selector.select(max(_LEAST_S, until - time.monotonic())):
                    _give_up(connection)
                    return False
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                return done and not warnings.seen
            done &= result.status == ExecStatus.TUPLES_OK


def _give_up(connection: Connection[Any]) -> None:
    # Otherwise the backend would wait for a standby, and occupy one of the server's connections.
    with suppress(Error):
        connection.cancel_safe(timeout=_CANCEL_S)
    connection.close()
