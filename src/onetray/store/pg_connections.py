"""Connections to PostgreSQL, and the pool that lends them.

Owns what is kept with a connection, and which one is lent next. postgres.py decides what runs on it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from psycopg import Connection
from psycopg_pool import ConnectionPool

if TYPE_CHECKING:
    from onetray.store.commit_check import ServerRun
    from onetray.store.pg_pipeline import PreparedNames
    from onetray.store.replication import Warnings


class ServerConnection(Connection[Any]):
    """A connection, the run of the server that it belongs to, and the warnings that it received."""

    run: ServerRun
    warnings: Warnings
    prepared_names: PreparedNames | None = None
    """None: it prepares nothing, because the next transaction may be on another connection of a pooler."""


class WarmPool(ConnectionPool[ServerConnection]):
    """Lends the connection that was returned last: its statements are prepared, and its server process has its caches.

    psycopg's pool takes turns: an idle worker's claims would each meet a connection that has not been used for long.
    """

    last_error: Exception | None = None
    """Why the last attempt to connect failed; None after a success. The pool itself only logs it."""
    first_connect_s: int | None = None
    """The time for a connection until one has succeeded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.tried = threading.Event()
        """Set after each attempt to connect."""
        super().__init__(*args, **kwargs)

    def _connect(self, timeout: float | None = None) -> ServerConnection:
        try:
            connection = super()._connect(timeout or self.first_connect_s)
        except Exception as e:
            self.last_error = e
            raise
        else:
            self.last_error = self.first_connect_s = None
            return connection
        finally:
            self.tried.set()

    def open_ahead(self, count: int) -> None:
        """Have so many connections soon. Returns at once: threads of the pool open them.

        Those that stay unused are closed again, as if a burst of calls had opened them.
        """
        least, most, has = self.min_size, self.max_size, self.get_stats()["pool_size"]
        if has < min(count, most):
            self.resize(least + min(count, most) - has, most)
            self.resize(least, most)

    def _get_ready_connection(self, timeout: float | None) -> ServerConnection | None:
        self._pool.rotate(1)
        return super()._get_ready_connection(timeout)
