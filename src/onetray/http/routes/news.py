"""Whether something was written: a request that waits for it, and tells nothing else.

Owns the waiting. One thread of the server's hears for all that wait: see client/aio.py.
"""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter, Depends, Query, Request

from onetray.client.aio import bell_of
from onetray.http.access import Principal, allow
from onetray.http.desk import Desk, desk_of
from onetray.http.wire import Json
from onetray.tokens import SCOPES
from onetray.wake import Wake

# Not in the OpenAPI: what the client and the server tell each other may change together. See docs/remote.md.
router = APIRouter(prefix="/api/v1", tags=["remote"], include_in_schema=False)

MOST_WAIT_S = 30.0
OFTEN_S = 0.02
"""What is no work to claim is told of so often at most: on a busy server something is written all the time."""
LOOK_S = 1.0
"""How often a request that waits sees whether the server is about to stop."""
MOST = 2**53

Anybody = Depends(allow(*SCOPES))


@router.get("/news", summary="Wait until something was written")
async def news(
    request: Request,
    boot: str = Query("", max_length=100),
    generation: int = Query(-1, ge=-1, le=MOST),
    work: int = Query(-1, ge=-1, le=MOST),
    wait_s: float = Query(0.0, ge=0.0, le=MOST_WAIT_S),
    who: Principal = Anybody,
) -> Json:
    desk = desk_of(request)
    wake = desk.engine.wake
    if boot == wake.boot:
        await _wait(desk, wake, generation, work, time.monotonic() + wait_s)
    return Json({
        "boot": wake.boot, "generation": wake.generation, "work": wake.work, "heard": wake.poll_s >= LOOK_S,
    })  # fmt: skip


async def _wait(desk: Desk, wake: Wake, generation: int, work: int, until: float) -> None:
    """Until there is work, or something else for a moment, or the time is over."""
    bell, began = bell_of(wake), time.monotonic()
    while wake.work == work and not wake.closed and not desk.stopping:
        now, seen = time.monotonic(), wake.generation
        if now >= until:
            return
        if seen == generation:
            await bell.wait(seen, min(until - now, LOOK_S))
        elif now < began + OFTEN_S:
            # Work may come meanwhile: then there is no need to go on waiting.
            await asyncio.sleep(min(began + OFTEN_S - now, 0.01))
        else:
            return
