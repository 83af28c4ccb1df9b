"""Run handlers in child processes: one call at a time in each; a child is killed to stop its handler.

Children are spawned, not forked, and reused for the next task. They talk to the worker in lines of JSON over two pipes;
their standard output is the worker's. If a child dies, its attempt fails.

    worker ── control ──▶ process_reaper.py ── waits for ──▶ process_child.py ──▶ processes that a handler starts
       ▲─────────────────── two pipes ──────────────────▲

The reaper reports the end of a child. A closed pipe would not: processes that a handler has started may hold a copy.
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
    from onetray.worker.attempt_batch import AttemptBatch


import signal

logger = logging.getLogger("onetray.worker")

CHILD_REQUESTS = ("last_checkpoint", "inputs", "config", "answer", "results_of", "created_at", "checkpoint")
"""Methods of Attempt that a child may call."""

REAPER = (sys.executable, "-I", "-S", process_reaper.__file__)
CLOSE_TIMEOUT_S = 3.0
EXIT_TIMEOUT_S = 1.0
"""How long a child may live after it has closed its pipe: a dying process closes it a moment before it ends."""
KILL_TIMEOUT_S = 2 * process_reaper.KILL_TIMEOUT_S
"""How long the reaper may take to kill a child. After that the reaper is killed, and the child with it."""
POLL_INTERVAL_S = 1.0
CHUNK_BYTES = 1 << 16


class ProcessHandle:
    """A child process. One thread uses it at a time; any thread may kill it."""

    def __init__(self, app_path: str, setup: dict[str, Any]) -> None:
        self._lock = threading.Lock()
        self._sequence = 0
        """Identifies the current attempt: a late call of `kill` must not hit the next one."""
        self._killed_at: float | None = None
        self._exit: bytes | None = None
        """The reaper's last message; empty if the reaper was killed."""
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
                # Ctrl-C in the terminal must not reach it.
                start_new_session=True,
            )
            for descriptor in (self._out, self._in, self._control.fileno()):
                os.set_blocking(descriptor, False)
            self._descriptors = ours.pop_all()
        self.send(setup)

    def begin(self) -> int:
        """Begin an attempt, and return its sequence number."""
        with self._lock:
            self._sequence += 1
            return self._sequence

    def finish(self) -> bool:
        """End the attempt. Returns whether the child can be reused: False if it was killed meanwhile."""
        with self._lock:
            self._sequence += 1
            return self._killed_at is None

    def kill(self, sequence: int | None = None) -> None:
        """Let the reaper kill the child and all that it has started. With `sequence`: only during that attempt."""
        with self._lock:
            if self._killed_at is None and sequence in (None, self._sequence):
                self._killed_at = time.monotonic()
                with contextlib.suppress(OSError):  # The reaper has ended.
                    self._control.shutdown(socket.SHUT_WR)

    def dismiss(self) -> None:
        """Close the pipe to the child, which then ends its lifespan and exits."""
        if self._out >= 0:
            os.close(self._out)
            self._out = -1

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. Ignores a child that has ended: `receive` finds out, after the messages that it left."""
        rest = memoryview(orjson.dumps(message) + b"\n")
        with contextlib.suppress(BrokenPipeError):
            while rest:
                try:
                    rest = rest[os.write(self._out, rest) :]
                except BlockingIOError:
                    if self._has_ended_or_hung():
                        return
                    self._wait(POLL_INTERVAL_S, self._out, select.POLLOUT)

    def receive(self) -> Any:
        """The next message; None if the child has ended or closed its pipe."""
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
            # Checked before the read: all that the child wrote before its end must be read.
            is_over = self._has_ended_or_hung()
            try:
                return os.read(self._in, CHUNK_BYTES)
            except BlockingIOError:
                if is_over:
                    return b""
                self._wait(POLL_INTERVAL_S, self._in, select.POLLIN)

    def _has_ended_or_hung(self) -> bool:
        if self.has_ended():
            return True
        return self._killed_at is not None and time.monotonic() > self._killed_at + KILL_TIMEOUT_S

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Whether the child and all processes that it started end within this time."""
        until = time.monotonic() + timeout_s
        while self._exit is None:
            try:
                self._exit = self._control.recv(100)
            except BlockingIOError:
                if (remaining := until - time.monotonic()) <= 0:
                    return False
                self._wait(remaining)
            except OSError:
                self._exit = b""
        return True

    def _wait(self, timeout_s: float, descriptor: int | None = None, event: int = 0) -> None:
        """Wait until a pipe is ready or the child has ended."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if descriptor is not None:
            poll.register(descriptor, event)
        poll.poll(1000 * timeout_s)

    def end(self, timeout_s: float = 0.0) -> str:
        """Wait for the child to end, kill it after the timeout, and return how it ended."""
        if not self.has_ended(timeout_s):
            self.kill()
            assert self._killed_at is not None
            if not self.has_ended(self._killed_at + KILL_TIMEOUT_S - time.monotonic()):
                logger.error("reaper %d did not end its child process: killing it", self.process.pid)
            # A reaper that has not hung is ending by itself now.
            self.process.kill()
        code = self.process.wait()
        with self._lock:
            self._killed_at = self._killed_at or time.monotonic()
            self._descriptors.close()
        return self._describe_exit(code)

    def _describe_exit(self, reaper_code: int) -> str:
        if not self._exit:
            return f"its parent process, the reaper, was lost: {describe_exit_code(reaper_code)}"
        code, _, remaining = self._exit.decode().rstrip("\n").partition(" ")
        if int(remaining):
            logger.error("%s processes that a handler has started could not be killed", remaining)
        return describe_exit_code(int(code)) if code else "killed, but did not exit"


class ProcessPool:
    def __init__(self, app_path: str | None, app: Onetray) -> None:
        self._app_path, self._app = app_path, app
        self._changed = threading.Condition()
        self._idle: list[ProcessHandle] = []
        self._busy: set[ProcessHandle] = set()
        self._closed = False

    def run(self, work: Attempt | AttemptBatch) -> list[Report | None]:
        """Run an attempt, or a batch, in a child. Returns the report of each."""
        if self._app_path is None:
            message = "isolation='process' needs the path of the app: onetray worker --app module:app"
            return [
                Fail(error_class="ConfigurationError", message=message, retryable=False, **attempt.ticket())
                for attempt in work.members
            ]
        child = self._acquire()
        sequence = child.begin()
        work.interrupt_by(partial(child.kill, sequence))
        if work.stop_reason is not None:
            child.kill(sequence)
        work.begin()
        reports, problem = self._serve(child, work, sequence)
        work.interrupt_by(None)
        if child.finish() and reports is not None:
            self._return_to_pool(child)
            return reports
        exit_text = self._end_process(child)
        return reports or [_died_report(attempt, problem or f"died: {exit_text}") for attempt in work.members]

    def _serve(
        self, child: ProcessHandle, work: Attempt | AttemptBatch, sequence: int
    ) -> tuple[list[Report | None] | None, str]:
        """Answer the child's requests until it reports. Returns the reports, or None and why to kill the child."""
        try:
            child.send(_run_message(work, sequence))
            while (message := child.receive()) is not None:
                if message["sequence"] != sequence:
                    _reject_stale(child, message)
                elif "item" in message:
                    _serve_context(child, work.members[message["item"]], message)
                elif "late" in message:
                    if not work.may_begin():
                        return [attempt.release_unstarted() for attempt in work.members], ""
                    child.send(_run_message(work, sequence))
                else:
                    ends = zip(message["ends"], work.members, strict=True)
                    return [decode_report(end, attempt.ticket()) for end, attempt in ends], ""
        except Exception as e:
            child.kill()
            return None, f"was ended: it wrote an invalid message into the pipe to its worker ({e})"
        if child.has_ended(EXIT_TIMEOUT_S):
            return None, ""
        return None, "was ended: it had closed the pipe to its worker"

    def _acquire(self) -> ProcessHandle:
        child = self._acquire_idle()
        while child is not None and child.has_ended():
            self._end_process(child)
            child = self._acquire_idle()
        if child is None:
            assert self._app_path is not None
            child = ProcessHandle(self._app_path, self._setup_message())
            with self._changed:
                self._busy.add(child)
        return child

    def _acquire_idle(self) -> ProcessHandle | None:
        with self._changed:
            if not self._idle:
                return None
            child = self._idle.pop()
            self._busy.add(child)
            return child

    def _setup_message(self) -> dict[str, Any]:
        """Settings that the child cannot get from the app's path: this process may have changed them."""
        max_bytes = self._app.engine.config.limits.result_bytes
        app = self._app
        return {
            "database": app.database, "namespace": app.namespace, "token": app.token, "result_bytes": max_bytes,
        }  # fmt: skip

    def _return_to_pool(self, child: ProcessHandle) -> None:
        with self._changed:
            if not self._closed:
                self._busy.discard(child)
                self._idle.append(child)
                return
        self._end_process(child)

    def _end_process(self, child: ProcessHandle) -> str:
        exit_text = child.end()
        with self._changed:
            self._busy.discard(child)
            self._changed.notify_all()
        return exit_text

    def close(self) -> None:
        """Let idle children end their lifespans; kill the others."""
        until = time.monotonic() + CLOSE_TIMEOUT_S
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
    return _above_standard_streams(read), _above_standard_streams(write)


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = (socket.socket(fileno=_above_standard_streams(end.detach())) for end in socket.socketpair())
    return ours, theirs


def _above_standard_streams(descriptor: int) -> int:
    """Avoid descriptors 0 to 2: in a worker without standard streams, handlers would print into a pipe."""
    if descriptor > 2:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return moved


def _died_report(attempt: Attempt, exit_text: str) -> Report:
    if attempt.stop_reason is not None:
        return Release(reason=f"{attempt.stop_reason}; its process was ended", **attempt.ticket())
    return Fail(error_class="ProcessDied", message=f"the process that ran it {exit_text}", **attempt.ticket())


def _run_message(work: Attempt | AttemptBatch, sequence: int) -> dict[str, Any]:
    """The message that starts a call, with the time until which it may begin: the child may read it much later."""
    runs = [_assignment_fields(attempt) for attempt in work.members]
    return {"runs": runs, "sequence": sequence, "valid_until": work.valid_until()}


def _serve_context(child: ProcessHandle, attempt: Attempt, message: dict[str, Any]) -> None:
    """Carry out what a handler calls on its ctx."""
    if "log" in message:
        attempt.log(*message["log"])
    elif "progress" in message:
        attempt.progress(*message["progress"])
    else:
        child.send(_answer(attempt, message["ask"], message["args"]))


def _reject_stale(child: ProcessHandle, message: dict[str, Any]) -> None:
    """Reject a request of an earlier attempt: a thread of its handler still runs."""
    if "ask" in message:
        child.send({"error": "this attempt has ended"})


def _assignment_fields(attempt: Attempt) -> dict[str, Any]:
    a = attempt.assignment
    return {**{f.name: getattr(a, f.name) for f in fields(a)}, "policy": a.policy.body}


def _answer(attempt: Attempt, name: str, args: list[Any]) -> dict[str, Any]:
    try:
        if name not in CHILD_REQUESTS:
            raise ValueError(f"a child process may not call {name}")
        value = getattr(attempt, name)(*args)
        return {"answer": None if name == "checkpoint" else value}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}


def describe_exit_code(code: int) -> str:
    """Describe an exit code of `subprocess`: negative if a signal killed the process."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # Most real-time signals have no name.
        return f"killed by signal {-code}"
