"""PostgreSQL goes away while workers work, and comes back: they wait for it, lose nothing, and do nothing twice."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onetray.store import open_store
from tests.support.cluster import Cluster
from tests.support.outage import take_away
from tests.support.workers import workers

AWAY_S = 2.5


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start() as running:
        yield running


@contextmanager
def database(cluster: Cluster) -> Iterator[str]:
    with cluster.database() as url:
        store = open_store(url)
        store.migrate()
        store.close()
        yield url


@pytest.mark.parametrize("how", [Cluster.kill, Cluster.halt], ids=["killed", "stopped"])
def test_workers_outlast_a_database_that_goes_away(
    cluster: Cluster, tmp_path: Path, how: Callable[[Cluster], None]
) -> None:
    with database(cluster) as url:
        seen = take_away(cluster, url, tmp_path, AWAY_S, how)
    assert seen.faults == []
    # A busy loop would use all of the time, and tell of each of its turns.
    assert seen.cpu_s < AWAY_S / 2, seen
    assert seen.lines < 40, seen
    # The driver's own lines are about each connection.
    assert [line for line in seen.log.splitlines() if "psycopg" in line] == []
    away = [line for line in seen.log.splitlines() if "the database is back after" in line]
    assert len(away) == 1, seen.log
    assert float(away[0].split()[-2]) > AWAY_S / 2


def test_a_second_signal_stops_a_worker_at_once_though_its_database_is_away(cluster: Cluster, tmp_path: Path) -> None:
    with database(cluster) as url, workers(url, tmp_path, 1, "--drain", "600") as (worker,):
        cluster.kill()
        try:
            worker.send(signal.SIGTERM)
            worker.until_logged("is stopping")
            worker.send(signal.SIGTERM)
            assert worker.end() == 0
        finally:
            cluster.start_again()
