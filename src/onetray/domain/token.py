"""API tokens: `ot_<public id>_<secret>`, with scopes.

The secret is printed once and never stored; the database has its SHA-256. A secret of 256 random bits needs neither
salt nor a slow hash.
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
MAX_GROUPS = 100
ANY_GROUP = "*"
"""The group of a caller who cannot be told from others, on a server without tokens. No token has it."""

_TEXT = re.compile(r"ot_([0-9a-f]{16})_([A-Za-z0-9_-]{43})", re.ASCII)


class Parts(NamedTuple):
    """The parts of a token's text."""

    id: str
    secret: str


@dataclass(frozen=True, slots=True)
class Token:
    """A token as administrators see it, without its secret."""

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
    groups: tuple[str, ...] = ()
    """Groups of its owner: an approval that names one of them may be answered with this token."""


@dataclass(frozen=True, slots=True)
class NewToken:
    """A newly created token. Its text is available only here."""

    token: Token
    text: str = field(repr=False)


def new_text() -> str:
    return f"ot_{secrets.token_hex(8)}_{secrets.token_urlsafe(32)}"


def parts_of(text: str) -> Parts | None:
    """The public id and the secret; None if the text is not a token."""
    match = _TEXT.fullmatch(text)
    return None if match is None else Parts(*match.groups())


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def is_secret_of(secret: str, token: Token) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(hash_of(secret), token.hash)
