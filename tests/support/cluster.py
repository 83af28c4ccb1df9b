"""PostgreSQL for tests and benchmarks.

    with Cluster.start() as cluster:
        url = cluster.create_database()
        with cluster.standby() as standby: …

`Server` makes and drops databases on any server. `Cluster` is a private server that can be stopped, killed
and started again; it listens on 127.0.0.1 only. Nothing of it is left when its owner ends, even by SIGKILL.
"""

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from tests.support.binaries import NoPostgres, account, find_bin_dir, reachable, temp_root
from tests.support.waits import WaitedTooLong, wait_until

__all__ = ["Cluster", "ClusterFailed", "NoPostgres", "Server", "server"]

SHARED_SERVER = "ONETRAY_TEST_POSTGRES"
PATIENCE_S = 60.0
STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{directory}'
max_connections = 300
fsync = {durable}
synchronous_commit = {durable}
full_page_writes = {durable}
jit = {durable}
"""
# Tests empty their tables. Statistics of such a moment say that a table of many pages has no rows, and what is planned
# by them reads all of it for each row, until the server looks again: how long a test takes would be a matter of luck.
NO_STATISTICS = "autovacuum_analyze_threshold = 2147483647\n"
# Without statistics, a read of a whole view looks so expensive that a server with JIT spends a second compiling it.
END_CONNECTIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
INITDB_OPTIONS = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
CACHE = Path(__file__).parents[2] / ".cache"


class ClusterFailed(Exception):
    """The private server did not do what was asked. The message carries the end of its log."""


class Server:
    """A PostgreSQL server on which databases may be created."""

    def __init__(self, url: str) -> None:
        self.url = url

    def create_database(self, template: str | None = None) -> str:
        """Make a database, empty or a copy of the one at the URL `template`, and return its URL."""
        name = f"onetray_{uuid.uuid4().hex[:16]}"
        source = sql.Identifier(_database(template) if template else "template0")
        self._run(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), source))
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def drop_database(self, url: str) -> None:
        """Remove a database together with the connections to it."""
        name = _database(url)
        with psycopg.connect(self.url, autocommit=True) as connection:
            # FORCE does it, too, and looks only every 100 ms whether they have gone.
            wait_until(lambda: not connection.execute(END_CONNECTIONS, (name,)).fetchall(), PATIENCE_S)
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    @contextlib.contextmanager
    def database(self, template: str | None = None) -> Iterator[str]:
        """The URL of a fresh database that is dropped at the end."""
        url = self.create_database(template)
        try:
            yield url
        finally:
            self.drop_database(url)

    def _run(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)


class Cluster(Server):
    """A private PostgreSQL server in a temporary directory."""

    def __init__(self, bin_dir: Path, primary: "Cluster | None" = None, *, durable: bool = True) -> None:
        self._primary, self._durable = primary, durable
        self.directory = Path(tempfile.mkdtemp(prefix="onetray-pg-", dir=temp_root()))
        self.data = self.directory / "data"
        self.log = self.directory / "log"
        self._postmaster: subprocess.Popen[bytes] | None = None
        self._watchdog = _start_watchdog(self.directory)
        atexit.register(self.stop)
        try:
            self._account = account()
            self._archive = _archive_of(bin_dir)
            self.bin_dir = reachable(bin_dir, self.directory) if self._account else bin_dir
            self._give_directory_away()
            self._initialise()
            self._start_on_a_free_port()
        except BaseException:
            self.stop()
            raise

    @classmethod
    def start(cls, bin_dir: Path | None = None, *, system: bool = False, durable: bool = True) -> Self:
        """Start a new cluster from `bin_dir`, the system's PostgreSQL, or what `find_bin_dir` prefers.

        One that is not durable loses nothing when it is killed, only when the machine is.
        """
        return cls(bin_dir or find_bin_dir(system=system), durable=durable)

    def standby(self) -> "Cluster":
        """Start another server that is a copy of this one, and follows it. `promote` makes it a server of its own."""
        return Cluster(self.bin_dir, primary=self)

    def promote(self) -> None:
        """Let a standby take over. Returns when it can be written to."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            if connection.execute("SELECT pg_promote()").fetchall() != [(True,)]:
                raise self._failed("the standby was not promoted")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, or None when it does not run."""
        return self._postmaster.pid if self._postmaster else None

    def restart(self, mode: str = "immediate") -> None:
        """Stop as `pg_ctl stop -m MODE` would (immediate: as in a crash), and start again."""
        self._end_postmaster(STOP_SIGNALS[mode])
        self.start_again()

    def kill(self) -> None:
        """End the postmaster with SIGKILL. Its backends follow when they notice."""
        self._end_postmaster(signal.SIGKILL)

    def halt(self) -> None:
        """Stop the server in order, as for maintenance. `start_again` brings it back."""
        self._end_postmaster(STOP_SIGNALS["fast"])

    def start_again(self) -> None:
        """Start the server on its old port and data, after `kill` or `halt`."""

        def has_started() -> bool:
            # Backends of a killed postmaster hold its shared memory for a moment.
            if self._try_to_start():
                return True
            if "pre-existing shared memory block" not in self._log_tail():
                raise self._failed("PostgreSQL did not start again")
            return False

        wait_until(has_started, PATIENCE_S)

    def stop(self) -> None:
        """Stop the server and remove everything. A second call does nothing."""
        atexit.unregister(self.stop)
        self._end_postmaster(signal.SIGQUIT)
        # The watchdog removes the directory: the same way out as when this process is killed.
        with contextlib.suppress(BrokenPipeError):
            _input(self._watchdog).close()
        self._watchdog.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _give_directory_away(self) -> None:
        if self._account:
            os.chown(self.directory, self._account.pw_uid, self._account.pw_gid)

    def _initialise(self) -> None:
        # --no-sync: an empty cluster need not survive a power cut.
        if self._primary is not None:
            options = ["--checkpoint=fast", "--write-recovery-conf", "--dbname", self._primary.url]
            self._must_succeed("pg_basebackup", *options, "--no-sync", "-D", str(self.data))
        elif self._archive.exists():
            self._must_succeed("tar", "-xf", "-", stdin=self._archive)
        else:
            self._must_succeed("initdb", *INITDB_OPTIONS, "-D", str(self.data))
            self._keep_for_later()

    def _must_succeed(self, program: str, *arguments: str, stdin: Path = Path(os.devnull)) -> None:
        if self._spawn(program, *arguments, stdin=stdin).wait() != 0:
            raise self._failed("the server could not be set up")

    def _keep_for_later(self) -> None:
        """Put the new data where the next cluster finds it: to unpack it takes a third of the time of initdb."""
        self._archive.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._archive.parent, delete=False) as file:
            subprocess.run(["tar", "-cf", "-", self.data.name], cwd=self.directory, stdout=file, check=True)
        os.replace(file.name, self._archive)

    def _start_on_a_free_port(self) -> None:
        for _ in range(10):
            self._use_port(_free_port())
            if self._try_to_start():
                return
            if "could not bind" not in self._log_tail():  # Else somebody took the port in between.
                break
        raise self._failed("PostgreSQL did not start")

    def _use_port(self, port: int) -> None:
        self.port = port
        self.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        durable = "on" if self._durable else "off"
        settings = SETTINGS.format(port=port, directory=self.directory, durable=durable)
        settings += "" if self._durable else NO_STATISTICS
        if self._primary is not None:
            settings += f"primary_conninfo = '{self._primary.url}'\n"
        (self.data / "postgresql.auto.conf").write_text(settings)

    def _try_to_start(self) -> bool:
        """Start the postmaster and wait until it answers; False when it gave up."""
        self.log.write_bytes(b"")
        postmaster = self._spawn("postgres", "-D", str(self.data))
        self._own(postmaster)
        with contextlib.suppress(WaitedTooLong):
            wait_until(lambda: postmaster.poll() is not None or self._answers(), PATIENCE_S)
            if postmaster.poll() is None:
                return True
        self._end_postmaster(signal.SIGQUIT)
        return False

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _end_postmaster(self, how: signal.Signals) -> None:
        if self._postmaster is None:
            return
        self._postmaster.send_signal(how)
        try:
            self._postmaster.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._postmaster.kill()
            self._postmaster.wait()
        self._own(None)

    def _own(self, postmaster: subprocess.Popen[bytes] | None) -> None:
        """Remember the postmaster, and tell the watchdog what to end."""
        self._postmaster = postmaster
        _input(self._watchdog).write(b"%d\n" % (self.pid or 0))
        _input(self._watchdog).flush()

    def _spawn(self, program: str, *arguments: str, stdin: Path = Path(os.devnull)) -> subprocess.Popen[bytes]:
        """Run a program of PostgreSQL's, or tar, as the unprivileged account, its output going to the log."""
        who = self._account
        with self.log.open("ab") as log, stdin.open("rb") as source:
            return subprocess.Popen(
                [program if program == "tar" else self.bin_dir / program, *arguments],
                cwd=self.directory,
                env={"PATH": os.defpath, "LC_ALL": "C"},
                stdin=source,
                stdout=log,
                stderr=log,
                user=who and who.pw_uid,
                group=who and who.pw_gid,
                extra_groups=[] if who else None,
                start_new_session=True,  # Ctrl-C in the terminal is for the owner alone.
            )

    def _log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def _failed(self, what: str) -> ClusterFailed:
        return ClusterFailed(f"{what} ({self.bin_dir}). The end of its log:\n{self._log_tail()}")


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """The server named in ONETRAY_TEST_POSTGRES, or a private cluster for as long as it is needed."""
    if url := os.environ.get(SHARED_SERVER):
        yield Server(url)
    else:
        # Nobody pulls the plug on it: the tests of crashes start their own.
        with Cluster.start(durable=False) as cluster:
            yield cluster


def _archive_of(bin_dir: Path) -> Path:
    """Where the data of a new cluster of this PostgreSQL is kept."""
    program = bin_dir.resolve() / "postgres"
    key = f"{program} {program.stat().st_mtime_ns} {INITDB_OPTIONS}"
    return CACHE / f"initdb-{zlib.crc32(key.encode()):08x}.tar"


def _start_watchdog(directory: Path) -> subprocess.Popen[bytes]:
    program = Path(__file__).with_name("watchdog.py")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", program, directory],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def _input(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _database(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")
