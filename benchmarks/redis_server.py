"""A private Redis server: on a free port of the loopback interface, with an append-only file, gone afterwards."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from benchmarks.environments import ROOT, NotInstalled

PATIENCE_S = 10.0
WATCHDOG = ROOT / "tests/support/watchdog.py"


@contextmanager
def redis_server() -> Iterator[tuple[str, int]]:
    """Its URL and its process id."""
    program, port = _program(), _free_port()
    with _guarded_directory() as (directory, guard):
        # Every second: Redis's default, and what the guides of those who use it assume.
        settings = {"port": port, "bind": "127.0.0.1", "appendonly": "yes", "appendfsync": "everysec", "dir": directory}
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        server = subprocess.Popen([program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        guard(server.pid)
        try:
            _wait_for(port, server)
            yield f"redis://127.0.0.1:{port}/0", server.pid
        finally:
            server.kill()
            server.wait()
            guard(0)


@contextmanager
def _guarded_directory() -> Iterator[tuple[str, Callable[[int], None]]]:
    """A directory, and a call to say which process works in it. Both go with this process, even when it is killed."""
    directory = tempfile.mkdtemp(prefix="onetray-redis-")
    watchdog = subprocess.Popen(
        [sys.executable, "-I", "-S", WATCHDOG, directory], cwd="/", stdin=subprocess.PIPE, start_new_session=True
    )
    assert watchdog.stdin is not None

    def guard(process: int) -> None:
        assert watchdog.stdin is not None
        watchdog.stdin.write(b"%d\n" % process)
        watchdog.stdin.flush()

    try:
        yield directory, guard
    finally:
        watchdog.stdin.close()
        watchdog.wait()


def redis_version() -> str | None:
    """The version of the program, where there is one."""
    if not (program := shutil.which("redis-server")):
        return None
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return next((word.removeprefix("v=") for word in said.split() if word.startswith("v=")), None)


def _program() -> str:
    found = shutil.which("redis-server")
    if not found and os.geteuid() == 0 and shutil.which("apt-get"):
        click.echo("installing redis-server with apt-get", err=True)
        subprocess.run(["apt-get", "install", "-qq", "-y", "redis-server"], check=False, capture_output=True)
        found = shutil.which("redis-server")
    if not found:
        raise NotInstalled("it needs redis-server. Install it (e.g. 'apt install redis-server'), then try again")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while server.poll() is None and time.monotonic() < give_up_at:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise NotInstalled("redis-server did not start")
