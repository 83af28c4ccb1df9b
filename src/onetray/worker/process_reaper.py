"""The parent of one process that runs handlers: `python -I -S process_reaper.py CONTROL IN OUT COMMAND…`.

Waits for that process to end, kills what it has left running, and writes its exit code to CONTROL. Kills all of it at
once if the worker closes CONTROL or dies.

On Linux the reaper is the subreaper of the child: orphaned descendants become its children, even those with a session
of their own. Elsewhere it kills the child's process group. It signals only its own children and that group, whose ids
cannot be reused before it has waited for them.

It imports nothing of onetray, so that it is small and starts fast.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

Prctl = Callable[[int, int], object]

KILL_TIMEOUT_S = 5.0
"""How long to wait for killed processes. Processes of another user cannot be killed."""
PARENT_CHECK_INTERVAL_S = 1.0
"""How often to check that the worker still lives: a fork of it may hold CONTROL open after its death."""
RETRY_INTERVAL_S = 0.005
IGNORED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""A service manager may send these to every process of the worker, but the reaper must end last."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main(control: int, pipes: list[int], command: list[str]) -> None:
    _open_standard_streams()
    worker, own_pid = os.getppid(), os.getpid()
    os.set_inheritable(control, False)
    ignored_signals = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED_SIGNALS}
    child_end_pipe = _on_child_end()
    prctl = _prctl()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        _exec(command, ignored_signals, prctl, own_pid)
    for pipe in pipes:
        os.close(pipe)
    has_exited, poll = _exit_watch(child), select.poll()
    poll.register(control, select.POLLIN)
    poll.register(child_end_pipe, select.POLLIN)
    while not has_exited() and os.getppid() == worker:
        _reap_orphans(child)
        if control in dict(poll.poll(1000 * PARENT_CHECK_INTERVAL_S)):
            break
        with contextlib.suppress(BlockingIOError):
            os.read(child_end_pipe, 1000)
    code, survivors = _end_all(child)
    with contextlib.suppress(OSError):  # The worker has ended.
        os.write(control, f"{'' if code is None else code} {survivors}\n".encode())


def _exec(command: list[str], ignored_signals: dict[signal.Signals, Any], prctl: Prctl, reaper: int) -> NoReturn:
    try:
        os.setsid()
        # The child must not outlive its reaper.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != reaper:
            os._exit(1)
        for number, before in ignored_signals.items():
            signal.signal(number, before)
        os.execv(command[0], command)
    except BaseException as e:
        os.write(2, f"{command[0]} could not be started: {e}\n".encode())
    os._exit(127)


def _open_standard_streams() -> None:
    """Reopen closed standard streams: otherwise another file has taken their numbers, as SQLite does on purpose."""
    for number in (1, 2):
        try:
            is_open = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        except OSError:
            is_open = False
        if not is_open:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            os.set_inheritable(number, True)


def _prctl() -> Prctl:
    if sys.platform != "linux":
        return lambda *_: None
    try:
        import ctypes

        call = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):  # Without it, only the process group is killed.
        return lambda *_: None
    return lambda option, value: call(option, ctypes.c_ulong(value), 0, 0, 0)


def _on_child_end() -> int:
    """A file descriptor that becomes readable when a child has ended."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def _exit_watch(child: int) -> Callable[[], bool]:
    """A function that returns whether the child has exited, without reaping it: its id stays reserved."""
    if not hasattr(select, "kqueue"):
        return lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    # Python has no waitid on macOS before 3.13.
    kqueue: Any = select
    queue = kqueue.kqueue()
    exit_of = kqueue.kevent(child, kqueue.KQ_FILTER_PROC, kqueue.KQ_EV_ADD, kqueue.KQ_NOTE_EXIT)
    try:
        queue.control([exit_of], 0, 0)
    except ProcessLookupError:
        return lambda: True
    exits: list[Any] = []

    def has_exited() -> bool:
        exits.extend(queue.control(None, 1, 0))
        return bool(exits)

    return has_exited


def _reap_orphans(child: int) -> None:
    if sys.platform == "linux":
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (orphan := os.waitid(os.P_ALL, 0, flags)) is not None and orphan.si_pid != child:
            os.waitpid(orphan.si_pid, 0)


def _end_all(child: int) -> tuple[int | None, int]:
    """Kill the child and all that it has started. Returns its exit code, and how many processes could not be killed."""
    code, until = None, time.monotonic() + KILL_TIMEOUT_S
    _kill(child)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, 0
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
        if pid:
            continue
        # The children of killed processes become ours: repeat until none is left.
        alive = _children()
        if time.monotonic() > until:
            return code, len(alive)
        for pid in alive:
            _kill(pid)
        time.sleep(RETRY_INTERVAL_S)


def _children() -> list[int]:
    own_pid, pids = os.getpid(), []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        if name.isdecimal():
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as stat:
                # The command's name may contain anything. After it come the state and the parent's id.
                if int(stat.read().rpartition(b")")[2].split()[1]) == own_pid:
                    pids.append(int(name))
    return pids


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    _control, _in, _out = map(int, sys.argv[1:4])
    main(_control, [_in, _out], sys.argv[4:])
