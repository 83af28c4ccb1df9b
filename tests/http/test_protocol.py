"""What a connection may send beside a body, and what it is told: over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from onetray.engine import Engine
from onetray.http.limits.exchange import Exchange
from onetray.http.limits.protocol import MAX_HEAD_BYTES
from tests.support.live import WAIT_S, Live, serving

LINE = b"GET /api/v1/version HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BODY = b'{"kind": "noop"}'
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
TOO_MUCH = f"The request line and headers exceed {MAX_HEAD_BYTES:,} bytes: send fewer or shorter headers."


@pytest.fixture
def live(shared_engine: Engine) -> Iterator[Live]:
    with serving(shared_engine) as running:
        yield running


def told(live: Live, *parts: bytes, until: int = 1) -> list[tuple[int, bytes]]:
    """The statuses and bodies of the answers to what is sent, part by part."""
    found: list[tuple[int, bytes]] = []
    with socket.create_connection(("127.0.0.1", live.port), WAIT_S) as there, there.makefile("rb") as answers:
        with suppress(ConnectionError):
            for part in parts:
                there.sendall(part)
        while len(found) < until:
            status = int(answers.readline().split()[1])
            length = 0
            while (line := answers.readline()) != b"\r\n":
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            found.append((status, answers.read(length)))
    return found


def test_a_request_is_answered_and_the_next_on_the_same_connection(live: Live) -> None:
    assert [status for status, _ in told(live, LINE + b"\r\n", LINE + b"\r\n", until=2)] == [200, 200]


def test_requests_that_are_sent_at_once_are_answered_in_their_order(live: Live) -> None:
    nowhere = LINE.replace(b"version", b"nowhere")
    sent = (LINE + b"\r\n", nowhere + b"\r\n", LINE + b"\r\n")
    assert [status for status, _ in told(live, b"".join(sent), until=3)] == [200, 404, 200]


@pytest.mark.parametrize(
    "parts",
    [
        [LINE + b"X-Long: ", *[b"x" * 16_384] * 10],
        [LINE, *[b"X-%d: %s\r\n" % (n, b"x" * 1000) for n in range(100)]],
        [b"GET /", *[b"x" * 16_384] * 10],
        [CHUNKED + b"1;", *[b"x" * 16_384] * 10],
        [CHUNKED + b"1\r\n1\r\n0\r\nX-Trailer: ", *[b"x" * 16_384] * 10],
    ],
    ids=["a header", "headers", "a path", "an extension of a chunk", "a trailer"],
)
def test_what_goes_on_for_ever_is_refused(live: Live, parts: list[bytes]) -> None:
    assert told(live, *parts)[-1] == (400, TOO_MUCH.encode())


def test_as_much_as_is_allowed_is_heard(live: Live) -> None:
    assert told(live, LINE + b"X-Long: " + b"x" * (MAX_HEAD_BYTES - 1000) + b"\r\n\r\n")[0][0] == 200


def test_so_many_requests_and_no_more_can_be_sent_ahead_of_their_answers(live: Live) -> None:
    assert [status for status, _ in told(live, (LINE + b"\r\n") * 100, until=100)] == [200] * 100
    (status, answer), *_ = told(live, (LINE + b"\r\n") * 1_000)
    assert (status, answer[:15]) == (400, b"At most 100 req")


def test_what_is_no_http_is_refused(live: Live) -> None:
    assert told(live, b"\x16\x03\x01 hello\r\n\r\n") == [(400, b"This is not a valid HTTP/1.1 request: see RFC 9112.")]


def test_whoever_asks_for_another_protocol_goes_on_with_this_one(live: Live) -> None:
    asks = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    post = POST + asks + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    sent = (LINE + asks + b"\r\n", post, LINE + b"\r\n")
    assert [status for status, _ in told(live, *sent, until=3)] == [200, 201, 200]
    assert [status for status, _ in told(live, b"".join(sent), until=3)] == [200, 201, 200]


def test_what_follows_a_body_is_no_header(live: Live) -> None:
    chunk = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    ((status, answer),) = told(live, CHUNKED + chunk + b"Idempotency-Key: late\r\n\r\n")
    assert status == 201
    ((status, again),) = told(live, CHUNKED + chunk + b"Idempotency-Key: late\r\n\r\n")
    assert status == 201
    assert json.loads(answer)["id"] != json.loads(again)["id"]


def test_a_large_body_is_no_head(live: Live) -> None:
    body = json.dumps({"kind": "noop", "payload": {"text": "x" * 4 * MAX_HEAD_BYTES}}).encode()
    head = POST + b"Content-Length: %d\r\n\r\n" % len(body)
    assert told(live, head, *[body[n : n + 10_000] for n in range(0, len(body), 10_000)])[0][0] == 201


def answer_to(live: Live, request: bytes) -> bytes:
    """All that a connection brings until the server has closed it, or the response to a HEAD is there."""
    with socket.create_connection(("127.0.0.1", live.port), WAIT_S) as there:
        there.sendall(request)
        found = b""
        while part := there.recv(65_536):
            found += part
            if request.startswith(b"HEAD") and found.endswith(b"\r\n\r\n"):
                break
        return found


@pytest.mark.parametrize("close", [False, True], ids=["kept", "closed"])
def test_a_response_in_one_write_has_the_headers_of_any_other(live: Live, close: bool) -> None:
    post = POST + (b"Connection: close\r\n" if close else b"") + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    # The second request closes the connection that the first one leaves open.
    last = b"" if close else LINE + b"Connection: close\r\n\r\n"
    head, _, rest = answer_to(live, post + last).partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    headers = dict(line.split(b": ", 1) for line in lines)
    assert status == b"HTTP/1.1 201 Created"
    assert len(headers) == len(lines)
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"location"].startswith(b"/api/v1/jobs/")
    assert {b"date", b"x-request-id", b"x-content-type-options", b"content-security-policy"} <= headers.keys()
    assert headers[b"cache-control"] == b"no-store"
    assert headers.get(b"connection") == (b"close" if close else None)
    assert json.loads(rest[: int(headers[b"content-length"])])["state"] == "queued"


def test_a_head_request_gets_the_length_and_no_body(live: Live) -> None:
    for path in (b"/api/v1/version", b"/api/v1/jobs"):
        head = answer_to(live, b"HEAD " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\ncontent-length: " in head


class Cycle:
    """What one response needs of uvicorn's cycle."""

    def __init__(self, **changed: bool) -> None:
        self.default_headers = [(b"date", b"today")]
        self.response_started = self.response_complete = self.disconnected = False
        self.waiting_for_100_continue, self.keep_alive = True, True
        self.flow = SimpleNamespace(write_paused=changed.pop("write_paused", False))
        self.message_event, self.written, self.ended = asyncio.Event(), list[bytes](), 0
        self.transport = self
        vars(self).update(changed)

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def on_response(self) -> None:
        self.ended += 1


def test_a_response_is_sent_in_one_write() -> None:
    cycle: Any = Cycle()
    assert Exchange(cycle, cycle).send_at_once(201, [(b"content-length", b"2")], b"{}")
    assert cycle.written == [b"HTTP/1.1 201 Created\r\ndate: today\r\ncontent-length: 2\r\n\r\n{}"]
    assert (cycle.ended, cycle.response_complete, cycle.message_event.is_set()) == (1, True, True)
    assert not cycle.waiting_for_100_continue


@pytest.mark.parametrize(
    ("changed", "header"),
    [
        ({"write_paused": True}, b"1"),
        ({"disconnected": True}, b"1"),
        ({"response_started": True}, b"1"),
        ({"keep_alive": False}, b"1"),
        ({}, b"1\r\nset-cookie: a"),
    ],
    ids=["unread", "disconnected", "started", "last of its connection", "a header with a line break"],
)
def test_what_is_not_an_ordinary_response_is_left_to_uvicorn(changed: dict[str, bool], header: bytes) -> None:
    cycle: Any = Cycle(**changed)
    started = cycle.response_started
    assert not Exchange(cycle, cycle).send_at_once(200, [(b"content-length", b"2"), (b"x-a", header)], b"{}")
    assert (cycle.written, cycle.ended, cycle.response_started) == ([], 0, started)
