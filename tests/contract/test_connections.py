"""How many connections a store keeps."""

import os
import threading
from pathlib import Path

from tests.support.engines import engine_on


def test_threads_that_come_and_go_leave_no_connections_behind(tmp_path: Path) -> None:
    with engine_on(f"sqlite:///{tmp_path / 'jobs.db'}") as engine:
        task = engine.submit("mail").id or ""
        engine.task(task)
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        for _ in range(50):
            reader = threading.Thread(target=engine.task, args=(task,))
            reader.start()
            reader.join()
        after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        assert after <= before + 3
