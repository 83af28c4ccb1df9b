"""The gate: who is let in, by which name, from where; and what those are told who are not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import InvalidInput, StoreError, Unavailable
from onetray.engine import Engine
from onetray.http.auth.middleware import AuthMiddleware, may_bind
from onetray.http.services import HttpConfig, Services
from tests.http.callers import bearer, served, token
from tests.support.cases import each_case
from tests.support.engines import engine_on

NOWHERE = "/api/v1/nowhere"


@pytest.fixture
def small() -> Iterator[Engine]:
    """For what does not depend on the database."""
    with engine_on("sqlite://:memory:", VirtualClock()) as engine:
        yield engine


def test_without_tokens_a_server_answers_its_own_machine(engine: Engine) -> None:
    with served(engine) as api:
        assert api.get(NOWHERE).status_code == 404


def test_from_the_first_token_on_nobody_goes_without_one(engine: Engine) -> None:
    with served(engine) as api:
        assert api.get(NOWHERE).status_code == 404
        who = token(engine, "read")
        refused = api.get(NOWHERE)
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
        assert refused.headers["www-authenticate"] == 'Bearer realm="onetray"'
        assert "onetray token create" in refused.json()["detail"]
        assert api.get(NOWHERE, headers=who).status_code == 404


def test_a_token_is_good_until_it_expires_or_is_revoked(engine: Engine, clock: VirtualClock) -> None:
    short = engine.tokens.create("ann", ["read"], expires_s=60)
    other = engine.tokens.create("bob", ["read"])
    with served(engine) as api:
        assert [api.get(NOWHERE, headers=bearer(t.text)).status_code for t in (short, other)] == [404, 404]
        clock.advance(61)
        engine.tokens.revoke(other.token.id)
        answers = [api.get(NOWHERE, headers=bearer(t.text)) for t in (short, other)]
    assert [a.status_code for a in answers] == [401, 401]
    assert ["expired" in answers[0].text, "revoked" in answers[1].text] == [True, True]
    assert all('error="invalid_token"' in a.headers["www-authenticate"] for a in answers)


def test_the_use_of_a_token_is_written_down(engine: Engine, clock: VirtualClock) -> None:
    who = token(engine, "read")
    with served(engine) as api:
        api.get(NOWHERE, headers={"authorization": who["authorization"][:-1] + "!"})
        assert engine.tokens.list()[0].used_at is None
        api.get(NOWHERE, headers=who)
    assert engine.tokens.list()[0].used_at == clock.now()


def test_what_is_no_good_token_is_refused_in_one_way(small: Engine) -> None:
    """Neither whether an id exists nor whether a secret is nearly right can be learned."""
    text = small.tokens.create("ann", ["read"]).text
    flipped = text[:-1] + ("A" if text[-1] != "A" else "B")
    unknown = "ot_0123456789abcdef_" + text[-43:]
    told = []
    with served(small) as api:
        for value in (f"Bearer {flipped}", f"Bearer {unknown}", "Bearer nonsense", "Bearer", f"Basic {text}", text):
            told.append(api.get(NOWHERE, headers={"authorization": value}))
        twice = [("authorization", f"Bearer {text}"), ("authorization", f"Bearer {text}")]
        told.append(api.get(NOWHERE, headers=twice))
        assert api.get(NOWHERE, headers={"authorization": f"bearer {text}"}).status_code == 404
    assert {(t.status_code, t.text) for t in told} == {(401, told[0].text)}


def test_exemptions_are_exact(small: Engine) -> None:
    token(small)
    with served(small) as api:
        assert [api.get(p).status_code for p in ("/", "/healthz", "/readyz", "/api/v1/version")] == [200] * 4
        for method, path in (
            ("POST", "/healthz"), ("HEAD", "/healthz/x"), ("OPTIONS", "/healthz"), ("GET", "/healthz/"),
            ("GET", "/healthz/x"), ("GET", "/HEALTHZ"), ("GET", "/%2e/healthz"),
        ):  # fmt: skip
            assert api.request(method, path).status_code == 401, (method, path)


@each_case("host", ["127.0.0.1:8321", "localhost", "LocalHost.:80", "[::1]:8321", "127.9.9.9"])
def test_a_loopback_name_is_answered(small: Engine, host: str) -> None:
    with served(small) as api:
        assert api.get(NOWHERE, headers={"host": host}).status_code == 404


REBOUND = [
    "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8321", "evil@127.0.0.1", "0.0.0.0", "10.0.0.7",
    "[::]", "", "127.0.0.1:8321:1", "127.0.0.1/", "localhost evil", "[::1", "①27.0.0.1",
]  # fmt: skip


@each_case("host", REBOUND)
def test_a_name_that_was_made_to_point_here_is_refused(small: Engine, host: str) -> None:
    with served(small) as api:
        refused = api.get(NOWHERE, headers={"host": host.encode()})
    assert (refused.status_code, refused.json()["code"]) == (403, "wrong_host")
    assert "127.0.0.1" in refused.json()["detail"]


def test_two_hosts_are_none(small: Engine) -> None:
    with served(small) as api:
        sent = [("host", "127.0.0.1"), ("host", "evil.example")]
        assert api.get(NOWHERE, headers=sent).json()["code"] == "wrong_host"


@each_case("origin", ["https://evil.example", "null", "http://127.0.0.1.evil.example", "http://[", ""])
def test_a_strangers_page_is_refused(small: Engine, origin: str) -> None:
    with served(small) as api:
        refused = api.post(NOWHERE, headers={"origin": origin})
        assert (refused.status_code, refused.json()["code"]) == (403, "wrong_origin")
        assert "allowed_origins" in refused.json()["detail"]
        assert api.post(NOWHERE, headers={"origin": "http://localhost:3000"}).status_code == 404


def test_another_machine_is_refused_even_if_the_server_listens_to_it(small: Engine) -> None:
    with served(small, client=("10.1.2.3", 999)) as api:
        assert api.get(NOWHERE).json()["code"] == "not_local"
        assert api.get(NOWHERE, headers=token(small)).status_code == 404


def test_with_tokens_any_host_and_no_browser_unless_they_are_listed(small: Engine) -> None:
    who, page = token(small), "https://jobs.example.org"
    with served(small) as api:
        assert api.get(NOWHERE, headers={**who, "host": "jobs.example.org"}).status_code == 404
        assert api.get(NOWHERE, headers={**who, "origin": page}).json()["code"] == "wrong_origin"
    with served(small, allowed_hosts=("jobs.example.org",), allowed_origins=(page,)) as api:
        good = {**who, "host": "Jobs.example.org:443", "origin": page}
        assert api.get(NOWHERE, headers=good).status_code == 404
        assert api.get(NOWHERE, headers={**good, "host": "evil.example"}).json()["code"] == "wrong_host"
        assert api.get(NOWHERE, headers={**good, "origin": page + ".evil"}).json()["code"] == "wrong_origin"
        refused = api.get(NOWHERE, headers={"host": "jobs.example.org", "origin": page})
        assert refused.status_code == 401
        assert "access-control-allow-origin" not in refused.headers


@each_case("host", ["127.0.0.1", "::1", "localhost", "127.0.0.2"])
def test_without_tokens_a_server_may_listen_to_itself(host: str) -> None:
    may_bind(host, has_tokens=False)


@each_case("host", ["0.0.0.0", "::", "", "10.0.0.7", "example.org", "localhost.example.org"])
def test_without_tokens_it_may_not_listen_to_others(host: str) -> None:
    with pytest.raises(InvalidInput, match="onetray token create"):
        may_bind(host, has_tokens=False)
    may_bind(host, has_tokens=True)


def test_browsers_are_told_to_guess_keep_and_lend_nothing(small: Engine) -> None:
    with served(small) as api:
        for answer in (api.get("/"), api.get(NOWHERE), api.get(NOWHERE, headers={"host": "evil.example"})):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


LEAK = "postgresql://ann:hunter2@10.0.0.5/jobs /srv/data/jobs.db"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Unavailable(f"does not answer at {LEAK}", path=LEAK), 503, "unavailable"),
        (StoreError(f"cannot open {LEAK}", url=LEAK), 500, "internal"),
        (ValueError(LEAK), 500, "internal"),
    ],
)
@pytest.mark.parametrize("verb", ["exist", "task"])
def test_what_a_database_says_of_itself_is_told_to_nobody(
    small: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str, verb: str
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error from OSError(LEAK)

    monkeypatch.setattr(small.tokens if verb == "exist" else small, verb, broken)
    with served(small) as api:
        answer = api.get("/api/v1/jobs/00000000-0000-7000-8000-000000000000")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    for part in ("hunter2", "10.0.0.5", "/srv", "Traceback", "psycopg"):
        assert part not in answer.text
    assert answer.json()["reference"]


def test_what_the_engine_says_itself_is_told(small: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopping(*_: Any, **__: Any) -> None:
        raise Unavailable("the server is stopping: connect again")

    monkeypatch.setattr(small, "task", stopping)
    with served(small) as api:
        answer = api.get("/api/v1/jobs/00000000-0000-7000-8000-000000000000")
    assert (answer.status_code, answer.json()["detail"]) == (503, "the server is stopping: connect again")
    assert answer.headers["retry-after"] == "1"


class Outside:
    """A server that calls the gate itself, with an app of the test's behind it, and a clock to turn."""

    def __init__(self, engine: Engine, app: Any) -> None:
        self.at, self.sent = 0.0, list[Message]()
        self._gate = AuthMiddleware(app, Services(engine, HttpConfig()), lambda: self.at)

    def call(self, headers: dict[str, str], kind: str = "http") -> list[Message]:
        raw = [(k.encode(), v.encode()) for k, v in {"host": "127.0.0.1", **headers}.items()]
        app = SimpleNamespace(state=SimpleNamespace(shapes={}))
        scope = {
            "type": kind,
            "method": "GET",
            "path": "/stream",
            "headers": raw,
            "client": ("127.0.0.1", 1),
            "app": app,
        }
        asyncio.run(self._gate(scope, self._receive, self._send))
        return self.sent

    async def _receive(self) -> Message:
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)


def test_a_stream_ends_when_its_token_is_revoked(small: Engine) -> None:
    new = small.tokens.create("ann", ["read"])

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(6):
            if number == 2:
                small.tokens.revoke(new.token.id)
            outside.at += 2.0
            await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})

    outside = Outside(small, stream)
    sent = outside.call(bearer(new.text))
    assert b"".join(m.get("body", b"") for m in sent) in (b"0", b"01", b"012", b"0123")
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


def test_an_open_stream_of_a_server_without_tokens_ends_with_the_first_one(small: Engine) -> None:
    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        small.tokens.create("ann", ["read"])
        outside.at += 6.0
        await send({"type": "http.response.body", "body": b"secret", "more_body": True})

    outside = Outside(small, stream)
    assert [m.get("body") for m in outside.call({})] == [None, b""]


def test_a_long_poll_whose_token_was_revoked_meanwhile_is_refused(small: Engine) -> None:
    new = small.tokens.create("ann", ["read"])

    async def poll(scope: Scope, receive: Receive, send: Send) -> None:
        small.tokens.revoke(new.token.id)
        outside.at += 6.0
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"secret"})

    outside = Outside(small, poll)
    sent = outside.call(bearer(new.text))
    assert sent[0]["status"] == 401
    assert b"secret" not in b"".join(m.get("body", b"") for m in sent)


def test_a_stream_goes_on_while_the_database_is_away(small: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    new = small.tokens.create("ann", ["read"])

    def away(_: list[str]) -> None:
        raise Unavailable

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        monkeypatch.setattr(small.tokens, "get_many", away)
        outside.at += 6.0
        await send({"type": "http.response.body", "body": b": heartbeat", "more_body": True})

    outside = Outside(small, stream)
    assert outside.call(bearer(new.text))[-1]["body"] == b": heartbeat"


def test_there_is_no_other_way_in(small: Engine) -> None:
    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the gate let it in")

    assert Outside(small, never).call({}, "websocket") == [{"type": "websocket.close", "code": 1008}]
