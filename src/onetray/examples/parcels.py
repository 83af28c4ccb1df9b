"""A post office beside the news: parcels, of which some arrive at the second try, and one only after a repair.

    onetray worker --app onetray.examples.parcels --queues default,parcels

One app in two files: these tasks are declared on the news pipeline's app, so one worker runs both.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from onetray import TransientError, ctx
from onetray.examples.news_pipeline import LEASE_S, app, news

__all__ = ["app", "deliver", "news", "ship"]


@app.task(queue="parcels", retries=4, backoff_base_s=0.3, lease_s=LEASE_S)
async def deliver(parcel: int, pace_s: float = 0.2) -> str:
    await asyncio.sleep(pace_s)
    if parcel % 25 == 0 and ctx.attempt == 1:
        raise TransientError("nobody is at home")
    return f"parcel {parcel} is delivered"


@app.task(queue="parcels", retries=1, backoff_base_s=0.3, lease_s=LEASE_S)
def ship(parcel: int, timetable: Path) -> str:
    """By ferry: it cannot go before somebody has written the timetable."""
    if not timetable.exists():
        raise TransientError("the ferry has no timetable")
    return f"parcel {parcel} leaves at {timetable.read_text().strip()}"
