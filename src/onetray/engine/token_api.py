"""Tokens: `engine.tokens` creates, lists and revokes them, and answers what a server asks about them.

Owns what a token may be. What it allows at a server is in http/. A token is never removed: a database that has had
one is not open to everybody again when the last is revoked.
"""

from __future__ import annotations

from collections.abc import Sequence

from onetray.domain.checks import choice, listed, seconds, text
from onetray.domain.clock import SECOND
from onetray.domain.errors import InvalidInput, NotFound, short_repr
from onetray.domain.token import SCOPES, NewToken, Token, hash_of, new_text, parts_of
from onetray.engine.reads import DatabaseReads
from onetray.store.base import Tx
from onetray.store.shown_rows import TokenRow

USED_EVERY_S = 60
"""How often the use of a token is written down at most."""
SHORTEST_S = 1.0


class Tokens(DatabaseReads):
    """The tokens of a database."""

    def create(
        self, name: str, scopes: Sequence[str], *, namespace: str = "default", expires_s: float | None = None
    ) -> NewToken:
        """Make a token. Its text is in the answer and nowhere else."""
        limits = self.config.limits
        if not text(name, "name", limits.name_chars).isprintable():
            raise InvalidInput(f"name must be printable, without line breaks: {short_repr(name)} is not", field="name")
        text(namespace, "namespace", limits.name_chars)
        wanted = {choice(scope, "scopes", SCOPES) for scope in listed(scopes, "scopes", 1, len(SCOPES))}
        if expires_s is not None:
            seconds(expires_s, "expires_s", SHORTEST_S)
        words = new_text()
        parts = parts_of(words)
        assert parts is not None

        def add(tx: Tx) -> Token:
            token = Token(
                parts.id, name, namespace, tuple(s for s in SCOPES if s in wanted), tx.now,
                None if expires_s is None else tx.now + int(expires_s * SECOND), None, None, hash_of(parts.secret),
            )  # fmt: skip
            tx.query(
                "add_token", id=token.id, hash=token.hash, name=name, namespace=namespace,
                scopes=",".join(token.scopes), created_at=token.created_at, expires_at=token.expires_at,
            )  # fmt: skip
            return token

        return NewToken(self.store.write(add), words)

    def list(self, *, namespace: str | None = None, limit: int = 1000) -> list[Token]:
        """The tokens of one namespace, or of all, the newest first; revoked and expired ones, too."""
        if namespace is not None:
            text(namespace, "namespace", self.config.limits.name_chars)
        return [_token(r) for r in self._read("tokens", of_namespace=namespace, limit=limit)]

    def get(self, id: str) -> tuple[Token, int] | None:
        """A token and the time at which it was read; None when there is none of this id."""
        return self.get_many([text(id, "id", self.config.limits.name_chars)]).get(id)

    def get_many(self, ids: Sequence[str]) -> dict[str, tuple[Token, int]]:
        """Those of these tokens that there are, each with the time at which it was read."""
        return {row.id: (_token(row), row.seen_at) for row in self._read("tokens_by_id", ids=list(ids))}

    def revoke(self, id: str) -> Token:
        """Let a token be good for nothing from now on. Servers that know it notice within seconds."""
        text(id, "id", self.config.limits.name_chars)
        self.store.write(lambda tx: tx.query("revoke_token", id=id, at=tx.now))
        found = self.get(id)
        if found is None:
            raise NotFound(f"there is no token {id}: see `onetray token list`", token=id)
        return found[0]

    def exist(self) -> bool:
        """Whether any token was ever created here: then nobody is let in without one."""
        return bool(self._read("any_token"))

    def mark_used(self, id: str) -> None:
        """Write down that a token was used, if that was not done in the last minute."""
        # Not again: a request waits for it.
        self.store.write(
            lambda tx: tx.query("use_token", id=id, at=tx.now, before=tx.now - USED_EVERY_S * SECOND), again=False
        )


def _token(row: TokenRow) -> Token:
    fields = row._asdict()
    del fields["seen_at"]
    return Token(**fields | {"scopes": tuple(row.scopes.split(","))})
