"""Watches the tokens of streams and waiting requests, which may outlast them.

Owns when such a request learns that its token ended: at once when it expires, within seconds when it is revoked.
Requests with the same token share one check. token_cache.py looks tokens up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from onetray.domain.errors import OnetrayError, Unauthorized
from onetray.http.auth.scopes import Principal
from onetray.http.auth.token_cache import TokenCache

logger = logging.getLogger("onetray.http")

Ended = asyncio.Future[Unauthorized]
"""Resolves with the reason when the token ends."""
MIN_WAIT_S = 0.001


class TokenWatch:
    """Everything runs on the event loop."""

    def __init__(self, tokens: TokenCache, recheck_s: float) -> None:
        self.cache, self._recheck_s = tokens, recheck_s
        self._watching: dict[str | None, set[Ended]] = {}
        self._tasks: dict[str | None, asyncio.Task[None]] = {}

    def holds_at_once(self, principal: Principal) -> bool:
        """Whether `must_hold` would return without a query."""
        return self.cache.holds_at_once(principal)

    async def must_hold(self, principal: Principal) -> None:
        """Raises Unauthorized if the principal's token would not be accepted any more."""
        # While the database is unavailable, a response holds nothing new from it either.
        try:
            await self.cache.recheck(principal)
        except Unauthorized:
            raise
        except OnetrayError:
            return

    @contextmanager
    def watching(self, principal: Principal) -> Iterator[Ended]:
        """Yields a future that resolves when the token ends."""
        ended: Ended = asyncio.get_running_loop().create_future()
        watching = self._watching.setdefault(principal.token, set())
        watching.add(ended)
        if principal.token not in self._tasks:
            self._tasks[principal.token] = asyncio.create_task(self._watch(principal))
        try:
            yield ended
        finally:
            watching.discard(ended)
            if not watching and self._watching.get(principal.token) is watching:
                del self._watching[principal.token]
                self._tasks.pop(principal.token).cancel()

    async def _watch(self, principal: Principal) -> None:
        wait_s = self.cache.expires_in_s(principal) + MIN_WAIT_S
        while True:
            await asyncio.sleep(min(self._recheck_s, max(MIN_WAIT_S, wait_s)))
            try:
                await self.must_hold(principal)
                wait_s = self.cache.expires_in_s(principal) + MIN_WAIT_S
            except Unauthorized as error:
                for ended in self._watching[principal.token]:
                    with contextlib.suppress(asyncio.InvalidStateError):
                        ended.set_result(error)
                # More requests with this token may have arrived meanwhile.
                wait_s = self._recheck_s
            except Exception:
                # All requests with this token rely on this task, so it must not end.
                logger.exception("the token %s could not be checked", principal.token)
                wait_s = self._recheck_s
