"""Compile the tests once in a new checkout: one process of the run collects them, the others wait for its bytecode.

Otherwise all of them would compile all of the tests at the same time, each for itself.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIRST = "gw0"
LAST_FOLDER = ROOT / "tests/worker"
"""Whose tests are compiled last."""


@contextmanager
def compiled_once(worker: str | None, lock: Path = ROOT / ".cache/collecting") -> Iterator[None]:
    """Collect alone as the first worker of pytest-xdist, and after it as another, if nothing is compiled yet."""
    if worker is None or sys.pycache_prefix is None or _is_compiled(Path(sys.pycache_prefix)):
        yield
        return
    lock.parent.mkdir(exist_ok=True)
    # The kernel drops the lock when its owner ends, however it ends.
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX if worker == FIRST else fcntl.LOCK_SH)
        if worker != FIRST:
            fcntl.flock(held, fcntl.LOCK_UN)
        yield


def _is_compiled(bytecode: Path) -> bool:
    return any((bytecode / LAST_FOLDER.relative_to("/")).glob("test_*-pytest-*.pyc"))
