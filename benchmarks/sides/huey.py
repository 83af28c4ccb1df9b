"""Huey, on SQLite with fsync or on Redis, without results; its consumer with as many threads as are fastest."""

from __future__ import annotations

import sys
from typing import Any

from huey import RedisHuey, SqliteHuey

from benchmarks.sides import HANDLER_S, Submitter, handle_here, leave_with_the_input

role, url = sys.argv[1:]
ON_SQLITE = url.startswith("sqlite:///")
THREADS = 50 if HANDLER_S else 1 if ON_SQLITE else 2
huey: Any = (
    SqliteHuey("bench", filename=url.removeprefix("sqlite:///"), results=False, fsync=True)
    if ON_SQLITE
    else RedisHuey("bench", url=url, results=False, blocking=True)
)


@huey.task()  # type: ignore[untyped-decorator]
def noop(number: int) -> None:
    handle_here(number)


if role == "submit":
    # It has no call for many.
    Submitter(noop, None, huey.pending_count).listen()
elif role == "work":
    leave_with_the_input()
    # Without a crontab to look after; it looks for work every 10 to 50 ms where it cannot block.
    huey.create_consumer(
        workers=THREADS, worker_type="thread", periodic=False, initial_delay=0.01, max_delay=0.05
    ).run()
