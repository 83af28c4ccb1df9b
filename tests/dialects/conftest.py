"""A server in this process, with its dialects, on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from onetray.engine import Engine
from onetray.http.app import build


@pytest.fixture
def api(engine: Engine) -> Iterator[TestClient]:
    with TestClient(build(engine), base_url="http://127.0.0.1:8321", raise_server_exceptions=False) as client:
        yield client
