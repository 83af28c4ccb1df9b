"""The private PostgreSQL cluster: it isolates, survives crashes, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support import binaries
from tests.support.cluster import Cluster, NoPostgres, Server
from tests.support.waits import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start() as running:
        yield running


def ask(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_two_databases_do_not_see_each_other(cluster: Cluster) -> None:
    one, two = cluster.create_database(), cluster.create_database()
    ask(one, "CREATE TABLE only_in_one ()")
    with pytest.raises(psycopg.errors.UndefinedTable):
        ask(two, "TABLE only_in_one")


def test_a_database_can_be_a_copy_of_another(cluster: Cluster) -> None:
    original = cluster.create_database()
    ask(original, "CREATE TABLE number AS SELECT 7 AS n")
    assert ask(cluster.create_database(template=original), "TABLE number") == [(7,)]


def test_a_dropped_database_is_gone_even_while_somebody_is_connected(cluster: Cluster) -> None:
    with cluster.database() as url:
        visitor = psycopg.connect(url)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)
    visitor.close()


def test_the_server_is_durable_and_listens_on_loopback_only(cluster: Cluster) -> None:
    wanted = {
        "fsync": "on",
        "synchronous_commit": "on",
        "listen_addresses": "127.0.0.1",
        "max_connections": "300",
    }
    assert {name: ask(cluster.url, f"SHOW {name}")[0][0] for name in wanted} == wanted


def test_the_server_of_the_run_waits_for_no_disk(postgres: Server) -> None:
    if isinstance(postgres, Cluster):
        assert ask(postgres.url, "SHOW fsync") == [("off",)]


def test_committed_data_survives_a_killed_postmaster(cluster: Cluster) -> None:
    url = cluster.create_database()
    ask(url, "CREATE TABLE kept AS SELECT 1 AS n")
    bystander = psycopg.connect(url)  # Its backend outlives the postmaster for a moment.
    cluster.kill()
    cluster.start_again()
    bystander.close()
    assert ask(url, "TABLE kept") == [(1,)]


@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_committed_data_survives_a_restart(cluster: Cluster, mode: str) -> None:
    url = cluster.create_database()
    ask(url, "CREATE TABLE kept AS SELECT 1 AS n")
    before = cluster.pid
    cluster.restart(mode)
    assert cluster.pid != before
    assert ask(url, "TABLE kept") == [(1,)]


def test_nothing_is_left_after_stop() -> None:
    with Cluster.start() as cluster:
        pid, directory = cluster.pid, cluster.directory
        assert pid is not None
        assert directory.exists()
    assert not is_running(pid)
    assert not directory.exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(cluster.url)


def test_nothing_is_left_after_a_stop_that_follows_a_kill() -> None:
    with Cluster.start() as cluster:
        cluster.kill()
    assert not cluster.directory.exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_server_ends_when_its_owner_is_killed(how: signal.Signals) -> None:
    # A run in the background is started with SIGINT ignored, and its children inherit that.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from tests.support.cluster import Cluster; cluster = Cluster.start(); "
        "print(cluster.pid, cluster.directory, flush=True); signal.pause()"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, directory = owner.stdout.readline().split()
    owner.send_signal(how)
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not is_running(int(pid)) and not Path(directory).exists())


def test_the_environment_chooses_the_binaries(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = binaries.find_bin_dir()
    monkeypatch.setenv(binaries.CHOICE, str(chosen))
    assert binaries.find_bin_dir(system=True) == chosen


def test_a_choice_without_programs_is_refused_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(binaries.CHOICE, str(tmp_path))
    with pytest.raises(NoPostgres, match="Name the directory that has both"):
        Cluster.start()


def test_no_binaries_at_all_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(binaries.CHOICE, raising=False)
    monkeypatch.setattr(binaries, "PACKAGE", "no_such_package")
    monkeypatch.setattr(binaries, "SYSTEM", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoPostgres, match=r"Run the tests with \./go test"):
        Cluster.start()


def test_binaries_behind_a_closed_door_are_copied_with_their_libraries(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    bin_dir = closed / binaries.PACKAGE / "pginstall" / "bin"
    bin_dir.mkdir(parents=True)
    (bin_dir / "postgres").touch()
    (closed / f"{binaries.PACKAGE}.libs").mkdir()
    (closed / f"{binaries.PACKAGE}.libs" / "libpq.so").touch()
    closed.chmod(0o700)
    copy = tmp_path / "copy"
    assert (binaries.reachable(bin_dir, copy) / "postgres").exists()
    assert (copy / f"{binaries.PACKAGE}.libs" / "libpq.so").exists()


def test_the_fixtures_hand_out_a_fresh_database(postgres: Server, pg_url: str) -> None:
    assert ask(pg_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    assert pg_url != postgres.url
