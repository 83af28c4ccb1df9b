"""Tokens: `engine.tokens` creates, lists, reads and revokes them.

http/ enforces their scopes. Tokens are never deleted: a database that has had one must not accept requests without a
token again after the last one is revoked.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from onetray.domain.checks import choice, listed, seconds, text
from onetray.domain.clock import SECOND
from onetray.domain.errors import InvalidInput, NotFound, short_repr
from onetray.domain.lifecycle import TOKEN_CREATED, TOKEN_REVOKED
from onetray.domain.machine import USER
from onetray.domain.token import ANY_GROUP, MAX_GROUPS, SCOPES, NewToken, Token, hash_of, new_text, parts_of
from onetray.engine.pending_writes import actor, record_change
from onetray.engine.reads import DatabaseReads
from onetray.store.base import Tx
from onetray.store.shown_rows import TokenRow

RECORD_USE_EVERY_S = 60
"""The use of a token is recorded at most this often."""
MIN_EXPIRES_S = 1.0


class Tokens(DatabaseReads):
    """The tokens of a database."""

    def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        namespace: str = "default",
        expires_s: float | None = None,
        groups: Sequence[str] = (),
        by: str = "anonymous",
    ) -> NewToken:
        """Create a token. Only the return value contains its text; the database stores a hash.

        `groups`: of its owner, who may answer approvals that name one of them. The event `token.created` says who has
        created it (`by`).
        """
        limits = self.config.limits
        self._printable(name, "name")
        text(namespace, "namespace", limits.name_chars)
        text(by, "by", limits.name_chars)
        members = tuple(dict.fromkeys(self._group(group) for group in listed(groups, "groups", 0, MAX_GROUPS)))
        scope_set = {choice(scope, "scopes", SCOPES) for scope in listed(scopes, "scopes", 1, len(SCOPES))}
        if expires_s is not None:
            seconds(expires_s, "expires_s", MIN_EXPIRES_S)
        token_text = new_text()
        parts = parts_of(token_text)
        assert parts is not None

        ns = self.store.names.intern_namespace(namespace)

        def add(tx: Tx) -> Token:
            is_repeated = bool(tx.query("tokens_by_id", ids=[parts.id]))
            token = Token(
                parts.id, name, namespace, tuple(s for s in SCOPES if s in scope_set), tx.now,
                None if expires_s is None else tx.now + int(expires_s * SECOND), None, None, hash_of(parts.secret),
                members,
            )  # fmt: skip
            tx.query(
                "add_token", id=token.id, hash=token.hash, name=name, namespace=namespace,
                scopes=",".join(token.scopes), member_of=orjson.dumps(members).decode(),
                created_at=token.created_at, expires_at=token.expires_at,
            )  # fmt: skip
            if not is_repeated:
                self._record(tx, ns, TOKEN_CREATED, token, by)
            return token

        return NewToken(self.store.write(add), token_text)

    def _printable(self, name: object, field: str) -> str:
        checked = text(name, field, self.config.limits.name_chars)
        if not checked.isprintable():
            message = f"{field} must be printable, without line breaks: {short_repr(name)} is not"
            raise InvalidInput(message, field=field)
        return checked

    def _group(self, name: object) -> str:
        if self._printable(name, "groups") == ANY_GROUP:
            raise InvalidInput(f"a group cannot be called {ANY_GROUP!r}: name each group", field="groups")
        return str(name)

    def _record(self, tx: Tx, ns: int, type_: str, token: Token, by: str) -> None:
        record_change(
            tx, ns, type_, actor(USER, by), about=("token", token.id), name=token.name, scopes=token.scopes,
            groups=token.groups, expires_at=token.expires_at,
        )  # fmt: skip

    def list(self, *, namespace: str | None = None, limit: int = 1000) -> list[Token]:
        """The tokens of one namespace or of all, newest first, including revoked and expired ones."""
        if namespace is not None:
            text(namespace, "namespace", self.config.limits.name_chars)
        return [_token(r) for r in self._read("tokens", of_namespace=namespace, limit=limit)]

    def get(self, id: str) -> tuple[Token, int] | None:
        """A token and the time at which it was read; None if the id is unknown."""
        return self.get_many([text(id, "id", self.config.limits.name_chars)]).get(id)

    def get_many(self, ids: Sequence[str]) -> dict[str, tuple[Token, int]]:
        """The existing tokens among `ids`, each with the time at which it was read."""
        return {row.id: (_token(row), row.seen_at) for row in self._read("tokens_by_id", ids=list(ids))}

    def revoke(self, id: str, *, by: str = "anonymous") -> Token:
        """Revoke a token. Servers that have it cached reject it within seconds. `by` is who has revoked it."""
        text(id, "id", self.config.limits.name_chars)
        text(by, "by", self.config.limits.name_chars)
        token_and_time = self.get(id)
        if token_and_time is None:
            raise NotFound(f"there is no token {id}: see `onetray token list`", token=id)
        token = token_and_time[0]
        ns = self.store.names.intern_namespace(token.namespace)

        def end(tx: Tx) -> None:
            if tx.query("revoke_token", id=id, at=tx.now):
                self._record(tx, ns, TOKEN_REVOKED, token, by)

        self.store.write(end)
        return self.get_many([id])[id][0]

    def exist(self) -> bool:
        """Whether any token was ever created: then a server requires one."""
        return bool(self._read("any_token"))

    def mark_used(self, id: str) -> None:
        """Record the use of a token, unless it was recorded within the last minute."""
        # Without a retry: a request waits for it.
        self.store.write(
            lambda tx: tx.query("use_token", id=id, at=tx.now, before=tx.now - RECORD_USE_EVERY_S * SECOND), again=False
        )


def _token(row: TokenRow) -> Token:
    fields = row._asdict()
    del fields["seen_at"], fields["member_of"]
    return Token(**fields | {"scopes": tuple(row.scopes.split(",")), "groups": tuple(orjson.loads(row.member_of))})
