"""Whether something was written: a request that waits for it, and tells nothing else.

Owns the waiting: for anything at all, or for work in some queues, of which each task wakes one of those who wait. One
thread of the server's hears for all that wait for anything: see app/async_api.py.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from onetray.app.async_api import notifier_of
from onetray.domain.errors import Forbidden
from onetray.domain.token import ADMIN, SCOPES, WORK
from onetray.http.auth.scopes import Principal, allow
from onetray.http.claim_waiters import gone
from onetray.http.json_answers import Json
from onetray.http.native_route import NativeRoute, gives
from onetray.http.openapi import answers
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1", tags=["remote"], route_class=NativeRoute)

MOST_WAIT_S = 30.0
OFTEN_S = 0.02
"""What is written is told of so often at most: on a busy server something is written all the time."""
LOOK_S = 1.0
"""How often a request that waits sees whether the server is about to stop, and its token still good."""
MOST = 2**53
MOST_QUEUES = 1_000

Anybody = Depends(allow(*SCOPES))
Number = Annotated[int, Query(ge=-1, le=MOST)]
Word = Annotated[str, Query(max_length=100)]


@router.get("/news", summary="Wait until something was written", **gives(answers.NEWS))
async def news(
    request: Request,
    boot: Word = "",
    generation: Number = -1,
    work: Number = -1,
    queue: Annotated[list[Annotated[str, Field(max_length=1_000)]] | None, Query(max_length=MOST_QUEUES)] = None,
    group: Word = "",
    unused: Annotated[str | None, Query(max_length=1_000)] = None,
    wait_s: Annotated[float, Query(ge=0.0, le=MOST_WAIT_S)] = 0.0,
    who: Principal = Anybody,
) -> Json:
    """With queues: wait for work there, as one of a group that can take the same tasks. `unused` names the queue of a
    wake-up that was given to the caller, and is somebody else's now."""
    services = services_of(request)
    wake = services.engine.wake
    with services.waits.place(who) as may_wait:
        until = time.monotonic() + (wait_s if may_wait else 0.0)
        server = {"boot": wake.boot, "heard": wake.poll_s >= LOOK_S, "full": not may_wait}
        if queue is None:
            if boot == wake.boot:
                await _wait(request, who, generation, until)
            return Json({**server, "generation": wake.generation})
        if not who.scopes & {WORK, ADMIN}:
            raise Forbidden(f"to wait for work needs the scope {WORK}", needs=[WORK])
        places = {(who.namespace, name) for name in queue}
        if unused is not None:
            wake.wake_next((who.namespace, unused), (group,), 1, more=False)
        known = work if boot == wake.boot else wake.work_in(places) - 1
        woken = await _wait_for_work(request, who, places, (group,), known, until)
        return Json({**server, "work": wake.work_in(places), "woken": woken})


async def _wait(request: Request, who: Principal, generation: int, until: float) -> None:
    """Until something was written, and a moment longer, or the time is over, or nobody waits for the answer."""
    services, began = services_of(request), time.monotonic()
    wake = services.engine.wake
    bell = notifier_of(wake)
    with gone(request) as left_us:
        while not (wake.closed or services.stopping or left_us.done()):
            now, seen = time.monotonic(), wake.generation
            if now >= until:
                return
            if seen == generation:
                await bell.wait(seen, min(until - now, LOOK_S))
                await services.tokens.must_hold(who)
            elif now < began + OFTEN_S:
                await asyncio.sleep(began + OFTEN_S - now)
            else:
                return


async def _wait_for_work(
    request: Request, who: Principal, places: set[tuple[str, str]], group: tuple[str], known: int, until: float
) -> str | None:
    """Until there may be work that the caller does not know of. Answers the queue that it was woken for."""
    services, left_s = services_of(request), until - time.monotonic()
    if left_s <= 0 or services.waiting.closed:
        return None
    with (
        services.waiting.place(places, group, polls=True) as place,
        gone(request) as left_us,
        services.tokens.watching(who) as ended,
    ):
        await place.wait(known, left_s, left_us, ended)
        if ended.done():
            raise ended.result()
        if place.queue is None or left_us.done():
            return None
        woken = place.queue[1]
        # From here on it is the caller's to look, or to pass on.
        place.looked()
        return woken
