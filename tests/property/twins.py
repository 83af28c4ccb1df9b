"""One engine on each store and the model, driven with the same commands and compared after each.

Owns the translation between the model's numbers and the stores' keys, and what has to agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import orjson
import psycopg

from onetray.config import EngineConfig
from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Command
from onetray.domain.lifecycle import TASK
from onetray.domain.task import Assignment, Beaten, Receipt, Verdict
from onetray.domain.verbs import VERBS
from onetray.engine import Engine
from onetray.explain.tasks import is_claimable
from onetray.store import open_store
from tests.property.model import REPORTS, Answer, Cmd, Model, Task
from tests.support.engines import must_verify

SEED = 7
NOBODY = str(UUID(int=7 << 76 | 2 << 62))
TABLES = (
    "task", "ready", "lease", "waiting", "due", "event_batch", "flow_event", "event_page", "idempotency",
    "dead_letter", "log", "flow", "stage", "dependency", "context", "submit_window", "lane", "limit_bucket",
    "limit_rule", "lane_weight",
)  # fmt: skip
SEQUENCES = ("entity_key", "lease_key", "event_id", "lane_key")
CONFIG = EngineConfig(committers=1)

ROWS = """
SELECT t.key, CAST(t.id AS text), t.state, t.version, t.fence, t.attempts, t.max_attempts, t.spared, t.priority,
    t.run_at, t.owner, l.expires_at, t.cancel_at, t.held_by, CASE WHEN r.task IS NULL THEN 0 ELSE 1 END,
    t.created_at, t.updated_at, t.started_at, t.finished_at, t.result, t.error
FROM onetray.task AS t LEFT JOIN onetray.lease AS l ON l.key = t.lease
    LEFT JOIN onetray.ready AS r ON r.queue = coalesce(-t.lane, t.queue) AND r.rank = -t.priority AND r.task = t.key
ORDER BY t.key
"""
EVENTS = """
SELECT id, entity, version, type, was, state, fence, attempts, ts, actor, cause, payload
FROM onetray.event WHERE id > :after ORDER BY entity, id
"""
LETTERS = """
SELECT task, created_at, reason_code, stage, last_error, attempts, last_owner, last_lease_expires_at, payload_hash,
    successor FROM onetray.dead_letter ORDER BY task
"""
DUE = "SELECT at, task, what, fence FROM onetray.due ORDER BY at, task, what"
STRAYS = """
SELECT (SELECT count(*) FROM onetray.ready) - (SELECT count(*) FROM onetray.ready AS r JOIN onetray.task AS t
    ON t.key = r.task AND r.queue = coalesce(-t.lane, t.queue) AND r.rank = -t.priority AND r.kind = t.kind
    AND t.state = :queued)
"""


_EMPTY = ";".join(
    [f"DELETE FROM onetray.{table}" for table in TABLES]
    + [f"ALTER SEQUENCE onetray.{sequence} RESTART" for sequence in SEQUENCES]
    + ["UPDATE onetray.queue SET paused_at = NULL, paused_by = NULL WHERE paused_at IS NOT NULL"]
)


class Hand(VirtualClock):
    """A clock that is set by hand, to the microsecond."""

    def set(self, at: int) -> None:
        assert at >= self._now
        self._now = at


class Store:
    """One engine, and what was seen of it so far."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name, self.engine = name, engine
        self.rows: list[tuple[Any, ...]] = []
        self.last_event = 0
        self.replayed: dict[int, tuple[Any, ...]] = {}

    def read(self, sql: str, **params: Any) -> list[tuple[Any, ...]]:
        return self.engine.store.read_sql(sql, **params)

    def look(self) -> list[tuple[Any, ...]]:
        """Read the rows and the new events; the log must replay to the rows."""
        self.rows = self.read(ROWS)
        fresh = self.read(EVENTS, after=self.last_event)
        self.last_event = max([self.last_event, *(e[0] for e in fresh)])
        for e in fresh:
            self._replay(e)
        for row in self.rows:
            key, state, version, fence, attempts = row[0], row[2], row[3], row[4], row[5]
            assert self.replayed[key] == (state, version, fence, attempts), (self.name, row, self.replayed[key])
        return [(*e[1:-1], orjson.loads(e[-1]) if e[-1] else None) for e in fresh]

    def _replay(self, event: tuple[Any, ...]) -> None:
        _, entity, version, type_, was, state, fence, attempts, _, actor, _, _ = event
        if version is None:
            return
        before = self.replayed.get(entity)
        (transition,) = [t for t in TASK.transitions if t.event == type_]
        assert actor.partition(":")[0] in transition.by, event
        if before is None:
            assert (was, version, fence, transition.creates) == (None, 1, 1, True), event
        else:
            assert was == before[0], (event, before)
            assert was in transition.sources, event
            assert version == before[1] + 1, (event, before)
            assert fence == before[2] + transition.reopens, (event, before)
            assert (fence, TASK.ranks[state]) > (before[2], TASK.ranks[was]), (event, before)
        assert state == transition.target, event
        self.replayed[entity] = (state, version, fence, attempts)

    def command(self, c: Cmd, task: Task | None) -> Command:
        args = dict(c.args)
        if c.verb not in ("submit", "claim"):
            row = self.rows[c.task] if c.task is not None else (0, NOBODY)
            # Those who claimed it know its key, everybody else its id.
            args["task"] = row[0] if c.verb in REPORTS and c.task is not None and task and task.owner else row[1]
        return VERBS[c.verb](**args)

    def answer(self, verdict: Verdict) -> Answer:
        if verdict.error is not None:
            return Answer(False, verdict.error.code)
        value = verdict.value
        number = {row[1]: n for n, row in enumerate(self.rows)}
        if isinstance(value, Receipt):
            of = None if value.id is None else number[value.id]
            return Answer(True, None, value.state, value.version, value.fence, value.repeated, of)
        if isinstance(value, list):
            assert all(isinstance(a, Assignment) for a in value)
            return Answer(True, value=[(number[a.id], a.fence, a.attempt, a.lease_expires_at) for a in value])
        return Answer(True, value=value.lease_expires_at if isinstance(value, Beaten) else None)


class Twins:
    def __init__(self, stores: list[Store], clock: Hand) -> None:
        self.stores, self.clock = stores, clock
        self.model = Model(clock.now())

    def run(self, batch: list[Cmd]) -> list[Answer]:
        """Carry out one batch everywhere; answers, rows and events must agree."""
        about = [self.model.tasks[c.task] if c.task is not None else None for c in batch]
        told = {s.name: s.engine.run([s.command(c, t) for c, t in zip(batch, about, strict=True)]) for s in self.stores}
        expected = self.model.run(batch)
        self.compare()
        for store in self.stores:
            got = [store.answer(v) for v in told[store.name]]
            for c, mine, real in zip(batch, expected, got, strict=True):
                assert real == mine, f"{store.name} and the model differ on {c}: {real} instead of {mine}"
        return expected

    def compare(self) -> None:
        first, *others = [(s.look(), s.rows) for s in self.stores]
        for events, rows in others:
            assert events == first[0], _differing(first[0], events)
            mine, theirs = [_without_id(r) for r in first[1]], [_without_id(r) for r in rows]
            assert theirs == mine, _differing(mine, theirs)
        assert len(first[1]) == len(self.model.tasks)
        for task, row in zip(self.model.tasks, first[1], strict=True):
            adopt_chance(task, row)
            assert as_row(task) == row[2:15], f"task {task.number}: {row[2:15]} instead of {as_row(task)}"

    def expire_leases(self) -> None:
        for s in self.stores:
            s.engine.expire_leases()
        self.model.expire_leases()
        self.compare()

    def do_due(self) -> None:
        for s in self.stores:
            s.engine.do_due()
        self.model.do_due()
        self.compare()

    def set_paused(self, queue: str, paused: bool) -> None:
        for s in self.stores:
            if paused:
                s.engine.pause_queue(queue, by="ann")
            else:
                s.engine.resume_queue(queue)
        (self.model.paused.add if paused else self.model.paused.discard)(queue)

    def jump(self, us: int) -> None:
        self.clock.set(self.clock.now() + us)
        self.model.now = self.clock.now()

    def finish(self) -> None:
        """What need not be looked at after each step, and that nothing stays stuck."""
        self._explained()
        self._side_rows()
        for _ in ("leases run out, and some back off", "their time comes"):
            self.jump(600 * 1_000_000)
            self.expire_leases()
            self.do_due()
        for task in self.model.tasks:
            assert task.state != "queued" or task.ready
            assert task.state not in ("assigned", "running")
        self._side_rows()
        # The rows of the stores are equal by now: one of them is enough.
        must_verify(self.stores[0].engine)

    def _explained(self) -> None:
        free = {t.number for queue in {t.queue for t in self.model.tasks} for t in self.model.claimable(queue)}
        for s in self.stores:
            clear = {n for n, row in enumerate(s.rows) if is_claimable(s.engine.explain(row[1]))}
            assert clear == free, (s.name, clear, free)

    def _side_rows(self) -> None:
        letters, dues = [s.read(LETTERS) for s in self.stores], [s.read(DUE) for s in self.stores]
        assert all(found == letters[0] for found in letters)
        assert all(found == dues[0] for found in dues)
        number = {row[0]: n for n, row in enumerate(self.stores[0].rows)}
        expected = {t.number: t.reason_code for t in self.model.tasks if t.state == "dead_lettered"}
        assert {number[d[0]]: d[2] for d in letters[0]} == expected
        for s in self.stores:
            assert s.read(STRAYS, queued="queued") == [(0,)]


def _differing(mine: list[Any], theirs: list[Any]) -> str:
    only = [x for x in mine if x not in theirs], [x for x in theirs if x not in mine]
    return f"the stores differ: only the first has {only[0]}, only the other {only[1]}"


def _without_id(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row[0], *row[2:]


def adopt_chance(task: Task, row: tuple[Any, ...]) -> None:
    if task.run_between is not None:
        low, high = task.run_between
        assert low <= row[9] <= high, (task, row)
        task.run_at = row[9]
    task.run_between = None


def as_row(t: Task) -> tuple[Any, ...]:
    until = t.lease.expires_at if t.lease is not None else None
    return (
        t.state, t.version, t.fence, t.attempts, t.policy.max_attempts, t.spared, t.priority, t.run_at, t.owner, until,
        t.cancel_at, t.held_by, int(t.ready),
    )  # fmt: skip


class Pair:
    """Two engines for many examples: emptied between them, because a new database costs far more."""

    def __init__(self, pg_url: str) -> None:
        self.clock = Hand()
        self._admin = psycopg.connect(pg_url, autocommit=True)
        # Durability has its own tests; here it would only cost time.
        self._admin.execute("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', "
                            "current_database()); END $$")  # fmt: skip
        self.engines = {name: self._engine(url) for name, url in (("sqlite", "sqlite://:memory:"), ("pg", pg_url))}

    def _engine(self, url: str) -> Engine:
        store = open_store(url, self.clock)
        store.migrate()
        return Engine(store, seed=SEED, config=CONFIG)

    def fresh(self) -> Twins:
        """Empty both: tasks and all that belongs to them go; the dictionaries stay, and so does what is cached."""
        self._admin.execute(_EMPTY.encode())
        pg: Any = self.engines["pg"].store
        pg.low_water.clear()
        pg.lease_keys.clear()  # The sequence starts again, too.
        lite = self.engines["sqlite"].store
        with lite.transaction() as tx:
            for table in TABLES:
                tx._connection.execute(f"DELETE FROM {table}")  # type: ignore[attr-defined]
            tx._connection.execute("UPDATE counter SET value = 0")  # type: ignore[attr-defined]
            tx.last_key = 0  # type: ignore[attr-defined]
            tx._connection.execute("UPDATE queue SET paused_at = NULL, paused_by = NULL")  # type: ignore[attr-defined]
        for engine in self.engines.values():
            engine._rng.seed(SEED)
        return Twins([Store(name, engine) for name, engine in self.engines.items()], self.clock)

    def verify(self) -> None:
        for engine in self.engines.values():
            must_verify(engine)

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()
        self._admin.close()


@contextmanager
def pair(pg_url: str) -> Iterator[Pair]:
    both = Pair(pg_url)
    try:
        yield both
    finally:
        both.close()


__all__ = ["Hand", "Pair", "Store", "Twins", "pair"]
