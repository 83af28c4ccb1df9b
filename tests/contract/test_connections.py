"""How many connections a store keeps."""

import os
import threading
from pathlib import Path

import apsw

from onetray.engine import Engine
from onetray.store.sqlite import SqliteStore
from tests.support.engines import engine_on


def test_threads_that_come_and_go_leave_no_connections_behind(tmp_path: Path) -> None:
    with engine_on(f"sqlite:///{tmp_path / 'jobs.db'}") as engine:
        task = engine.submit("mail").id or ""
        engine.task(task)
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        for _ in range(50):
            reader = threading.Thread(target=engine.task, args=(task,))
            reader.start()
            reader.join()
        after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        assert after <= before + 3


def test_a_statement_is_not_prepared_again_for_other_values(tmp_path: Path) -> None:
    prepared: list[tuple[object, ...]] = []

    def authorize(*what: object) -> int:
        prepared.append(what)
        return apsw.SQLITE_OK

    with engine_on(f"sqlite:///{tmp_path / 'jobs.db'}") as engine:
        assert isinstance(engine.store, SqliteStore)
        # SQLite calls it while it prepares a statement.
        engine.store._writer.authorizer = authorize
        work_one(engine, "first")
        assert prepared
        prepared.clear()
        work_one(engine, "second")
        engine.store._writer.authorizer = None
    assert prepared == []


def work_one(engine: Engine, key: str) -> None:
    engine.submit("mail", {"to": key})
    [task] = engine.claim(worker="w", limit=100, request_key=key, kinds=("mail",))
    engine.succeed(task, key)
