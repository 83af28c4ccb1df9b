"""Run a program from a page as `python -W error -c PROGRAM` does: `python -m tests.docs.program FILE`."""

import sys
import warnings
from pathlib import Path

if __name__ == "__main__":
    warnings.simplefilter("error")
    exec(compile(Path(sys.argv[1]).read_text(), "<string>", "exec"), globals())
