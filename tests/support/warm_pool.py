"""Connections to a lent database that outlive the engine of a test.

Most of what a small test costs PostgreSQL is a new connection: it reads the catalog and plans every statement again.
Only what an engine leaves idle when it is closed is kept; whatever was closed or broken before stays so.
"""

from __future__ import annotations

from typing import Any

from psycopg.pq import TransactionStatus

from onetray.store.postgres import PostgresStore, ServerConnection, WarmPool

MOST_KEPT = 8

Opened = tuple[dict[str, Any], bool]
_kept: dict[str, list[tuple[Opened, ServerConnection]]] = {}
"""Of each database that is lent: what its connections were opened with, and the connections."""


def keep_connections(url: str) -> None:
    """From now on, keep the connections to this database."""
    _kept.setdefault(url, [])


def kept_pids(url: str) -> list[int]:
    return [connection.info.backend_pid for _, connection in _kept.get(url, ())]


def drop_connections(url: str) -> None:
    for _, connection in _kept.pop(url, ()):
        connection.close()


class KeptPool(WarmPool):
    """Begins with connections that earlier tests have left, and leaves its own."""

    _is_closing = False

    def _connect(self, timeout: float | None = None) -> ServerConnection:
        kept, opened_with = _kept.get(self._resolve_conninfo(), []), self._opened_with()
        for place, (how, connection) in enumerate(kept):
            if how == opened_with:
                del kept[place]
                connection._pool = self  # type: ignore[attr-defined]
                self._set_connection_expiry_date(connection)
                self.last_error = self.first_connect_s = None
                self.tried.set()
                return connection
        return super()._connect(timeout)

    def _opened_with(self) -> Opened:
        """What makes two connections different: their options, and whether they prepare statements."""
        store: PostgresStore = self._configure.__self__  # type: ignore[union-attr]
        return self._resolve_kwargs(), store.pooler

    def close(self, timeout: float = 5.0) -> None:
        self._is_closing = True
        super().close(timeout)

    def _close_connection(self, conn: Any) -> None:
        kept = _kept.get(self._resolve_conninfo())
        idle = not conn.closed and conn.pgconn.transaction_status == TransactionStatus.IDLE
        if self._is_closing and idle and kept is not None and len(kept) < MOST_KEPT:
            conn._pool = None
            kept.append((self._opened_with(), conn))
        else:
            super()._close_connection(conn)
