"""Procrastinate, with LISTEN/NOTIFY, connections held open, and uvloop."""

from __future__ import annotations

import sys

import procrastinate
import uvloop

from benchmarks.sides import Submitter, at_once, handle, leave_with_the_input

role, url = sys.argv[1:]
connector = procrastinate.PsycopgConnector(conninfo=url, min_size=14, max_size=14)
app = procrastinate.App(connector=connector)


@app.task(name="noop")
async def noop(number: int) -> None:
    await handle(number)


async def left() -> int:
    row = await connector.execute_query_one_async(
        "SELECT count(*) AS left FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
    )
    return int(row["left"])


async def main() -> None:
    async with app.open_async():
        if role == "set_up":
            await app.schema_manager.apply_schema_async()
        elif role == "submit":
            await Submitter(
                lambda number: noop.defer_async(number=number),
                lambda numbers: noop.batch_defer_async(*({"number": number} for number in numbers)),
                left,
            ).listen_async()
        else:
            leave_with_the_input()
            await app.run_worker_async(concurrency=at_once(10), listen_notify=True)


uvloop.run(main())
