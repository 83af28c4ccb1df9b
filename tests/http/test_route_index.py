"""The way of a request past the framework: the same route as a router would find, the same answers, one write."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from starlette.routing import Match

from onetray.domain.clock import VirtualClock
from onetray.http.app import build
from onetray.http.limits.protocol import JoinedWrites
from onetray.http.native_route import GuardedRoute, direct_handler
from onetray.http.route_index import MAX_SEGMENTS, RouteTable
from tests.http.callers import served
from tests.support.engines import engine_on

SAMPLES = ("019a8c3e-5b1f-7c20-9a51-3f4e8d2b6a70", "batch", "a b", "é")


def guarded() -> list[APIRoute]:
    with engine_on("sqlite://:memory:", VirtualClock()) as engine:
        routes: list[APIRoute] = build(engine).state.guarded
        return routes


def requests(routes: list[APIRoute]) -> Iterator[tuple[str, str]]:
    for route in routes:
        for sample in (*SAMPLES, *(("with/a/slash",) if ":path}" in route.path else ())):
            path = re.sub(r"\{\w+(?::\w+)?\}", sample, route.path)
            yield from ((method, path) for method in route.methods or ())


def test_the_index_finds_the_route_that_a_router_would_take() -> None:
    routes = guarded()
    table = RouteTable(routes)
    handlers = {id(c.handler): c.route for found in table.candidates.values() for c in found}
    seen = 0
    for method, path in requests(routes):
        scope = {"type": "http", "method": method, "path": path, "headers": []}
        expected, child_scope = next(
            (route, found[1]) for route in routes if (found := route.matches(dict(scope)))[0] is Match.FULL
        )
        handler = table.find(scope)
        assert handlers[id(handler)] is expected, (method, path)
        assert scope["route"] is expected
        assert scope["path_params"] == child_scope["path_params"]
        seen += 1
    assert seen > 4 * len(routes)


def test_a_fixed_path_gives_way_to_a_parameter_that_was_declared_before_it() -> None:
    router = APIRouter(route_class=GuardedRoute)

    async def answer() -> None: ...

    for path in ("/first", "/{name}", "/second"):
        router.add_api_route(path, answer, methods=["GET"])
    table = RouteTable(router.routes)
    for path, expected in (("/first", "/first"), ("/second", "/{name}")):
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": path}
        assert table.find(scope) is not None
        assert scope["route"].path == expected


@pytest.mark.parametrize("path", ["/nowhere", "/api/v1", "/" * (MAX_SEGMENTS + 2), "/api/v1/jobs/", "//api/v1/jobs"])
def test_what_no_route_has_is_left_to_the_router(path: str) -> None:
    assert RouteTable(guarded()).find({"type": "http", "method": "POST", "path": path}) is None


def test_a_request_without_a_route_makes_the_framework_analyse_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def analyse(**_: Any) -> None:
        raise AssertionError("the routes are ready since they were declared")

    with engine_on("sqlite://:memory:", VirtualClock()) as engine, served(engine) as client:
        monkeypatch.setattr("fastapi.routing.get_dependant", analyse)
        assert client.get("/nowhere").status_code == 404
        answer = client.delete("/api/v1/jobs")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")


def test_a_dependency_that_would_never_be_ended_stops_the_server() -> None:
    router = APIRouter()

    async def opened() -> Any:
        yield 1

    @router.get("/x")
    async def route(value: int = Depends(opened)) -> int:
        return value

    with pytest.raises(RuntimeError, match="/x: a dependency with yield"):
        RouteTable(router.routes)


def test_most_routes_are_called_directly() -> None:
    direct = [route for route in guarded() if isinstance(route, GuardedRoute) and direct_handler(route) is not None]
    paths = {route.path for route in direct}
    assert {"/api/v1/tasks/claim", "/api/v1/tasks/reports", "/v1/tasks/{taskId}/status"} <= paths


class Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.parts.append(data)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("steps", "written"),
    [
        (["head", "body"], [b"headbody"]),
        (["head", "", "more"], [b"head", b"more"]),
        (["head", None, "event"], [b"head", b"event"]),
        (["head", "close"], [b"head"]),
    ],
    ids=["a small answer", "an empty part", "a stream that waits", "an answer without a body"],
)
def test_the_head_of_an_answer_is_sent_with_what_follows_at_once(steps: list[str | None], written: list[bytes]) -> None:
    async def send() -> Written:
        transport = Written()
        joined = JoinedWrites(transport, asyncio.get_running_loop())  # type: ignore[arg-type]
        for step in steps:
            if step is None:
                await asyncio.sleep(0)
            elif step == "close":
                joined.close()
            else:
                joined.write(step.encode())
        # What is held goes with the next turn of the loop.
        await asyncio.sleep(0)
        return transport

    transport = asyncio.run(send())
    assert transport.parts == written
    assert transport.closed is ("close" in steps)
