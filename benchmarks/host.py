"""The place of a measurement: fresh databases, a stop-watch, and what machine it was."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import psycopg

from benchmarks.redis_server import redis_server
from tests.support.cluster import Cluster

STORES = ("sqlite", "postgres")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SCHEDULED = 2
"""The last bits of a process's clock in clock_getcpuclockid(3): the time that the scheduler has given it."""


@dataclass(slots=True)
class Took:
    """How long something took: on the wall, and in CPU time of this process and the database server."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


class Host:
    """Fresh databases on this machine: files for SQLite, a private server for PostgreSQL."""

    def __init__(self, stores: tuple[str, ...]) -> None:
        self._stack = ExitStack()
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="onetray-bench-")))
        self._redis: int | None = None
        self._cluster = self._stack.enter_context(Cluster.start()) if "postgres" in stores else None

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def database(self, store: str) -> Iterator[str]:
        """The URL of an empty database, gone afterwards."""
        if store == "postgres":
            assert self._cluster is not None
            with self._cluster.database() as url:
                yield url
        elif store == "redis":
            with redis_server() as (url, self._redis):
                yield url
        else:
            with tempfile.TemporaryDirectory(dir=self._directory) as directory:
                yield f"sqlite:///{directory}/jobs.db"

    @contextmanager
    def stopwatch(self, store: str) -> Iterator[Took]:
        server = self._cluster.pid if store == "postgres" and self._cluster else None
        took, wall, cpu = Took(), time.perf_counter(), self._cpu_s(server)
        yield took
        took.wall_s, took.cpu_s = time.perf_counter() - wall, self._cpu_s(server) - cpu

    def _cpu_s(self, server: int | None) -> float:
        """CPU seconds used by this process and, where /proc tells, by the server with all its processes."""
        return time.process_time() + (_server_cpu_s(server) if server and os.path.isdir("/proc/self") else 0.0)

    def server_cpu_s(self, store: str = "postgres") -> float:
        """CPU seconds used by the database server so far; none where there is no server."""
        if store == "redis" and self._redis:
            return cpu_s(self._redis)
        return _server_cpu_s(self._cluster.pid) if store == "postgres" and self._cluster and self._cluster.pid else 0.0

    def server_log(self) -> str:
        """What the PostgreSQL server has written so far."""
        log = getattr(self._cluster, "log", None)
        return log.read_text(errors="replace") if log else ""

    def machine(self) -> dict[str, Any]:
        return {
            "cores": os.cpu_count(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "sqlite": apsw.sqlite_lib_version(),
            "postgres": self._postgres_version(),
            "settings": "SQLite: WAL, synchronous=FULL; PostgreSQL: fsync=on, synchronous_commit=on, else defaults",
        }

    def _postgres_version(self) -> str | None:
        if self._cluster is None:
            return None
        with psycopg.connect(self._cluster.url) as connection:
            return str(connection.execute("SHOW server_version").fetchall()[0][0])


def size_of(store: str, url: str) -> int | None:
    """Bytes of a database: its file, or what PostgreSQL says. None for Redis, whose log says little."""
    if store == "redis":
        return None
    if store == "sqlite":
        path = Path(url.removeprefix("sqlite:///"))
        # What a killed process left in the log is in the file afterwards.
        with closing(apsw.Connection(str(path))) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return path.stat().st_size
    with psycopg.connect(url) as connection:
        return int(connection.execute("SELECT pg_database_size(current_database())").fetchall()[0][0])


def settle(store: str, url: str) -> None:
    """Do for a PostgreSQL that was just filled what its autovacuum would do within a minute."""
    if store == "postgres":
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")


def rss_mib(process: int) -> float:
    """The memory that a process holds now."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_mib(process: int) -> float:
    """The most memory that a process has held so far."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def cpu_s(process: int) -> float:
    """CPU seconds used by a process so far, with its threads that have ended. Exact: /proc counts hundredths."""
    return time.clock_gettime(~process << 3 | _SCHEDULED)


def _server_cpu_s(postmaster: int) -> float:
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # It ended meanwhile; its time is in its parent's.
            continue
        if int(fields[1]) == postmaster:
            ticks += int(fields[11]) + int(fields[12])
        elif int(stat.parent.name) == postmaster:
            ticks += sum(int(f) for f in fields[11:15])
    return ticks / _TICKS_PER_S
