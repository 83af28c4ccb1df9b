"""Connections to a lent database that outlive the engine of a test.

Most of what a small test costs PostgreSQL is a new connection: it reads the catalog and plans every statement again.
Only what an engine leaves idle when it is closed is kept; whatever was closed or broken before stays so.
"""

from __future__ import annotations

from typing import Any

from psycopg import Connection
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

MOST_KEPT = 8

_kept: dict[str, list[tuple[dict[str, Any], Connection[Any]]]] = {}
"""Of each database that is lent: what its connections were opened with, and the connections."""


def keep_connections(url: str) -> None:
    """From now on, keep the connections to this database."""
    _kept.setdefault(url, [])


def kept_pids(url: str) -> list[int]:
    return [connection.info.backend_pid for _, connection in _kept.get(url, ())]


def drop_connections(url: str) -> None:
    for _, connection in _kept.pop(url, ()):
        connection.close()


class WarmPool(ConnectionPool[Any]):
    """Begins with connections that earlier tests have left, and leaves its own."""

    _is_closing = False

    def _connect(self, timeout: float | None = None) -> Any:
        kept, kwargs = _kept.get(self._resolve_conninfo(), []), self._resolve_kwargs()
        for place, (opened_with, connection) in enumerate(kept):
            if opened_with == kwargs:
                del kept[place]
                connection._pool = self  # type: ignore[attr-defined]
                self._set_connection_expiry_date(connection)
                return connection
        return super()._connect(timeout)

    def close(self, timeout: float = 5.0) -> None:
        self._is_closing = True
        super().close(timeout)

    def _close_connection(self, conn: Any) -> None:
        kept = _kept.get(self._resolve_conninfo())
        idle = not conn.closed and conn.pgconn.transaction_status == TransactionStatus.IDLE
        if self._is_closing and idle and kept is not None and len(kept) < MOST_KEPT:
            conn._pool = None
            kept.append((self._resolve_kwargs(), conn))
        else:
            super()._close_connection(conn)
