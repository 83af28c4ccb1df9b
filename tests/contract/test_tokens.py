"""Tokens in the database: what is kept of them, what may be asked, and when they end."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import InvalidInput, NotFound, TooLarge
from onetray.domain.token import is_secret_of, parts_of
from onetray.engine import Engine
from tests.support.cases import each_case


def test_the_secret_is_kept_nowhere(engine: Engine) -> None:
    new = engine.tokens.create("ann", ["submit", "read"], namespace="shop", expires_s=60)
    parts = parts_of(new.text)
    assert parts is not None
    row = engine.store.read("tokens_by_id", ids=[parts.id])[0]
    assert hashlib.sha256(parts.secret.encode()).hexdigest() in row
    assert not any(parts.secret in str(value) for value in row)
    assert parts.secret not in repr(new)
    assert new.token.hash not in repr(new)


def test_a_token_says_whose_it_is_what_for_and_until_when(engine: Engine, clock: VirtualClock) -> None:
    new = engine.tokens.create("ann", ["submit", "read", "read"], namespace="shop", expires_s=60)
    found, at = engine.tokens.get(new.token.id) or pytest.fail("it is not there")
    assert found == new.token
    assert (found.name, found.namespace, found.scopes) == ("ann", "shop", ("read", "submit"))
    assert (found.expires_at or 0) - found.created_at == 60 * SECOND
    assert at == clock.now()


def test_two_tokens_have_nothing_in_common(engine: Engine) -> None:
    one, two = (engine.tokens.create("ann", ["read"]) for _ in range(2))
    secret = (parts_of(one.text) or pytest.fail("it is no token")).secret
    assert len(secret) == 43
    assert is_secret_of(secret, one.token)
    assert not is_secret_of(secret, two.token)
    assert one.token.id != two.token.id


def test_secrets_are_compared_in_constant_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    token = engine.tokens.create("ann", ["read"]).token
    compared: list[tuple[str, str]] = []
    monkeypatch.setattr("onetray.domain.token.hmac.compare_digest", lambda a, b: compared.append((a, b)) or False)
    assert not is_secret_of("x", token)
    assert compared == [(hashlib.sha256(b"x").hexdigest(), token.hash)]


def test_tokens_are_listed_newest_first_of_one_namespace_or_of_all(engine: Engine, clock: VirtualClock) -> None:
    for name, namespace in (("a", "shop"), ("b", "bank"), ("c", "shop")):
        engine.tokens.create(name, ["read"], namespace=namespace)
        clock.advance(1)
    assert [t.name for t in engine.tokens.list()] == ["c", "b", "a"]
    assert [t.name for t in engine.tokens.list(namespace="shop")] == ["c", "a"]
    assert [t.name for t in engine.tokens.list(limit=1)] == ["c"]


def test_a_revoked_token_stays_revoked_since_the_first_time(engine: Engine, clock: VirtualClock) -> None:
    id_ = engine.tokens.create("ann", ["read"]).token.id
    first = engine.tokens.revoke(id_)
    clock.advance(10)
    assert engine.tokens.revoke(id_) == first
    assert first.revoked_at is not None
    with pytest.raises(NotFound, match="token list"):
        engine.tokens.revoke("nobody")


def test_a_database_that_has_had_a_token_always_needs_one(engine: Engine, clock: VirtualClock) -> None:
    assert not engine.tokens.exist()
    id_ = engine.tokens.create("ann", ["read"], expires_s=1).token.id
    engine.tokens.revoke(id_)
    clock.advance(60)
    assert engine.tokens.exist()


def test_its_use_is_written_once_a_minute(engine: Engine, clock: VirtualClock) -> None:
    id_ = engine.tokens.create("ann", ["read"]).token.id
    first = clock.now()
    for _ in range(3):
        engine.tokens.mark_used(id_)
        clock.advance(20)
    assert engine.tokens.list()[0].used_at == first
    engine.tokens.mark_used(id_)
    assert engine.tokens.list()[0].used_at == clock.now()


BAD: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"name": ""}, InvalidInput),
    ({"name": "a\nb"}, InvalidInput),
    ({"name": "x" * 201}, TooLarge),
    ({"scopes": []}, InvalidInput),
    ({"scopes": ["root"]}, InvalidInput),
    ({"scopes": "read"}, InvalidInput),
    ({"namespace": "\0"}, InvalidInput),
    ({"expires_s": 0}, InvalidInput),
    ({"expires_s": -1}, InvalidInput),
    ({"expires_s": 1e300}, InvalidInput),
]


def test_a_token_that_makes_no_sense_is_refused(engine: Engine) -> None:
    for fields, error in BAD:
        with pytest.raises(error):
            engine.tokens.create(**{"name": "ann", "scopes": ["read"], **fields})
    assert not engine.tokens.exist()


@each_case(
    "text",
    ["", "ot_", "ot_0123456789abcdef_", "ot_0123456789ABCDEF_" + "a" * 43, "ot_0123456789abcdef_" + "a" * 44,
     "xx_0123456789abcdef_" + "a" * 43, "ot_0123456789abcdef_" + "é" * 43, "ot_0123456789abcdef_" + "a" * 43 + "\n"],
)  # fmt: skip
def test_what_cannot_be_a_token_is_none(text: str) -> None:
    assert parts_of(text) is None
