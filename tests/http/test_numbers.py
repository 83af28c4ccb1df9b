"""Whole numbers are kept to the last digit or refused, at every door that JSON comes in by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from fastapi.testclient import TestClient

from onetray.domain.errors import InvalidInput
from onetray.domain.task import RawJson
from onetray.engine import Engine
from tests.http.calls import claim
from tests.support.cases import each_case

JSON = {"content-type": "application/json"}


def _native(shop: TestClient, queue: str, number: str) -> Any:
    body = f'{{"kind": "sum", "queue": "{queue}", "payload": {{"n": [{number}]}}}}'
    return shop.post("/api/v1/jobs", content=body, headers=JSON)


def _commands(shop: TestClient, queue: str, number: str) -> Any:
    body = f'{{"commands": [{{"verb": "submit", "kind": "sum", "queue": "{queue}", "payload": {{"n": [{number}]}}}}]}}'
    return shop.post("/api/v1/commands", content=body, headers=JSON)


def _so1(shop: TestClient, queue: str, number: str) -> Any:
    return shop.post("/api/jobs", content=f'{{"action": "sum", "inputs": {{"n": [{number}]}}}}', headers=JSON)


DOORS = [_native, _commands, _so1]
Door = Callable[[TestClient, str, str], Any]


@each_case("number", [f"{2**64}", f"{-(2**63) - 1}", "1" * 400, "1" * 5_000], ids=["over", "under", "long", "longer"])
@each_case("door", DOORS)
def test_a_whole_number_past_64_bits_is_refused(shop: TestClient, queue: str, door: Door, number: str) -> None:
    answer = door(shop, queue, number)
    assert answer.status_code == 400, answer.text
    assert claim(shop, queue) == []


@each_case(
    "number", ["18446744073709551615", "-9223372036854775808", '"123456789012345678901234"', "1.5e300",
               "0.12345678901234567890123", "1e-00000000000000000000001", '"\\\\\\"99999999999999999999999"'],
)  # fmt: skip
@each_case("door", DOORS[:2])
def test_all_other_numbers_are_kept(shop: TestClient, queue: str, door: Door, number: str) -> None:
    assert door(shop, queue, number).is_success
    [found] = claim(shop, queue)
    assert found["payload"] == {"n": [orjson.loads(number)]}


@pytest.mark.parametrize("text", ["18446744073709551616", '{"a": [1, -9223372036854775809]}'])
def test_json_that_is_text_already_is_held_to_the_same(shared_engine: Engine, queue: str, text: str) -> None:
    with pytest.raises(InvalidInput, match="64-bit"):
        shared_engine.submit("sum", RawJson(text.encode()), queue=queue)
