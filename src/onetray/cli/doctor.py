"""`onetray doctor`: check the installation and suggest fixes.

Owns the checks and their order: a check comes after those that it depends on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import click

from onetray.cli import CHECK_FAILED, DatabaseUnusable
from onetray.cli.format import counted
from onetray.cli.options import common, opened_store
from onetray.cli.output import console, print_json
from onetray.cli.tables import STATE_COLOURS, one_line
from onetray.cli.target import absolute, source_of
from onetray.domain.clock import SECOND, duration

if TYPE_CHECKING:
    from onetray.engine import Engine
    from onetray.store.base import Store


@click.command(short_help="Check the installation and suggest fixes.")
@common
@click.pass_context
def doctor(ctx: click.Context, database: str, namespace: str, as_json: bool) -> None:
    """Check Python, the database, its schema, clocks, queues, workers, and the rules on small databases.

    Each line is ok, warn or fail, with the next step. Exits with 1 if a check fails. Changes nothing.
    """
    checks = list(_all(database, namespace))
    failed = any(c.verdict == FAIL for c in checks)
    if as_json:
        print_json({"database": absolute(database), "ok": not failed, "checks": checks})
    else:
        for c in checks:
            _print(c)
    if failed:
        ctx.exit(CHECK_FAILED)


def _print(c: DoctorCheck) -> None:
    """Print a check in one line that is never cut: its end says what to do."""
    from rich.text import Text

    text = one_line(f"{c.said}: {c.next_step}" if c.next_step else c.said)
    console().print(Text.assemble((f"{c.verdict:<6}", STATE_COLOURS[c.verdict]), f"{c.name:<10}", text), soft_wrap=True)


def _all(url: str, namespace: str) -> Iterator[DoctorCheck]:
    from onetray.domain.errors import OnetrayError

    yield from check_python()
    if url.startswith("sqlite"):
        yield from check_sqlite(None if ":memory:" in url else url)
    try:
        with opened_store(url, create=False) as store:
            yield DoctorCheck("database", OK, f"{absolute(url)} answers (from {source_of('database')})")
            yield from _database_checks(url, store, namespace)
    except DatabaseUnusable as e:
        yield DoctorCheck("database", FAIL, e.message)
    except OnetrayError as e:
        yield DoctorCheck("database", FAIL, str(e))


def _database_checks(url: str, store: Store, namespace: str) -> Iterator[DoctorCheck]:
    from onetray.engine import Engine
    from onetray.settings import load

    config = load().settings.engine
    if url.startswith("postgres"):
        yield from check_server(url, config.pooler)
    yield from check_disk(store)
    if store.dialect == "sqlite":
        yield check_integrity(store)
    schema = list(check_schema(store))
    yield from schema
    if any(c.verdict == FAIL for c in schema):
        return
    yield from check_clock(store)
    engine = Engine(store, config=config)
    try:
        yield from check_janitor(engine, namespace)
        yield from check_queues(engine, namespace)
        yield from check_workers(engine, namespace)
        yield from check_rules(store)
    finally:
        engine.close()


OK, WARN, FAIL = "ok", "warn", "fail"
OLDEST_PYTHON = (3, 11)
WAL_FIXED = (3, 51, 3)
"""Older SQLite libraries can, very rarely, damage a file that two connections write at once."""
OLDEST_SERVER = 14
MAX_SKEW_US = 1 * SECOND
MAX_OVERDUE_US = 60 * SECOND
MAX_QUEUED_US = 600 * SECOND
MAX_READY_KINDS = 1_000
"""How many queues and kinds with ready tasks are compared with what workers claim."""
MAX_MISSING = 10
"""How many lines about missing workers are printed."""
MIN_FREE_BYTES = 200_000_000
MAX_FILE_BYTES = 500_000_000
MAX_INTEGRITY_S = 5.0
MAX_VERIFIED_EVENTS = 200_000
"""A database with more events is not verified here: up to this it takes about a second."""


class DoctorCheck(NamedTuple):
    name: str
    verdict: str
    said: str
    next_step: str = ""


def check_python() -> Iterator[DoctorCheck]:
    version = sys.version.split()[0]
    if sys.version_info < OLDEST_PYTHON:
        yield DoctorCheck("python", FAIL, version, "install Python 3.11 or later")
    else:
        yield DoctorCheck("python", OK, version)


def check_sqlite(path: str | None) -> Iterator[DoctorCheck]:
    from onetray.store.server_facts import sqlite_library

    version = sqlite_library()
    library = f"SQLite {'.'.join(map(str, version))} of apsw"
    if version < WAL_FIXED:
        yield DoctorCheck("library", WARN, f"{library} has the WAL-reset bug", "pip install --upgrade apsw")
    else:
        yield DoctorCheck("library", OK, library)
    if path is None:
        yield DoctorCheck(
            "file", WARN, "a database in memory is lost when its process ends", "use a file: sqlite:///jobs.db"
        )


def check_disk(store: Store) -> Iterator[DoctorCheck]:
    from onetray.store.server_facts import free_bytes

    free = free_bytes(store)
    if free is not None:
        state = f"on a local disk, writable, {free // 1_000_000:,} MB free"
        if free < MIN_FREE_BYTES:
            yield DoctorCheck("file", WARN, state, "free some space: on a full disk every write fails")
        else:
            yield DoctorCheck("file", OK, state)


def check_integrity(store: Store) -> DoctorCheck:
    """Ask SQLite about its file, without the indexes, if that takes a moment only."""
    from onetray.store.server_facts import file_bytes

    damage = (
        store.integrity(full=False, limit_s=MAX_INTEGRITY_S) if (file_bytes(store) or 0) <= MAX_FILE_BYTES else None
    )
    if damage is None:
        return DoctorCheck("integrity", OK, "not checked: the file is large; run `onetray verify`")
    if damage:
        fix = "stop all processes that use it, and restore a backup; `onetray verify` lists more"
        return DoctorCheck("integrity", FAIL, f"SQLite finds the file damaged: {damage[0]}", fix)
    return DoctorCheck("integrity", OK, "SQLite finds the file intact")


def check_server(url: str, pooler: bool) -> Iterator[DoctorCheck]:
    from onetray.store.server_facts import server_facts

    facts = server_facts(url)
    version = f"PostgreSQL {facts.version // 10_000}.{facts.version % 10_000}"
    if facts.version // 10_000 < OLDEST_SERVER:
        yield DoctorCheck("server", FAIL, version, f"upgrade it to {OLDEST_SERVER} or later")
    else:
        yield DoctorCheck("server", OK, version)
    if facts.standby:
        yield DoctorCheck("writable", FAIL, "the server is a read-only standby", "connect to the primary")
    if not facts.fsync:
        yield DoctorCheck(
            "durable", FAIL, "fsync is off: a crash of the machine damages the database", "set fsync = on"
        )
    elif facts.synchronous_commit == "off":
        yield DoctorCheck(
            "durable",
            FAIL,
            "synchronous_commit is off: acknowledged writes may be lost in a crash",
            "set synchronous_commit = on for this user or database",
        )
    else:
        yield DoctorCheck("durable", OK, f"fsync is on, synchronous_commit is {facts.synchronous_commit}")
    yield _check_pooler(facts.behind_pooler, pooler)


def _check_pooler(is_pooled: bool, is_configured: bool) -> DoctorCheck:
    if is_pooled and not is_configured:
        return DoctorCheck(
            "pooler",
            WARN,
            "the connection goes through a pooler: prepared statements and LISTEN may fail",
            "set pooler = true under [engine] in onetray.toml, or connect directly",
        )
    if is_pooled:
        return DoctorCheck("pooler", OK, "the connection goes through a pooler, as configured: wake-ups by polling")
    return DoctorCheck("pooler", OK, "none: a direct connection")


def check_schema(store: Store) -> Iterator[DoctorCheck]:
    from onetray.store.schema import migrations

    actual, needed = store.version(), migrations()[-1]
    fix = f"run `onetray migrate --database {store.address}`"
    if actual < needed:
        yield DoctorCheck("schema", FAIL, f"at version {actual}, this onetray needs {needed}", fix)
    elif actual > needed:
        problem = f"at version {actual}, this onetray supports {needed}"
        yield DoctorCheck("schema", FAIL, problem, "install a newer onetray")
    else:
        yield DoctorCheck("schema", OK, f"at version {actual}")


_CLOCK_FIXES = {
    "postgres": "synchronize both with NTP: times that this host passes are wrong by as much",
    "sqlite": "a process with a wrong clock wrote to the file, or this host's clock was set back: use NTP. Until the "
    "clock has caught up, all processes use the database's time, which runs a tenth slower",
}


def check_clock(store: Store) -> Iterator[DoctorCheck]:
    before = time.time_ns() // 1000
    database_now = store.now()
    host_now = (before + time.time_ns() // 1000) // 2
    skew = database_now - host_now
    if abs(skew) > MAX_SKEW_US:
        side = "ahead of" if skew > 0 else "behind"
        problem = f"the database's clock is {duration(abs(skew))} {side} this host's"
        yield DoctorCheck("clock", WARN, problem, _CLOCK_FIXES[store.dialect])
    else:
        yield DoctorCheck("clock", OK, f"this host and the database agree to {max(abs(skew) // 1000, 1)} ms")


def check_janitor(engine: Engine, namespace: str) -> Iterator[DoctorCheck]:
    """Warn if due work is overdue, which means that no janitor runs. Without open tasks none is needed."""
    from onetray.engine.janitor import KNOWN

    now = engine.store.now()
    due = engine.store.read("next_due", known=list(KNOWN)) + engine.store.read("next_expiry")
    overdue = max((now - at for (at,) in due if at is not None), default=0)
    has_open = any(q.ready or q.delayed or q.held for q in engine.queues(namespace=namespace))
    if overdue > MAX_OVERDUE_US and has_open:
        problem = f"work has been due for {duration(overdue)}, and no janitor runs"
        yield DoctorCheck("janitor", WARN, problem, "run a worker: delays, retries and deadlines need one")
    else:
        yield DoctorCheck("janitor", OK, "nothing is overdue")


def check_queues(engine: Engine, namespace: str) -> Iterator[DoctorCheck]:
    now, is_fine = engine.store.now(), True
    for q in engine.queues(namespace=namespace):
        waited = now - q.oldest_ready_at if q.oldest_ready_at is not None else 0
        if q.paused_at is not None and q.ready:
            is_fine = False
            problem = f"{q.name} was paused by {q.paused_by} and has {counted(q.ready, 'ready task')}"
            yield DoctorCheck("queue", WARN, problem, f"to resume it: `onetray queues resume {q.name}`")
        elif waited > MAX_QUEUED_US and not q.held:
            is_fine = False
            waiting = f"{counted(q.ready, 'ready task')}, the oldest for {duration(waited)}"
            yield DoctorCheck("queue", WARN, f"{q.name} has {waiting}, and no worker holds any", "run a worker for it")
    if is_fine:
        yield DoctorCheck("queues", OK, "none is stuck")


def check_workers(engine: Engine, namespace: str) -> Iterator[DoctorCheck]:
    """Warn if no live worker claims the ready tasks of a queue, or those of a kind."""
    from onetray.explain.workers import RegisteredWorkers

    workers = RegisteredWorkers(engine.store, namespace)
    # By its text: "no worker is alive" is one line for all queues.
    missing = {m.problem: (queue, m) for queue, _, m in workers.all_missing(MAX_READY_KINDS)}
    for queue, m in list(missing.values())[:MAX_MISSING]:
        yield DoctorCheck("workers", WARN, f"{m.problem}, and queue {queue!r} has ready tasks", m.next_step)
    if len(missing) > MAX_MISSING:
        more = f"{len(missing) - MAX_MISSING:,} more queues and kinds have ready tasks that no registered worker claims"
        yield DoctorCheck("workers", WARN, more, "compare `onetray queues` with `onetray workers`")
    if not missing:
        yield DoctorCheck("workers", OK, f"{counted(workers.alive, 'worker')} alive")


def check_rules(store: Store) -> Iterator[DoctorCheck]:
    from onetray.verify import verify

    ((events,),) = store.read("count_first_events", rows=MAX_VERIFIED_EVENTS + 1)
    if events > MAX_VERIFIED_EVENTS:
        yield DoctorCheck(
            "rules",
            OK,
            f"not checked: more than {MAX_VERIFIED_EVENTS:,} events; run `onetray verify`",
        )
        return
    broken = verify(store).violations
    if broken:
        names = ", ".join(v.name for v in broken[:5])
        yield DoctorCheck("rules", FAIL, f"{counted(len(broken), 'check')} failed: {names}", "run `onetray verify`")
    else:
        yield DoctorCheck("rules", OK, f"all hold, over {counted(events, 'event')}")
