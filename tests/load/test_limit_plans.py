"""The statements of limits find their rows by an index, however many lanes are blocked and tasks held back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.store import open_store
from onetray.store.base import Store
from onetray.store.sql_template import POSTGRES, SQLITE
from tests.support.cluster import Server
from tests.support.plans import on_postgres, on_sqlite

LANES, BEHIND = 20_000, 50_000
FILL = (
    """INSERT INTO onetray.lane (key, ns, queue, kind, value, fair, state, rank, turn, blocked_on)
    SELECT n + 100, ns, queue, kind, CAST(n AS text), CAST(n AS text), CASE WHEN n % 100 = 0 THEN 1 ELSE 2 END, 0, n,
        CASE WHEN n % 100 = 0 THEN NULL ELSE n + 1000000 END FROM onetray.lane CROSS JOIN {numbers} WHERE key = 1""",
    """INSERT INTO onetray.limit_bucket (key, rule, value, running)
    SELECT n + 1000000, (SELECT min(key) FROM onetray.limit_rule), CAST(n AS text), 1 FROM {numbers}""",
    """INSERT INTO onetray.ready (queue, rank, task, kind)
    SELECT -101, 0, n + 2000000, 1 FROM {behind}""",
    """INSERT INTO onetray.ready (queue, rank, task, kind)
    SELECT -(n + 100), 0, n + 3000000, 1 FROM {numbers} WHERE n > 1""",
    """INSERT INTO onetray.ready (queue, rank, task, kind)
    SELECT 1, 0, n + 4000000, 2 FROM {behind}""",
)
SERIES = {
    POSTGRES: "generate_series(1, {}) AS g(n)",
    SQLITE: "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {}) SELECT n FROM s)",
}
KEYS = list(range(200, 20_100, 100))[:100]
COUNTERS = [key - 100 + 1_000_000 for key in range(301, 401)]
SCOPE = {"ns": 1, "queue": 1}
EACH = {"limit": 3, "limits": [3] * 100}
STATEMENTS: dict[str, dict[str, Any]] = {
    "open_lane_kinds": {"queue": 1},
    "ready_kinds_of_queue": {"queue": 1},
    "peek_buckets": SCOPE,
    "lock_open_lanes": {"queue": 1, "kind": 1, "limit": 100, "but": KEYS[:3]},
    "heads_of_open_lanes": {"queue": 1, "kind": 1, "limit": 100, "but": []},
    "lock_lanes_by_key": {"keys": KEYS},
    "lock_open_lane": {"key": 200},
    "claim_lanes": {"keys": KEYS, **EACH},
    "first_keys_of_lanes": {"lanes": KEYS, "limit": 3},
    "claim_tasks": {"keys": KEYS},
    "heads_of_lanes": {"lanes": KEYS},
    "lock_empty_lanes": {"keys": KEYS},
    "lock_blocked_lanes": {"keys": COUNTERS, **EACH},
    "still_blocked": {"keys": COUNTERS},
    "lock_buckets": {"keys": COUNTERS},
    "lock_free_buckets": {"keys": COUNTERS},
    "share_lanes": {"keys": KEYS},
    "lock_lanes_to_open": {"keys": KEYS},
    "find_lanes": {"queue": 1, "kind": 1, "values": [str(n) for n in range(100)]},
    "buckets_of_values": {"rule": [1] * 100, "value": [str(n) for n in range(100)]},
    "first_turns": {"key": KEYS, "queue": [1] * 100, "kind": [1] * 100, "rank": [0] * 100},
    "enter_lanes": {"key": KEYS, "lane_state": 1, "rank": 0, "turn": KEYS},
    "set_lanes": {"key": KEYS, "lane_state": 1, "rank": 0, "turn": KEYS, "blocked_on": None, "blocked_at": None},
    "ready_in_queue": {"queue": 1, "most": 100},
    "ready_of_kind": {"ns": 1, "kind": 3, "most": 100},
    "count_queues": {"ns": 1, "most": 100, "limit": 200, "full_queues": [], "full_kinds": [3]},
    "set_buckets": {
        "key": COUNTERS, "running": 1, "starts": "[]", "next_at": 0, "due_at": None, "waiters": "[]",
    },
}  # fmt: skip


def fill(url: str) -> Store:
    """Many lanes, most of them blocked, one with many tasks behind the first."""
    with Engine.open(url) as engine:
        engine.configure("mail", Policy(fair_by="tenant", concurrency=(Concurrency(1, key="tenant"),)))
        engine.submit("mail", {"tenant": "a"})
    store = open_store(url)
    with store.transaction() as tx:
        for text in FILL:
            series = SERIES[store.dialect]
            tx.fetch(text.format(numbers=series.format(LANES), behind=series.format(BEHIND)), {})
    return store


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def crowd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if request.param == "sqlite":
        folder: Path = tmp_path_factory.mktemp("lanes")
        url = f"sqlite:///{folder / 'jobs.db'}"
        made = open_store(url)
        made.migrate()
        made.close()
        store = fill(url)
        yield store
        store.close()
        return
    server: Server = request.getfixturevalue("postgres")
    with server.database(request.getfixturevalue("migrated_template")) as url:
        store = fill(url)
        yield store
        store.close()


def test_what_limits_hold_back_costs_no_statement_a_look(crowd: Any) -> None:
    faults = []
    for name, params in STATEMENTS.items():
        found = crowd.statements.by_name[name]
        statement = crowd.statements.for_batch(name, params) if found.columns else found
        if crowd.dialect == POSTGRES:
            cost = on_postgres(crowd, statement, params, generic=True)
            # Three tasks of each of 100 lanes, with their ready rows.
            if cost.whole - {"limit_rule", "queue"} or cost.rows > 1_000:
                faults.append((name, cost))
        else:
            steps = on_sqlite(crowd, statement, params)
            if steps.whole() - {"r", "k"} or steps.steps > 60_000:
                faults.append((name, steps))
    assert not faults, faults
