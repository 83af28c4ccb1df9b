"""An app for real worker processes: handlers that last, block, die or leave traces in a ledger."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import termios
import threading
from concurrent.futures import ProcessPoolExecutor
from functools import cache

from onetray import BatchItem, Onetray, ctx
from tests.support.fleet import Ledger
from tests.support.waits import hold_thread, wait_until

app = Onetray("sqlite:///nowhere/workload.db")
_open_once = cache(Ledger)

SLEEP = [sys.executable, "-S", "-c", "import threading; threading.Event().wait(1000)"]
LONG_S = 1000.0
QUICK = {"retries": 50, "lease_s": 1.5, "backoff_base_s": 0.01, "backoff_max_s": 0.1}
"""For tasks that another worker takes over soon."""
PATIENT = {**QUICK, "lease_s": 120.0}
"""For tasks that are not to be lost, however busy the machine is."""


@app.task(**QUICK)
async def nap(seconds: float, ledger: str | None = None) -> float:
    """Last for a while, and write down what was done."""
    return await _last(seconds, ledger)


async def _last(seconds: float, ledger: str | None) -> float:
    await asyncio.sleep(seconds)
    if ledger is not None:
        Ledger(ledger).write(ctx.id, ctx.fence)
    return seconds


@app.task(**PATIENT)
def doze(ledger: str, until: str) -> int:
    """In a thread: say that it began, and last until a file is there or it should stop."""
    Ledger(ledger).write("began", ctx.id, ctx.attempt, os.getpid())
    wait_until(lambda: ctx.check_cancelled() or os.path.exists(until), LONG_S)
    Ledger(ledger).write("ended", ctx.id, ctx.attempt, os.getpid())
    return ctx.attempt


@app.task(**PATIENT)
def deaf(ledger: str, until: str) -> int:
    """The same, and it does not listen."""
    Ledger(ledger).write("began", ctx.id, ctx.attempt, os.getpid())
    wait_until(lambda: os.path.exists(until), LONG_S)
    return ctx.attempt


@app.task(isolation="process", **PATIENT)
def alone(ledger: str, until: str) -> int:
    """In a process of its own, with one that it has started: in a session of its own, where that is ended too."""
    helper = subprocess.Popen(SLEEP, start_new_session=sys.platform == "linux")
    Ledger(ledger).write("began", ctx.id, ctx.attempt, os.getpid(), helper.pid)
    wait_until(lambda: os.path.exists(until), LONG_S)
    helper.kill()
    return ctx.attempt


@app.task(batch=3, batch_s=LONG_S, **QUICK)
def bundle(items: list[BatchItem[dict[str, str]]]) -> list[int]:
    """Say which tasks began together, and last until a file is there."""
    return _last_together(items)


@app.task(isolation="process", batch=3, batch_s=LONG_S, **PATIENT)
def bundle_alone(items: list[BatchItem[dict[str, str]]]) -> list[int]:
    """The same in a process of its own. It logs for each task, and stores what it would go on from."""
    for n, item in enumerate(items):
        item.ctx.log("looked at", n=n)
        item.ctx.checkpoint(n)
    if items[0].payload.get("how") == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return _last_together(items)


def _last_together(items: list[BatchItem[dict[str, str]]]) -> list[int]:
    payload = items[0].payload
    Ledger(payload["ledger"]).write("began", os.getpid(), *(item.ctx.id for item in items))
    wait_until(lambda: os.path.exists(payload["until"]), LONG_S)
    return [item.ctx.attempt for item in items]


@app.task(isolation="process", **QUICK)
def here(ledger: str) -> None:
    """Say in which process it is, and under which."""
    Ledger(ledger).write("began", ctx.id, ctx.attempt, os.getpid(), os.getppid())


@app.task(isolation="process", **{**QUICK, "lease_s": 8.0})
def here_longer(ledger: str) -> None:
    """The same, for a test that stops processes while the lease is in force: a busy machine must not lose it."""
    Ledger(ledger).write("began", ctx.id, ctx.attempt, os.getpid(), os.getppid())


@app.task(isolation="process", backoff_base_s=0.0)
def die(how: str) -> None:
    """End the process that runs this."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exit":
        os._exit(7)
    elif how == "segfault":
        ctypes.string_at(0)
    elif how == "real-time signal":
        os.kill(os.getpid(), 40)
    elif how == "sys.exit":
        sys.exit(3)
    elif how == "without its reaper":
        os.kill(os.getppid(), signal.SIGKILL)
        hold_thread()
    elif how == "closed descriptors":
        os.closerange(3, 256)
        hold_thread()
    elif how == "closed descriptors, with a fork":
        os.fork() or _sleep()
        os.closerange(3, 256)
        with open(os.devnull), open(os.devnull), open(os.devnull, "w"):
            return
    elif how.startswith("garbage"):
        os.write(int(sys.argv[3]), how.encode() + b"\n")
        hold_thread()


def start_helper(how: str) -> list[int]:
    """Start a process that outlives the one that starts it; answers the ids of all there are."""
    if how.startswith("fork"):
        helper = os.fork() or _sleep(own_session="session" in how)
        wait_until(lambda: "session" not in how or os.getsid(helper) == helper, LONG_S)
        return [helper]
    if how == "shell":
        # system(3) hands on every descriptor that is inheritable.
        with tempfile.NamedTemporaryFile("r") as file:
            os.system(f"sleep 1000 & echo $! > {file.name}")
            return [int(file.read())]
    if how == "pool":
        # Not in the list of pools that Python waits for: the handler's process ends before it.
        pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork"))
        return [future.result() for future in [pool.submit(os.getpid) for _ in range(2)]]
    if how == "session":
        return [subprocess.Popen(SLEEP, start_new_session=True).pid]
    # A daemon as in the textbook: two forks, a session and an environment of its own, every descriptor closed.
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if (daemon := os.fork()) == 0:
            os.closerange(0, 256)
            os.execve(SLEEP[0], SLEEP, {})
        os.write(write, str(daemon).encode())
        os._exit(0)
    os.wait()
    return [int(os.read(read, 20))]


def _sleep(own_session: bool = False) -> int:
    if own_session:
        os.setsid()
    hold_thread()
    os._exit(0)


@app.task(isolation="process", retries=0, backoff_base_s=0.0)
def leave_behind(helper: str, ledger: str, until: str, how: str = "kill") -> str:
    """Start something, and end: with the process, by a result, or not at all."""
    helpers = start_helper(helper)
    Ledger(ledger).write("began", ctx.id, ctx.attempt, os.getpid(), *helpers)
    if how in ("kill", "exit"):
        os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else os._exit(0)
    wait_until(lambda: how != "wait" or os.path.exists(until), LONG_S)
    return helper


@app.task(isolation="process", retries=0)
def come_back_twice() -> str:
    """Fork, and let the fork come back from the handler, too, and first."""
    if (fork := os.fork()) == 0:
        try:
            ctx.log("from a fork")
        except RuntimeError:
            return "the fork"
        sys.exit(5)
    return f"the fork's exit code was {os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])}"


@app.task(isolation="process", retries=0)
def leave_a_thread(ledger: str, until: str) -> None:
    """Leave a thread behind that speaks when this attempt has ended."""

    def speak() -> None:
        wait_until(lambda: os.path.exists(until), LONG_S)
        ctx.log("late")
        try:
            ctx.checkpoint("late")
        except RuntimeError as e:
            Ledger(ledger).write("refused", str(e))

    threading.Thread(target=contextvars.copy_context().run, args=(speak,), daemon=True).start()


@app.task(isolation="process", retries=0)
def report_and_die() -> str:
    """Die as soon as the report has been written, and before it or a question before it is read."""
    pipe = int(sys.argv[3])

    def unread() -> int:
        return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)

    def die() -> None:
        wait_until(lambda: unread() != asked)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=contextvars.copy_context().run, args=(ctx.checkpoint, 1), daemon=True).start()
    wait_until(unread)
    asked = unread()
    threading.Thread(target=die, daemon=True).start()
    return "reported"


@app.task(isolation="process", retries=0, timeout_s=2)
def overrun(ledger: str, helper: str) -> None:
    Ledger(ledger).write("began", ctx.id, ctx.attempt, os.getpid(), *start_helper(helper))
    hold_thread()


@app.task(isolation="process", retries=0)
def give(what: str) -> object:
    """Give what cannot be kept."""
    return {"large": "x" * 1_000_001, "NaN": float("nan"), "number": 10**30, "surrogate": "\ud800"}[what]


@app.task(isolation="process", retries=0)
def speak() -> str:
    """Say everything that a child may say, and ask its parent for what it may ask."""
    ctx.log("odd", thing=object(), number=10**40)
    ctx.progress(1, 2, "half")
    ctx.checkpoint({"at": 1})
    nap.submit(0)
    return str(ctx.last_checkpoint)


@app.task(isolation="process", retries=0)
def talk() -> str:
    """Print, here and in a program that this starts."""
    print("from the handler", flush=True)
    os.system("echo from its helper; echo from its helper >&2")
    return "done"


@app.task(retries=0, isolation="thread")
def print_when(ledger: str, until: str) -> str:
    """In the worker's process: print after a file is there, and let a program print, too."""
    Ledger(ledger).write("began", ctx.id, ctx.attempt, os.getpid())
    wait_until(lambda: os.path.exists(until), LONG_S)
    print("from the handler", flush=True)
    print("from the handler", file=sys.stderr, flush=True)
    subprocess.run(["sh", "-c", "echo from its helper && echo from its helper >&2"], check=True)
    return "done"


@app.task
async def linger(seconds: float, ledger: str) -> float:
    """As nap, under a lease that outlasts an outage."""
    return await _last(seconds, ledger)


@app.task(retries=100, lease_s=4.0, backoff_base_s=0.01, backoff_max_s=0.1)
async def note(what: str, ledger: str) -> str:
    """Write down that this was done."""
    _open_once(ledger).write(ctx.id, what)
    return what
