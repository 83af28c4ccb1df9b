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
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at:
        os.kill(pid, 0)
        time.sleep(0.02)


def remove(directory: str) -> None:
    """Remove the directory; backends that are still on their way out may write to it for a moment."""
    give_up_at = time.monotonic() + PATIENCE_S
    while os.path.exists(directory) and time.monotonic() < give_up_at:
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
