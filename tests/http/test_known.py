"""The tokens that a server knows: how long for, and how little strangers can make it ask."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from onetray.clock import VirtualClock
from onetray.engine import Engine
from onetray.errors import TooManyRequests, Unauthorized
from onetray.http import known
from onetray.http.desk import Desk, HttpConfig
from onetray.http.known import KnownTokens
from onetray.tokens import new_text
from tests.support.engines import engine_on


class Doorman:
    """The server's knowledge, a clock to turn, and a count of what it asks the database."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.asked, self.used = 0.0, 0, 0
        self.tokens = KnownTokens(Desk(engine, HttpConfig()), lambda: self.at)
        by_id, use = engine.token_by_id, engine.use_token

        def counted(id_: str) -> object:
            self.asked += 1
            return by_id(id_)

        def used(id_: str) -> None:
            self.used += 1
            use(id_)

        monkeypatch.setattr(engine, "token_by_id", counted)
        monkeypatch.setattr(engine, "use_token", used)

    def lets_in(self, text: str) -> bool:
        try:
            asyncio.run(self.tokens.principal(text))
        except Unauthorized:
            return False
        return True


@pytest.fixture
def engine() -> Iterator[Engine]:
    with engine_on("sqlite://:memory:", VirtualClock()) as running:
        yield running


@pytest.fixture
def doorman(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Doorman:
    return Doorman(engine, monkeypatch)


def test_a_known_token_is_asked_about_once_in_a_while(engine: Engine, doorman: Doorman) -> None:
    text = engine.create_token("ann", ["read"]).text
    for _ in range(100):
        assert doorman.lets_in(text)
        doorman.at += 0.1
    assert 3 <= doorman.asked <= 5


def test_a_revoked_token_is_dead_within_five_seconds(engine: Engine, doorman: Doorman) -> None:
    new = engine.create_token("ann", ["read"])
    assert doorman.lets_in(new.text)
    engine.revoke_token(new.token.id)
    doorman.at += 5.0
    assert not doorman.lets_in(new.text)


def test_an_expired_token_is_dead_at_once_though_it_is_known(engine: Engine, doorman: Doorman) -> None:
    text = engine.create_token("ann", ["read"], expires_s=1).text
    assert doorman.lets_in(text)
    doorman.at += 1.0
    assert not doorman.lets_in(text)
    assert doorman.asked == 1


def test_those_who_come_together_are_asked_about_once(engine: Engine, doorman: Doorman) -> None:
    text = engine.create_token("ann", ["read"]).text

    async def crowd() -> None:
        await asyncio.gather(*(doorman.tokens.principal(text) for _ in range(100)))

    asyncio.run(crowd())
    assert doorman.asked == 1
    assert doorman.used == 1


def test_a_wrong_secret_for_a_known_id_asks_nothing(engine: Engine, doorman: Doorman) -> None:
    text = engine.create_token("ann", ["read"]).text
    assert doorman.lets_in(text)
    for _ in range(50):
        assert not doorman.lets_in(text[:20] + new_text()[20:])
    assert doorman.asked == 1


def test_the_same_stranger_is_asked_about_once(engine: Engine, doorman: Doorman) -> None:
    text = new_text()
    assert not any(doorman.lets_in(text) for _ in range(200))
    assert doorman.asked == 1


def test_ever_new_strangers_cannot_load_the_database(engine: Engine, doorman: Doorman) -> None:
    good = engine.create_token("ann", ["read"]).text
    assert doorman.lets_in(good)
    waits = []
    for _ in range(400):
        try:
            doorman.lets_in(new_text())
        except TooManyRequests as e:
            waits.append(e.retry_after_s)
        doorman.at += 0.004
    assert doorman.asked <= 400 * 0.004 * known.STRANGERS_PER_S + known.STRANGERS_PER_S + 3
    assert len(waits) > 200
    assert max(waits) <= 1.0
    assert doorman.lets_in(good), "those who are known are not turned away with them"


def test_strangers_take_no_room(doorman: Doorman, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "MOST_UNKNOWN", 10)
    for _ in range(40):
        doorman.lets_in(new_text())
    assert len(doorman.tokens._unknown) == 10


def test_a_use_is_written_at_most_once_a_minute(engine: Engine, doorman: Doorman) -> None:
    text = engine.create_token("ann", ["read"]).text
    clock = engine.store.clock
    assert isinstance(clock, VirtualClock)
    for _ in range(120):
        assert doorman.lets_in(text)
        doorman.at += 1.0
        clock.advance(1)
    assert doorman.used == 2


def test_a_server_that_is_closed_once_stays_closed(
    engine: Engine, doorman: Doorman, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not asyncio.run(doorman.tokens.needed())
    engine.create_token("ann", ["read"])
    doorman.at += 5.0
    assert asyncio.run(doorman.tokens.needed())
    monkeypatch.setattr(engine, "has_tokens", lambda: False)
    doorman.at += 1_000.0
    assert asyncio.run(doorman.tokens.needed())
