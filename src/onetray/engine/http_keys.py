"""Idempotency keys of HTTP requests: a request runs once, and a repeated one gets the stored response.

Owns the stored requests. The server runs them.
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
"""How long a response is stored."""
DIED_S = 60
"""If a request was not renewed for this long, its server is considered dead, and the next request with its key runs."""
FORGET = 100
"""How many expired requests a new one deletes at most."""
ANSWER_CHARS = 1_000_000


class HeldKey(NamedTuple):
    """A request with a key: to be run now (no status), or already answered."""

    caller: str
    key: str
    held_at: tuple[int, ...]
    """When the request was begun or last renewed. Several times if it is unknown which of them were written."""
    status: int | None = None
    answer: str = ""

    def also_at(self, at: int) -> HeldKey:
        """The same, before a renewal at this time."""
        return self._replace(held_at=(*self.held_at, at))


class HttpKeys:
    """The requests with keys that a database stores."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self.store, self._limits = store, limits

    def begin(self, caller: str, key: str, *, route: str, body_hash: str) -> HeldKey:
        """Take a key for a request. If the result has no status, the caller runs the request."""
        self._check(caller, key, route, body_hash)
        tried_at: list[int] = []

        def take(tx: Tx) -> tuple[int, RequestRow | None]:
            tried_at.append(tx.now)
            taken = tx.query(
                "take_request", caller=caller, key=key, route=route, body_hash=body_hash, at=tx.now,
                expires_at=tx.now + KEPT_S * SECOND, died_before=tx.now - DIED_S * SECOND,
            )  # fmt: skip
            if taken:
                tx.query("delete_expired_requests", at=tx.now, limit=FORGET)
                return tx.now, None
            return 0, next(iter(tx.query("request_of", caller=caller, key=key)), None)

        began_at, row = self.store.write(take)
        if row is not None and row.began_at in tried_at[:-1]:
            # An earlier try of this call took it, and its answer was lost.
            began_at = row.began_at
        if began_at:
            return HeldKey(caller, key, (began_at,))
        return _answered(caller, key, route, body_hash, row)

    def _check(self, caller: str, key: str, route: str, body_hash: str) -> None:
        limits = self._limits
        text(caller, "caller", limits.key_chars)
        text(key, "key", limits.key_chars)
        text(route, "route", limits.key_chars)
        text(body_hash, "body_hash", limits.name_chars)

    def renew(self, held: HeldKey) -> HeldKey | None:
        """Renew a running request, at the last of its times. Returns None if another caller has taken it over."""
        at = held.held_at[-1]
        is_held = self.store.write(lambda tx: tx.query("renew_request", **_columns(held), at=at))
        return held._replace(held_at=(at,)) if is_held else None

    def answer(self, held: HeldKey, status: int, answer: str) -> None:
        """Store the response, unless another caller has taken the request over."""
        whole(status, "status", 100, 599)
        text(answer, "answer", ANSWER_CHARS, least=0)
        self.store.write(lambda tx: tx.query("answer_request", **_columns(held), status=status, answer=answer))

    def drop(self, held: HeldKey) -> None:
        """Free the key: the request had no effect."""
        self.store.write(lambda tx: tx.query("drop_request", **_columns(held)))

    def reserve(self, caller: str, key: str, *, route: str, body_hash: str, ttl_s: float) -> bool:
        """Reserve a key for a body. Returns whether it belongs to this body, now or from before.

        No response is stored: a repeated request with the same body runs again.
        """
        self._check(caller, key, route, body_hash)

        def take(tx: Tx) -> str:
            tx.query(
                "reserve_request", caller=caller, key=key, route=route, body_hash=body_hash, at=tx.now,
                expires_at=tx.now + int(ttl_s * SECOND),
            )  # fmt: skip
            ((reserved_for,),) = tx.query("reserved_request", caller=caller, key=key)
            tx.query("delete_expired_requests", at=tx.now, limit=FORGET)
            return str(reserved_for)

        return self.store.write(take) == body_hash


def _columns(held: HeldKey) -> dict[str, Any]:
    return {"caller": held.caller, "key": held.key, "held_at": list(held.held_at)}


def _answered(caller: str, key: str, route: str, body_hash: str, row: RequestRow | None) -> HeldKey:
    """The stored response to an earlier request with the key."""
    if row is not None and (row.route, row.body_hash) != (route, body_hash):
        raise KeyReused(
            f"the key {key!r} was used with another request: use a new key, or send the first one again",
            idempotency_key=key,
        )
    # None: it was freed between the two statements. The client tries again.
    if row is None or row.status is None:
        raise InProgress(idempotency_key=key, retry_after_s=1)
    return HeldKey(caller, key, (), row.status, row.answer or "")
