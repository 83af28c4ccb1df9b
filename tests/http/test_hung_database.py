"""A database that hangs: it keeps its connections and answers nothing. Probes must not take the threads of others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx2
import pytest

from onetray.engine import Engine
from onetray.http.auth import token_cache
from onetray.http.routes import metrics as routes
from tests.http.callers import bearer
from tests.support.engines import engine_on
from tests.support.live import WAIT_S, Live, serving
from tests.support.proxy import Proxy
from tests.support.waits import wait_until

CALLERS = 30
"""More than there are threads."""


@pytest.fixture
def hung(pg_url: str) -> Iterator[tuple[Engine, Live, Proxy]]:
    with Proxy(pg_url) as proxy, engine_on(proxy.url) as engine, serving(engine) as live:
        try:
            yield engine, live, proxy
        finally:
            proxy.flows.set()


def get(live: Live, path: str, headers: dict[str, str] | None = None) -> int:
    return int(httpx2.get(live.url + path, headers=headers, timeout=WAIT_S, trust_env=False).status_code)


async def all_at_once(live: Live, path: str, headers: dict[str, str] | None = None) -> list[int]:
    async with httpx2.AsyncClient(headers=headers, timeout=WAIT_S, trust_env=False) as client:
        answers = await asyncio.gather(*(client.get(live.url + path) for _ in range(CALLERS)))
    return [answer.status_code for answer in answers]


def test_probes_of_a_database_that_hangs_leave_the_threads_to_others(hung: tuple[Engine, Live, Proxy]) -> None:
    _, live, proxy = hung
    proxy.flows.clear()
    assert asyncio.run(all_at_once(live, "/readyz")) == [503] * CALLERS
    assert live.in_thread(lambda: "free") == "free"
    assert get(live, "/healthz") == 200
    proxy.flows.set()
    wait_until(lambda: get(live, "/readyz") == 200)


def test_scrapes_of_a_database_that_hangs_say_so_and_leave_the_threads_to_others(
    hung: tuple[Engine, Live, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, live, proxy = hung
    monkeypatch.setattr(engine.tokens, "exist", lambda: False)
    monkeypatch.setattr(routes, "LIMIT_S", 0.5)
    proxy.flows.clear()
    assert asyncio.run(all_at_once(live, "/metrics")) == [200] * CALLERS
    assert live.in_thread(lambda: "free") == "free"
    assert "onetray_up 0.0" in httpx2.get(f"{live.url}/metrics", timeout=WAIT_S, trust_env=False).text


@pytest.mark.parametrize("tokens", [False, True], ids=["without tokens", "with tokens"])
def test_while_it_is_not_known_who_asks_requests_are_refused_and_leave_the_threads_to_others(
    hung: tuple[Engine, Live, Proxy], monkeypatch: pytest.MonkeyPatch, tokens: bool
) -> None:
    engine, live, proxy = hung
    headers = bearer(engine.tokens.create("ann", ["read"]).text) if tokens else {}
    monkeypatch.setattr(token_cache, "LOOKUP_TIMEOUT_S", 0.5)
    proxy.flows.clear()
    assert asyncio.run(all_at_once(live, "/api/v1/jobs", headers)) == [503] * CALLERS
    assert live.in_thread(lambda: "free") == "free"
    proxy.flows.set()
    wait_until(lambda: get(live, "/api/v1/jobs", headers) == 200)
