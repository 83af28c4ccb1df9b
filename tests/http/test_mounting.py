"""Dialects beside the native API."""

from __future__ import annotations

import pytest

from onetray.engine import Engine
from onetray.errors import InvalidInput
from onetray.http.app import build
from onetray.http.desk import HttpConfig
from onetray.http.mounting import DIALECTS
from tests.support.engines import engine_on


def test_a_dialect_that_is_not_there_is_named_with_those_that_are() -> None:
    with engine_on("sqlite://:memory:") as engine, pytest.raises(InvalidInput, match="'so2'; there are: so1"):
        build(engine, HttpConfig(dialects=("so2",)))


@pytest.mark.parametrize("name", DIALECTS)
def test_every_route_of_a_dialect_is_in_the_schema_under_its_own_paths(name: str) -> None:
    def paths(engine: Engine, *dialects: str) -> set[str]:
        return set(build(engine, HttpConfig(dialects=dialects)).openapi()["paths"])

    with engine_on("sqlite://:memory:") as engine:
        own = paths(engine, name) - paths(engine)
    assert own
    assert not [path for path in own if path.startswith("/api/v1")]
