"""The database goes away while a worker is at work: what was done meanwhile is reported when it is back."""

from __future__ import annotations

import threading

from onetray import Onetray
from onetray.store import open_store
from tests.support.cluster import Cluster
from tests.support.engines import must_verify
from tests.support.fleet import wait_until


def test_a_task_that_ends_while_the_database_is_away_is_reported_once_and_not_run_again() -> None:
    with Cluster.start() as cluster:
        url = cluster.create_database()
        store = open_store(url)
        store.migrate()
        store.close()
        app, begun, may_end, calls = Onetray(url), threading.Event(), threading.Event(), []

        @app.task
        def work() -> str:
            calls.append(1)
            begun.set()
            assert may_end.wait(60)
            return "done"

        with app, app.worker(drain_s=5) as worker:
            job = work.submit()
            assert begun.wait(60)
            cluster.kill()
            may_end.set()
            wait_until(lambda: not worker.executor.running)
            cluster.start_again()
            assert job.result(timeout_s=60) == "done"
            assert (len(calls), job.view().attempts) == (1, 1)
            must_verify(app.engine)
