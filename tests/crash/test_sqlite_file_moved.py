"""The SQLite file is moved, deleted or replaced while it is open: nothing more is acknowledged into nowhere."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from onetray.domain.errors import DatabaseMoved, DatabaseReplaced, OnetrayError, Unavailable
from onetray.engine import Engine
from onetray.remote.engine import RemoteEngine
from tests.support import fleet
from tests.support.engines import engine_on, must_verify
from tests.support.fleet import Ledger, wait_until
from tests.support.serving import serving
from tests.support.sqlite_processes import submit_until_refused, url_of
from tests.support.workers import Traces, workers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "jobs.db"


def all_of(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}*"))


def delete(path: Path) -> None:
    path.unlink()


def delete_all(path: Path) -> None:
    for part in all_of(path):
        part.unlink()


def move_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def put_another(path: Path) -> None:
    other = path.with_name("other.db")
    Engine.open(url_of(other)).close()
    other.replace(path)


def swap_directory(path: Path) -> None:
    move_directory(path)
    path.parent.mkdir()
    Engine.open(url_of(path)).close()


def delete_wal(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def delete_shm(path: Path) -> None:
    Path(f"{path}-shm").unlink()


def put_another_wal(path: Path) -> None:
    shutil.copy(f"{path}-wal", f"{path}-copy")
    Path(f"{path}-copy").replace(f"{path}-wal")


def restore_backup(path: Path) -> None:
    """In place, by way of SQLite itself, as `sqlite3 jobs.db ".restore …"` does it."""
    backup = path.with_name("backup.db")
    Engine.open(url_of(backup)).close()
    source, target = apsw.Connection(str(backup)), apsw.Connection(str(path))
    with target.backup("main", source, "main") as copy:
        copy.step()
    source.close()
    target.close()


def copy_over(path: Path) -> None:
    """As `cp` does it: the same file, with what a smaller one has in it."""
    backup = path.with_name("backup.db")
    Engine.open(url_of(backup)).close()
    path.write_bytes(backup.read_bytes())


WAYS = [
    (delete, DatabaseMoved), (delete_all, DatabaseMoved), (move_directory, DatabaseMoved),
    (put_another, DatabaseReplaced), (swap_directory, DatabaseReplaced), (delete_wal, DatabaseReplaced),
    (delete_shm, DatabaseReplaced), (put_another_wal, DatabaseReplaced), (restore_backup, DatabaseReplaced),
    (copy_over, DatabaseReplaced),
]  # fmt: skip


@pytest.mark.parametrize(("take_away", "error"), WAYS, ids=[way.__name__ for way, _ in WAYS])
def test_a_write_is_refused_at_once_when_the_file_is_not_the_one_that_was_opened(
    path: Path, take_away: Callable[[Path], None], error: type[OnetrayError]
) -> None:
    with Engine.open(url_of(path)) as engine:
        engine.submit("mail", "x" * 500_000)
        engine.store.read_sql("PRAGMA wal_checkpoint")
        engine.submit("mail")
        take_away(path)
        for write in (lambda: engine.submit("mail"), lambda: engine.claim(worker="w"), lambda: engine.pause_queue("x")):
            with pytest.raises(DatabaseMoved) as refused:
                write()
            assert type(refused.value) is error
            assert str(path) in str(refused.value)
            assert "othing was written" in str(refused.value)


def test_nothing_is_acknowledged_once_the_file_is_gone(path: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    submitter = fleet.start(submit_until_refused, str(path), str(ledger))
    wait_until(lambda: len(Ledger.read(ledger)) >= 5 or submitter.exitcode is not None)
    kept = path.with_name("kept.db")
    path.rename(kept)
    fleet.end_all([submitter], 30)
    *acknowledged, (word, told) = Ledger.read(ledger)
    assert (word, told) == ("refused", "DatabaseMoved")
    for side in ("-wal", "-shm"):
        Path(f"{path}{side}").rename(f"{kept}{side}")
    with engine_on(url_of(kept)) as engine:
        # One that was being committed at that moment may be there and not acknowledged.
        assert {id_ for _, id_ in acknowledged} <= {t.id for t in engine.tasks(limit=10_000)}


def test_a_file_that_comes_back_is_written_again(path: Path) -> None:
    with Engine.open(url_of(path)) as engine:
        engine.submit("mail", 1)
        path.rename(path.with_name("away.db"))
        with pytest.raises(DatabaseMoved):
            engine.submit("mail", 2)
        path.with_name("away.db").rename(path)
        engine.submit("mail", 3)
        assert [t.payload for t in engine.tasks()] == [3, 1]
        must_verify(engine)


def test_a_database_that_was_vacuumed_is_smaller_and_still_the_same(path: Path) -> None:
    with Engine.open(url_of(path)) as engine:
        for _ in range(10):
            engine.submit("mail", "x" * 500_000)
        for task in engine.claim(worker="w", limit=10):
            engine.succeed(task)
        engine.submit("mail")
        before = path.stat().st_size
        assert len(engine.prune(0)) == 10
        other = apsw.Connection(str(path))
        other.execute("VACUUM")
        other.close()
        engine.store.read_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        assert path.stat().st_size < before
        engine.submit("mail")
        assert len(engine.tasks()) == 2


def test_readers_of_a_file_that_is_gone_are_told(path: Path) -> None:
    with Engine.open(url_of(path)) as engine:
        job = engine.submit("mail")
        path.rename(path.with_name("away.db"))
        reads = (
            lambda: engine.task(job.id or ""),
            lambda: engine.feed.read(0),
            lambda: engine.feed.tail(),
            lambda: engine.now(),
        )
        for read in reads:
            with pytest.raises(DatabaseMoved):
                read()
        path.with_name("away.db").rename(path)
        assert len(engine.feed.read(0).events) == 1


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_a_link_to_the_file_is_as_good_as_the_file_until_it_leads_elsewhere(
    path: Path, link: Callable[[Path, Path], None]
) -> None:
    Engine.open(url_of(path)).close()
    name = path.with_name("link.db")
    link(path, name)
    with Engine.open(url_of(name)) as engine:
        engine.submit("mail")
        engine.submit("mail")
        name.unlink()
        with pytest.raises(DatabaseMoved):
            engine.submit("mail")
        link(path, name)
        engine.submit("mail")
        assert len(engine.tasks()) == 3
        other = path.with_name("other.db")
        Engine.open(url_of(other)).close()
        name.unlink()
        link(other, name)
        with pytest.raises(DatabaseReplaced):
            engine.submit("mail")


def test_a_directory_that_was_moved_and_is_linked_to_from_its_old_place_is_good(path: Path) -> None:
    with Engine.open(url_of(path)) as engine:
        engine.submit("mail")
        move_directory(path)
        path.parent.symlink_to(path.parent.with_name("elsewhere"), target_is_directory=True)
        engine.submit("mail")
        assert len(engine.tasks()) == 2


def test_a_relative_path_stays_the_file_that_it_named_when_it_was_opened(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    with Engine.open("sqlite:///jobs.db") as engine:
        monkeypatch.chdir(tmp_path)
        engine.submit("mail")
        assert len(engine.tasks()) == 1
    assert path.exists()


def test_a_database_in_memory_has_no_file_that_could_go() -> None:
    with Engine.open("sqlite://:memory:") as engine:
        engine.submit("mail")
        assert len(engine.tasks()) == 1


def test_a_worker_waits_for_a_file_that_was_moved_and_works_on_when_it_is_back(path: Path, tmp_path: Path) -> None:
    traces = Traces(tmp_path)
    with Engine.open(url_of(path)) as engine, workers(url_of(path), tmp_path) as (worker,):
        path.rename(path.with_name("away.db"))
        worker.until_logged("the worker waits for its database file")
        path.with_name("away.db").rename(path)
        traces.let_go()
        job = engine.submit("doze", traces.asked)
        wait_until(lambda: engine.task(job.id or "").state == "succeeded", 30)
        worker.send(signal.SIGTERM)
        assert worker.end() == 0
        assert worker.log.count("the worker waits for its database file") == 1
        must_verify(engine)


def test_a_worker_ends_with_an_error_when_its_file_was_replaced(path: Path, tmp_path: Path) -> None:
    with workers(url_of(path), tmp_path) as (worker,):
        put_another(path)
        assert worker.end(30) == 3
    last = worker.log.strip().splitlines()[-1]
    assert str(path) in last
    assert "estart this process" in last


def test_a_server_says_that_its_file_is_gone_and_serves_it_when_it_is_back(path: Path, tmp_path: Path) -> None:
    with serving(tmp_path, "serve", "--database", url_of(path)) as server, server.client() as client:
        new = {"kind": "mail"}
        assert client.post("/api/v1/jobs", json=new).status_code == 201
        with RemoteEngine(server.url) as remote:
            path.rename(path.with_name("away.db"))
            for answer in (client.get("/readyz"), client.post("/api/v1/jobs", json=new), client.get("/api/v1/jobs")):
                assert (answer.status_code, answer.json()["code"]) == (503, "database_moved"), answer.text
                assert str(path) not in answer.text
            with pytest.raises(DatabaseMoved):
                remote.submit("mail")
            path.with_name("away.db").rename(path)
            # The answer to a probe is kept for a second.
            wait_until(lambda: client.get("/readyz").status_code == 200)
            remote.submit("mail")
            assert len(remote.tasks()) == 2
        assert str(path) in server.log


def test_a_store_that_was_closed_says_so_and_does_not_miss_its_file(path: Path) -> None:
    engine = Engine.open(url_of(path))
    engine.submit("mail")
    engine.close()
    with pytest.raises(Unavailable, match="closed") as caught:
        engine.store.now()
    assert not isinstance(caught.value, DatabaseMoved)
