"""Facts about the database server: version, durability, connection pooler, free space.

Owns these checks, which differ by database. Changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from onetray.store.base import Store


class ServerFacts(NamedTuple):
    """A PostgreSQL server, as seen through a connection."""

    version: int
    """In the server's notation: 150004 is 15.4."""
    fsync: bool
    synchronous_commit: str
    standby: bool
    behind_pooler: bool


def sqlite_library() -> tuple[int, ...]:
    """The version of apsw's SQLite library, which is not Python's."""
    import apsw

    return tuple(int(part) for part in apsw.sqlite_lib_version().split("."))


def server_facts(url: str) -> ServerFacts:
    import psycopg

    with psycopg.connect(url, autocommit=True, connect_timeout=10, prepare_threshold=None) as connection:
        row: Any = connection.execute(
            "SELECT current_setting('server_version_num'), current_setting('fsync'),"
            " current_setting('synchronous_commit'), pg_is_in_recovery(), pg_backend_pid()"
        ).fetchone()
        version, fsync, synchronous_commit, standby, pid = row
        # A pooler reports a process id of its own.
        pooled = connection.info.backend_pid != pid
    return ServerFacts(int(version), fsync == "on", synchronous_commit, standby, pooled)


def file_bytes(store: Store) -> int | None:
    """The size of a SQLite file with its log; None for other databases."""
    import os

    path = getattr(store, "path", None)
    return sum(os.path.getsize(p) for p in (path, f"{path}-wal") if os.path.exists(p)) if path else None


def free_bytes(store: Store) -> int | None:
    """Free disk space next to a SQLite file; None for other databases."""
    import shutil
    from pathlib import Path

    path = getattr(store, "path", None)
    return shutil.disk_usage(Path(path).parent).free if path else None
