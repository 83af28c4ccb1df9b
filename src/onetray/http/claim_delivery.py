"""Delivery of claimed tasks to the client. Undelivered tasks return to their queue at once, not when the lease expires.

Owns the last check before a response with tasks: is the client still connected, and is its token still valid?
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
from onetray.http.request import connection_of
from onetray.http.services import Services, services_of

logger = logging.getLogger("onetray.http")

GONE, REFUSED = "the client disconnected during its claim", "the token ended during its claim"
_OPEN_CLAIMS: Counter[tuple[str, str, str]] = Counter()
"""Open requests of this process by claim, for claims with a request key."""


@contextmanager
def track_request(command: c.Claim) -> Iterator[None]:
    """Marks a claim's request as open: the same claim, sent again, gets the same tasks."""
    key = (command.namespace, command.worker, command.request_key or "")
    _OPEN_CLAIMS[key] += 1
    try:
        yield
    finally:
        _OPEN_CLAIMS[key] -= 1
        if not _OPEN_CLAIMS[key]:
            del _OPEN_CLAIMS[key]


def _is_repeated(command: c.Claim) -> bool:
    key = (command.namespace, command.worker, command.request_key or "")
    return command.request_key is not None and _OPEN_CLAIMS[key] > 1


async def deliver(
    request: Request, principal: Principal, command: c.Claim, claimed: list[Assignment]
) -> list[Assignment]:
    """The claimed tasks, if the client can take them. Otherwise releases them and returns none, or raises."""
    services = services_of(request)
    try:
        await services.tokens.must_hold(principal)
    except Unauthorized:
        await release_undelivered(services, claimed, REFUSED, command)
        raise
    if await request.is_disconnected():
        await release_undelivered(services, claimed, GONE, command)
        return []
    request.scope[UNDO] = partial(release_undelivered, services, claimed, REFUSED, command)
    return claimed


def deliver_at_once(request: Request, principal: Principal, command: c.Claim, claimed: list[Assignment]) -> bool:
    """`deliver` without a wait. Returns False, and does nothing, if that is not enough."""
    services, connection = services_of(request), connection_of(request.scope)
    if connection is None or connection.is_disconnected or not services.tokens.holds_at_once(principal):
        return False
    request.scope[UNDO] = partial(release_undelivered, services, claimed, REFUSED, command)
    return True


async def release_undelivered(
    services: Services, claimed: list[Assignment], reason: str, command: c.Claim | None = None
) -> None:
    if command is not None and _is_repeated(command):
        # The other request has the same tasks and delivers them.
        return
    try:
        # Finishes even if this request is cancelled meanwhile.
        await asyncio.shield(services.read(services.unredacted.undo_claim, claimed, reason))
    except OnetrayError as e:
        logger.warning("%d undelivered tasks were not released and wait for their leases: %s", len(claimed), e)
