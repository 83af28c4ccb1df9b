"""Run handlers in child processes: one task in each at a time, killed when it has to stop.

Owns the children. They are spawned, never forked, kept for the next task, and spoken to in lines of JSON over a pair of
pipes of their own: what a handler prints goes where the worker's output goes. A child that dies fails its attempt.

    worker ── control ──▶ process_reaper.py ── waits for ──▶ process_child.py ──▶ whatever a handler starts
       ▲─────────────────── two pipes ──────────────────▲

The reaper says when a child has ended. The end of a pipe does not: what a handler has started may hold a copy of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from onetray.domain.commands import Fail, Release, Report
from onetray.remote.command_codec import decode_report
from onetray.worker import process_reaper

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.worker.attempt import Attempt


import signal

logger = logging.getLogger("onetray.worker")

ASKED = ("last_checkpoint", "inputs", "config", "answer", "results_of", "created_at", "checkpoint")
"""What a child may ask its parent for."""

REAPER = (sys.executable, "-I", "-S", process_reaper.__file__)
LEAVE_S = 3.0
EXIT_S = 1.0
"""How long a child that has closed its pipe may live on: one that dies closes it a moment before."""
KILL_S = 2 * process_reaper.END_S
"""How long a reaper may take to end a child. Then it is killed itself, and the child with it."""
LOOK_S = 1.0
CHUNK_BYTES = 1 << 16


class ProcessHandle:
    """One process that runs handlers of one app, one attempt at a time. One thread has it; any thread may kill it."""

    def __init__(self, app_path: str, hello: dict[str, Any]) -> None:
        self._lock = threading.Lock()
        self._turn = 0
        """Which attempt it runs: who is late to kill an attempt must not hit the next one."""
        self._killed_at: float | None = None
        self._exit: bytes | None = None
        """What the reaper has said at the end; empty if it was killed."""
        self._lines: deque[bytes] = deque()
        self._line: list[bytes] = []
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            to_child, self._out = _pipe()
            theirs.callback(os.close, to_child)
            ours.callback(self.dismiss)
            self._in, from_child = _pipe()
            theirs.callback(os.close, from_child)
            ours.callback(os.close, self._in)
            self._control, control = _socket_pair()
            theirs.enter_context(control)
            ours.enter_context(self._control)
            command = [sys.executable, "-m", "onetray.worker.process_child", app_path, str(to_child), str(from_child)]
            self.process = subprocess.Popen(
                [*REAPER, str(control.fileno()), str(to_child), str(from_child), *command],
                pass_fds=(control.fileno(), to_child, from_child),
                stdin=subprocess.DEVNULL,
                # Out of reach of the terminal's Ctrl-C.
                start_new_session=True,
            )
            for descriptor in (self._out, self._in, self._control.fileno()):
                os.set_blocking(descriptor, False)
            self._descriptors = ours.pop_all()
        self.send(hello)

    def begin(self) -> int:
        """Begin an attempt; answers its number here."""
        with self._lock:
            self._turn += 1
            return self._turn

    def finish(self) -> bool:
        """End the attempt. Answers whether there may be another one: nobody has killed the child meanwhile."""
        with self._lock:
            self._turn += 1
            return self._killed_at is None

    def kill(self, turn: int | None = None) -> None:
        """Have it ended with all that its handlers have started; for one attempt, only if that still runs."""
        with self._lock:
            if self._killed_at is None and turn in (None, self._turn):
                self._killed_at = time.monotonic()
                with contextlib.suppress(OSError):  # The reaper is gone.
                    self._control.shutdown(socket.SHUT_WR)

    def dismiss(self) -> None:
        """Tell it that there is nothing more to do."""
        if self._out >= 0:
            os.close(self._out)
            self._out = -1

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. That the child has ended is for `receive` to say: it may have reported before."""
        rest = memoryview(orjson.dumps(message) + b"\n")
        with contextlib.suppress(BrokenPipeError):
            while rest:
                try:
                    rest = rest[os.write(self._out, rest) :]
                except BlockingIOError:
                    if self._is_over():
                        return
                    self._wait(LOOK_S, self._out, select.POLLOUT)

    def receive(self) -> Any:
        """The next message; None when the child has ended, or closed its pipe."""
        while not self._lines:
            head, *more = self._read().split(b"\n")
            if not head and not more:
                return None
            self._line.append(head)
            for part in more:
                self._lines.append(b"".join(self._line))
                self._line = [part]
        return orjson.loads(self._lines.popleft())

    def _read(self) -> bytes:
        while True:
            # Asked before: what it wrote before its end must be read, and nothing is written after it.
            is_over = self._is_over()
            try:
                return os.read(self._in, CHUNK_BYTES)
            except BlockingIOError:
                if is_over:
                    return b""
                self._wait(LOOK_S, self._in, select.POLLIN)

    def _is_over(self) -> bool:
        if self.has_ended():
            return True
        return self._killed_at is not None and time.monotonic() > self._killed_at + KILL_S

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Whether it has ended, with all that its handlers have started, within that time from now."""
        until = time.monotonic() + within_s
        while self._exit is None:
            try:
                self._exit = self._control.recv(100)
            except BlockingIOError:
                if (left := until - time.monotonic()) <= 0:
                    return False
                self._wait(left)
            except OSError:
                self._exit = b""
        return True

    def _wait(self, most_s: float, descriptor: int | None = None, event: int = 0) -> None:
        """Wait until a pipe is ready, or the child has ended."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if descriptor is not None:
            poll.register(descriptor, event)
        poll.poll(1000 * most_s)

    def end(self, patience_s: float = 0.0) -> str:
        """Wait for its end, have it killed when it takes too long, and say how it ended."""
        if not self.has_ended(patience_s):
            self.kill()
            assert self._killed_at is not None
            if not self.has_ended(self._killed_at + KILL_S - time.monotonic()):
                logger.error("process %d did not end its child process: it is killed", self.process.pid)
        # It has nothing more to do. Who is not stopped, ends by itself at the same moment.
        self.process.kill()
        code = self.process.wait()
        with self._lock:
            self._killed_at = self._killed_at or time.monotonic()
            self._descriptors.close()
        return self._how(code)

    def _how(self, reapers_code: int) -> str:
        if not self._exit:
            return f"its parent process, the reaper, was lost: {how_it_ended(reapers_code)}"
        code, _, left = self._exit.decode().rstrip("\n").partition(" ")
        if int(left):
            logger.error("%s processes that a handler has started could not be killed", left)
        return how_it_ended(int(code)) if code else "killed, and it did not end"


class ProcessPool:
    def __init__(self, app_path: str | None, app: Onetray) -> None:
        self._app_path, self._app = app_path, app
        self._changed = threading.Condition()
        self._idle: list[ProcessHandle] = []
        self._busy: set[ProcessHandle] = set()
        self._closed = False

    def attempt(self, run: Attempt) -> Report | None:
        """Run one attempt in a child, and say how it ended."""
        if self._app_path is None:
            message = "isolation='process' needs to know where the app is: onetray worker --app module:app"
            return Fail(error_class="ConfigurationError", message=message, retryable=False, **run.ticket())
        child = self._take()
        turn = child.begin()
        run.interrupt = partial(child.kill, turn)
        if run.stop is not None:
            child.kill(turn)
        run.begin()
        report, fault = self._converse(child, run, turn)
        run.interrupt = None
        if child.finish() and report is not None:
            self._give_back(child)
            return report
        how = self._bury(child)
        return report or _died(run, fault or f"died: {how}")

    def _converse(self, child: ProcessHandle, run: Attempt, turn: int) -> tuple[Report | None, str]:
        """Answer what the handler asks until it reports. Without a report it says why the child must be ended."""
        try:
            child.send(_order(run, turn))
            while (message := child.receive()) is not None:
                if message["turn"] != turn:
                    _refuse(child, message)
                elif "log" in message:
                    run.log(*message["log"])
                elif "progress" in message:
                    run.progress(*message["progress"])
                elif "ask" in message:
                    child.send(_answer(run, message["ask"], message["args"]))
                elif "late" in message:
                    if not run.may_begin():
                        return run.unbegun(), ""
                    child.send(_order(run, turn))
                else:
                    return decode_report(message["end"], run.ticket()), ""
        except Exception as e:
            child.kill()
            return None, f"was ended: it wrote what is no message into the pipe to its worker ({e})"
        if child.has_ended(EXIT_S):
            return None, ""
        return None, "was ended: it had closed the pipe to its worker"

    def _take(self) -> ProcessHandle:
        child = self._take_idle()
        while child is not None and child.has_ended():
            self._bury(child)
            child = self._take_idle()
        if child is None:
            assert self._app_path is not None
            child = ProcessHandle(self._app_path, self._hello())
            with self._changed:
                self._busy.add(child)
        return child

    def _take_idle(self) -> ProcessHandle | None:
        with self._changed:
            if not self._idle:
                return None
            child = self._idle.pop()
            self._busy.add(child)
            return child

    def _hello(self) -> dict[str, Any]:
        """What a child cannot find by the app's path: it may have been changed here."""
        most = self._app.engine.config.limits.result_bytes
        return {"database": self._app.database, "token": self._app.token, "result_bytes": most}

    def _give_back(self, child: ProcessHandle) -> None:
        with self._changed:
            if not self._closed:
                self._busy.discard(child)
                self._idle.append(child)
                return
        self._bury(child)

    def _bury(self, child: ProcessHandle) -> str:
        how = child.end()
        with self._changed:
            self._busy.discard(child)
            self._changed.notify_all()
        return how

    def close(self) -> None:
        """Let idle ones end their lifespans; kill the rest."""
        until = time.monotonic() + LEAVE_S
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            for child in self._busy:
                child.kill()
        for child in idle:
            child.dismiss()
        for child in idle:
            child.end(max(0.0, until - time.monotonic()))
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, max(0.0, until - time.monotonic()))


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    return _beyond_standard(read), _beyond_standard(write)


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    one, other = (socket.socket(fileno=_beyond_standard(end.detach())) for end in socket.socketpair())
    return one, other


def _beyond_standard(descriptor: int) -> int:
    """A worker may have been started with its standard streams closed: what a handler prints must not end up here."""
    if descriptor > 2:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return moved


def _died(run: Attempt, how: str) -> Report:
    if run.stop is not None:
        return Release(reason=f"{run.stop}; its process was ended", **run.ticket())
    message = f"the process that ran it {how}"
    logger.error("%r: %s", run, message)
    return Fail(error_class="ProcessDied", message=message, **run.ticket())


def _order(run: Attempt, turn: int) -> dict[str, Any]:
    """What tells a child to run it, and until when it may begin: the child may come to read it much later."""
    return {"run": _assignment_fields(run), "turn": turn, "sure_until": run.sure_until()}


def _refuse(child: ProcessHandle, message: dict[str, Any]) -> None:
    """Of an attempt that has ended: from a thread that its handler has left."""
    if "ask" in message:
        child.send({"error": "this attempt has ended"})


def _assignment_fields(run: Attempt) -> dict[str, Any]:
    a = run.assignment
    return {**{f.name: getattr(a, f.name) for f in fields(a)}, "policy": a.policy.body}


def _answer(run: Attempt, name: str, args: list[Any]) -> dict[str, Any]:
    try:
        if name not in ASKED:
            raise ValueError(f"a child may not ask for {name}")
        value = getattr(run, name)(*args)
        return {"answer": None if name == "checkpoint" else value}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}


def how_it_ended(code: int) -> str:
    """What an exit code of subprocess means."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # Most real-time signals have no name.
        return f"killed by signal {-code}"
