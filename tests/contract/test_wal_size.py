"""The size of SQLite's WAL: a worker gives it the one that it reaches anyway."""

from __future__ import annotations

import shutil
from pathlib import Path

from onetray.engine import Engine
from onetray.store.sqlite import WAL_BYTES, WAL_PAGES
from tests.support.engines import engine_on, must_verify


def wal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def work(engine: Engine, count: int) -> None:
    for n in range(count):
        engine.submit("mail", {"n": n})
        [task] = engine.claim(worker="w")
        engine.succeed(task)


def test_it_is_filled_up_behind_what_was_committed(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with engine_on(f"sqlite:///{path}") as engine:
        work(engine, 3)
        before = wal_of(path).read_bytes()
        engine.store.expect_writes()
        after = wal_of(path).read_bytes()
        assert after.startswith(before)
        assert len(after) == WAL_BYTES
        assert not any(after[len(before) :])
        work(engine, 3)
        engine.store.expect_writes()
        assert wal_of(path).stat().st_size == WAL_BYTES


def test_it_does_not_grow_beyond_it(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with engine_on(f"sqlite:///{path}") as engine:
        engine.store.expect_writes()
        work(engine, WAL_PAGES // 8)
        assert wal_of(path).stat().st_size == WAL_BYTES


def test_what_a_crash_leaves_is_read_up_to_the_last_commit(tmp_path: Path) -> None:
    path, left = tmp_path / "jobs.db", tmp_path / "left.db"
    with engine_on(f"sqlite:///{path}") as engine:
        engine.store.expect_writes()
        work(engine, 5)
        shutil.copy(path, left)
        shutil.copy(wal_of(path), wal_of(left))
    with engine_on(f"sqlite:///{left}") as again:
        assert len(again.tasks()) == 5
        must_verify(again)


def test_a_store_in_memory_has_none() -> None:
    with engine_on("sqlite://") as engine:
        engine.store.expect_writes()
        work(engine, 1)
