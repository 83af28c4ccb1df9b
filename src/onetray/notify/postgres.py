"""The listener for PostgreSQL: LISTEN on a separate connection.

Owns that connection, and reconnects after a loss. LISTEN needs a session, so there is no listener behind a pooler.

Commits that add work and commits that add none have a channel each. Most commits of busy workers add none, and the
server wakes every process that listens on the channel: a worker listens only for work.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import Connection

from onetray.notify.base import OnCommit
from onetray.notify.new_work import NewWork, Queue, everywhere, parse_new_work

logger = logging.getLogger("onetray.wake")

CHANNEL = "onetray"
"""For commits that add work."""
COMMITS_CHANNEL = "onetray_commits"
"""For commits that add none."""
NOTIFY = (
    f"SELECT pg_notify(CASE WHEN right(%(news)s::text, 1) = ' ' THEN '{COMMITS_CHANNEL}' ELSE '{CHANNEL}' END, "
    "%(news)s::text)"
)
"""Notifies other processes of a commit; new_work.py has the format. A message without work ends with a space."""
BACKOFF_S = (0.1, 5.0)
# Detect within a minute a server that vanished without closing the connection. Until then, waiters poll.
_ALIVE: dict[str, Any] = {"keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


class PostgresListener:
    def __init__(
        self,
        url: str,
        sender: str,
        named: Callable[[NewWork[int]], NewWork[Queue]],
        on_outage: Callable[[float], None] = lambda since: None,
        on_return: Callable[[], None] = lambda: None,
    ) -> None:
        """`sender` is this process: it ignores its own notifications. `named` resolves the keys of queues to names.

        It notices first that the server is away, and that it is back: `on_outage` is called when it cannot connect.
        """
        self._url, self._sender, self._named = url, sender, named
        self._on_outage, self._on_return = on_outage, on_return
        self._stopping = threading.Event()
        self._wants_commits = False
        self._interrupt_sender, self._interrupt_receiver = socket.socketpair()
        self.is_connected = False

    def run(self, on_commit: OnCommit, has_waiters: threading.Event) -> None:
        wait, lost, lost_at = BACKOFF_S[0], False, time.monotonic()
        while not self._stopping.is_set():
            try:
                with self._connect() as connection:
                    wait, lost, self.is_connected = BACKOFF_S[0], False, True
                    self._on_return()
                    # Commits before the LISTEN were missed.
                    on_commit(everywhere())
                    self._listen(connection, on_commit)
            except psycopg.OperationalError as e:
                # A warning once for each loss: the outage may last.
                logger.log(
                    logging.DEBUG if lost else logging.WARNING, "cannot LISTEN; polling until the server is back: %s", e
                )
                if lost:
                    # Not at the first time: only this connection may have been lost.
                    self._on_outage(lost_at)
                else:
                    lost, lost_at = True, time.monotonic()
            except psycopg.Error as e:
                logger.warning("this server does not support LISTEN; polling instead: %s", e)
                break
            finally:
                self.is_connected = False
            self._stopping.wait(wait)
            wait = min(2 * wait, BACKOFF_S[1])
        self._interrupt_receiver.close()

    def _connect(self) -> Connection[Any]:
        connection = psycopg.connect(
            self._url, autocommit=True, connect_timeout=5, application_name="onetray listens", **_ALIVE
        )
        connection.execute(f"LISTEN {CHANNEL}")
        if self._wants_commits:
            connection.execute(f"LISTEN {COMMITS_CHANNEL}")
        return connection

    def _listen(self, connection: Connection[Any], on_commit: OnCommit) -> None:
        # Not select: it cannot wait for descriptors above 1,023, which a server with many clients has.
        poll = select.poll()
        for end in (connection, self._interrupt_receiver):
            poll.register(end.fileno(), select.POLLIN)
        while not self._stopping.is_set():
            ready = {end for end, _ in poll.poll()}
            new: NewWork[int] | None = None
            if self._interrupt_receiver.fileno() in ready and self._interrupt_receiver.recv(1):
                connection.execute(f"LISTEN {COMMITS_CHANNEL}")
                # Commits before the LISTEN were missed.
                new = NewWork()
            connection.pgconn.consume_input()
            while (notification := connection.pgconn.notifies()) is not None:
                work = parse_new_work(notification.extra.decode(errors="replace"), self._sender)
                if work is not None:
                    new = new or NewWork()
                    new.add(work)
            if new is not None:
                on_commit(self._named(new))

    def want_commits(self) -> None:
        if not self._wants_commits:
            self._wants_commits = True
            self._interrupt_sender.send(b"c")

    def stop(self) -> None:
        self._stopping.set()
        self._interrupt_sender.close()
