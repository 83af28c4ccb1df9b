"""A real server with its janitor on each database, started once for a module, and agents that use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from uuid_utils import uuid4

from onetray.engine import Engine
from onetray.http.app import build
from onetray.http.services import HttpConfig
from tests.mcp.agents import LEGACY, MODERN, Agent, agent, agent_at, process
from tests.mcp.parallel_agents import Crew, crew_of
from tests.support.databases import Databases
from tests.support.engines import engine_on, migrated_sqlite
from tests.support.servers import Served


@dataclass(frozen=True)
class Place:
    """A database, the engine of a server on it, and the server."""

    database: str
    engine: Engine
    server: Served

    @property
    def url(self) -> str:
        return self.server.url


@contextmanager
def at(engine: Engine, **config: Any) -> Iterator[Served]:
    """A server of this engine, with these settings, which asks the database about every token."""
    server = Served(build(engine, HttpConfig(**{"token_cache_s": 0.0, **config})))
    server.begin()
    try:
        yield server
    finally:
        server.end()


STORES = ("sqlite", "postgres")
ANN = [("http", "sqlite"), ("http", "postgres"), ("older-http", "sqlite"), ("stdio", "postgres")]
SHARER = [("http", "sqlite"), ("stdio", "postgres")]
"""Each way to connect and each database, not each with each: a transport does not know the database."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Connect the agents of a test to the servers that it uses."""
    names = metafunc.fixturenames
    if "place" not in names:
        return
    agent = next((name for name in ("ann", "sharer") if name in names and _is_of_this_folder(metafunc, name)), None)
    if agent is None:
        metafunc.parametrize("place", STORES, indirect=True, scope="module")
    else:
        metafunc.parametrize((agent, "place"), ANN if agent == "ann" else SHARER, indirect=True, scope="module")


def _is_of_this_folder(metafunc: pytest.Metafunc, fixture: str) -> bool:
    """Whether the module of the test has no fixture of this name."""
    return not hasattr(metafunc.module, fixture)


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if request.param == "sqlite":
        url = migrated_sqlite(tmp_path_factory.mktemp("mcp"))
        with engine_on(url) as engine, at(engine) as server:
            engine.janitor().start()
            yield Place(url, engine, server)
        return
    lent: Databases = request.getfixturevalue("databases")
    with lent.database() as url, engine_on(url) as engine, at(engine) as server:
        engine.janitor().start()
        yield Place(url, engine, server)


@pytest.fixture(scope="module")
def ann(request: pytest.FixtureRequest, place: Place) -> Iterator[Agent]:
    """An agent, connected in each way."""
    if request.param == "stdio":
        with agent(process("--database", place.database), LEGACY) as connected:
            yield connected
        return
    with agent_at(place.url, MODERN if request.param == "http" else LEGACY) as connected:
        yield connected


@pytest.fixture(scope="module")
def web(place: Place) -> Iterator[Agent]:
    """An agent at the server, for what the transport has no part in."""
    with agent_at(place.url) as connected:
        yield connected


@pytest.fixture
def queue() -> str:
    """A queue that no other test has used."""
    return f"q-{uuid4()}"


@pytest.fixture(scope="module")
def sharer(request: pytest.FixtureRequest, place: Place) -> Iterator[Agent]:
    if request.param == "stdio":
        with agent(process("--database", place.database, "--tools", "parallel-mcp"), LEGACY) as ann:
            yield ann
        return
    with agent_at(place.url) as ann:
        yield ann


@pytest.fixture
def crew(sharer: Agent) -> Crew:
    """An agent with the tools of parallel-mcp, in each way."""
    return crew_of(sharer)
