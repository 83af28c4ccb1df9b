"""Fixtures that every test may use: a PostgreSQL server, and a fresh database on it."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.cluster import Server, server

# Time limits belong to pytest-timeout: a busy machine must not fail a property.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The server of this run. A test that kills its server starts its own with `Cluster.start()`."""
    with server() as running:
        yield running


@pytest.fixture
def pg_url(postgres: Server) -> Iterator[str]:
    """The URL of a fresh, empty database."""
    with postgres.database() as url:
        yield url
