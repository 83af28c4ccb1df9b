"""Requests to a server under a key: each is carried out once, and answered the same when it is sent again.

Owns what is kept of a request. What a request does, and who may send it, is the server's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from onetray.config import Limits
from onetray.domain.checks import text, whole
from onetray.domain.clock import SECOND
from onetray.domain.errors import InProgress, KeyReused
from onetray.store.base import Store, Tx
from onetray.store.rows import RequestRow

KEPT_S = 86_400
"""How long an answer is given again."""
DIED_S = 60
"""A request that nobody has begun or renewed for so long is taken to have lost its server: it is carried out again."""
FORGET = 100
"""How many old requests each new one clears away, at most."""
ANSWER_CHARS = 1_000_000


class HeldKey(NamedTuple):
    """A request under a key: to be carried out now, or answered before."""

    caller: str
    key: str
    held_at: tuple[int, ...]
    """When it was begun, or renewed last. Several times: of the last ones nobody knows whether they were written."""
    status: int | None = None
    answer: str = ""

    def also_at(self, at: int) -> HeldKey:
        """The same, about to be renewed at this time."""
        return self._replace(held_at=(*self.held_at, at))


class HttpKeys:
    """The requests under keys that a database remembers."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self.store, self._limits = store, limits

    def begin(self, caller: str, key: str, *, route: str, body_hash: str) -> HeldKey:
        """Take a key for a request. With a status it was answered before; without one it is the caller's to do."""
        limits = self._limits
        text(caller, "caller", limits.key_chars)
        text(key, "key", limits.key_chars)
        text(route, "route", limits.key_chars)
        text(body_hash, "body_hash", limits.name_chars)
        tried: list[int] = []

        def take(tx: Tx) -> tuple[int, RequestRow | None]:
            tried.append(tx.now)
            mine = tx.query(
                "take_request", caller=caller, key=key, route=route, body_hash=body_hash, at=tx.now,
                expires_at=tx.now + KEPT_S * SECOND, died_before=tx.now - DIED_S * SECOND,
            )  # fmt: skip
            if mine:
                tx.query("forget_old_requests", at=tx.now, limit=FORGET)
                return tx.now, None
            return 0, next(iter(tx.query("request_of", caller=caller, key=key)), None)

        began_at, found = self.store.write(take)
        if found is not None and found.began_at in tried[:-1]:
            # Taken by ourselves, before the answer was lost.
            began_at = found.began_at
        if began_at:
            return HeldKey(caller, key, (began_at,))
        return _before(caller, key, route, body_hash, found)

    def renew(self, begun: HeldKey) -> HeldKey | None:
        """Say, at the last of its times, that a request is still under way. None: it is not the caller's any more."""
        at = begun.held_at[-1]
        mine = self.store.write(lambda tx: tx.query("renew_request", **_place(begun), at=at))
        return begun._replace(held_at=(at,)) if mine else None

    def answer(self, begun: HeldKey, status: int, answer: str) -> None:
        """Keep the answer. Of a request that somebody else has begun again meanwhile, theirs is kept."""
        whole(status, "status", 100, 599)
        text(answer, "answer", ANSWER_CHARS, least=0)
        self.store.write(lambda tx: tx.query("answer_request", **_place(begun), status=status, answer=answer))

    def drop(self, begun: HeldKey) -> None:
        """Give the key back: nothing was carried out."""
        self.store.write(lambda tx: tx.query("drop_request", **_place(begun)))

    def reserve(self, caller: str, key: str, *, route: str, body_hash: str, ttl_s: float) -> bool:
        """Take a key for a body, or find that it is this body's already. False: it is another's.

        Nothing is answered under it: whoever comes again with the same body goes on, and finds what there is.
        """

        def take(tx: Tx) -> str:
            tx.query(
                "reserve_request", caller=caller, key=key, route=route, body_hash=body_hash, at=tx.now,
                expires_at=tx.now + int(ttl_s * SECOND),
            )  # fmt: skip
            ((found,),) = tx.query("reserved_request", caller=caller, key=key)
            tx.query("forget_old_requests", at=tx.now, limit=FORGET)
            return str(found)

        return self.store.write(take) == body_hash


def _place(begun: HeldKey) -> dict[str, Any]:
    return {"caller": begun.caller, "key": begun.key, "held_at": list(begun.held_at)}


def _before(caller: str, key: str, route: str, body_hash: str, found: RequestRow | None) -> HeldKey:
    """What an earlier request under the key was answered."""
    if found is not None and (found.route, found.body_hash) != (route, body_hash):
        raise KeyReused(
            f"the key {key!r} was used with another request: use a new key, or send the first one again",
            idempotency_key=key,
        )
    # Given back between the two statements: as if it were still under way.
    if found is None or found.status is None:
        raise InProgress(idempotency_key=key, retry_after_s=1)
    return HeldKey(caller, key, (), found.status, found.answer or "")
