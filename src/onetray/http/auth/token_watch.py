"""Requests that outlast their token: streams, and requests that wait.

Owns when they learn that it has ended: at the moment when it expires, and within seconds when it is revoked. All
requests with the same token share one look. What a token stands for is in token_cache.py.
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
"""Done when a token is good for nothing any more; says why."""
LEAST_S = 0.001


class TokenWatch:
    """All of it runs on the loop."""

    def __init__(self, known: TokenCache, every_s: float) -> None:
        self._known, self._every_s = known, every_s
        self._watching: dict[str | None, set[Ended]] = {}
        self._tasks: dict[str | None, asyncio.Task[None]] = {}

    async def must_hold(self, who: Principal) -> None:
        """Raise Unauthorized if whoever was let in would not be let in now."""
        # The database may be away, and nothing new comes from it either.
        try:
            await self._known.must_still_be(who)
        except Unauthorized:
            raise
        except OnetrayError:
            return

    @contextmanager
    def watching(self, who: Principal) -> Iterator[Ended]:
        """Be told when the token ends, for as long as the block lasts."""
        ended: Ended = asyncio.get_running_loop().create_future()
        watching = self._watching.setdefault(who.token, set())
        watching.add(ended)
        if who.token not in self._tasks:
            self._tasks[who.token] = asyncio.create_task(self._watch(who))
        try:
            yield ended
        finally:
            watching.discard(ended)
            if not watching and self._watching.get(who.token) is watching:
                del self._watching[who.token]
                self._tasks.pop(who.token).cancel()

    async def _watch(self, who: Principal) -> None:
        wait_s = self._known.lives_s(who) + LEAST_S
        while True:
            await asyncio.sleep(min(self._every_s, max(LEAST_S, wait_s)))
            try:
                await self.must_hold(who)
                wait_s = self._known.lives_s(who) + LEAST_S
            except Unauthorized as error:
                for ended in self._watching[who.token]:
                    with contextlib.suppress(asyncio.InvalidStateError):
                        ended.set_result(error)
                # For those who came meanwhile.
                wait_s = self._every_s
            except Exception:
                # All requests with this token rely on this task: it goes on.
                logger.exception("the token %s could not be looked at", who.token)
                wait_s = self._every_s
