"""The verifier's passes stay cheap when PostgreSQL's statistics take full tables for empty ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from onetray.domain.commands import Claim, Submit, Succeed, ticket
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.engine import Engine
from onetray.store.postgres import PostgresStore
from onetray.verify.checks import COUNTS, passes
from tests.support.engines import engine_on

TABLES = ("task", "event_batch", "ready", "due", "lease")
TASKS = 1_000


def run(engine: Engine, commands: list[Any]) -> list[Any]:
    return [verdict.unwrap() for verdict in engine.run(commands)]


def submit_and_analyze_before_the_commit(engine: Engine, url: str) -> None:
    """Submit the first tasks, and take statistics while their rows are written and not committed."""
    with psycopg.connect(url) as writer, psycopg.connect(url, autocommit=True) as other:
        for table in TABLES:
            other.execute(f"ALTER TABLE onetray.{table} SET (autovacuum_enabled = false)".encode())
        engine.run([Submit(kind="noop") for _ in range(200)], connection=writer)
        for table in TABLES:
            other.execute(f"ANALYZE onetray.{table}".encode())
        found = other.execute(
            "SELECT relname FROM pg_class WHERE oid IN ('onetray.task'::regclass, 'onetray.event_batch'::regclass) "
            "AND reltuples = 0 AND relpages > 0"
        ).fetchall()
        assert len(found) == 2, "the statistics were not taken while the tables looked empty"


def handled(node: dict[str, Any]) -> Iterator[int]:
    """The rows that each step of a plan read, also those that it dropped."""
    dropped = sum(rows for name, rows in node.items() if name.startswith("Rows Removed by"))
    yield round((node["Actual Rows"] + dropped) * node["Actual Loops"])
    for below in node.get("Plans", []):
        yield from handled(below)


def test_no_pass_multiplies_tables_that_looked_empty(migrated_url: str) -> None:
    with engine_on(migrated_url) as engine:
        store = engine.store
        assert isinstance(store, PostgresStore)
        submit_and_analyze_before_the_commit(engine, migrated_url)
        run(engine, [Submit(kind="noop") for _ in range(TASKS - 200)])
        for n in range(40):
            flow = engine.submit_flow(f"f{n}", [StageSpec(name, [TaskSpec("x")] * 5) for name in "ab"])
            engine.pause_flow(flow.id)
            engine.resume_flow(flow.id)
            if n % 2:
                engine.cancel_flow(flow.id)
        for _ in range(6):
            (claimed,) = run(engine, [Claim(worker="w", limit=TASKS // 5)])
            run(engine, [Succeed(**ticket(a)) for a in claimed])
        with store.snapshot() as snapshot:
            (counts,) = snapshot.select(next(p.sql for p in passes("postgres") if p.name == COUNTS))
            rows = sum(counts.values())
            assert counts["events"] >= 3 * TASKS, counts
            for pass_ in passes("postgres"):
                if pass_.name != COUNTS:
                    ((plan,),) = (
                        found.values()
                        for found in snapshot.select(f"EXPLAIN (ANALYZE, FORMAT JSON) {pass_.first_broken()}")
                    )
                    most = sum(handled(plan[0]["Plan"]))
                    # A pass joins a handful of tables, and each step of it reads a table a few times at most.
                    assert most <= 20 * rows, (pass_.name, most, rows, plan)
