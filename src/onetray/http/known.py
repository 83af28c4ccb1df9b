"""The tokens that a server knows, for a few seconds each: not every request asks the database.

Owns how long an answer counts, and how often strangers may make the server ask. A token that is revoked is refused
as soon as its answer is too old. All of it runs on the loop, but the asking itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from onetray.clock import SECOND
from onetray.engine.tokens import USED_EVERY_S
from onetray.errors import OnetrayError, TooManyRequests, Unauthorized
from onetray.http.access import Principal
from onetray.http.desk import Desk
from onetray.http.rates import Bucket
from onetray.tokens import SCOPES, Token, is_secret_of, parts_of

logger = logging.getLogger("onetray.http")

MOST_KNOWN = 10_000
MOST_UNKNOWN = 1_000
STRANGERS_PER_S = 50.0
"""Ids that the server has never met and asks the database about, at most. Known tokens are not counted."""

LOCAL = Principal("local", "default", frozenset(SCOPES))
"""Whoever reaches a server that has no tokens: it listens on the loopback interface alone."""

_NO_TOKEN = "no token was sent: send `Authorization: Bearer ot_…`; `onetray token create` makes one"
_BAD_TOKEN = "the token is not known here: check that it is whole, and of this server's database"


@dataclass(slots=True)
class _Answer:
    """What the database said about an id, and until when that counts."""

    token: Token | None
    until: float
    dies_at: float | None = None
    use_at: float = 0.0
    """When its next use is to be written down."""


class KnownTokens:
    def __init__(self, desk: Desk, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._desk, self._now = desk, monotonic
        self._known: OrderedDict[str, _Answer] = OrderedDict()
        self._unknown: OrderedDict[str, _Answer] = OrderedDict()
        self._strangers = Bucket(STRANGERS_PER_S, monotonic)
        self._asked: dict[str, asyncio.Task[_Answer]] = {}
        self._closed, self._open_until = False, float("-inf")

    async def needed(self) -> bool:
        """Whether nobody is let in without a token: from the first one on, and for good."""
        if not self._closed and self._now() >= self._open_until:
            self._closed = await self._desk.read(self._desk.engine.has_tokens)
            self._open_until = self._now() + self._desk.config.token_cache_s
        return self._closed

    async def principal(self, text: str | None) -> Principal:
        """Who a token stands for. Unauthorized if it is none, or good for nothing any more."""
        if text is None:
            raise Unauthorized(_NO_TOKEN)
        parts = parts_of(text)
        answer = await self._answer(parts.id) if parts is not None else None
        if parts is None or answer is None or answer.token is None or not is_secret_of(parts.secret, answer.token):
            raise Unauthorized(_BAD_TOKEN, given=True)
        self._must_live(answer)
        await self._use(answer)
        token = answer.token
        return Principal(token.name, token.namespace, frozenset(token.scopes), token.id)

    async def must_still_be(self, who: Principal) -> None:
        """Raise Unauthorized if whoever was let in would not be let in now."""
        if who.token is None:
            if await self.needed():
                raise Unauthorized(_NO_TOKEN)
            return
        answer = await self._answer(who.token)
        if answer.token is None:
            raise Unauthorized(_BAD_TOKEN, given=True)
        self._must_live(answer)
        if answer.token.namespace != who.namespace or not who.scopes <= frozenset(answer.token.scopes):
            raise Unauthorized("the token allows less than it did: connect again", given=True)

    def lives_s(self, who: Principal) -> float:
        """How long until a token expires, as far as it is known."""
        found = self._known.get(who.token or "")
        return float("inf") if found is None or found.dies_at is None else found.dies_at - self._now()

    def _must_live(self, answer: _Answer) -> None:
        """Said only to somebody who has shown the secret."""
        if answer.token is not None and answer.token.revoked_at is not None:
            raise Unauthorized("the token was revoked: `onetray token create` makes another", given=True)
        if answer.dies_at is not None and self._now() >= answer.dies_at:
            raise Unauthorized("the token has expired: `onetray token create` makes another", given=True)

    async def _answer(self, id_: str) -> _Answer:
        found = self._known.get(id_) or self._unknown.get(id_)
        if found is not None and self._now() < found.until:
            return found
        if id_ not in self._known and id_ not in self._asked:
            wait_s = self._strangers.take()
            if wait_s:
                raise TooManyRequests("too many tokens that nobody knows: try again in a second", retry_after_s=wait_s)
        return await self._ask_once(id_)

    async def _ask_once(self, id_: str) -> _Answer:
        """Those who ask about the same id at the same time share one look."""
        asked = self._asked.get(id_)
        if asked is None:
            asked = self._asked[id_] = asyncio.create_task(self._ask(id_))
            asked.add_done_callback(lambda _: self._asked.pop(id_, None))
        # Whoever goes away does not take the answer from the others.
        return await asyncio.shield(asked)

    async def _ask(self, id_: str) -> _Answer:
        began = self._now()
        found = await self._desk.read(self._desk.engine.token_by_id, id_)
        answer = _Answer(None, began + self._desk.config.token_cache_s)
        if found is None:
            _keep(self._unknown, id_, answer, MOST_UNKNOWN)
            return answer
        answer.token, at = found
        if answer.token.expires_at is not None:
            answer.dies_at = began + (answer.token.expires_at - at) / SECOND
        if answer.token.used_at is not None:
            answer.use_at = began + USED_EVERY_S - (at - answer.token.used_at) / SECOND
        _keep(self._known, id_, answer, MOST_KNOWN)
        return answer

    async def _use(self, answer: _Answer) -> None:
        if self._now() < answer.use_at or answer.token is None:
            return
        answer.use_at = self._now() + USED_EVERY_S
        try:
            await self._desk.read(self._desk.engine.use_token, answer.token.id)
        except OnetrayError as e:
            # The request need not fail for it; whoever looks at used_at sees an older time.
            logger.warning("the use of the token %s was not written down: %s", answer.token.id, type(e).__name__)


def _keep(answers: OrderedDict[str, _Answer], id_: str, answer: _Answer, most: int) -> None:
    answers[id_] = answer
    answers.move_to_end(id_)
    if len(answers) > most:
        answers.popitem(last=False)
