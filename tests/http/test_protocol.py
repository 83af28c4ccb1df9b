"""What a connection may send beside a body, and what it is told: over real sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from onetray.engine import Engine
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
