"""Tokens: who may call a server, and for what.

Owns their text, `ot_<public id>_<secret>`, and the comparison. The secret is shown once and kept nowhere: what is kept
is its SHA-256. It needs no salt and no slow hash, because it is 256 bits of chance and not somebody's word.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import NamedTuple

READ, SUBMIT, WORK, OPERATE, ADMIN = "read", "submit", "work", "operate", "admin"
SCOPES = (READ, SUBMIT, WORK, OPERATE, ADMIN)

_TEXT = re.compile(r"ot_([0-9a-f]{16})_([A-Za-z0-9_-]{43})", re.ASCII)


class Parts(NamedTuple):
    """A token's text, taken apart."""

    id: str
    secret: str


@dataclass(frozen=True, slots=True)
class Token:
    """A token as anybody may see it who may see tokens. It cannot be used from this."""

    id: str
    name: str
    namespace: str
    scopes: tuple[str, ...]
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    used_at: int | None
    """When it was last used, to the minute."""
    hash: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just created: the only time that its text is there."""

    token: Token
    text: str = field(repr=False)


def new_text() -> str:
    return f"ot_{secrets.token_hex(8)}_{secrets.token_urlsafe(32)}"


def parts_of(text: str) -> Parts | None:
    """The public id and the secret; None for what cannot be a token."""
    found = _TEXT.fullmatch(text)
    return None if found is None else Parts(*found.groups())


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def is_secret_of(secret: str, token: Token) -> bool:
    """Compared in the same time wherever they differ."""
    return hmac.compare_digest(hash_of(secret), token.hash)
