"""Submits, claims and reports that are answered without a task: as those that go the usual way, and no others."""

from __future__ import annotations

import gc
import json
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx2
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from onetray.config import HttpConfig
from onetray.domain.commands import Command
from onetray.domain.lifecycle import QUEUED
from onetray.domain.task import Verdict
from onetray.engine import Engine
from onetray.http.limits.exchange import Exchange
from onetray.http.observe.request_log import NO_ROUTE, RequestEntry
from onetray.http.routes import jobs
from onetray.http.short_requests import ShortRequests
from tests.support.live import Live, serving
from tests.support.tasks import state, submit, types
from tests.support.waits import wait_until

WAIT_S = 30.0
JOBS, CLAIM, REPORTS = "/api/v1/jobs", "/api/v1/tasks/claim", "/api/v1/tasks/reports"
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|ot1\.[\w.-]+|\b\d{4}-\d\d-\d\dT[\d:.]+Z")
CHANGING = {"date", "x-request-id", "content-length"}
"""The length too: the numbers of leases may have more digits."""


class Ways:
    """A server, and how many requests it has answered the short way."""

    def __init__(self, live: Live) -> None:
        self.live, self.app, self.shorts = live, live.server.config.loaded_app, 0
        self.short: ShortRequests = self.app.short_requests
        begin = self.short.begin

        def counted(exchange: Exchange) -> bool:
            began = begin(exchange)
            self.shorts += began
            return began

        self.short.begin = counted  # type: ignore[method-assign]

    def post(self, path: str, body: Any = None, *, short: bool = True, **more: Any) -> httpx2.Response:
        """Send a request on a connection of its own, for which the short way is there or not."""
        self.app.short_requests = self.short if short else None
        sent = {"json": body} if body is not None else {}
        return httpx2.post(f"{self.live.url}{path}", **sent, **more, timeout=WAIT_S)

    @property
    def requests(self) -> dict[tuple[str, ...], float]:
        return self.live.services.metrics.requests._series


@pytest.fixture
def ways(engine: Engine) -> Iterator[Ways]:
    submit(engine, "mail")
    with serving(engine) as live:
        found = Ways(live)
        # Afterwards the kind is known, and that no token is needed.
        assert found.post(JOBS, {"kind": "mail"}, short=False).status_code == 201
        yield found
        assert live.on_loop(lambda: found.short.limits._body_budget._bytes) == 0
        wait_until(lambda: live.services.metrics.open == 0 and not live.server.server_state.tasks)


class Case(NamedTuple):
    path: str
    body: Any
    is_short: bool = True
    headers: dict[str, str] = {}  # noqa: RUF012


CASES = {
    "submit": Case(JOBS, {"kind": "mail", "payload": {"to": "ann"}}),
    "submit in another queue": Case(JOBS, {"kind": "mail", "queue": "q", "priority": 3, "labels": {"a": "b"}}),
    "submit with a key": Case(JOBS, {"kind": "mail", "payload": 1}, headers={"idempotency-key": "k"}),
    "submit that differs from that of its key": Case(JOBS, {"kind": "mail", "idempotency_key": "taken"}),
    "submit for later": Case(JOBS, {"kind": "mail", "delay_s": 60}),
    "submit with a trace": Case(JOBS, {"kind": "mail"}, headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}),
    "flow": Case(JOBS, {"name": "mail", "stages": [{"name": "s", "tasks": [{"kind": "mail"}]}]}),
    "submit of an unknown kind": Case(JOBS, {"kind": "{own}"}, False),
    "submit that the engine refuses": Case(JOBS, {"kind": "mail", "payload": "x" * 300_000}, False),
    "invalid submit": Case(JOBS, {"kind": 5}, False),
    "submit with a parameter": Case(f"{JOBS}?dry=1", {"kind": "mail"}, False),
    "submit from a page": Case(JOBS, {"kind": "mail"}, False, {"origin": "http://evil.example"}),
    "submit to another host": Case(JOBS, {"kind": "mail"}, False, {"host": "evil.example"}),
    "submit as text": Case(JOBS, {"kind": "mail"}, False, {"content-type": "text/plain"}),
    "claim": Case(CLAIM, {"worker": "w"}),
    "claim of nothing": Case(CLAIM, {"worker": "w", "queue": "empty"}),
    "claim of nothing, with a wait": Case(CLAIM, {"worker": "w", "queue": "empty", "wait_s": 0.01}),
    "claim with a key": Case(CLAIM, {"worker": "w", "request_key": "r"}, False),
    "claim that the engine refuses": Case(CLAIM, {"worker": "w", "queue": "q" * 1_000}),
    "report": Case(REPORTS, {"reports": [{"verb": "succeed", "task": "{held}", "fence": 1, "worker": "h"}]}),
    "report by another": Case(REPORTS, {"reports": [{"verb": "succeed", "task": "{held}", "fence": 1, "worker": "x"}]}),
    "report with a key": Case(REPORTS, {"reports": [{"verb": "start", "task": "{held}", "fence": 1, "worker": "h"}]},
                              False, {"idempotency-key": "k"}),
    "no reports": Case(REPORTS, {"reports": []}, False),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_short_request_is_answered_like_any_other(ways: Ways, engine: Engine, case: Case) -> None:
    submit(engine, "mail", {"an": "other"}, idempotency_key="taken")
    held = [submit(engine, "mail", queue="held") for _ in range(2)]
    for _ in held:
        assert ways.post(CLAIM, {"worker": "h", "queue": "held"}, short=False).json()["tasks"]
    told = []
    for short, id_ in zip((True, False), held, strict=True):
        body = _filled(case.body, id_, f"nobody-{int(short)}")
        answer = ways.post(case.path, body, short=short, headers=_own_key(case.headers, short))
        headers = {name: _masked(text) for name, text in answer.headers.items() if name not in CHANGING}
        told.append((answer.status_code, list(answer.headers), headers, _masked(answer.text)))
        assert ID.fullmatch(answer.headers["x-request-id"])
        assert answer.headers.get("content-length") == str(len(answer.content))
    assert told[0] == told[1]
    assert ways.shorts == int(case.is_short)
    # With that of the fixture and two claims: each is counted once.
    wait_until(lambda: sum(ways.requests.values()) == 5)


def _filled(body: Any, id_: str, own: str) -> Any:
    text = json.dumps(body).replace("{held}", id_).replace("{own}", own)
    return json.loads(text)


def _own_key(headers: dict[str, str], short: bool) -> dict[str, str]:
    """Both requests are the first with their key."""
    return {name: f"{text}-{short}" if name == "idempotency-key" else text for name, text in headers.items()}


def _masked(text: str) -> str:
    return re.sub(r'"(lease_id|ticket)":"[^"]*"|k-(True|False)|nobody-[01]', "…", ID.sub("…", text))


def _raw(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def test_a_body_that_comes_late_is_waited_for_the_usual_way(ways: Ways) -> None:
    request, tasks = _raw(JOBS, b'{"kind":"mail"}'), ways.live.server.server_state.tasks
    ways.app.short_requests = ways.short
    # The task of the fixture's request may not have ended yet.
    wait_until(lambda: not tasks)
    with socket.create_connection(("127.0.0.1", ways.live.port), timeout=WAIT_S) as client:
        client.sendall(request[:-5])
        wait_until(lambda: tasks)
        client.sendall(request[-5:])
        assert client.recv(65_536).startswith(b"HTTP/1.1 201 Created\r\n")
    assert ways.shorts == 0


def test_a_client_that_leaves_before_its_body_is_in_the_log(ways: Ways) -> None:
    ways.app.short_requests = ways.short
    with socket.create_connection(("127.0.0.1", ways.live.port), timeout=WAIT_S) as client:
        client.sendall(_raw(JOBS, b'{"kind":"mail"}')[:-5])
        wait_until(lambda: len(ways.live.connections))
    wait_until(lambda: ("POST", NO_ROUTE, "408") in ways.requests)
    assert ways.shorts == 0


def test_pipelined_requests_are_answered_in_order(ways: Ways) -> None:
    ways.app.short_requests = ways.short
    requests = [
        _raw(CLAIM, b'{"worker":"w","queue":"none"}'),
        _raw(JOBS, b'{"kind":"mail"}'),
        _raw(JOBS, b'{"kind":5}'),
    ]
    with socket.create_connection(("127.0.0.1", ways.live.port), timeout=WAIT_S) as client:
        client.sendall(b"".join(requests))
        found = b""
        while found.count(b"HTTP/1.1 ") < len(requests):
            found += client.recv(65_536)
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"200", b"201", b"400"]


def test_a_token_is_checked_each_time(engine: Engine) -> None:
    submit(engine, "mail")
    made = engine.tokens.create("app", ["submit"])
    with serving(engine) as live:
        ways, headers = Ways(live), {"authorization": f"Bearer {made.text}"}
        statuses = [ways.post(JOBS, {"kind": "mail"}, headers=headers).status_code for _ in range(4)]
        # The first reads the token, and records its use.
        assert (statuses, ways.shorts) == ([201] * 4, 3)
        wrong = {"authorization": f"Bearer {made.text[:-1]}{'a' if made.text[-1] != 'a' else 'b'}"}
        assert ways.post(JOBS, {"kind": "mail"}, headers=wrong).status_code == 401
        assert ways.post(JOBS, {"kind": "mail"}).status_code == 401
        assert ways.post(CLAIM, {"worker": "w"}, headers=headers).status_code == 403
        assert ways.shorts == 3


@pytest.fixture
def held(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Batches wait until it is set."""
    let_go, gathering = threading.Event(), ways.live.on_loop(ways.live.services.commands)
    work = gathering._work

    def wait_and_work(commands: list[Command]) -> Sequence[Verdict]:
        assert let_go.wait(WAIT_S)
        return work(commands)

    monkeypatch.setattr(gathering, "_work", wait_and_work)
    return let_go


def test_a_short_request_that_a_stop_cuts_off_is_told_that_its_outcome_is_not_known(
    ways: Ways, held: threading.Event
) -> None:
    live = ways.live
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(ways.post, JOBS, {"kind": "mail"})
        wait_until(lambda: live.server.server_state.tasks)
        # What uvicorn does when the time for open requests is over.
        live.on_loop(lambda: [task.cancel(msg="stop") for task in list(live.server.server_state.tasks)])
        told = answer.result(WAIT_S)
        held.set()
    assert (told.status_code, told.json()["code"], ways.shorts) == (503, "outcome_unknown", 1)
    assert ways.requests["POST", JOBS, "503"] == 1
    assert ways.post(JOBS, {"kind": "mail"}).status_code == 201


def test_the_tasks_of_a_client_that_has_gone_return_to_their_queue(
    ways: Ways, engine: Engine, held: threading.Event
) -> None:
    id_, live = submit(engine, "mail", queue="gone"), ways.live
    ways.app.short_requests = ways.short
    with socket.create_connection(("127.0.0.1", live.port), timeout=WAIT_S) as client:
        client.sendall(_raw(CLAIM, b'{"worker":"w","queue":"gone"}'))
        wait_until(lambda: live.server.server_state.tasks)
    wait_until(lambda: not len(live.connections))
    held.set()
    wait_until(lambda: not live.server.server_state.tasks)
    assert (ways.shorts, state(engine, id_)) == (1, QUEUED)
    assert types(engine, id_) == ["submitted", "claimed", "released"]


def test_an_answer_that_cannot_be_written_fails_its_own_request_only(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(jobs, "_submitted", broken)
    assert ways.post(JOBS, {"kind": "mail"}).status_code == 500
    monkeypatch.undo()
    assert ways.post(JOBS, {"kind": "mail"}).status_code == 201


def test_a_caller_with_too_many_requests_is_refused_the_usual_way(engine: Engine) -> None:
    submit(engine, "mail")
    with serving(engine, HttpConfig(requests_per_s=0.001)) as live:
        ways = Ways(live)
        assert [ways.post(JOBS, {"kind": "mail"}).status_code for _ in range(2)] == [201, 429]
        wait_until(lambda: ("POST", NO_ROUTE, "429") in ways.requests)
        assert ways.shorts == 0


@pytest.mark.parametrize("short", [True, False], ids=["short", "usual"])
def test_a_request_that_has_ended_needs_no_garbage_collector(ways: Ways, short: bool) -> None:
    wait_until(lambda: gc.collect() >= 0 and not _in_memory(RequestResponseCycle))
    ways.app.short_requests, before = ways.short if short else None, ways.shorts
    gc.disable()
    try:
        with httpx2.Client(base_url=ways.live.url, timeout=WAIT_S) as client:
            for path, body in ((JOBS, {"kind": "mail"}), (CLAIM, {"worker": "w"}), (JOBS, {"kind": "mail"})):
                assert client.post(path, json=body).is_success
            # A request is counted when its answer is on its way.
            wait_until(lambda: ways.shorts - before == (3 if short else 0))
            wait_until(lambda: not _in_memory(RequestEntry, Exchange))
            # The open connection keeps its last one.
            assert _in_memory(RequestResponseCycle) == 1
    finally:
        gc.enable()


def _in_memory(*types: type) -> int:
    return sum(type(known) in types for known in gc.get_objects())
