"""Parcel deliveries: some succeed at the second attempt, one only after a fix and a redrive; two are loaded at once.

    onetray worker --app onetray.examples.parcels --queues default,parcels

The tasks are declared on the app of the news pipeline, so that one worker runs both.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from onetray import Concurrency, TransientError, ctx
from onetray.examples.news_pipeline import LEASE_S, app, news

__all__ = ["app", "deliver", "load", "news", "ship"]


@app.task(queue="parcels", retries=4, backoff_base_s=0.3, lease_s=LEASE_S)
async def deliver(parcel: int, pace_s: float = 0.2) -> str:
    await asyncio.sleep(pace_s)
    if parcel % 25 == 0 and ctx.attempt == 1:
        raise TransientError("nobody is at home")
    return f"parcel {parcel} is delivered"


@app.task(queue="parcels", retries=1, backoff_base_s=0.3, lease_s=LEASE_S)
def ship(parcel: int, timetable: Path) -> str:
    """Ship by ferry. Fails until the file with the timetable exists."""
    if not timetable.exists():
        raise TransientError("the ferry has no timetable")
    return f"parcel {parcel} leaves at {timetable.read_text().strip()}"


@app.task(queue="parcels", lease_s=LEASE_S, concurrency=Concurrency(2, key="van"))
async def load(parcel: int, van: str, pace_s: float = 0.5) -> str:
    """Load a parcel. At each van, two can be loaded at once, whichever workers do it."""
    await asyncio.sleep(pace_s)
    return f"parcel {parcel} is in the van {van}"
