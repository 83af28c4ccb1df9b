"""Runs the installed script with its arguments: see tests/support/prepared.py for what that saves."""

import runpy
import signal
import sys

if __name__ == "__main__":
    # A run in the background ignores it, and so would what it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    del sys.argv[0]
    # A script has not the folder that it is started in.
    sys.path[:] = [place for place in sys.path if place]
    runpy.run_path(sys.argv[0], run_name="__main__")
