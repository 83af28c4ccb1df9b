"""Behind a pooler that lives on while its server is away: the same patience as without one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from onetray import Onetray
from onetray.config import EngineConfig
from onetray.engine import Engine
from tests.crash.test_lost_connection import count, once_at
from tests.support.cluster import Cluster
from tests.support.engines import must_verify, open_migrated
from tests.support.pooler import Pooler

CONFIG = EngineConfig(pooler=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start() as running:
        yield running


@pytest.fixture
def url(cluster: Cluster) -> Iterator[str]:
    with cluster.database() as url:
        open_migrated(url).close()
        yield url


def test_an_engine_that_is_opened_while_the_server_is_away_waits_for_it(cluster: Cluster, url: str) -> None:
    with Pooler(url) as pooler:
        cluster.halt()
        back = threading.Thread(target=lambda: (pooler.refused.wait(60), cluster.start_again()))
        back.start()
        with Engine.open(pooler.url, config=CONFIG) as engine:
            back.join()
            assert engine.submit("k").state == "queued"


def test_a_worker_goes_on_after_its_server_was_away(cluster: Cluster, url: str) -> None:
    with Pooler(url) as pooler, Onetray(pooler.url, config=CONFIG) as app:
        begun, may_end = threading.Event(), threading.Event()

        @app.task
        def work() -> str:
            begun.set()
            assert may_end.wait(60)
            return "done"

        with app.worker():
            job = work.submit()
            assert begun.wait(30)
            cluster.halt()
            may_end.set()
            assert pooler.refused.wait(60)
            cluster.start_again()
            assert job.result(timeout_s=60) == "done"
            assert work.submit().result(timeout_s=60) == "done"
        must_verify(app.engine)


def test_a_commit_during_which_the_pooler_lost_its_server_is_asked_about(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Pooler(url) as pooler, Engine.open(pooler.url, config=CONFIG) as engine:
        engine.submit("k", "known")
        with once_at("committing", pooler.lose_commit, monkeypatch):
            engine.submit("k", "lost")
        with once_at("committing", pooler.lose_commit, monkeypatch):
            engine.pause_queue("default")
        assert (pooler.cuts, count(url, "task")) == (2, 2)
        assert engine.queues()[0].paused_at is not None
