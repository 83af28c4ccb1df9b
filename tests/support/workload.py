"""An app for real worker processes: handlers that last, block, die or leave traces in a ledger."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time

from onetray import Onetray, ctx
from tests.support.fleet import Ledger

app = Onetray("sqlite:///nowhere/workload.db")

QUICK = {"retries": 50, "lease_s": 1.5, "backoff_base_s": 0.01, "backoff_max_s": 0.1}
"""For tasks that another worker takes over soon."""
PATIENT = {**QUICK, "lease_s": 120.0}
"""For tasks that are not to be lost, however busy the machine is."""


@app.task(**QUICK)
async def nap(seconds: float, ledger: str | None = None) -> float:
    """Last for a while, and write down what was done."""
    await asyncio.sleep(seconds)
    if ledger is not None:
        Ledger(ledger).write(ctx.id, ctx.fence)
    return seconds


@app.task(**PATIENT)
def doze(ledger: str, until: str) -> int:
    """In a thread: say that it began, and last until a file is there or it should stop."""
    Ledger(ledger).write("began", ctx.id, ctx.attempt, os.getpid())
    while not os.path.exists(until):
        ctx.check_cancelled()
        time.sleep(0.01)
    Ledger(ledger).write("ended", ctx.id, ctx.attempt, os.getpid())
    return ctx.attempt


@app.task(**PATIENT)
def deaf(ledger: str, until: str) -> int:
    """The same, and it does not listen."""
    Ledger(ledger).write("began", ctx.id, ctx.attempt, os.getpid())
    while not os.path.exists(until):
        time.sleep(0.01)
    return ctx.attempt


@app.task(isolation="process", **PATIENT)
def alone(ledger: str, until: str) -> int:
    """In a process of its own, with one that it has started."""
    helper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    Ledger(ledger).write("began", ctx.id, ctx.attempt, os.getpid(), helper.pid)
    while not os.path.exists(until):
        time.sleep(0.01)
    helper.kill()
    return ctx.attempt


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


@app.task(isolation="process", retries=0, timeout_s=0.5)
def overrun(ledger: str) -> None:
    Ledger(ledger).write("began", ctx.id, ctx.attempt, os.getpid())
    time.sleep(60)


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


@app.task
async def linger(seconds: float, ledger: str) -> float:
    """As nap, under a lease that outlasts an outage."""
    await asyncio.sleep(seconds)
    Ledger(ledger).write(ctx.id, ctx.fence)
    return seconds
