"""A database in memory: its readers and its writer wait for each other, so nothing else may make them wait."""

from __future__ import annotations

import threading
from pathlib import Path

from onetray.config import EngineConfig
from onetray.engine import Engine
from onetray.store import open_store
from onetray.store.schema import migrations

ROUNDS = 300


def test_reading_the_names_and_writing_do_not_wait_for_each_other_in_a_circle() -> None:
    """Both read the names again, because they do not know the one that is asked for: one inside a transaction."""
    with Engine.open("sqlite://:memory:", config=EngineConfig(call_timeout_s=5)) as engine:
        engine.submit("mail")
        failed: list[Exception] = []

        def often(call: object) -> None:
            assert callable(call)
            try:
                for _ in range(ROUNDS):
                    call()
            except Exception as e:
                failed.append(e)

        calls = [lambda: engine.claim("unknown", worker="w"), lambda: engine.prune(5, namespace="unknown")] * 2
        threads = [threading.Thread(target=often, args=(call,), daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(25)
        assert not any(thread.is_alive() for thread in threads)
        assert not failed


def test_a_new_database_in_memory_has_what_the_migrations_make_in_a_file(tmp_path: Path) -> None:
    found = []
    for url in ("sqlite://:memory:", "sqlite://:memory:", f"sqlite:///{tmp_path / 'jobs.db'}"):
        store = open_store(url)
        store.migrate()
        assert store.migrate() == []
        schema = store.read_sql("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name")
        rows = [store.read_sql(f"SELECT * FROM {name}") for type_, name, _ in schema if type_ == "table"]
        found.append((store.version(), schema, rows))
        store.close()
    assert found[0][0] == migrations()[-1]
    assert found[0] == found[1] == found[2]
