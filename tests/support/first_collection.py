"""Compile the tests once in a new checkout: one process of the run collects them, the others wait for its bytecode.

Otherwise all of them would compile all of the tests at the same time, each for itself.
"""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
FIRST = "gw0"
LAST_FOLDER = ROOT / "tests/worker"
"""Whose tests are compiled last."""
PATIENCE_S = 60.0
"""How long the first worker is waited for until it begins."""


@contextmanager
def compiled_once(
    worker: str | None, run: str, lock: Path = ROOT / ".cache/collecting", patience_s: float = PATIENCE_S
) -> Iterator[None]:
    """Collect alone as the first worker of a run of pytest-xdist, after it as another, if nothing is compiled yet."""
    if worker is None or sys.pycache_prefix is None or _is_compiled(Path(sys.pycache_prefix)):
        yield
        return
    lock.parent.mkdir(exist_ok=True)
    # The kernel drops the lock when its owner ends, however it ends.
    with lock.open("a+") as held:
        if worker == FIRST:
            fcntl.flock(held, fcntl.LOCK_EX)
            held.truncate(0)
            print(run, end="", file=held, flush=True)
        else:
            _wait_for_first(held, run, patience_s)
        yield


def _wait_for_first(held: IO[str], run: str, patience_s: float) -> None:
    """Wait until the first worker of this run has collected. It may begin later than this one, or never."""
    give_up_at = time.monotonic() + patience_s
    while time.monotonic() < give_up_at:
        fcntl.flock(held, fcntl.LOCK_SH)
        held.seek(0)
        has_collected = held.read() == run
        fcntl.flock(held, fcntl.LOCK_UN)
        if has_collected:
            return
        time.sleep(0.05)


def _is_compiled(bytecode: Path) -> bool:
    return any((bytecode / LAST_FOLDER.relative_to("/")).glob("test_*-pytest-*.pyc"))
