"""The limits on requests: each has its own answer, and none can be got around by how the body is sent."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pkgutil import resolve_name
from typing import Any

import pytest
import uvicorn
from hypothesis import example, given
from hypothesis import strategies as st

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import TooManyStreams
from onetray.domain.token import new_text
from onetray.engine import Engine
from onetray.http.app import build
from onetray.http.auth.scopes import Principal
from onetray.http.limits.requests import MAX_CALLERS, RateLimiter, StreamSlots, TokenBucket, is_deeper
from onetray.http.services import HttpConfig
from tests.http.callers import bearer, served, token
from tests.http.calls import NOBODY
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.live import WAIT_S, Live, serving

NOWHERE = "/api/v1/nowhere"
JSON = {"content-type": "application/json"}


@pytest.fixture
def engine() -> Iterator[Engine]:
    with engine_on("sqlite://:memory:", VirtualClock()) as running:
        yield running


def refused(answer: Any, status: int, code: str) -> bool:
    return (answer.status_code, answer.json()["code"]) == (status, code) and bool(answer.json()["detail"])


def test_a_body_is_as_long_as_it_may_be_and_no_longer(engine: Engine) -> None:
    with served(engine, body_bytes=100) as api:
        assert api.post(NOWHERE, content=b'"' + b"x" * 98 + b'"', headers=JSON).status_code == 404
        late = api.post(NOWHERE, content=b'"' + b"x" * 99 + b'"', headers=JSON)
        assert refused(late, 413, "body_too_large")
        assert late.json()["limit"] == 100
        assert late.headers["connection"] == "close"


def test_a_body_without_a_length_is_counted_as_it_comes(engine: Engine) -> None:
    with served(engine, body_bytes=100) as api:
        assert refused(api.post(NOWHERE, content=iter([b"1" * 60] * 2), headers=JSON), 413, "body_too_large")
        assert api.post(NOWHERE, content=iter([b"1" * 50] * 2), headers=JSON).status_code == 404


def test_a_length_that_lies_is_not_believed(engine: Engine) -> None:
    with served(engine, body_bytes=100) as api:
        lie = {**JSON, "content-length": "5"}
        assert refused(api.post(NOWHERE, content=b"1" * 101, headers=lie), 413, "body_too_large")
        lie = {**JSON, "content-length": "999999999999"}
        assert refused(api.post(NOWHERE, content=b"1", headers=lie), 413, "body_too_large")


def test_a_body_is_read_of_every_method(engine: Engine) -> None:
    with served(engine, body_bytes=100) as api:
        for method in ("DELETE", "PUT", "PATCH", "OPTIONS"):
            sent = api.request(method, NOWHERE, content=b"1" * 101, headers=JSON)
            assert refused(sent, 413, "body_too_large"), method
        assert api.get(NOWHERE).status_code == api.delete(NOWHERE).status_code == 404


@each_case("body", [b"{}", iter([b"{}"])])
def test_a_read_has_no_body(engine: Engine, body: Any) -> None:
    with served(engine) as api:
        found = api.request("GET", NOWHERE, content=body, headers=JSON)
        assert refused(found, 400, "invalid_input")
        assert found.headers["connection"] == "close"
        assert api.get(NOWHERE, headers={"content-length": "0"}).status_code == 404


@pytest.mark.parametrize("where", ["onetray.http.limits.requests.is_deeper", "onetray.http.idempotency._hash"])
def test_a_large_body_is_looked_at_beside_the_loop(engine: Engine, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread looks at ten megabytes, the loop answers others."""
    looked, real = [], resolve_name(where)

    def look(*args: Any) -> Any:
        looked.append(threading.current_thread().name)
        return real(*args)

    monkeypatch.setattr(where, look)
    with served(engine) as api:
        for size in (10, 70_000):
            api.post(f"/api/v1/jobs/{NOBODY}/cancel", json={"x": "x" * size}, headers={"idempotency-key": str(size)})
    loop, beside = looked
    assert loop != beside


def test_strangers_are_not_read(engine: Engine) -> None:
    token(engine)
    with served(engine, body_bytes=10) as api:
        assert api.post(NOWHERE, content=b"1" * 11, headers=JSON).status_code == 401


@each_case(
    ("headers", "good"),
    [
        ({"content-type": "application/json"}, True),
        ({"content-type": "Application/JSON; charset=UTF-8"}, True),
        ({"content-type": "application/json; charset=utf-16"}, False),
        ({"content-type": "text/plain"}, False),
        ({"content-type": "application/x-www-form-urlencoded"}, False),
        ({"content-type": "multipart/form-data; boundary=x"}, False),
        ({"content-type": "application/jsonp"}, False),
        ({}, False),
        ({"content-type": "application/json", "content-encoding": "gzip"}, False),
    ],
)
def test_only_json_is_taken(engine: Engine, headers: dict[str, str], good: bool) -> None:
    with served(engine) as api:
        answer = api.post(NOWHERE, content=b"{}", headers=headers)
    assert answer.status_code == 404 if good else refused(answer, 415, "not_json")


def test_json_that_is_nested_too_deeply_is_refused_before_it_is_parsed(engine: Engine) -> None:
    with served(engine, json_depth=10) as api:
        assert api.post(NOWHERE, content=b"[" * 10 + b"]" * 10, headers=JSON).status_code == 404
        assert refused(api.post(NOWHERE, content=b"[" * 11 + b"]" * 11, headers=JSON), 400, "too_deep")
        assert refused(api.post(NOWHERE, content=b"[" * 200_000, headers=JSON), 400, "too_deep")
        assert refused(api.post(NOWHERE, content=b'{"a":' * 200_000, headers=JSON), 400, "too_deep")


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='[]{}"\\ab\né', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='[{"\\', max_size=3), inner, max_size=4)
    ),
    max_leaves=30,
)


def depth(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(NESTED, st.integers(0, 6), st.booleans())
@example([["]]]]"]], 1, False)
@example({"a\\": ['\\"[']}, 2, True)
def test_the_depth_is_that_of_the_value_whatever_its_strings_hold(value: object, most: int, escaped: bool) -> None:
    import json

    text = json.dumps(value, ensure_ascii=escaped).encode()
    assert is_deeper(text, most) == (depth(value) > most)


@each_case("bad", [b'"' + b'\\"' * 300_000, b'"[' * 300_000, b"]" * 300_000, b"[]" * 300_000])
def test_looking_takes_a_time_that_grows_with_the_body_alone(bad: bytes) -> None:
    """Quadratic, each of these would take minutes: the time limit of the tests would end it."""
    is_deeper(bad, 64)


def test_requests_of_one_token_are_limited_and_others_are_not(engine: Engine) -> None:
    ann, bob = token(engine), token(engine)
    with served(engine, requests_per_s=2) as api:
        answers = [api.get(NOWHERE, headers=ann) for _ in range(20)]
        late = [a for a in answers if a.status_code == 429]
        assert late
        assert refused(late[0], 429, "too_many_requests")
        assert late[0].headers["retry-after"] == "1"
        assert api.get(NOWHERE, headers=bob).status_code == 404


def test_without_a_limit_nobody_is_turned_away(engine: Engine) -> None:
    with served(engine) as api:
        assert {api.get(NOWHERE).status_code for _ in range(50)} == {404}


def test_a_bucket_fills_as_time_passes() -> None:
    now = [0.0]
    bucket = TokenBucket(2.0, lambda: now[0])
    assert [bucket.take() for _ in range(3)] == [0.0, 0.0, 0.5]
    now[0] += 0.5
    assert [bucket.take(), bucket.take()] == [0.0, 0.5]
    now[0] += 1_000.0
    assert [bucket.take() for _ in range(3)] == [0.0, 0.0, 0.5]


def test_less_than_one_request_a_second_can_be_allowed() -> None:
    now = [0.0]
    bucket = TokenBucket(0.1, lambda: now[0])
    assert [bucket.take(), bucket.take()] == [0.0, 10.0]


def test_callers_take_a_bounded_room() -> None:
    rates = RateLimiter(1.0)
    for number in range(MAX_CALLERS + 10):
        rates.take(str(number))
    assert len(rates._buckets) == MAX_CALLERS


def test_streams_have_so_many_places_here_and_for_each_token() -> None:
    streams = StreamSlots(max_total=3, max_each=2)
    ann, bob = (Principal(n, "default", frozenset(), n) for n in ("ann", "bob"))

    async def many() -> None:
        async with streams.slot(ann), streams.slot(ann):
            with pytest.raises(TooManyStreams, match="with this token"):
                await streams.slot(ann).__aenter__()
            async with streams.slot(bob):
                with pytest.raises(TooManyStreams, match="are open here"):
                    await streams.slot(bob).__aenter__()
            assert streams.open == 2
        with pytest.raises(KeyError):
            async with streams.slot(ann):
                raise KeyError
        assert streams.open == 0

    asyncio.run(many())


@contextmanager
def listening(engine: Engine, **config: Any) -> Iterator[tuple[str, int]]:
    """The same on a real socket: who sends slowly, or lies about a length, cannot be played by a client in memory."""
    server = uvicorn.Server(uvicorn.Config(build(engine, HttpConfig(**config)), port=0, log_level="critical"))
    bound = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield bound.getsockname()
    finally:
        server.should_exit = True
        thread.join(60)
        bound.close()


def sent(address: tuple[str, int], head: str, body: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    with socket.create_connection(address, timeout=60) as connection:
        request = f"POST {NOWHERE} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{head}\r\n"
        connection.sendall(request.encode() + body)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_on_the_wire_a_slow_a_lying_and_an_endless_body_are_answered_and_closed(engine: Engine) -> None:
    with listening(engine, body_bytes=100, body_s=0.1) as address:
        slow = sent(address, "Content-Length: 50\r\n", b'{"a": ')
        long = sent(address, "Content-Length: 5000000\r\n", b"")
        endless = sent(
            address, "Transfer-Encoding: chunked\r\n", b"40\r\n" + b"1" * 64 + b"\r\n" + b"40\r\n" + b"1" * 64
        )
    assert [b"slow_body" in slow, slow[:12]] == [True, b"HTTP/1.1 408"]
    assert [b"body_too_large" in long, long[:12]] == [True, b"HTTP/1.1 413"]
    assert [b"body_too_large" in endless, endless[:12]] == [True, b"HTTP/1.1 413"]


# Bodies of many requests at once.

MEGABYTE = 1_000_000


@contextmanager
def sending(
    live: Live, caller: dict[str, str], sent: int, length: str = f"Content-Length: {MEGABYTE}"
) -> Iterator[socket.socket]:
    """A submit that has sent so much of its body, which has a megabyte."""
    head = ["POST /api/v1/jobs HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", length]
    head += [f"{name}: {value}" for name, value in caller.items()]
    body = b'{"kind": "mail", "payload": "' + b"x" * MEGABYTE
    with socket.create_connection(("127.0.0.1", live.port), WAIT_S) as plug:
        plug.sendall("\r\n".join([*head, "", ""]).encode() + body[:sent])
        yield plug


def finished(plug: socket.socket, left: int) -> bytes:
    """The status of the answer once the rest of the body was sent."""
    with suppress(ConnectionError):
        plug.sendall(b"x" * (left - 2) + b'"}')
    return plug.recv(12)


@each_case("length", [f"Content-Length: {MEGABYTE}", "Transfer-Encoding: chunked"])
def test_a_large_body_is_not_read_of_whoever_may_not_send_it(engine: Engine, length: str) -> None:
    with serving(engine) as live:
        for caller, status in ((token(engine, "read"), b"403"), (bearer(new_text()), b"401")):
            with sending(live, caller, 0, length) as plug:
                assert plug.recv(12) == b"HTTP/1.1 " + status


def test_when_bodies_take_too_much_room_one_of_whoever_sends_most_gives_way(engine: Engine) -> None:
    much, little = token(engine, "submit"), token(engine, "submit")
    with serving(engine, HttpConfig(bodies_bytes=5 * MEGABYTE)) as live, ExitStack() as held:
        first = held.enter_context(sending(live, little, MEGABYTE // 2))
        many = [held.enter_context(sending(live, much, MEGABYTE - 10)) for _ in range(5)]
        answers = [finished(plug, 10) for plug in many]
        assert sorted(answers) == [b"HTTP/1.1 201"] * 4 + [b"HTTP/1.1 503"]
        (refused_,) = (plug for plug, answer in zip(many, answers, strict=True) if answer.endswith(b"503"))
        rest = refused_.recv(65_536)
        assert b"retry-after: 1" in rest
        assert finished(first, MEGABYTE // 2) == b"HTTP/1.1 201"


def test_a_body_has_room_for_as_long_as_its_request_is_under_way(engine: Engine) -> None:
    caller = token(engine, "submit")
    with serving(engine, HttpConfig(bodies_bytes=MEGABYTE)) as live:
        for _ in range(3):
            with sending(live, caller, MEGABYTE - 10) as plug:
                assert finished(plug, 10) == b"HTTP/1.1 201"
    with serving(engine, HttpConfig(bodies_bytes=MEGABYTE - 1)) as live, sending(live, caller, MEGABYTE - 10) as plug:
        assert finished(plug, 10) == b"HTTP/1.1 503"
