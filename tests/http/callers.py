"""Callers of a server in this process: with tokens, without, from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi.testclient import TestClient

from onetray.engine import Engine
from onetray.http.app import build
from onetray.http.services import HttpConfig

BASE = "http://127.0.0.1:8321"


@contextmanager
def served(engine: Engine, *, client: tuple[str, int] = ("127.0.0.1", 50000), **config: Any) -> Iterator[TestClient]:
    """A server that asks the database about every token, unless it is told otherwise."""
    app = build(engine, HttpConfig(**{"token_cache_s": 0.0, **config}))
    with TestClient(app, base_url=BASE, raise_server_exceptions=False, client=client) as caller:
        yield caller


def token(engine: Engine, *scopes: str, **fields: Any) -> dict[str, str]:
    """The headers of somebody with a new token."""
    return bearer(engine.tokens.create("ann", scopes or ["admin"], **fields).text)


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}
