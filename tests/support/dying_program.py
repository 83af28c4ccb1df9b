"""`onetray …` as a process of its own that kills itself at a named point of a fire.

    python -m tests.support.dying_program LEDGER NAME POINT HITS STEP serve …

Writes a line into the ledger for each transaction of a fire that is committed, with the name of the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from onetray import failpoints
from onetray.domain import schedule_plan
from tests.support.fleet import Ledger

ANYWHERE = ("begun",)
"""Points that are hit before it is known that the transaction is one of a fire."""


class Fire(threading.local):
    """Whether this thread is in the transaction of a fire."""

    is_under_way = False


def die_in_a_fire(ledger: Ledger, name: str, point: str, hits: int) -> None:
    left, fire = [hits], Fire()

    def hook(at: str) -> None:
        if at in ("begun", "schedule_locked"):
            fire.is_under_way = at == "schedule_locked"
        if at == point and (fire.is_under_way or at in ANYWHERE):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        if at == "committed" and fire.is_under_way:
            fire.is_under_way = False
            ledger.write("fired", name)

    failpoints.hook = hook


def main() -> None:
    path, name, point, hits, step, *words = sys.argv[1:]
    # Many small transactions, so that all processes get their turn.
    schedule_plan.STEP = int(step)
    die_in_a_fire(Ledger(path), name, point, int(hits))
    from onetray.cli import main as onetray

    sys.argv = ["onetray", *words]
    onetray()


if __name__ == "__main__":
    main()
