"""A server in this process, with its dialects, on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from onetray.domain.clock import VirtualClock
from onetray.engine import Engine
from onetray.http.app import build
from tests.support.engines import engine_on


@pytest.fixture
def api(engine: Engine) -> Iterator[TestClient]:
    with TestClient(build(engine), base_url="http://127.0.0.1:8321", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def quick_api() -> Iterator[TestClient]:
    """One server for all that is refused before a database is asked."""
    with (
        engine_on("sqlite://:memory:", VirtualClock()) as engine,
        TestClient(build(engine), base_url="http://127.0.0.1:8321", raise_server_exceptions=False) as client,
    ):
        yield client
