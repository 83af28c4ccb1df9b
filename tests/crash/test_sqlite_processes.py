"""One SQLite file, many processes: correct together, clear about what they refuse, whole after a crash."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import apsw
import pytest

from onetray.domain.errors import StoreError, Unavailable
from onetray.store import open_file, open_store
from tests.support import fleet
from tests.support.audit import audit, audit_claims, audit_successes
from tests.support.engines import engine_on
from tests.support.fleet import Ledger, wait_until
from tests.support.sqlite_processes import (
    JOBS,
    die_while_migrating,
    fill_the_disk,
    open_without_room,
    opener,
    role,
    slow_writer,
    submit_one,
    tell_as_nobody,
    url_of,
)

KILLED = -signal.SIGKILL


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def test_submitters_claimers_and_janitors_of_several_processes_share_a_file_that_none_of_them_made(path: Path) -> None:
    roles: list[tuple[Any, ...]] = [("submit", str(path), n) for n in range(3)]
    roles += [("finish", str(path), n, 3 * JOBS) for n in range(3)]
    told = fleet.run_all(role, roles, 60)
    with engine_on(url_of(path)) as engine:
        submitted = {id_ for ids in told[:3] for id_ in ids}
        assert {t.id for t in engine.tasks(limit=1000)} == submitted
        assert len(submitted) == 3 * JOBS
        found = audit(engine.store)
        assert not found.faults, found.faults
        assert found.states == {"succeeded": 3 * JOBS}
        assert not audit_claims([c for t in told[3:] for c in t["claims"]])
        assert not audit_successes(engine.store, [s for t in told[3:] for s in t["successes"]])


def test_processes_that_open_a_new_file_at_the_same_moment_all_get_in(path: Path) -> None:
    start = multiprocessing.get_context("forkserver").Barrier(6)
    assert fleet.run_all(opener, [(str(path), start)] * 6, 60) == [0] * 6


def test_a_reader_sees_committed_data_only_and_never_waits_for_the_writer(path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    reached, go_on = spawn.Event(), spawn.Event()
    with engine_on(url_of(path)) as engine:
        engine.submit("mail", "first")
        writer = fleet.start(slow_writer, str(path), reached, go_on)
        assert reached.wait(60)
        assert [t.payload for t in engine.tasks()] == ["first"]
        go_on.set()
        fleet.end_all([writer], 60)
        assert [t.payload for t in engine.tasks()] == ["second", "first"]


def test_a_writer_that_waits_for_the_lock_goes_on_when_its_holder_is_killed(path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    reached, never = spawn.Event(), spawn.Event()
    with engine_on(url_of(path)) as engine:
        engine.submit("mail", "first")
        holder = fleet.start(slow_writer, str(path), reached, never)
        assert reached.wait(60)
        waiter = fleet.start(submit_one, str(path), "third")
        wait_until(lambda: waiter.exitcode is not None or has_open(waiter.pid, path))
        assert waiter.exitcode is None, "it did not wait"
        holder.kill()
        fleet.end_all([holder], 30, exitcode=KILLED)
        fleet.end_all([waiter], 60)
        assert [t.payload for t in engine.tasks()] == ["third", "first"]


def has_open(pid: int | None, path: Path) -> bool:
    try:
        return any(os.readlink(f.path) == f"{path}-wal" for f in os.scandir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def test_a_migration_that_is_killed_anywhere_is_made_again_from_the_start(path: Path) -> None:
    for statement in (2, 3, 12, 0):
        fleet.end_all([fleet.start(die_while_migrating, str(path), statement)], 30, exitcode=KILLED)
        with apsw.Connection(str(path)) as look:
            assert look.execute("SELECT count(*) FROM sqlite_schema").fetchall() == [(0,)]
        look.close()
    with engine_on(url_of(path)) as engine:
        engine.submit("mail", "first")
        assert [t.payload for t in engine.tasks()] == ["first"]


def test_a_file_on_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    share = tmp_path / "my share"
    share.mkdir()
    escaped = str(share).replace(" ", "\\040")
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/export {escaped} nfs4 rw 0 0\n")
    monkeypatch.setattr(open_file.network_filesystem, "__defaults__", (str(mounts),))
    with pytest.raises(StoreError, match="network file system"):
        open_store(url_of(share / "jobs.db"))
    assert list(share.iterdir()) == []
    open_store(url_of(tmp_path / "jobs.db")).close()


@pytest.mark.parametrize("where", ["no/such/directory/jobs.db", "."])
def test_a_place_where_no_file_can_be_is_refused_with_its_path(where: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=str(tmp_path)):
        open_store(url_of(tmp_path / where))


@pytest.fixture
def readable(tmp_path: Path) -> Path:
    """A directory that everybody may enter and read, and only its owner may write to."""
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.owner() == tmp_path.owner() and folder != Path("/tmp"):
            folder.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("directory", [0o555, 0o777], ids=["closed directory", "open directory"])
def test_a_file_that_may_only_be_read_is_refused_with_its_path(directory: int, readable: Path) -> None:
    path = readable / "jobs.db"
    with engine_on(url_of(path)) as engine:
        engine.submit("mail", "first")
    path.chmod(0o444)
    readable.chmod(directory)
    ((kind, message),) = fleet.run_all(tell_as_nobody, [(str(path),)], 60)
    readable.chmod(0o755)
    assert kind == "StoreError", message
    assert str(path) in message


def test_a_directory_that_may_not_be_written_to_is_refused_with_its_path(readable: Path) -> None:
    path = readable / "jobs.db"
    readable.chmod(0o555)
    ((kind, message),) = fleet.run_all(tell_as_nobody, [(str(path),)], 60)
    readable.chmod(0o755)
    assert kind == "StoreError", message
    assert str(path) in message


def test_a_full_disk_is_reported_loses_nothing_and_the_engine_works_on_when_there_is_room(
    path: Path, tmp_path: Path
) -> None:
    (answer,) = fleet.run_all(fill_the_disk, [(str(path), str(tmp_path / "ledger"))], 60)
    errors, full = answer
    assert errors == [Unavailable.__name__] * 5
    with engine_on(url_of(path)) as engine:
        acknowledged = [id_ for _, id_ in Ledger.read(tmp_path / "ledger")]
        assert {t.id for t in engine.tasks(limit=1000)} == set(acknowledged)
        assert len(acknowledged) == full + 1
        assert engine.task(acknowledged[-1]).payload == "last"


def test_a_disk_that_is_full_from_the_start_is_reported_with_the_path(path: Path) -> None:
    ((kind, message),) = fleet.run_all(open_without_room, [(str(path),)], 60)
    assert kind in ("StoreError", "Unavailable"), message
    assert str(path) in message
    with engine_on(url_of(path)) as engine:
        assert engine.submit("mail").state == "queued"
