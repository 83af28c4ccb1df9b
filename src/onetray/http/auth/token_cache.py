"""The tokens that a server knows, for a few seconds each: not every request asks the database.

Owns how long an answer counts, and how often the database is asked: once for all tokens that are waited for, and not
again before that is answered. So a flood of tokens that nobody knows costs few queries, and nobody is refused for it.
A token that is revoked is refused as soon as its answer is too old. All of it runs on the loop, but the asking itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from onetray.domain.clock import SECOND
from onetray.domain.errors import OnetrayError, TooManyRequests, Unauthorized, Unavailable
from onetray.domain.token import SCOPES, Token, is_secret_of, parts_of
from onetray.engine.token_api import USED_EVERY_S
from onetray.http.auth.scopes import Principal
from onetray.http.services import Services

logger = logging.getLogger("onetray.http")

T = TypeVar("T")
MOST_KNOWN = 10_000
MOST_UNKNOWN = 1_000
ANSWER_S = 10.0
"""How long a request waits for what the database says about its token."""
LOOK_EVERY_S = 0.02
"""How often the database is asked about tokens at most."""
MOST_AT_ONCE, MOST_WAITING = 1_000, 10_000
"""Tokens that one query is about, and tokens that are waited for."""

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


class TokenCache:
    def __init__(self, desk: Services, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._desk, self._now = desk, monotonic
        self._known: OrderedDict[str, _Answer] = OrderedDict()
        self._unknown: OrderedDict[str, _Answer] = OrderedDict()
        self._asked: dict[str, asyncio.Future[_Answer]] = {}
        """The ids that are waited for: those of `_waiting`, and those that are being looked up."""
        self._waiting: list[str] = []
        self._looking: asyncio.Task[None] | None = None
        self._next_look = float("-inf")
        self._closed, self._open_until = False, float("-inf")
        self._finding_out: asyncio.Task[None] | None = None

    async def needed(self) -> bool:
        """Whether nobody is let in without a token: from the first one on, and for good."""
        if not self._closed and self._now() >= self._open_until:
            if self._finding_out is None:
                self._finding_out = asyncio.create_task(self._find_out())
            await _in_time(self._finding_out)
        return self._closed

    async def _find_out(self) -> None:
        """Once for all who ask meanwhile: a database that hangs must not take a thread for each."""
        try:
            self._closed = await self._desk.read(self._desk.unredacted.tokens.exist)
            self._open_until = self._now() + self._desk.config.token_cache_s
        finally:
            self._finding_out = None

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
        if (known := self._known.get(who.token)) is not None:
            # Before the database is asked, which may be away: an end that is known holds without it.
            self._must_live(known)
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
        return await self._look_up(id_)

    async def _look_up(self, id_: str) -> _Answer:
        """What the next query says. Those who ask about the same id at the same time share the answer."""
        asked = self._asked.get(id_)
        if asked is None:
            if len(self._asked) >= MOST_WAITING:
                raise TooManyRequests("too many tokens that nobody knows: try again in a second", retry_after_s=1.0)
            asked = self._asked[id_] = asyncio.get_running_loop().create_future()
            self._waiting.append(id_)
            if self._looking is None:
                self._looking = asyncio.create_task(self._look())
        return await _in_time(asked)

    async def _look(self) -> None:
        """Query after query, until nobody waits."""
        try:
            while self._waiting:
                await asyncio.sleep(self._next_look - self._now())
                self._next_look = self._now() + LOOK_EVERY_S
                ids, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
                await self._ask(ids)
        finally:
            self._looking = None

    async def _ask(self, ids: list[str]) -> None:
        began = self._now()
        try:
            found = await self._desk.read(self._desk.unredacted.tokens.get_many, ids)
        except Exception as error:
            for id_ in ids:
                asked = self._asked.pop(id_)
                asked.set_exception(error)
                # Perhaps nobody waits for it any more.
                asked.exception()
        else:
            for id_ in ids:
                self._asked.pop(id_).set_result(self._kept(id_, found.get(id_), began))

    def _kept(self, id_: str, found: tuple[Token, int] | None, began: float) -> _Answer:
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
            await self._desk.read(self._desk.unredacted.tokens.mark_used, answer.token.id)
        except OnetrayError as e:
            # The request need not fail for it; whoever looks at used_at sees an older time.
            logger.warning("the use of the token %s was not written down: %s", answer.token.id, type(e).__name__)


async def _in_time(asked: asyncio.Future[T]) -> T:
    """An answer that others may wait for, too: whoever goes away does not take it from them."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await asyncio.shield(asked)
    except TimeoutError:
        raise Unavailable(f"the database does not answer within {ANSWER_S:g} s: try again") from None


def _keep(answers: OrderedDict[str, _Answer], id_: str, answer: _Answer, most: int) -> None:
    answers[id_] = answer
    answers.move_to_end(id_)
    if len(answers) > most:
        answers.popitem(last=False)
