"""Keep the files of a test run in memory where there is room: databases that nobody reads again need no disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

MEMORY = Path("/dev/shm")
PREFIX = "onetray-tests-"
ENOUGH = 6 * 1024**3
"""A whole run has less than a third of this at a time."""


def make_folder(memory: Path = MEMORY) -> Path | None:
    """A new folder in memory, or none where it is small, missing or read-only, or where TMPDIR names another place."""
    if "TMPDIR" in os.environ or not os.access(memory, os.W_OK):
        return None
    _remove_leftovers(memory)
    if min(shutil.disk_usage(memory).free, _free_memory()) < ENOUGH:
        return None
    folder = memory / f"{PREFIX}{os.getpid()}"
    folder.mkdir()
    # PostgreSQL may run under another account.
    folder.chmod(0o755)
    return folder


def use_folder(folder: Path) -> None:
    """Make temporary files of this process, and of those that it starts, there."""
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None


def remove_folder(folder: Path) -> None:
    if os.environ.get("TMPDIR") == str(folder):
        del os.environ["TMPDIR"]
        tempfile.tempdir = None
    shutil.rmtree(folder, ignore_errors=True)


def _free_memory() -> int:
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def _remove_leftovers(memory: Path) -> None:
    """Those of runs that were killed."""
    for folder in memory.glob(f"{PREFIX}*"):
        if not Path(f"/proc/{folder.name.removeprefix(PREFIX)}").exists():
            shutil.rmtree(folder, ignore_errors=True)
