"""Connections: slow ones give way, and nobody is locked out. With real sockets, and where it matters real processes."""

from __future__ import annotations

import errno
import logging
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from onetray.config import HttpConfig
from onetray.domain.commands import Submit
from onetray.domain.errors import InvalidInput
from onetray.engine import Engine
from onetray.http.auth.scopes import Principal
from onetray.http.claim_waiters import WaitSlots
from onetray.http.limits.connections import FULL, Acceptor, max_connections
from onetray.http.server import listen
from tests.support.cases import each_case
from tests.support.live import WAIT_S, Live, serving
from tests.support.serving import serving as serving_process
from tests.support.slow_clients import drip, slow_clients
from tests.support.waits import wait_until

FILES = 200
LINE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
BODY = b'{"status":"ok"}'


@contextmanager
def connected(live: Live, sent: bytes = b"", ahead: int | None = None) -> Iterator[socket.socket]:
    """A connection that has sent something. It takes so many bytes ahead."""
    with socket.socket() as plug:
        if ahead is not None:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ahead)
        plug.settimeout(WAIT_S)
        plug.connect(("127.0.0.1", live.port))
        plug.sendall(sent)
        yield plug


def until_closed(plug: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    return b"".join(iter(lambda: plug.recv(65_536), b""))


def read_answer(plug: socket.socket) -> None:
    """Take the answer to a request, on a connection that stays open."""
    found = b""
    while not found.endswith(BODY):
        found += plug.recv(65_536)


def drip_until_closed(plug: socket.socket, byte: bytes) -> None:
    with pytest.raises(OSError, match=r"reset|pipe|aborted"):
        wait_until(lambda: plug.sendall(byte) is not None)


def answered(live: Live, path: str = "/healthz") -> int:
    """The status of the answer to a client that connects anew."""
    return httpx2.get(f"http://127.0.0.1:{live.port}{path}", timeout=WAIT_S, trust_env=False).status_code


def test_honest_clients_are_answered_while_others_drip_their_heads(tmp_path: Path) -> None:
    with (
        serving_process(tmp_path, "serve", "--database", "sqlite:///jobs.db", files=FILES) as server,
        slow_clients(server.port, FILES + 50, drip()) as seen,
    ):
        wait_until(lambda: seen.connected >= FILES + 50)
        for number in range(3):
            with server.client() as client:
                assert client.get("/healthz").status_code == 200
                assert client.post("/api/v1/jobs", json={"kind": "mail", "payload": number}).status_code == 201
        server.send()
        assert server.end() == 0
    assert "up to 72 connections" in server.log
    assert len(server.log.splitlines()) < 50


@each_case(
    ("sent", "byte"),
    [
        (b"GET /hea", b""),
        (b"GET /hea", b"x"),
        (LINE + b"X-Slow: ", b"x"),
        (b"\r\n", b"\r\n"),
        (LINE + b"\r\n" + LINE, b"x"),
        (LINE + b"Content-Length: 1000000\r\n\r\n", b"x"),
        (LINE + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
    ids=["a line that stops", "a line", "a header", "blank lines", "a second head", "a body", "chunks"],
)
def test_what_never_becomes_a_request_is_closed(shared_engine: Engine, sent: bytes, byte: bytes) -> None:
    with serving(shared_engine, HttpConfig(head_s=0.2)) as live, connected(live, sent) as plug:
        if byte:
            drip_until_closed(plug, byte)
        else:
            assert until_closed(plug).startswith(b"HTTP/1.1 408 ")
        wait_until(lambda: not len(live.connections))


def test_a_head_that_comes_in_parts_in_time_is_answered(shared_engine: Engine) -> None:
    with serving(shared_engine) as live, connected(live, LINE[:10]) as plug:
        plug.sendall(LINE[10:])
        plug.sendall(b"Connection: close\r\n\r\n")
        assert until_closed(plug).endswith(BODY)


@each_case("sent", [b"", LINE + b"\r\n"], ids=["from the beginning", "after an answer"])
def test_a_connection_that_is_silent_is_closed(shared_engine: Engine, sent: bytes) -> None:
    with serving(shared_engine, HttpConfig(idle_s=0.2)) as live, connected(live, sent) as plug:
        assert until_closed(plug).endswith(BODY if sent else b"")


@each_case(
    ("head", "parts"),
    [(b"Content-Length: 5", [b"12", b"345"]), (b"Transfer-Encoding: chunked", [b"2\r\n12\r\n", b"0\r\n\r\n"])],
    ids=["a length", "chunks"],
)
def test_a_connection_whose_body_came_after_the_answer_is_idle(
    shared_engine: Engine, head: bytes, parts: list[bytes]
) -> None:
    """It is closed without a word, as any other that is silent: no request of it is late."""
    config = HttpConfig(head_s=10, idle_s=0.5)
    with serving(shared_engine, config) as live, connected(live, LINE + head + b"\r\n\r\n" + parts[0]) as plug:
        read_answer(plug)
        plug.sendall(parts[1])
        assert until_closed(plug) == b""


def test_connections_without_a_request_give_way_the_oldest_first(shared_engine: Engine) -> None:
    with serving(shared_engine, HttpConfig(connections=3)) as live, ExitStack() as held:
        first, second, third = (held.enter_context(connected(live, LINE[:10])) for _ in range(3))
        wait_until(lambda: len(live.connections) == 3)
        assert answered(live) == 200
        assert until_closed(first) == b""
        for plug in (second, third):
            plug.sendall(LINE[10:] + b"Connection: close\r\n\r\n")
            assert until_closed(plug).endswith(BODY)


def test_those_who_sent_a_request_and_those_who_did_not_leave_room_for_each_other(shared_engine: Engine) -> None:
    with serving(shared_engine, HttpConfig(connections=4)) as live, ExitStack() as held:
        asked = []
        for _ in range(4):
            asked.append(held.enter_context(connected(live, LINE + b"\r\n")))
            read_answer(asked[-1])
        new = [held.enter_context(connected(live)) for _ in range(2)]
        for plug in asked[:2]:
            assert until_closed(plug) == b""
        newer = [held.enter_context(connected(live)) for _ in range(2)]
        assert until_closed(asked[2]) == b""
        assert until_closed(new[0]) == b""
        for plug in (asked[3], new[1], *newer):
            plug.sendall(LINE + b"Connection: close\r\n\r\n")
            assert until_closed(plug).endswith(BODY)


def test_when_all_have_a_request_under_way_another_is_told_so(
    shared_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    submit = _part_of_a_submit(16) + b'{"kind": "mail"}'
    with serving(shared_engine, HttpConfig(connections=2)) as live, ExitStack() as held:
        # They wait for the database.
        writing = held.enter_context(ExitStack())
        writing.enter_context(shared_engine.store.transaction())
        submits = [held.enter_context(connected(live, submit)) for _ in range(2)]
        wait_until(lambda: live.services.metrics.open == 2)
        for _ in range(3):
            with connected(live) as plug:
                assert until_closed(plug) == FULL
        assert len([r for r in caplog.records if "all 2 connections" in r.getMessage()]) == 1
        writing.close()
        assert submits[0].recv(65_536).startswith(b"HTTP/1.1 201 ")
        wait_until(lambda: answered(live) == 200)


def _part_of_a_submit(size: int) -> bytes:
    """The head of a request whose body has so many bytes."""
    head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % size


def test_requests_whose_bodies_have_not_come_give_way_the_oldest_first(shared_engine: Engine) -> None:
    """A token of any scope could lock everybody out: it has half a minute for each body."""
    part = _part_of_a_submit(16) + b"{"
    with serving(shared_engine, HttpConfig(connections=2)) as live, ExitStack() as held:
        first = held.enter_context(connected(live, LINE + b"\r\n" + part))
        # This one was sent ahead of the answer to another.
        read_answer(first)
        wait_until(lambda: live.services.metrics.open == 1)
        second = held.enter_context(connected(live, part))
        wait_until(lambda: live.services.metrics.open == 2)
        for oldest in (first, second):
            third = held.enter_context(connected(live, part))
            assert until_closed(oldest) == b""
        wait_until(lambda: len(live.connections) == 2)
        third.sendall(b'"kind": "mail"}')
        assert third.recv(65_536).startswith(b"HTTP/1.1 201 ")
        assert answered(live) == 200


def test_streams_leave_connections_to_other_requests(shared_engine: Engine) -> None:
    stream = b"GET /api/v1/feed/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with serving(shared_engine, HttpConfig(connections=4)) as live, ExitStack() as held:
        for _ in range(3):
            held.enter_context(connected(live, stream))
        wait_until(lambda: live.services.streams.open == 3)
        assert answered(live, "/api/v1/feed/stream") == 429
        assert answered(live) == 200


CLAIM = b'{"worker": "w", "queue": "empty", "wait_s": 30}'
WAITING = [
    b"GET /api/v1/feed?cursor=%d&wait_s=30 HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    b"GET /api/v1/news?queue=empty&work=0&boot=%b&wait_s=30 HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    b"POST /api/v1/tasks/claim HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n",
]


def test_requests_that_wait_leave_connections_to_others(shared_engine: Engine) -> None:
    """Half of them to one caller, here without a token; whoever comes then is answered as without `wait_s`."""
    engine = shared_engine
    feed, news, claim = (
        head % fact + b"Connection: close\r\n\r\n" + body
        for head, fact, body in zip(
            WAITING,
            (engine.feed.tail(), engine.wake.boot.encode(), len(CLAIM)),
            (b"", b"", CLAIM),
            strict=True,
        )
    )
    with serving(engine, HttpConfig(connections=8)) as live, ExitStack() as held:
        for request in (feed, news, claim, claim):
            held.enter_context(connected(live, request))
        wait_until(lambda: live.services.waits.open == 4)
        for request, part in ((feed, b'"events":[]'), (news, b'"full":true'), (claim, b'"tasks":[]')):
            with connected(live, request) as plug:
                plug.settimeout(20)
                assert part in until_closed(plug)
        assert answered(live) == 200


def test_streams_and_requests_that_wait_share_three_quarters_of_the_connections() -> None:
    open_streams = 3
    waits = WaitSlots(16, lambda: open_streams)
    ann, bob = (Principal(name, "default", frozenset(), name) for name in ("ann", "bob"))
    with ExitStack() as held:
        assert [held.enter_context(waits.slot(ann)) for _ in range(9)] == [True] * 8 + [False]
        assert not waits.full
        assert [held.enter_context(waits.slot(bob)) for _ in range(2)] == [True, False]
        assert waits.full
    assert waits.open == 0


def test_a_stop_does_not_wait_for_connections_that_were_about_to_be_made(shared_engine: Engine) -> None:
    with serving(shared_engine) as live:
        (acceptor,) = cast("list[Acceptor]", live.server.servers)
        live.on_loop(lambda: live.loop.remove_reader(acceptor.sockets[0]))
        with connected(live) as plug:
            live.on_loop(lambda: (acceptor._accept(), acceptor.close()))
            assert until_closed(plug) == b""


class Exhausted(socket.socket):
    """A listening socket, on a system that has no files left for a while."""

    tries, left = 0, 3

    def accept(self) -> tuple[socket.socket, object]:  # type: ignore[override]
        self.tries += 1
        if self.tries <= self.left:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_when_files_run_out_that_is_said_once_and_tried_again(
    shared_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    plug = Exhausted(fileno=listen("127.0.0.1", 0).detach())
    with caplog.at_level(logging.WARNING), serving(shared_engine, listening=plug) as live:
        assert answered(live) == 200
    assert [r.getMessage() for r in caplog.records if "cannot accept" in r.getMessage()] == [
        "cannot accept connections: Too many open files; raise ulimit -n, or lower http.connections "
        "(1 since the last such line)"
    ]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda number: monkeypatch.setattr(resource, "getrlimit", lambda _: (number, number))


def test_there_are_fewer_connections_than_open_files(files: Callable[[int], None]) -> None:
    files(1024)
    assert max_connections(HttpConfig()) == 896
    assert max_connections(HttpConfig(), tasks=10) == 796
    assert max_connections(HttpConfig(connections=500)) == 500
    with pytest.raises(InvalidInput, match="set it to 896 or less, or raise `ulimit -n`"):
        max_connections(HttpConfig(connections=1000))
    files(100)
    assert max_connections(HttpConfig()) == 25
    for number in (1_000_000, resource.RLIM_INFINITY):
        files(number)
        assert max_connections(HttpConfig()) == 4_096
        assert max_connections(HttpConfig(connections=10_000)) == 10_000


# Answers that nobody reads.


@pytest.fixture
def large(shared_engine: Engine) -> str:
    """The path of a job of a megabyte."""
    return f"/api/v1/jobs/{shared_engine.submit('mail', {'text': 'x' * 900_000}).id}"


@contextmanager
def narrow(engine: Engine, **config: Any) -> Iterator[Live]:
    """A server to whose clients few bytes are on their way: what they do not read stays with it."""
    listening = listen("127.0.0.1", 0)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with serving(engine, HttpConfig(**config), listening) as live:
        yield live


def ask(path: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}\r\n".encode()


def test_a_client_that_does_not_read_a_large_answer_is_cut_off(shared_engine: Engine, large: str) -> None:
    with narrow(shared_engine, stall_s=0.2) as live, connected(live, ask(large), 4096):
        wait_until(lambda: len(live.connections) == 1)
        wait_until(lambda: len(live.connections) == 0)


def test_a_client_that_reads_slowly_gets_all_of_its_answer(shared_engine: Engine, large: str) -> None:
    with (
        narrow(shared_engine, stall_s=5) as live,
        connected(live, ask(large, "Connection: close\r\n"), 4096) as plug,
    ):
        wait_until(lambda: bool(live.connections._unread))
        assert len(until_closed(plug)) > 900_000


def test_a_connection_that_was_to_be_closed_does_not_wait_for_its_client(shared_engine: Engine) -> None:
    """Also when what is left to send is little."""
    small = f"/api/v1/jobs/{shared_engine.submit('mail', {'text': 'x' * 30_000}).id}"
    with narrow(shared_engine, stall_s=0.2) as live, connected(live, ask(small, "Connection: close\r\n"), 4096):
        wait_until(lambda: len(live.connections) == 1)
        wait_until(lambda: len(live.connections) == 0)


@pytest.mark.parametrize("stops", [False, True], ids=["after its answer", "when the server stops"])
def test_a_client_that_reads_all_but_the_end_of_its_answer_is_cut_off(
    shared_engine: Engine, large: str, stops: bool
) -> None:
    close = "" if stops else "Connection: close\r\n"
    with narrow(shared_engine, stall_s=WAIT_S) as live, connected(live, ask(large, close), 4096) as plug:
        wait_until(lambda: bool(live.connections._unread))
        [one] = live.connections._unread
        # What counts as the end is half of it here: the rest would fit into what the system keeps.
        live.on_loop(lambda: one.transport.set_write_buffer_limits(600_000, 500_000))
        one._http = HttpConfig(stall_s=0.2)
        while one in live.connections._unread:
            assert plug.recv(4096)
        if stops:
            live.on_loop(one.shutdown)
        wait_until(lambda: len(live.connections) == 0)


def test_when_unread_answers_take_too_much_room_the_oldest_are_dropped(shared_engine: Engine, large: str) -> None:
    with narrow(shared_engine, unsent_bytes=2_000_000) as live, ExitStack() as held:
        for _ in range(6):
            held.enter_context(connected(live, ask(large), 4096))
        wait_until(lambda: len(live.connections._unread) == 2 and len(live.connections) == 2)
        assert answered(live, large) == 200


def test_no_request_is_begun_before_the_answer_to_the_last_was_read(shared_engine: Engine, large: str) -> None:
    with narrow(shared_engine) as live, connected(live, ask(large), 4096) as plug:
        wait_until(lambda: bool(live.connections._unread))
        plug.sendall(ask("/api/v1/version") + ask("/healthz", "Connection: close\r\n"))
        wait_until(lambda: any(one._deferred for one in list(live.connections._unread)))
        found = until_closed(plug)
        assert found.count(b"HTTP/1.1 200 OK") == 3
        assert found.endswith(BODY)


def test_streams_that_are_not_read_leave_their_places_and_their_connections(shared_engine: Engine) -> None:
    shared_engine.run([Submit(kind="mail", cause="x" * 2_000) for _ in range(500)])
    stream = ask("/api/v1/feed/stream?cursor=0")
    with narrow(shared_engine, stall_s=0.2) as live, ExitStack() as held:
        for _ in range(3):
            held.enter_context(connected(live, stream, 4096))
        wait_until(lambda: live.services.streams.open == 3)
        wait_until(lambda: live.services.streams.open == 0 and len(live.connections) == 0)
