"""What `onetray doctor` looks at, one function for each concern.

Owns the verdicts: ok, warn (it works, and may bite you), fail (it does not work). What is not ok says what to do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from onetray.cli.words import count, span
from onetray.clock import SECOND

if TYPE_CHECKING:
    from onetray.engine import Engine
    from onetray.store.base import Store

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


class Check(NamedTuple):
    name: str
    verdict: str
    said: str
    next_step: str = ""


def check_python() -> Iterator[Check]:
    said = sys.version.split()[0]
    if sys.version_info < OLDEST_PYTHON:
        yield Check("python", FAIL, said, "install Python 3.11 or later")
    else:
        yield Check("python", OK, said)


def check_sqlite(path: str | None) -> Iterator[Check]:
    from onetray.store.condition import sqlite_library

    version = sqlite_library()
    said = f"SQLite {'.'.join(map(str, version))}, by apsw"
    if version < WAL_MENDED:
        yield Check("library", WARN, f"{said}, has the WAL-reset bug", "pip install --upgrade apsw")
    else:
        yield Check("library", OK, said)
    if path is None:
        yield Check("file", WARN, "a database in memory is gone with its process", "name a file: sqlite:///jobs.db")


def check_room(store: Store) -> Iterator[Check]:
    from onetray.store.condition import free_bytes

    free = free_bytes(store)
    if free is not None:
        said = f"on a local disk, writable, {free // 1_000_000:,} MB free"
        if free < ROOM_BYTES:
            yield Check("file", WARN, said, "make room: a full disk refuses every write")
        else:
            yield Check("file", OK, said)


def check_server(url: str, pooler: bool) -> Iterator[Check]:
    from onetray.store.condition import server_facts

    facts = server_facts(url)
    said = f"PostgreSQL {facts.version // 10_000}.{facts.version % 10_000}"
    if facts.version // 10_000 < OLDEST_SERVER:
        yield Check("server", FAIL, said, f"upgrade it to {OLDEST_SERVER} or later")
    else:
        yield Check("server", OK, said)
    if facts.standby:
        yield Check("writable", FAIL, "this is a standby: it may only be read", "connect to the primary")
    if not facts.fsync:
        yield Check("durable", FAIL, "fsync is off: a crash of the machine damages the database", "set fsync = on")
    elif facts.synchronous_commit == "off":
        yield Check(
            "durable",
            FAIL,
            "synchronous_commit is off: what was acknowledged may be lost in a crash",
            "set synchronous_commit = on for this user or database",
        )
    else:
        yield Check("durable", OK, f"fsync is on, synchronous_commit is {facts.synchronous_commit}")
    yield _pooled(facts.behind_pooler, pooler)


def _pooled(behind: bool, told: bool) -> Check:
    if behind and not told:
        return Check(
            "pooler",
            WARN,
            "a pooler stands in between: prepared statements and LISTEN may fail",
            "set pooler = true under [engine] in onetray.toml, or connect directly",
        )
    if behind:
        return Check("pooler", OK, "a pooler stands in between, and the settings say so: wake-ups are by polling")
    return Check("pooler", OK, "none: a direct connection")


def check_schema(store: Store) -> Iterator[Check]:
    from onetray.store.sqltext import migrations

    have, want = store.version(), migrations(store.dialect)[-1]
    if have < want:
        yield Check("schema", FAIL, f"at version {have}, this onetray needs {want}", "run `onetray migrate`")
    elif have > want:
        yield Check("schema", FAIL, f"at version {have}, this onetray knows {want}", "install a newer onetray")
    else:
        yield Check("schema", OK, f"at version {have}")


_OF_CLOCKS = {
    "postgres": "set both by NTP: times that this host gives are off by as much",
    "sqlite": "a process with a wrong clock has written to it, or this one was set back: set the clock by NTP. Until "
    "it has caught up, all go by the database's time, which is a tenth slower",
}


def check_clock(store: Store) -> Iterator[Check]:
    before = time.time_ns() // 1000
    theirs = store.now()
    ours = (before + time.time_ns() // 1000) // 2
    skew = theirs - ours
    if abs(skew) > SKEW_US:
        side = "ahead of" if skew > 0 else "behind"
        said = f"the database is {span(abs(skew))} {side} this host"
        yield Check("clock", WARN, said, _OF_CLOCKS[store.dialect])
    else:
        yield Check("clock", OK, f"this host and the database agree to {max(abs(skew) // 1000, 1)} ms")


def check_janitor(engine: Engine, namespace: str) -> Iterator[Check]:
    """What is long due tells that nobody sweeps. Where no task is open, nobody needs to."""
    from onetray.engine.janitor import KNOWN

    now = engine.store.now()
    waiting = [engine.store.read("next_due", known=list(KNOWN))[0][0], engine.store.read("next_expiry")[0][0]]
    late = max((now - at for at in waiting if at is not None), default=0)
    open_ = any(q.ready or q.delayed or q.held for q in engine.queues(namespace=namespace))
    if late > LATE_US and open_:
        said = f"something is due since {span(late)}, and nobody sweeps"
        yield Check("janitor", WARN, said, "run a worker; delays, retries and deadlines wait for one")
    else:
        yield Check("janitor", OK, "nothing is overdue")


def check_queues(engine: Engine, namespace: str) -> Iterator[Check]:
    now, fine = engine.store.now(), True
    for q in engine.queues(namespace=namespace):
        lies = now - q.oldest_ready_at if q.oldest_ready_at is not None else 0
        if q.paused_at is not None and q.ready:
            fine = False
            said = f"{q.name} is paused by {q.paused_by} with {count(q.ready, 'ready task')}"
            yield Check("queue", WARN, said, f"when it may go on: `onetray queues resume {q.name}`")
        elif lies > LEFT_LYING_US and not q.held:
            fine = False
            said = f"{q.name} has {count(q.ready, 'ready task')}, the oldest since {span(lies)}, and nobody works on it"
            yield Check("queue", WARN, said, "run a worker for it")
    if fine:
        yield Check("queues", OK, "none lies still")


def check_workers(engine: Engine, namespace: str) -> Iterator[Check]:
    """Whether somebody takes what is ready. A worker may be alive and listen elsewhere."""
    waiting = [q.name for q in engine.queues(namespace=namespace) if q.ready]
    alive = [w for w in engine.workers(namespace=namespace) if w.alive]
    taken = {queue for w in alive for queue in w.queues}
    lost = [name for name in waiting if name not in taken]
    if waiting and not alive:
        yield Check("workers", WARN, "no worker is alive, and tasks are ready", "run a worker")
    elif lost:
        yield Check("workers", WARN, f"no living worker takes from {', '.join(lost[:10])}", "run one for it")
    else:
        yield Check("workers", OK, f"{count(len(alive), 'worker')} alive")


def check_rules(store: Store) -> Iterator[Check]:
    from onetray.verify import verify

    events = int(store.read("last_event_id")[0][0])
    if events > SMALL:
        yield Check("rules", OK, f"not checked: {events:,} events are too many for a quick look; see `onetray verify`")
        return
    broken = verify(store).violations
    if broken:
        names = ", ".join(v.name for v in broken[:5])
        yield Check("rules", FAIL, f"{count(len(broken), 'check')} failed: {names}", "run `onetray verify`")
    else:
        yield Check("rules", OK, f"all kept, over {count(events, 'event')}")
