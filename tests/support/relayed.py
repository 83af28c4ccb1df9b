"""Programs that somebody else starts, in prepared processes.

`relayed_command("onetray", "mcp", …)` is a command line for whoever wants to start a program himself. It starts a
process that lends its standard streams, environment and folder to one that is forked: see prepared.py. When either
ends, so does the other.
"""

from __future__ import annotations

import json
import multiprocessing.connection
import os
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from multiprocessing import reduction
from pathlib import Path
from typing import Any

from tests.support import fleet
from tests.support.prepared import run_program

LEND = """
import json, os, socket, sys
lender = socket.socket(socket.AF_UNIX)
lender.connect(sys.argv[1])
said = json.dumps([sys.argv[2:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(lender, [len(said).to_bytes(4, "big")], [0, 1, 2])
lender.sendall(said)
sys.exit(int(lender.recv(16) or b"1"))
"""


def relayed_command(*words: str) -> list[str]:
    """What to start instead of `python -m`, or `python -c`, and these words."""
    return [sys.executable, "-I", "-S", "-c", LEND, _address(), *words]


@cache
def _address() -> str:
    """The socket at which this process lends its prepared processes."""
    path = str(Path(tempfile.mkdtemp(prefix="onetray-relay-")) / "socket")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    threading.Thread(target=_lend, args=(listening,), name="relay", daemon=True).start()
    return path


def _lend(listening: socket.socket) -> None:
    while True:
        caller, _ = listening.accept()
        threading.Thread(target=_run_for, args=(caller,), name="relay", daemon=True).start()


def _run_for(caller: socket.socket) -> None:
    with caller:
        size, streams, _, _ = socket.recv_fds(caller, 4, 3)
        with caller.makefile("rb") as said:
            words, env, cwd = json.loads(said.read(int.from_bytes(size, "big")))
        process = fleet.start(_run_with, Streams(streams), tuple(words), env, Path(cwd))
        for stream in streams:
            os.close(stream)
        ended = multiprocessing.connection.wait([process.sentinel, caller])
        if process.sentinel not in ended:
            process.kill()
        process.join()
        code = process.exitcode or 0
        with suppress(BrokenPipeError, ConnectionResetError):  # It was killed.
            caller.sendall(b"%d" % (code if code >= 0 else 128 - code))


class Streams:
    """Descriptors of the standard streams that go along with a process that is forked."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def __reduce__(self) -> Any:
        return _received, tuple(reduction.DupFd(number) for number in self.numbers)


def _received(*lent: Any) -> Streams:
    return Streams([each.detach() for each in lent])


def _run_with(streams: Streams, words: tuple[str, ...], env: dict[str, str], cwd: Path) -> None:
    for number, stream in enumerate(streams.numbers):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = open(0)  # noqa: SIM115
    run_program(words, env, cwd)
