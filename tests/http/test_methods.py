"""Methods: HEAD wherever there is GET, and `Allow` with every method of a path."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
from fastapi import FastAPI
from fastapi.testclient import TestClient

from onetray.domain.clock import VirtualClock
from onetray.engine import Engine
from onetray.http.app import build
from tests.http.callers import BASE, served, token
from tests.http.calls import NOBODY, refusal, submit
from tests.http.walking import ways
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.live import serving


@each_case(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/api/v1/jobs", "GET, HEAD, POST"), ("PUT", f"/api/v1/jobs/{NOBODY}", "DELETE, GET, HEAD"),
        ("GET", f"/api/v1/jobs/{NOBODY}/cancel", "POST"), ("HEAD", "/api/v1/queues/a/pause", "POST"),
        ("DELETE", f"/api/v1/stages/{NOBODY}/tasks", "GET, HEAD, POST"), ("POST", "/healthz", "GET, HEAD"),
        ("PATCH", "/api/jobs", "GET, HEAD, POST"), ("GET", "/api/v1/queues/a/b/pause", "POST"),
    ],
)  # fmt: skip
def test_allow_names_every_method_of_a_path(shop: TestClient, method: str, path: str, allowed: str) -> None:
    answer = shop.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_allow_is_whole_also_where_the_app_is_a_part_of_another(shared_engine: Engine) -> None:
    outer = FastAPI()
    outer.mount("/jobs-here", build(shared_engine))
    with TestClient(outer, base_url=BASE) as api:
        assert api.delete("/jobs-here/api/v1/jobs").headers["allow"] == "GET, HEAD, POST"


def test_a_method_that_is_not_there_is_named_with_those_that_are(shop: TestClient) -> None:
    answer = shop.delete("/api/v1/jobs")
    assert refusal(answer) == (405, "no_such_method")
    assert answer.json()["detail"] == "DELETE is not allowed here: use GET, HEAD, POST"


def test_every_get_is_answered_to_head_too(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    """With the same status and headers, and without a body: routes are found as they are declared."""
    id_ = submit(shop, queue)
    for way in (w for w in ways(build(shared_engine)) if w.method == "GET" and not w.endless):
        answers = [shop.request(method, way.at(id_)) for method in ("GET", "HEAD")]
        told = [(a.status_code, a.headers["content-type"], sorted(a.headers)) for a in answers]
        assert told[0] == told[1], way
        assert answers[1].content == b"", way


@each_case("path", ["/healthz", "/readyz", "/"])
def test_probes_need_no_token_for_head_either(path: str) -> None:
    with engine_on("sqlite://:memory:", VirtualClock()) as engine, served(engine) as api:
        token(engine)
        assert api.head(path).status_code == 200
        assert api.head("/api/v1/jobs").status_code == 401


@each_case("path", ["/api/v1/feed/stream", "/api/v1/jobs/{id}/stream", "/api/jobs/{id}/events"])
def test_head_of_a_stream_opens_none(shared_engine: Engine, path: str) -> None:
    """On a real socket: the answer is over at once, the connection serves the next request, no place is taken."""
    id_ = str(shared_engine.submit("mail").id)

    async def ask(live: Any) -> None:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{live.port}", timeout=60) as client:
            answer = await client.head(path.format(id=id_))
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            assert answer.content == b""
            assert live.services.streams.open == 0
            assert (await client.get("/healthz")).status_code == 200

    with serving(shared_engine) as live:
        asyncio.run(ask(live))
