"""PostgreSQL with statistics from a moment in which all tables were empty: a burst of tasks is claimed and reported row
by row, and not by a look at all tasks for each of them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from onetray.domain.commands import Claim, Submit, Succeed, ticket
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.store import postgres
from onetray.store.pg_connections import WarmPool
from tests.support.engines import engine_on
from tests.support.waits import wait_until

MANY, BATCH, KINDS = 2_000, 500, ("mail", "text")
READS = """
SELECT coalesce(sum(idx_tup_fetch), 0), coalesce(sum(seq_tup_read), 0), coalesce(sum(n_tup_upd), 0)
FROM pg_stat_user_tables WHERE relid = 'onetray.task'::regclass
"""
TABLES = ("task", "ready", "lease", "event_batch", "flow", "stage", "flow_event", "lane", "limit_bucket")


def submit(engine: Engine, case: str) -> None:
    if case == "members of flows":
        for _ in range(MANY // BATCH):
            engine.submit_flow("f", [StageSpec("only", [TaskSpec("mail", {"n": n}) for n in range(BATCH)])])
        return
    if case == "under a limit":
        engine.declare(dict.fromkeys(KINDS, Policy(concurrency=(Concurrency(BATCH, key="tenant"),))))
    for verdict in engine.run([Submit(kind=KINDS[n % 2], payload={"tenant": n % 3}) for n in range(MANY)]):
        verdict.unwrap()


def drain(engine: Engine, case: str) -> int:
    done = 0
    of_kinds: dict[str, Any] = {"kinds": KINDS} if case == "of two kinds" else {}
    while claimed := engine.call(Claim(worker="w", limit=BATCH, **of_kinds)):
        for verdict in engine.run([Succeed(**ticket(a)) for a in claimed]):
            verdict.unwrap()
        done += len(claimed)
    return done


@pytest.fixture(autouse=True)
def connections_end_with_their_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then they say what they have read: those that outlive a test do so later."""
    monkeypatch.setattr(postgres, "WarmPool", WarmPool)


@pytest.mark.parametrize("case", ["single tasks", "of two kinds", "under a limit", "members of flows"])
def test_no_task_costs_a_look_at_all_others(migrated_url: str, case: str) -> None:
    with psycopg.connect(migrated_url, autocommit=True) as admin:

        def reads_of_a_burst() -> int:
            """How many rows of tasks are read while so many are submitted, claimed and reported."""
            admin.execute("SELECT pg_stat_reset_single_table_counters('onetray.task'::regclass)")
            with Engine.open(migrated_url) as engine:
                submit(engine, case)
                assert drain(engine, case) == MANY
            # Each task was updated twice.
            wait_until(lambda: counts()[2] >= 2 * MANY)
            return counts()[0] + counts()[1]

        def counts() -> tuple[int, int, int]:
            by_index, by_scan, updated = admin.execute(READS.encode()).fetchall()[0]
            return int(by_index), int(by_scan), int(updated)

        usual = reads_of_a_burst()
        for table in TABLES:
            admin.execute(f"DELETE FROM onetray.{table}".encode())
        # All pages are there, and no row: what autovacuum may find between two bursts.
        admin.execute("ANALYZE")
        assert reads_of_a_burst() < usual + 30 * MANY
        with engine_on(migrated_url):
            pass  # It verifies what was written.
