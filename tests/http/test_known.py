"""The tokens that a server knows: how long for, and how little strangers can make it ask."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

import httpx2
import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import TooManyRequests, Unauthorized, Unavailable
from onetray.domain.token import new_text
from onetray.engine import Engine
from onetray.http.auth import token_cache
from onetray.http.auth.scopes import Principal
from onetray.http.auth.token_cache import TokenCache
from onetray.http.auth.token_watch import TokenWatch
from onetray.http.services import HttpConfig, Services
from tests.http.callers import bearer
from tests.support.engines import engine_on
from tests.support.live import WAIT_S, Live, serving
from tests.support.slow_clients import guess, slow_clients
from tests.support.waits import wait_until


class Doorman:
    """The server's knowledge, a clock to turn, and a count of what it asks the database."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.asked, self.used = 0.0, 0, 0
        self.tokens = TokenCache(Services(engine, HttpConfig()), lambda: self.at)
        by_id, use = engine.tokens.get_many, engine.tokens.mark_used

        def counted(ids: list[str]) -> object:
            self.asked += 1
            return by_id(ids)

        def used(id_: str) -> None:
            self.used += 1
            use(id_)

        monkeypatch.setattr(engine.tokens, "get_many", counted)
        monkeypatch.setattr(engine.tokens, "mark_used", used)

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
    text = engine.tokens.create("ann", ["read"]).text
    for _ in range(100):
        assert doorman.lets_in(text)
        doorman.at += 0.1
    assert 3 <= doorman.asked <= 5


def test_a_revoked_token_is_dead_within_five_seconds(engine: Engine, doorman: Doorman) -> None:
    new = engine.tokens.create("ann", ["read"])
    assert doorman.lets_in(new.text)
    engine.tokens.revoke(new.token.id)
    doorman.at += 5.0
    assert not doorman.lets_in(new.text)


def test_an_expired_token_is_dead_at_once_though_it_is_known(engine: Engine, doorman: Doorman) -> None:
    text = engine.tokens.create("ann", ["read"], expires_s=1).text
    assert doorman.lets_in(text)
    doorman.at += 1.0
    assert not doorman.lets_in(text)
    assert doorman.asked == 1


def test_those_who_come_together_are_asked_about_once(engine: Engine, doorman: Doorman) -> None:
    text = engine.tokens.create("ann", ["read"]).text

    async def crowd() -> None:
        await asyncio.gather(*(doorman.tokens.principal(text) for _ in range(100)))

    asyncio.run(crowd())
    assert doorman.asked == 1
    assert doorman.used == 1


def test_a_wrong_secret_for_a_known_id_asks_nothing(engine: Engine, doorman: Doorman) -> None:
    text = engine.tokens.create("ann", ["read"]).text
    assert doorman.lets_in(text)
    for _ in range(50):
        assert not doorman.lets_in(text[:20] + new_text()[20:])
    assert doorman.asked == 1


def test_the_same_stranger_is_asked_about_once(engine: Engine, doorman: Doorman) -> None:
    text = new_text()
    assert not any(doorman.lets_in(text) for _ in range(200))
    assert doorman.asked == 1


def test_ever_new_strangers_cannot_load_the_database(engine: Engine, doorman: Doorman) -> None:
    good = engine.tokens.create("ann", ["read"]).text

    async def crowd(number: int) -> list[object]:
        texts = [new_text() for _ in range(number)]
        calls = (doorman.tokens.principal(text) for text in [*texts, good])
        return await asyncio.gather(*calls, return_exceptions=True)

    *strangers, one = asyncio.run(crowd(2_500))
    assert all(isinstance(error, Unauthorized) for error in strangers)
    assert one == Principal("ann", "default", frozenset({"read"}), good[3:19]), "not refused with them"
    assert doorman.asked == 3, "the first thousand, the second, the rest"


def test_more_strangers_than_can_wait_are_turned_away(
    engine: Engine, doorman: Doorman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_cache, "MAX_WAITING", 10)

    async def crowd() -> list[object]:
        return await asyncio.gather(*(doorman.tokens.principal(new_text()) for _ in range(12)), return_exceptions=True)

    assert [type(error) for error in asyncio.run(crowd())] == [Unauthorized] * 10 + [TooManyRequests] * 2


def test_a_look_that_fails_is_told_to_all_who_wait_and_made_again(
    engine: Engine, doorman: Doorman, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = engine.tokens.create("ann", ["read"]).text

    def away(_: list[str]) -> None:
        raise Unavailable

    with monkeypatch.context() as while_away:
        while_away.setattr(engine.tokens, "get_many", away)
        for _ in range(2):
            with pytest.raises(Unavailable):
                doorman.lets_in(text)
    assert doorman.lets_in(text)


def test_strangers_take_no_room(doorman: Doorman, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_cache, "MAX_UNKNOWN", 10)
    for _ in range(40):
        doorman.lets_in(new_text())
    assert len(doorman.tokens._unknown) == 10


def test_a_use_is_written_at_most_once_a_minute(engine: Engine, doorman: Doorman) -> None:
    text = engine.tokens.create("ann", ["read"]).text
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
    engine.tokens.create("ann", ["read"])
    doorman.at += 5.0
    assert asyncio.run(doorman.tokens.needed())
    monkeypatch.setattr(engine.tokens, "exist", lambda: False)
    doorman.at += 1_000.0
    assert asyncio.run(doorman.tokens.needed())


def test_good_tokens_are_let_in_during_a_flood_of_random_ones(engine: Engine) -> None:
    """Also those that this server has never met."""
    engine.tokens.create("ann", ["read"])
    with serving(engine) as live, slow_clients(live.port, 10, guess) as seen:
        wait_until(lambda: seen.answered >= 200)
        for _ in range(3):
            assert status(live, engine.tokens.create("bob", ["read"]).text) == 200


def status(live: Live, text: str) -> int:
    answer = httpx2.get(f"{live.url}/api/v1/jobs", headers=bearer(text), timeout=WAIT_S, trust_env=False)
    return int(answer.status_code)


class Away(Exception):
    """Something that nobody has thought of."""


def test_an_end_that_is_known_needs_no_database(
    engine: Engine, doorman: Doorman, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = engine.tokens.create("ann", ["read"], expires_s=20.0)

    def away(ids: list[str]) -> object:
        raise Unavailable("the database is away")

    async def expires() -> None:
        principal = await doorman.tokens.principal(new.text)
        monkeypatch.setattr(engine.tokens, "get_many", away)
        doorman.at = 21.0
        with pytest.raises(Unauthorized, match="expired"):
            await TokenWatch(doorman.tokens, 0.1).must_hold(principal)

    asyncio.run(expires())


class Looks:
    """Stands for the known tokens: each look raises what it is told."""

    def __init__(self, *raised: Exception) -> None:
        self._raised, self.many = raised, 0

    def expires_in_s(self, principal: Principal) -> float:
        return -1.0

    async def recheck(self, principal: Principal) -> None:
        self.many += 1
        raise self._raised[min(self.many, len(self._raised)) - 1]


def test_a_watch_of_a_token_goes_on_after_an_error_that_nobody_expects() -> None:
    async def watch() -> None:
        tokens = TokenWatch(cast(TokenCache, Looks(Away(), Unauthorized("it has ended"))), 0.01)
        with tokens.watching(Principal("ann", "default", frozenset(), "ann")) as ended:
            assert str(await asyncio.wait_for(ended, WAIT_S)) == "it has ended"

    asyncio.run(watch())


def test_a_token_that_has_ended_is_not_looked_at_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though somebody who was told of it stays."""
    slept, sleep = list[float](), asyncio.sleep

    async def counted(delay_s: float) -> None:
        slept.append(delay_s)
        await sleep(0.0)

    async def watch() -> None:
        tokens = TokenWatch(cast(TokenCache, Looks(Unauthorized("it has ended"))), 3600.0)
        with tokens.watching(Principal("ann", "default", frozenset(), "ann")) as ended:
            await asyncio.wait_for(ended, WAIT_S)
            while len(slept) < 3:
                await sleep(0.0)

    monkeypatch.setattr(asyncio, "sleep", counted)
    asyncio.run(watch())
    assert slept[1:3] == [3600.0, 3600.0]
