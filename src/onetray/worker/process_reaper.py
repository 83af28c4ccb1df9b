"""The parent of one process that runs handlers: `python -I -S process_reaper.py CONTROL IN OUT COMMAND…`.

Owns that process and all that it starts: it waits for its end, ends what it has left running, and tells the worker how
it ended. It ends all of it at once when the worker asks for that, and when the worker has died: both close CONTROL.

On Linux it is the subreaper of all of them: a process whose parent has died becomes its child, also one with a session
of its own. Elsewhere it ends the process group of its child. It signals nobody but its own children and that group: no
other process can have their ids before it has waited for them.

It imports nothing of onetray, so that it is small and soon there.
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

END_S = 5.0
"""How long what was killed is waited for. A process of another user cannot be killed."""
LOOK_S = 1.0
"""How often to look whether the worker is still the parent: a copy of it may hold CONTROL open."""
AGAIN_S = 0.005
SPARED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""A service manager may send these to every process of the worker: the reaper ends after all others."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main(control: int, pipes: list[int], command: list[str]) -> None:
    _open_standard_streams()
    worker, me = os.getppid(), os.getpid()
    os.set_inheritable(control, False)
    spared = {number: signal.signal(number, signal.SIG_IGN) for number in SPARED}
    ended = _on_child_end()
    prctl = _prctl()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        _become(command, spared, prctl, me)
    for pipe in pipes:
        os.close(pipe)
    has_exited, poll = _exit_watch(child), select.poll()
    poll.register(control, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while not has_exited() and os.getppid() == worker:
        _reap_orphans(child)
        if control in dict(poll.poll(1000 * LOOK_S)):
            break
        with contextlib.suppress(BlockingIOError):
            os.read(ended, 1000)
    code, left = _end_all(child)
    with contextlib.suppress(OSError):  # The worker is gone.
        os.write(control, f"{'' if code is None else code} {left}\n".encode())


def _become(command: list[str], spared: dict[signal.Signals, Any], prctl: Prctl, reaper: int) -> NoReturn:
    try:
        os.setsid()
        # If somebody kills the reaper, its child must not go on without one.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != reaper:
            os._exit(1)
        for number, before in spared.items():
            signal.signal(number, before)
        os.execv(command[0], command)
    except BaseException as e:
        os.write(2, f"{command[0]} could not be started: {e}\n".encode())
    os._exit(127)


def _open_standard_streams() -> None:
    """If the worker has none, something else is there: SQLite, for one, puts a file there that cannot be written to."""
    for number in (1, 2):
        try:
            is_open = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        except OSError:
            is_open = False
        if not is_open:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)
            os.set_inheritable(number, True)


def _prctl() -> Prctl:
    if sys.platform != "linux":
        return lambda *_: None
    try:
        import ctypes

        call = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):  # Without it, only the process group is ended.
        return lambda *_: None
    return lambda option, value: call(option, ctypes.c_ulong(value), 0, 0, 0)


def _on_child_end() -> int:
    """A descriptor that can be read when a child has ended."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def _exit_watch(child: int) -> Callable[[], bool]:
    """Answers whether the child has exited, without waiting for it: its id stays taken, and its group can be ended."""
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
    seen: list[Any] = []

    def has_exited() -> bool:
        seen.extend(queue.control(None, 1, 0))
        return bool(seen)

    return has_exited


def _reap_orphans(child: int) -> None:
    if sys.platform == "linux":
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (orphan := os.waitid(os.P_ALL, 0, look)) is not None and orphan.si_pid != child:
            os.waitpid(orphan.si_pid, 0)


def _end_all(child: int) -> tuple[int | None, int]:
    """Kill the child and all that it has started. Answers its exit code, and how many could not be ended."""
    code, until = None, time.monotonic() + END_S
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
        # Their children become ours when they die: again, until there are none.
        alive = _children()
        if time.monotonic() > until:
            return code, len(alive)
        for pid in alive:
            _kill(pid)
        time.sleep(AGAIN_S)


def _children() -> list[int]:
    me, found = os.getpid(), []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        if name.isdecimal():
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as stat:
                # After the command's name, which may hold anything: the state and the parent.
                if int(stat.read().rpartition(b")")[2].split()[1]) == me:
                    found.append(int(name))
    return found


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    _control, _in, _out = map(int, sys.argv[1:4])
    main(_control, [_in, _out], sys.argv[4:])
