"""A key that stands for one body, whatever is made from it.

Owns the reservation. Which job a key leads to is in keys.py: there, a key is known for one kind.
"""

from __future__ import annotations

from onetray.clock import SECOND
from onetray.engine.requests import FORGET
from onetray.store.base import Store, Tx


def reserve(store: Store, *, caller: str, key: str, route: str, body_hash: str, ttl_s: float) -> bool:
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

    return store.write(take) == body_hash
