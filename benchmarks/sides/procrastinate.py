"""Procrastinate, with LISTEN/NOTIFY, connections held open, and uvloop."""

from __future__ import annotations

import sys

import procrastinate
import uvloop

from benchmarks.sides import began, leave_with_the_input, submit_each_async

role, url = sys.argv[1:]
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=10, max_size=10))


@app.task(name="noop")
async def noop(number: int) -> None:
    began(number)


async def main() -> None:
    async with app.open_async():
        if role == "set_up":
            await app.schema_manager.apply_schema_async()
        elif role == "submit":
            await submit_each_async(lambda number: noop.defer_async(number=number))
        else:
            leave_with_the_input()
            await app.run_worker_async(concurrency=10, listen_notify=True)


uvloop.run(main())
