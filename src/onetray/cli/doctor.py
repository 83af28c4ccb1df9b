"""`onetray doctor`: look the set-up over, and say what to do about what is wrong.

Owns the order, in which what the rest needs is checked first, and one function for each concern.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from onetray.cli import FOUND, DatabaseUnusable
from onetray.cli.options import common, opened_store, without_password
from onetray.cli.output import console, print_json
from onetray.cli.tables import STATE_COLOURS, one_line

if TYPE_CHECKING:
    from onetray.store.base import Store


import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from onetray.cli.format import counted, duration
from onetray.domain.clock import SECOND

if TYPE_CHECKING:
    from onetray.engine import Engine
    from onetray.store.base import Store


@click.command(short_help="Look the set-up over, and say what to do.")
@common
@click.pass_context
def doctor(ctx: click.Context, database: str, namespace: str, as_json: bool) -> None:
    """Look the set-up over: Python, the database, its schema, clocks, queues, and the rules on small databases.

    Each line is ok, warn or fail, with the next step. Exits with 1 when one is fail. Changes nothing.
    """
    found = list(_all(database, namespace))
    failed = any(c.verdict == FAIL for c in found)
    if as_json:
        print_json({"database": without_password(database), "ok": not failed, "checks": found})
    else:
        for c in found:
            _print(c)
    if failed:
        ctx.exit(FOUND)


def _print(c: DoctorCheck) -> None:
    """One line, never shortened: what to do stands at its end."""
    from rich.text import Text

    said = one_line(f"{c.said}: {c.next_step}" if c.next_step else c.said)
    console().print(Text.assemble((f"{c.verdict:<6}", STATE_COLOURS[c.verdict]), f"{c.name:<10}", said), soft_wrap=True)


def _all(url: str, namespace: str) -> Iterator[DoctorCheck]:
    from onetray.domain.errors import OnetrayError

    yield from check_python()
    if url.startswith("sqlite"):
        yield from check_sqlite(None if ":memory:" in url else url)
    try:
        with opened_store(url, create=False) as store:
            yield DoctorCheck("database", OK, f"{without_password(url)} answers")
            yield from _inside(url, store, namespace)
    except DatabaseUnusable as e:
        yield DoctorCheck("database", FAIL, e.message)
    except OnetrayError as e:
        yield DoctorCheck("database", FAIL, str(e))


def _inside(url: str, store: Store, namespace: str) -> Iterator[DoctorCheck]:
    from onetray.engine import Engine
    from onetray.settings import load

    config = load().settings.engine
    if url.startswith("postgres"):
        yield from check_server(url, config.pooler)
    yield from check_room(store)
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
WAL_MENDED = (3, 51, 3)
"""Older SQLite libraries can, very rarely, damage a file that two connections write at once."""
OLDEST_SERVER = 14
SKEW_US = 1 * SECOND
LATE_US = 60 * SECOND
LEFT_LYING_US = 600 * SECOND
ROOM_BYTES = 200_000_000
SMALL = 200_000
"""Events of a database that is verified along the way: about a second's work."""


class DoctorCheck(NamedTuple):
    name: str
    verdict: str
    said: str
    next_step: str = ""


def check_python() -> Iterator[DoctorCheck]:
    said = sys.version.split()[0]
    if sys.version_info < OLDEST_PYTHON:
        yield DoctorCheck("python", FAIL, said, "install Python 3.11 or later")
    else:
        yield DoctorCheck("python", OK, said)


def check_sqlite(path: str | None) -> Iterator[DoctorCheck]:
    from onetray.store.server_facts import sqlite_library

    version = sqlite_library()
    said = f"SQLite {'.'.join(map(str, version))}, by apsw"
    if version < WAL_MENDED:
        yield DoctorCheck("library", WARN, f"{said}, has the WAL-reset bug", "pip install --upgrade apsw")
    else:
        yield DoctorCheck("library", OK, said)
    if path is None:
        yield DoctorCheck(
            "file", WARN, "a database in memory is gone with its process", "name a file: sqlite:///jobs.db"
        )


def check_room(store: Store) -> Iterator[DoctorCheck]:
    from onetray.store.server_facts import free_bytes

    free = free_bytes(store)
    if free is not None:
        said = f"on a local disk, writable, {free // 1_000_000:,} MB free"
        if free < ROOM_BYTES:
            yield DoctorCheck("file", WARN, said, "make room: a full disk refuses every write")
        else:
            yield DoctorCheck("file", OK, said)


def check_server(url: str, pooler: bool) -> Iterator[DoctorCheck]:
    from onetray.store.server_facts import server_facts

    facts = server_facts(url)
    said = f"PostgreSQL {facts.version // 10_000}.{facts.version % 10_000}"
    if facts.version // 10_000 < OLDEST_SERVER:
        yield DoctorCheck("server", FAIL, said, f"upgrade it to {OLDEST_SERVER} or later")
    else:
        yield DoctorCheck("server", OK, said)
    if facts.standby:
        yield DoctorCheck("writable", FAIL, "this is a standby: it may only be read", "connect to the primary")
    if not facts.fsync:
        yield DoctorCheck(
            "durable", FAIL, "fsync is off: a crash of the machine damages the database", "set fsync = on"
        )
    elif facts.synchronous_commit == "off":
        yield DoctorCheck(
            "durable",
            FAIL,
            "synchronous_commit is off: what was acknowledged may be lost in a crash",
            "set synchronous_commit = on for this user or database",
        )
    else:
        yield DoctorCheck("durable", OK, f"fsync is on, synchronous_commit is {facts.synchronous_commit}")
    yield _pooled(facts.behind_pooler, pooler)


def _pooled(behind: bool, told: bool) -> DoctorCheck:
    if behind and not told:
        return DoctorCheck(
            "pooler",
            WARN,
            "a pooler stands in between: prepared statements and LISTEN may fail",
            "set pooler = true under [engine] in onetray.toml, or connect directly",
        )
    if behind:
        return DoctorCheck("pooler", OK, "a pooler stands in between, and the settings say so: wake-ups are by polling")
    return DoctorCheck("pooler", OK, "none: a direct connection")


def check_schema(store: Store) -> Iterator[DoctorCheck]:
    from onetray.store.schema import migrations

    have, want = store.version(), migrations()[-1]
    if have < want:
        yield DoctorCheck("schema", FAIL, f"at version {have}, this onetray needs {want}", "run `onetray migrate`")
    elif have > want:
        yield DoctorCheck("schema", FAIL, f"at version {have}, this onetray knows {want}", "install a newer onetray")
    else:
        yield DoctorCheck("schema", OK, f"at version {have}")


_OF_CLOCKS = {
    "postgres": "set both by NTP: times that this host gives are off by as much",
    "sqlite": "a process with a wrong clock has written to it, or this one was set back: set the clock by NTP. Until "
    "it has caught up, all go by the database's time, which is a tenth slower",
}


def check_clock(store: Store) -> Iterator[DoctorCheck]:
    before = time.time_ns() // 1000
    theirs = store.now()
    ours = (before + time.time_ns() // 1000) // 2
    skew = theirs - ours
    if abs(skew) > SKEW_US:
        side = "ahead of" if skew > 0 else "behind"
        said = f"the database is {duration(abs(skew))} {side} this host"
        yield DoctorCheck("clock", WARN, said, _OF_CLOCKS[store.dialect])
    else:
        yield DoctorCheck("clock", OK, f"this host and the database agree to {max(abs(skew) // 1000, 1)} ms")


def check_janitor(engine: Engine, namespace: str) -> Iterator[DoctorCheck]:
    """What is long due tells that nobody sweeps. Where no task is open, nobody needs to."""
    from onetray.engine.janitor import KNOWN

    now = engine.store.now()
    waiting = engine.store.read("next_due", known=list(KNOWN)) + engine.store.read("next_expiry")
    late = max((now - at for (at,) in waiting if at is not None), default=0)
    open_ = any(q.ready or q.delayed or q.held for q in engine.queues(namespace=namespace))
    if late > LATE_US and open_:
        said = f"something is due since {duration(late)}, and nobody sweeps"
        yield DoctorCheck("janitor", WARN, said, "run a worker; delays, retries and deadlines wait for one")
    else:
        yield DoctorCheck("janitor", OK, "nothing is overdue")


def check_queues(engine: Engine, namespace: str) -> Iterator[DoctorCheck]:
    now, fine = engine.store.now(), True
    for q in engine.queues(namespace=namespace):
        lies = now - q.oldest_ready_at if q.oldest_ready_at is not None else 0
        if q.paused_at is not None and q.ready:
            fine = False
            said = f"{q.name} is paused by {q.paused_by} with {counted(q.ready, 'ready task')}"
            yield DoctorCheck("queue", WARN, said, f"when it may go on: `onetray queues resume {q.name}`")
        elif lies > LEFT_LYING_US and not q.held:
            fine = False
            waiting = f"{counted(q.ready, 'ready task')}, the oldest since {duration(lies)}"
            said = f"{q.name} has {waiting}, and nobody works on it"
            yield DoctorCheck("queue", WARN, said, "run a worker for it")
    if fine:
        yield DoctorCheck("queues", OK, "none lies still")


def check_workers(engine: Engine, namespace: str) -> Iterator[DoctorCheck]:
    """Whether somebody takes what is ready. A worker may be alive and listen elsewhere."""
    waiting = [q.name for q in engine.queues(namespace=namespace) if q.ready]
    alive = [w for w in engine.workers(namespace=namespace) if w.alive]
    taken = {queue for w in alive for queue in w.queues}
    lost = [name for name in waiting if name not in taken]
    if waiting and not alive:
        yield DoctorCheck("workers", WARN, "no worker is alive, and tasks are ready", "run a worker")
    elif lost:
        yield DoctorCheck("workers", WARN, f"no living worker takes from {', '.join(lost[:10])}", "run one for it")
    else:
        yield DoctorCheck("workers", OK, f"{counted(len(alive), 'worker')} alive")


def check_rules(store: Store) -> Iterator[DoctorCheck]:
    from onetray.verify import verify

    ((events,),) = store.read("last_event_id")
    if events > SMALL:
        yield DoctorCheck(
            "rules", OK, f"not checked: {events:,} events are too many for a quick look; see `onetray verify`"
        )
        return
    broken = verify(store).violations
    if broken:
        names = ", ".join(v.name for v in broken[:5])
        yield DoctorCheck("rules", FAIL, f"{counted(len(broken), 'check')} failed: {names}", "run `onetray verify`")
    else:
        yield DoctorCheck("rules", OK, f"all kept, over {counted(events, 'event')}")
