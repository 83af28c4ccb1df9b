"""The database has what submitters were told, whoever was killed: the campaign of `./go soak journal`, small."""

from pathlib import Path

from tests.support.cluster import Cluster
from tests.support.engines import open_migrated
from tests.support.journal import CrashingServer, run_campaign

SMALL = {"acknowledged": 150, "every_s": 0.3}


def test_a_sqlite_file_has_all_that_was_acknowledged_after_kills(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    open_migrated(url).close()
    assert not run_campaign(url, tmp_path, **SMALL).faults


def test_postgres_has_all_that_was_acknowledged_after_crashes_and_lost_answers(tmp_path: Path) -> None:
    with Cluster.start() as cluster:
        url = cluster.create_database()
        open_migrated(url).close()
        seen = run_campaign(url, tmp_path, database=CrashingServer(cluster), database_every=2, cut_share=0.05, **SMALL)
    assert not seen.faults
    assert seen.kills["PostgreSQL servers"]
