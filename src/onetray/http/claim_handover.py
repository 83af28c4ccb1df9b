"""Claimed tasks on their way to whoever claimed them. What nobody takes goes back at once, not when its lease ends.

Owns the last look before an answer with tasks: is the client still there, and still allowed to have them?
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from fastapi import Request

from onetray.domain import commands as c
from onetray.domain.errors import OnetrayError, Unauthorized
from onetray.domain.task import Assignment
from onetray.http.auth.middleware import UNDO
from onetray.http.auth.scopes import Principal
from onetray.http.services import Services, services_of

logger = logging.getLogger("onetray.http")

GONE, REFUSED = "its claim's client had left", "its claim's token had ended"
_UNDER_WAY: Counter[tuple[str, str, str]] = Counter()
"""The claims with a request key that are under way in this process."""


@contextmanager
def under_way(command: c.Claim) -> Iterator[None]:
    """While a claim is under way: the same claim, sent again, is handed the same tasks."""
    key = (command.namespace, command.worker, command.request_key or "")
    _UNDER_WAY[key] += 1
    try:
        yield
    finally:
        _UNDER_WAY[key] -= 1
        if not _UNDER_WAY[key]:
            del _UNDER_WAY[key]


def _is_sent_again(command: c.Claim) -> bool:
    key = (command.namespace, command.worker, command.request_key or "")
    return command.request_key is not None and _UNDER_WAY[key] > 1


async def handed_over(request: Request, who: Principal, command: c.Claim, found: list[Assignment]) -> list[Assignment]:
    """What was claimed, if its client is there and may have it. Else none of it, and it is given back."""
    desk = services_of(request)
    try:
        await desk.tokens.must_hold(who)
    except Unauthorized:
        await give_back(desk, found, REFUSED, command)
        raise
    if await request.is_disconnected():
        await give_back(desk, found, GONE, command)
        return []
    request.scope[UNDO] = partial(give_back, desk, found, REFUSED, command)
    return found


async def give_back(desk: Services, found: list[Assignment], reason: str, command: c.Claim | None = None) -> None:
    if command is not None and _is_sent_again(command):
        # The other request has the same tasks, and hands them over.
        return
    try:
        # To its end, also when this request is cancelled meanwhile.
        await asyncio.shield(desk.read(desk.unredacted.undo_claim, found, reason))
    except OnetrayError as e:
        logger.warning("%d tasks that nobody takes are left to their leases: %s", len(found), e)
