"""How often PostgreSQL had to end a transaction because of another one: deadlocks and serialization failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from benchmarks.host import Host

SERIALIZATION = "could not serialize access"
_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@contextmanager
def conflicts(host: Host, store: str, url: str) -> Iterator[dict[str, int]]:
    """Counts what happened inside. A client's counts arrive when it has left, so all have to be gone at the end."""
    found: dict[str, int] = {}
    if store != "postgres":
        yield found
        return
    before = host.server_log().count(SERIALIZATION)
    yield found
    with psycopg.connect(url) as connection:
        found["deadlocks"] = int(connection.execute(_DEADLOCKS).fetchall()[0][0])
    # The server keeps no count of these, but it logs each.
    found["serialization_failures"] = host.server_log().count(SERIALIZATION) - before
