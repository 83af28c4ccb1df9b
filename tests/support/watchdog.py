"""End a test cluster when its owner is gone, even when the owner was killed.

Runs as a process of its own: `python watchdog.py DIRECTORY`. The owner writes the postmaster's process id to
our standard input whenever it changes (0: none runs). End of input means that the owner stopped or died: then
the postmaster is ended and DIRECTORY removed. Starts nothing.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable

PATIENCE_S = 10


def main(directory: str) -> None:
    """Wait for the end of input, then clean up."""
    pid = 0
    for line in sys.stdin:
        pid = int(line)
    if pid:
        end(pid)
    remove(directory)


def end(pid: int) -> None:
    """Stop the postmaster at once; insist when it does not go."""
    for how in (signal.SIGQUIT, signal.SIGKILL):
        try:
            os.kill(pid, how)
            wait_until_gone(pid)
        except ProcessLookupError:
            return


def wait_until_gone(pid: int) -> None:
    """Raise ProcessLookupError as soon as the process is gone; return when patience ends first."""

    def is_there() -> bool:
        os.kill(pid, 0)
        return True

    repeat_while(is_there)


def remove(directory: str) -> None:
    """Remove the directory; backends that are still on their way out may write to it for a moment."""

    def is_there() -> bool:
        shutil.rmtree(directory, ignore_errors=True)
        return os.path.exists(directory)

    repeat_while(is_there)


def repeat_while(step: Callable[[], bool]) -> None:
    """Repeat a step until it answers False, or patience ends."""
    give_up_at = time.monotonic() + PATIENCE_S
    while step() and time.monotonic() < give_up_at:
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
