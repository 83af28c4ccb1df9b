"""Dialects beside the native API."""

from __future__ import annotations

from importlib import import_module

import pytest
from fastapi.testclient import TestClient

from onetray.domain.errors import InvalidInput
from onetray.http.app import DIALECTS, build
from onetray.http.services import HttpConfig
from tests.support.cases import each_case
from tests.support.engines import engine_on


def test_a_dialect_that_is_not_there_is_named_with_those_that_are() -> None:
    with engine_on("sqlite://:memory:") as engine, pytest.raises(InvalidInput, match="'so2': use so1"):
        build(engine, HttpConfig(dialects=("so2",)))


@each_case("name", DIALECTS)
def test_a_dialect_is_served_where_it_is_chosen_and_is_no_part_of_the_native_description(name: str) -> None:
    prefix = import_module(f"onetray.dialects.{name}").PREFIX
    with engine_on("sqlite://:memory:") as engine:
        for dialects, status in (((name,), 200), ((), 404), (("none",), 404)):
            app = build(engine, HttpConfig(dialects=dialects))
            with TestClient(app, base_url="http://127.0.0.1") as api:
                assert api.get(prefix).status_code == status
                assert not [path for path in api.get("/api/v1/openapi.json").json()["paths"] if path.startswith(prefix)]
