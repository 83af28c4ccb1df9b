"""A process that forks: its child must not use what it has inherited."""

from __future__ import annotations

import subprocess
import sys

FORK = """
import os, sys
from onetray import Engine, StoreError
engine = Engine.open(sys.argv[1])
id_ = engine.submit("mail").id
child = os.fork()
if child == 0:
    said = 0
    for call in (lambda: engine.submit("mail"), lambda: engine.task(id_)):
        try:
            call()
        except StoreError as e:
            said += "fork" in str(e)
    os._exit(40 + said)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
engine.submit("mail")
engine.close()
"""


def test_a_forked_child_is_told_to_open_an_engine_of_its_own(database_url: str) -> None:
    """It used to wait for ever: a child has none of its parent's threads."""
    done = subprocess.run([sys.executable, "-c", FORK, database_url], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
