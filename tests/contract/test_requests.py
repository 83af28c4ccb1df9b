"""Requests to a server under a key: carried out once, answered again, forgotten in time."""

from __future__ import annotations

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import InProgress, InvalidInput, KeyReused, TooLarge
from onetray.engine import Engine
from onetray.engine.http_keys import DIED_S, FORGET, KEPT_S
from tests.support.cases import each_case

REQUEST = {"route": "/jobs/{id}/cancel", "body_hash": "a"}


def rows(engine: Engine) -> int:
    return int(engine.store.read_sql("SELECT count(*) FROM onetray.request")[0][0])


def test_a_request_is_the_callers_to_do_once(engine: Engine) -> None:
    begun = engine.http_keys.begin("ann", "k", **REQUEST)
    assert begun.status is None
    engine.http_keys.answer(begun, 200, '{"x":1}')
    again = engine.http_keys.begin("ann", "k", **REQUEST)
    assert (again.status, again.answer) == (200, '{"x":1}')


def test_two_callers_have_keys_of_their_own(engine: Engine) -> None:
    engine.http_keys.begin("ann", "k", **REQUEST)
    assert engine.http_keys.begin("ben", "k", **REQUEST).status is None


def test_one_that_is_under_way_is_said_to_be(engine: Engine) -> None:
    engine.http_keys.begin("ann", "k", **REQUEST)
    with pytest.raises(InProgress):
        engine.http_keys.begin("ann", "k", **REQUEST)


@pytest.mark.parametrize("other", [{**REQUEST, "body_hash": "b"}, {**REQUEST, "route": "/else"}])
@pytest.mark.parametrize("answered", [True, False])
def test_another_request_under_the_key_is_refused(engine: Engine, other: dict[str, str], answered: bool) -> None:
    begun = engine.http_keys.begin("ann", "k", **REQUEST)
    if answered:
        engine.http_keys.answer(begun, 200, "{}")
    with pytest.raises(KeyReused):
        engine.http_keys.begin("ann", "k", **other)


def test_one_whose_server_died_is_carried_out_again(engine: Engine, clock: VirtualClock) -> None:
    first = engine.http_keys.begin("ann", "k", **REQUEST)
    clock.advance(DIED_S)
    second = engine.http_keys.begin("ann", "k", **REQUEST)
    assert second.status is None
    engine.http_keys.answer(first, 500, "the first was only slow")
    with pytest.raises(InProgress):
        engine.http_keys.begin("ann", "k", **REQUEST)
    engine.http_keys.answer(second, 200, "{}")
    assert engine.http_keys.begin("ann", "k", **REQUEST).status == 200


def test_a_dead_servers_key_is_not_given_to_another_request(engine: Engine, clock: VirtualClock) -> None:
    engine.http_keys.begin("ann", "k", **REQUEST)
    clock.advance(DIED_S)
    with pytest.raises(KeyReused):
        engine.http_keys.begin("ann", "k", route="/else", body_hash="a")


def test_a_key_that_is_given_back_is_free(engine: Engine) -> None:
    engine.http_keys.drop(engine.http_keys.begin("ann", "k", **REQUEST))
    assert engine.http_keys.begin("ann", "k", route="/else", body_hash="b").status is None


def test_an_answer_is_not_dropped(engine: Engine) -> None:
    begun = engine.http_keys.begin("ann", "k", **REQUEST)
    engine.http_keys.answer(begun, 200, "{}")
    engine.http_keys.drop(begun)
    assert engine.http_keys.begin("ann", "k", **REQUEST).status == 200


def test_after_a_day_the_key_is_free(engine: Engine, clock: VirtualClock) -> None:
    engine.http_keys.answer(engine.http_keys.begin("ann", "k", **REQUEST), 200, "{}")
    clock.advance(KEPT_S)
    assert engine.http_keys.begin("ann", "k", route="/else", body_hash="b").status is None


def test_old_requests_are_cleared_away_a_few_at_a_time(engine: Engine, clock: VirtualClock) -> None:
    for i in range(FORGET + 5):
        engine.http_keys.begin("ann", f"k{i}", **REQUEST)
    clock.advance(KEPT_S)
    engine.http_keys.begin("ben", "k", **REQUEST)
    assert rows(engine) == 5 + 1
    engine.http_keys.begin("ben", "k2", **REQUEST)
    assert rows(engine) == 2


@each_case(("key", "error"), [("", InvalidInput), ("x" * 501, TooLarge), ("a\0b", InvalidInput)])
def test_bad_keys_are_refused(engine: Engine, key: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        engine.http_keys.begin("ann", key, **REQUEST)


def test_a_request_that_is_renewed_is_not_taken_over(engine: Engine, clock: VirtualClock) -> None:
    begun = engine.http_keys.begin("ann", "k", **REQUEST)
    clock.advance(DIED_S - 1)
    renewed = engine.http_keys.renew(begun.also_at(clock.now()))
    assert renewed is not None
    clock.advance(DIED_S - 1)
    with pytest.raises(InProgress):
        engine.http_keys.begin("ann", "k", **REQUEST)
    engine.http_keys.answer(renewed, 200, "{}")
    assert engine.http_keys.begin("ann", "k", **REQUEST).status == 200


def test_a_request_that_was_taken_over_is_not_renewed(engine: Engine, clock: VirtualClock) -> None:
    first = engine.http_keys.begin("ann", "k", **REQUEST)
    clock.advance(DIED_S)
    engine.http_keys.begin("ann", "k", **REQUEST)
    assert engine.http_keys.renew(first.also_at(clock.now() + 1)) is None
