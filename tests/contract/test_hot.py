"""On PostgreSQL an update that fits on its page and touches no index is cheap. Those of tasks should be such."""

from __future__ import annotations

import time

import psycopg
import pytest

from onetray.commands import Claim, Submit, Succeed, ticket
from tests.support.engines import engine_on

TASKS = 2_000
PATIENCE_S = 30.0
COUNTS = """
SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = 'onetray' AND relname = 'task'
"""


@pytest.mark.parametrize("batch", [10, 100, 500])
def test_claims_and_reports_leave_every_index_of_the_tasks_alone(pg_url: str, batch: int) -> None:
    with engine_on(pg_url) as engine:
        for _ in range(TASKS // 200):
            engine.run([Submit(kind="mail", payload={"to": "ann"}) for _ in range(200)])
        while claimed := engine.run([Claim(worker="w", limit=batch)])[0].unwrap():
            engine.run([Succeed(**ticket(a)) for a in claimed])
    updated, hot = updates(pg_url)
    assert updated == 2 * TASKS
    assert hot / updated >= 0.9


def updates(url: str) -> tuple[int, int]:
    """How many rows were updated, and how many of them in the cheap way."""
    give_up_at, updated, hot = time.monotonic() + PATIENCE_S, 0, 0
    with psycopg.connect(url, autocommit=True) as connection:
        # Sessions write their counts down when they have ended.
        while updated < 2 * TASKS and time.monotonic() < give_up_at:
            connection.execute("SELECT pg_stat_clear_snapshot()")
            updated, hot = connection.execute(COUNTS).fetchall()[0]
    return updated, hot
