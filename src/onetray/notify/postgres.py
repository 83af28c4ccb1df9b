"""The ear for PostgreSQL: LISTEN on a connection of its own.

Owns that connection and its return after a loss. It needs a session, so there is none behind a pooler.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import Connection

from onetray.notify.new_work import NewWork, Queue, everywhere, parse_new_work

logger = logging.getLogger("onetray.wake")

CHANNEL = "onetray"
NOTIFY = f"SELECT pg_notify('{CHANNEL}', %(news)s)"
"""Tells other processes of a commit: see new_work.py for the words."""
BACKOFF_S = (0.1, 5.0)
# A peer that vanished without a word is noticed within a minute. Until then polling goes on.
_ALIVE: dict[str, Any] = {"keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


class PostgresListener:
    def __init__(self, url: str, sender: str, named: Callable[[NewWork[int]], NewWork[Queue]]) -> None:
        """`sender` is whose news are not told again; `named` puts names for the numbers of queues."""
        self._url, self._sender, self._named = url, sender, named
        self._stopping = threading.Event()
        self._end, self._told_to_end = socket.socketpair()
        self.hears = False

    def run(self, heard: Callable[[NewWork[Queue]], set[Queue]], wanted: threading.Event) -> None:
        wait, lost = BACKOFF_S[0], False
        while not self._stopping.is_set():
            try:
                with self._connect() as connection:
                    wait, lost, self.hears = BACKOFF_S[0], False, True
                    # Before the LISTEN nothing was heard.
                    heard(everywhere())
                    self._listen(connection, heard)
            except psycopg.OperationalError as e:
                # Once for each loss: it may last.
                logger.log(logging.DEBUG if lost else logging.WARNING, "cannot LISTEN; polling until it is back: %s", e)
                lost = True
            except psycopg.Error as e:
                logger.warning("this server does not LISTEN; polling instead: %s", e)
                break
            finally:
                self.hears = False
            self._stopping.wait(wait)
            wait = min(2 * wait, BACKOFF_S[1])
        self._told_to_end.close()

    def _connect(self) -> Connection[Any]:
        connection = psycopg.connect(
            self._url, autocommit=True, connect_timeout=5, application_name="onetray listens", **_ALIVE
        )
        connection.execute(f"LISTEN {CHANNEL}")
        return connection

    def _listen(self, connection: Connection[Any], heard: Callable[[NewWork[Queue]], set[Queue]]) -> None:
        # Not select: a server with many clients has descriptors past what that can wait for.
        news = select.poll()
        for end in (connection, self._told_to_end):
            news.register(end.fileno(), select.POLLIN)
        while not self._stopping.is_set():
            news.poll()
            connection.pgconn.consume_input()
            found: NewWork[int] | None = None
            while (told := connection.pgconn.notifies()) is not None:
                work = parse_new_work(told.extra.decode(errors="replace"), self._sender)
                if work is not None:
                    found = found or NewWork()
                    found.add(work)
            if found is not None:
                heard(self._named(found))

    def stop(self) -> None:
        self._stopping.set()
        self._end.close()
