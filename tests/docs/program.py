"""Runs a file as `python -W error -c` runs its text: see tests/support/prepared.py for what that saves."""

import os
import runpy
import sys
import warnings

if __name__ == "__main__":
    warnings.simplefilter("error")
    sys.path.insert(0, os.getcwd())
    runpy.run_path(sys.argv[1], run_name="__main__")
