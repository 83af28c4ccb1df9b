"""A server in this process, on both databases: `api` calls its app directly, without a socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from uuid_utils import uuid4

from onetray.domain.clock import VirtualClock
from onetray.engine import Engine
from onetray.http.app import build
from tests.support.engines import engine_on


@pytest.fixture
def api(engine: Engine) -> Iterator[TestClient]:
    with TestClient(build(engine), base_url="http://127.0.0.1:8321", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def shared_engine() -> Iterator[Engine]:
    """An engine for a module of many small cases: what routes refuse, and how they answer.

    What the databases do below them is tried with `api`, and without a server.
    """
    with engine_on("sqlite://:memory:", VirtualClock()) as engine:
        yield engine


@pytest.fixture(scope="module")
def shop(shared_engine: Engine) -> Iterator[TestClient]:
    """A server for such a module: each case has a queue of its own."""
    with TestClient(build(shared_engine), base_url="http://127.0.0.1:8321", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def queue() -> str:
    """A queue, or a kind, that no other test has used."""
    return f"q-{uuid4()}"


@pytest.fixture(scope="module")
def quick_api() -> Iterator[TestClient]:
    """One server for all that is refused before a database is asked."""
    with (
        engine_on("sqlite://:memory:", VirtualClock()) as engine,
        TestClient(build(engine), base_url="http://127.0.0.1:8321", raise_server_exceptions=False) as client,
    ):
        yield client
