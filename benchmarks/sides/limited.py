"""onetray with rules of limits and fairness: the same as ours.py, with a tenant in each payload.

ONETRAY_BENCH_RULES has the arguments of the task as JSON. Runs on trees without limits, too, if it has none.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from benchmarks.sides import Submitter, at_once, handle, leave_with_the_input
from onetray.app.onetray import Onetray
from onetray.store import open_store

RULES, TENANTS = "ONETRAY_BENCH_RULES", 50
role, url = sys.argv[1:]
app = Onetray(url)


@app.task(**json.loads(os.environ.get(RULES, "{}")))
async def noop(number: int, tenant: str) -> None:
    await handle(number)


def of_tenant(number: int) -> dict[str, int | str]:
    return {"number": number, "tenant": f"tenant-{number % TENANTS}"}


def left() -> int:
    rows = app.engine.store.read_sql("SELECT count(*) FROM onetray.task WHERE finished_at IS NULL")
    return int(rows[0][0])


with app:
    if role == "set_up":
        store = open_store(url)
        store.migrate()
        store.close()
        # Tasks that are submitted before their kind has a key would not count for it.
        app.engine.declare(app.policies)
    elif role == "submit":
        Submitter(
            lambda number: app.submit("noop", of_tenant(number)),
            lambda numbers: noop.submit_many(map(of_tenant, numbers)),
            left,
        ).listen()
    else:
        worker = app.worker(concurrency=at_once(500))
        signal.signal(signal.SIGTERM, lambda *_: worker.ask_to_stop())
        leave_with_the_input()
        worker.run()
