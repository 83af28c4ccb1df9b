"""Tokens cached for a few seconds, so that most requests need no query for theirs.

Owns the age of cached tokens and the rate of queries: one query at a time, for all tokens that requests wait for. So a
flood of unknown tokens costs few queries, and valid tokens still pass. A revoked token is rejected once its cached
entry is too old. Everything but the queries runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from onetray.domain.clock import SECOND
from onetray.domain.errors import OnetrayError, TooManyRequests, Unauthorized, Unavailable
from onetray.domain.token import ANY_GROUP, SCOPES, Token, is_secret_of, parts_of
from onetray.engine.token_api import RECORD_USE_EVERY_S
from onetray.http.auth.scopes import Principal
from onetray.http.services import Services

logger = logging.getLogger("onetray.http")

T = TypeVar("T")
MAX_KNOWN = 10_000
MAX_UNKNOWN = 1_000
LOOKUP_TIMEOUT_S = 10.0
"""How long a request waits for the lookup of its token."""
LOOKUP_INTERVAL_S = 0.02
"""Minimum interval between two queries."""
MAX_PER_QUERY, MAX_WAITING = 1_000, 10_000
"""Tokens per query, and tokens that may wait for a query."""

LOCAL = Principal("local", "default", frozenset(SCOPES), groups=(ANY_GROUP,))
"""The principal of all requests to a server without tokens, which listens only on the loopback interface."""

_NO_TOKEN = "the request has no token: send `Authorization: Bearer ot_…`; `onetray token create` creates one"
_BAD_TOKEN = "the token is unknown: check that it is complete and belongs to this server's database"


@dataclass(slots=True)
class _Entry:
    """The result of a lookup (None: no such token), and until when it may be used."""

    token: Token | None
    fresh_until: float
    expires_at: float | None = None
    record_use_at: float = 0.0
    """When to write `used_at` next."""


class TokenCache:
    def __init__(self, services: Services, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._services, self._now = services, monotonic
        self._known: OrderedDict[str, _Entry] = OrderedDict()
        self._unknown: OrderedDict[str, _Entry] = OrderedDict()
        self._pending: dict[str, asyncio.Future[_Entry]] = {}
        """Lookups that requests wait for, by token id, queued or running."""
        self._waiting: list[str] = []
        self._lookups: asyncio.Task[None] | None = None
        self._next_lookup_at = float("-inf")
        self._tokens_required, self._required_checked_until = False, float("-inf")
        self._required_check: asyncio.Task[None] | None = None

    @property
    def known_not_needed(self) -> bool:
        """Whether it is known, without a query, that requests need no token."""
        return not self._tokens_required and self._now() < self._required_checked_until

    async def needed(self) -> bool:
        """Whether requests need a token: permanently, once the first one exists."""
        if not self._tokens_required and not self.known_not_needed:
            if self._required_check is None:
                self._required_check = asyncio.create_task(self._check_required())
            await _with_timeout(self._required_check)
        return self._tokens_required

    async def _check_required(self) -> None:
        """One check serves all waiting requests: a database that hangs must not occupy a thread for each."""
        try:
            self._tokens_required = await self._services.read(self._services.unredacted.tokens.exist)
            self._required_checked_until = self._now() + self._services.config.token_cache_s
        finally:
            self._required_check = None

    async def principal(self, text: str | None) -> Principal:
        """The principal of a token. Raises Unauthorized if the token is unknown, revoked or expired."""
        if text is None:
            raise Unauthorized(_NO_TOKEN)
        parts = parts_of(text)
        if parts is None:
            raise Unauthorized(_BAD_TOKEN, given=True)
        return await self.proven(parts.id, partial(is_secret_of, parts.secret))

    async def proven(self, id_: str, proves: Callable[[Token], bool]) -> Principal:
        """The principal of a token, by its id and a function that checks what the caller has proved it with."""
        entry = await self._entry(id_)
        if entry.token is None or not proves(entry.token):
            raise Unauthorized(_BAD_TOKEN, given=True)
        self._check_not_ended(entry)
        await self._record_use(entry)
        return _principal_of(entry.token)

    def principal_at_once(self, text: str | None) -> Principal | None:
        """The principal of a token, if the cache has it and nothing is to be written. None: ask `principal`."""
        parts = None if text is None else parts_of(text)
        entry = None if parts is None else self._fresh(parts.id)
        if parts is None or entry is None or entry.token is None or self._now() >= entry.record_use_at:
            return None
        return _principal_of(entry.token) if is_secret_of(parts.secret, entry.token) else None

    def holds_at_once(self, principal: Principal) -> bool:
        """Whether the cache knows that the principal's token is still accepted. False: ask `recheck`."""
        if principal.token is None:
            return self.known_not_needed
        entry = self._fresh(principal.token)
        return entry is not None and entry.token is not None and _covers(entry.token, principal)

    def _fresh(self, id_: str) -> _Entry | None:
        """The entry of a token that is known to be valid now; None if it is not, or if that takes a query."""
        entry = self._known.get(id_)
        if entry is None or self._now() >= entry.fresh_until:
            return None
        try:
            self._check_not_ended(entry)
        except Unauthorized:
            return None
        return entry

    async def recheck(self, principal: Principal) -> None:
        """Raises Unauthorized if the principal's token would not be accepted any more."""
        if principal.token is None:
            if await self.needed():
                raise Unauthorized(_NO_TOKEN)
            return
        if (cached := self._known.get(principal.token)) is not None:
            # First of all: a known expiry counts even while the database is unavailable.
            self._check_not_ended(cached)
        entry = await self._entry(principal.token)
        if entry.token is None:
            raise Unauthorized(_BAD_TOKEN, given=True)
        self._check_not_ended(entry)
        if not _covers(entry.token, principal):
            raise Unauthorized("the token's scopes were reduced: connect again", given=True)

    def expires_in_s(self, principal: Principal) -> float:
        """Seconds until the token expires, as far as the cache knows."""
        cached = self._known.get(principal.token or "")
        return float("inf") if cached is None or cached.expires_at is None else cached.expires_at - self._now()

    def _check_not_ended(self, entry: _Entry) -> None:
        """Called only for a caller that has sent the secret."""
        if entry.token is not None and entry.token.revoked_at is not None:
            raise Unauthorized("the token was revoked: create another with `onetray token create`", given=True)
        if entry.expires_at is not None and self._now() >= entry.expires_at:
            raise Unauthorized("the token has expired: create another with `onetray token create`", given=True)

    async def _entry(self, id_: str) -> _Entry:
        cached = self._known.get(id_) or self._unknown.get(id_)
        if cached is not None and self._now() < cached.fresh_until:
            return cached
        return await self._wait_for_lookup(id_)

    async def _wait_for_lookup(self, id_: str) -> _Entry:
        """Wait for the next query. Requests with the same token share one lookup."""
        pending = self._pending.get(id_)
        if pending is None:
            if len(self._pending) >= MAX_WAITING:
                raise TooManyRequests("too many unknown tokens: try again in a second", retry_after_s=1.0)
            pending = self._pending[id_] = asyncio.get_running_loop().create_future()
            self._waiting.append(id_)
            if self._lookups is None:
                self._lookups = asyncio.create_task(self._run_lookups())
        return await _with_timeout(pending)

    async def _run_lookups(self) -> None:
        """Run queries until no request waits."""
        try:
            while self._waiting:
                await asyncio.sleep(self._next_lookup_at - self._now())
                self._next_lookup_at = self._now() + LOOKUP_INTERVAL_S
                ids, self._waiting = self._waiting[:MAX_PER_QUERY], self._waiting[MAX_PER_QUERY:]
                await self._look_up(ids)
        finally:
            self._lookups = None

    async def _look_up(self, ids: list[str]) -> None:
        began = self._now()
        try:
            rows = await self._services.read(self._services.unredacted.tokens.get_many, ids)
        except Exception as error:
            for id_ in ids:
                pending = self._pending.pop(id_)
                pending.set_exception(error)
                # Marks it as retrieved: perhaps no request waits for it any more.
                pending.exception()
        else:
            for id_ in ids:
                self._pending.pop(id_).set_result(self._store(id_, rows.get(id_), began))

    def _store(self, id_: str, row: tuple[Token, int] | None, began: float) -> _Entry:
        entry = _Entry(None, began + self._services.config.token_cache_s)
        if row is None:
            _put(self._unknown, id_, entry, MAX_UNKNOWN)
            return entry
        entry.token, at = row
        if entry.token.expires_at is not None:
            entry.expires_at = began + (entry.token.expires_at - at) / SECOND
        if entry.token.used_at is not None:
            entry.record_use_at = began + RECORD_USE_EVERY_S - (at - entry.token.used_at) / SECOND
        _put(self._known, id_, entry, MAX_KNOWN)
        return entry

    async def _record_use(self, entry: _Entry) -> None:
        if self._now() < entry.record_use_at or entry.token is None:
            return
        entry.record_use_at = self._now() + RECORD_USE_EVERY_S
        try:
            await self._services.read(self._services.unredacted.tokens.mark_used, entry.token.id)
        except OnetrayError as e:
            # The request does not fail: used_at is merely older than it should be.
            logger.warning("the use of token %s could not be recorded: %s", entry.token.id, type(e).__name__)


def _principal_of(token: Token) -> Principal:
    return Principal(token.name, token.namespace, frozenset(token.scopes), token.id, token.groups)


def _covers(token: Token, principal: Principal) -> bool:
    """Whether a token still allows what it allowed when the principal was authenticated."""
    return token.namespace == principal.namespace and principal.scopes <= frozenset(token.scopes)


async def _with_timeout(pending: asyncio.Future[T]) -> T:
    """Await a shared future: a request that gives up does not cancel it for the others."""
    try:
        async with asyncio.timeout(LOOKUP_TIMEOUT_S):
            return await asyncio.shield(pending)
    except TimeoutError:
        raise Unavailable(f"the database did not answer within {LOOKUP_TIMEOUT_S:g} s: try again") from None


def _put(entries: OrderedDict[str, _Entry], id_: str, entry: _Entry, limit: int) -> None:
    entries[id_] = entry
    entries.move_to_end(id_)
    if len(entries) > limit:
        entries.popitem(last=False)
