"""A database that an older version has written is brought up to date, and nothing in it is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from onetray.domain.errors import MigrationNeeded
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.engine import Engine
from onetray.store import open_store
from onetray.store.sql_template import migrations
from tests.support.engines import must_verify

MODULES = ("onetray.store.sqlite", "onetray.store.postgres")


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that has no tables yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    url: str = request.getfixturevalue("pg_url")
    return url


def test_tasks_from_before_there_were_flows_run_beside_flows(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        for module in MODULES:
            before.setattr(f"{module}.migrations", lambda _: [1])
        store = open_store(empty_url)
        store.migrate()
        assert store.version() == 1
        with Engine(store, check=False) as old:
            waiting = [old.submit("mail", n).id for n in range(3)]
    store = open_store(empty_url, migrate=False)
    with pytest.raises(MigrationNeeded, match="onetray migrate"):
        store.check_version()
    assert store.migrate() == migrations(store.dialect)[1:]
    assert store.version() == migrations(store.dialect)[-1]
    with Engine(store) as engine:
        flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("mail", 3)])])
        for task in engine.claim(worker="w", limit=10):
            engine.succeed(task, task.payload)
        assert [engine.task(id_ or "").result for id_ in waiting] == [0, 1, 2]
        assert engine.flow(flow.id).state == "succeeded"
        assert [e.version for e in engine.events(waiting[0] or "")] == [1, 2, 3, 4]
        must_verify(engine)
