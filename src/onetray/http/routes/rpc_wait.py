"""Wake-ups for remote clients: a request that waits until something is committed.

Owns the wait: for any commit, or for work in some queues, where each task wakes one waiting client. One thread of the
server listens for all clients that wait for any commit: see app/async_api.py.
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
from onetray.http.claim_waiters import watch_disconnect
from onetray.http.json_answers import Json
from onetray.http.native_route import NativeRoute, returns
from onetray.http.openapi import answers
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1", tags=["remote"], route_class=NativeRoute)

MAX_WAIT_S = 30.0
MIN_INTERVAL_S = 0.02
"""A client is woken at most this often: a busy server commits all the time."""
CHECK_INTERVAL_S = 1.0
"""How often a waiting request checks whether its token is still valid and the server still runs."""
MAX_QUEUES = 1_000

AnyScope = Depends(allow(*SCOPES))
Number = Annotated[int, Query(ge=-1, le=2**53)]
Word = Annotated[str, Query(max_length=100)]


@router.get("/news", summary="Wait for a commit", **returns(answers.NEWS))
async def news(
    request: Request,
    boot: Word = "",
    generation: Number = -1,
    work: Number = -1,
    queue: Annotated[list[Annotated[str, Field(max_length=1_000)]] | None, Query(max_length=MAX_QUEUES)] = None,
    group: Word = "",
    unused: Annotated[str | None, Query(max_length=1_000)] = None,
    wait_s: Annotated[float, Query(ge=0.0, le=MAX_WAIT_S)] = 0.0,
    principal: Principal = AnyScope,
) -> Json:
    """Waits up to `wait_s` for a commit after `generation`.

    With queues, waits for work in them. Each task wakes only one waiting request of a `group`: its clients can claim
    the same tasks. A client that cannot use a wake-up returns it by naming its queue in `unused`.
    """
    services = services_of(request)
    wake = services.engine.wake
    with services.waits.slot(principal) as may_wait:
        deadline = time.monotonic() + (wait_s if may_wait else 0.0)
        server = {"boot": wake.boot, "heard": wake.poll_s >= CHECK_INTERVAL_S, "full": not may_wait}
        if queue is None:
            if boot == wake.boot:
                await _wait(request, principal, generation, deadline)
            return Json({**server, "generation": wake.generation})
        if not principal.scopes & {WORK, ADMIN}:
            raise Forbidden(f"waiting for work needs the scope {WORK}", needs=[WORK])
        queues = {(principal.namespace, name) for name in queue}
        if unused is not None:
            wake.wake_next((principal.namespace, unused), (group,), 1, more=False)
        known = work if boot == wake.boot else wake.work_in(queues) - 1
        woken = await _wait_for_work(request, principal, queues, (group,), known, deadline)
        return Json({**server, "work": wake.work_in(queues), "woken": woken})


async def _wait(request: Request, principal: Principal, generation: int, deadline: float) -> None:
    """Wait for a commit after `generation`, until the deadline, or until the client disconnects."""
    services, began = services_of(request), time.monotonic()
    wake = services.engine.wake
    notifier = notifier_of(wake)
    with watch_disconnect(request) as disconnected:
        while not (wake.closed or services.stopping or disconnected.done()):
            now, current = time.monotonic(), wake.generation
            if now >= deadline:
                return
            if current == generation:
                await notifier.wait(current, min(deadline - now, CHECK_INTERVAL_S))
                await services.tokens.must_hold(principal)
            elif now < began + MIN_INTERVAL_S:
                await asyncio.sleep(began + MIN_INTERVAL_S - now)
            else:
                return


async def _wait_for_work(
    request: Request, principal: Principal, queues: set[tuple[str, str]], group: tuple[str], known: int, deadline: float
) -> str | None:
    """Wait until there may be work that the client does not know of. Returns the queue for which it was woken."""
    services, left_s = services_of(request), deadline - time.monotonic()
    if left_s <= 0 or services.waiting.closed:
        return None
    with (
        services.waiting.waiter(queues, group, polls=True) as waiter,
        watch_disconnect(request) as disconnected,
        services.tokens.watching(principal) as ended,
    ):
        await waiter.wait(known, left_s, disconnected, ended)
        if ended.done():
            raise ended.result()
        if waiter.queue is None or disconnected.done():
            return None
        woken = waiter.queue[1]
        # From here on the client claims, or returns the wake-up.
        waiter.polled()
        return woken
