"""onetray: the worker in another process than the submits, or (role `both`) in the same one."""

from __future__ import annotations

import signal
import sys

from benchmarks.sides import Submitter, at_once, handle, leave_with_the_input
from onetray.app.onetray import Onetray
from onetray.store import open_store

role, url = sys.argv[1:]
app = Onetray(url)


@app.task
async def noop(number: int) -> None:
    await handle(number)


def submit() -> None:
    Submitter(
        lambda number: noop.submit(number=number),
        lambda numbers: noop.submit_many({"number": number} for number in numbers),
        left,
    ).listen()


def left() -> int:
    rows = app.engine.store.read_sql("SELECT count(*) FROM onetray.task WHERE finished_at IS NULL")
    return int(rows[0][0])


def set_up() -> None:
    store = open_store(url)
    store.migrate()
    store.close()


with app:
    if role == "set_up":
        set_up()
    elif role == "submit":
        submit()
    elif role == "both":
        with app.worker():
            submit()
    else:
        worker = app.worker(concurrency=at_once(500))
        signal.signal(signal.SIGTERM, lambda *_: worker.ask_to_stop())
        leave_with_the_input()
        worker.run()
