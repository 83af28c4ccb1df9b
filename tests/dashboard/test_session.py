"""Sessions of browsers: the login, the cookie, forms, roles and namespaces, and those who try something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onetray.dashboard.session import COOKIE, LIFETIME_S, BrowserSessions, safe_path
from onetray.domain.clock import VirtualClock
from onetray.domain.token import SCOPES
from onetray.engine import Engine
from tests.http.callers import BASE, bearer, served
from tests.support.cases import each_case
from tests.support.tasks import submit

HTML = {"accept": "text/html,application/xhtml+xml"}
MARKUP = '"><script>alert(1)</script>'
CSRF = re.compile(r'name="csrf" value="([^"]*)"')


@contextmanager
def browser(engine: Engine, **config: Any) -> Iterator[TestClient]:
    """A browser, which shows what it gets and follows no redirects by itself."""
    with served(engine, **config) as client:
        client.headers.update(HTML)
        client.follow_redirects = False
        yield client


def log_in(client: TestClient, engine: Engine, *scopes: str, **fields: Any) -> str:
    """Log a browser in. Returns the token's id."""
    token = engine.tokens.create("ann", scopes or ["admin"], **fields)
    answer = client.post("/ui/login", data={"token": token.text}, headers={"origin": BASE})
    assert (answer.status_code, answer.headers["location"]) == (303, "/"), answer.text
    return token.token.id


def csrf_of(client: TestClient, page: str = "/ui/queues") -> str:
    return CSRF.findall(client.get(page).text)[0]


def pause(client: TestClient, csrf: str | None, queue: str = "letters", **headers: str) -> Any:
    data = {"came_from": "/ui/queues"} | ({} if csrf is None else {"csrf": csrf})
    return client.post(f"/ui/queues/{queue}/pause", data=data, headers=headers)


def is_paused(engine: Engine, queue: str = "letters") -> bool:
    return any(q.paused_at for q in engine.queues() if q.name == queue)


# Without tokens.


def test_without_tokens_everybody_on_this_machine_is_in(engine: Engine) -> None:
    submit(engine, queue="letters")
    with browser(engine) as client:
        assert client.get("/").status_code == 200
        assert client.get("/ui/login").headers["location"] == "/"
        answer = pause(client, csrf_of(client), origin=BASE)
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/queues")
        assert is_paused(engine)
        assert "The queue letters is paused" in client.get("/ui/queues").text
        # A message is shown once.
        assert "The queue letters is paused" not in client.get("/ui/queues").text


@each_case("origin", ["http://evil.example", "http://127.0.0.1:3000", "http://localhost:8321", "null"])
def test_without_tokens_pages_of_other_origins_cannot_post(shared_engine: Engine, origin: str) -> None:
    with browser(shared_engine) as client:
        assert pause(client, csrf_of_any(client), origin=origin).status_code == 403


def test_without_tokens_a_form_needs_its_csrf_token(engine: Engine) -> None:
    submit(engine, queue="letters")
    with browser(engine) as client, browser(engine) as other:
        for csrf in (None, "", "0" * 64, csrf_of(other), "ä" * 10):
            answer = pause(client, csrf)
            assert answer.status_code == 403
            assert "nothing was changed" in answer.text
    assert not is_paused(engine)


def test_without_tokens_other_hosts_and_machines_are_refused(engine: Engine) -> None:
    with browser(engine) as client:
        assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    with browser(engine, client=("10.0.0.1", 1)) as client:
        assert client.get("/").status_code == 403


def csrf_of_any(client: TestClient) -> str:
    """The CSRF token of this server, from a page that has a form."""
    sessions: BrowserSessions = client.app.state.dashboard.sessions  # type: ignore[attr-defined]
    from onetray.dashboard.session import _sign

    return _sign(sessions._local_key, "csrf", "local")


# With tokens.


def test_a_browser_without_a_session_is_sent_to_the_login_and_back(engine: Engine) -> None:
    token = engine.tokens.create("ann", ["read"])
    with browser(engine) as client:
        sent = client.get("/ui/queues?namespace=default&x=1%262")
        assert sent.status_code == 303
        page = client.get(sent.headers["location"])
        assert page.status_code == 200
        assert "Log in" in page.text
        [next_path] = re.findall(r'name="next" value="([^"]*)"', page.text)
        answer = client.post("/ui/login", data={"token": token.text, "next": next_path.replace("&amp;", "&")})
        assert answer.headers["location"] == "/ui/queues?namespace=default&x=1%262"
        assert client.get(answer.headers["location"]).status_code == 200


def test_clients_of_the_api_get_what_they_always_got(engine: Engine) -> None:
    engine.tokens.create("ann", ["read"])
    with served(engine) as client:
        start = client.get("/")
        assert start.status_code == 200
        assert "A durable job engine" in start.text
        refused = client.get("/ui/queues")
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")


def test_the_cookie_is_kept_from_scripts_and_from_other_sites(engine: Engine) -> None:
    token = engine.tokens.create("ann", ["read"])
    with browser(engine) as client:
        plain = client.post("/ui/login", data={"token": token.text}).headers["set-cookie"]
        https = client.post("/ui/login", data={"token": token.text}, headers={"x-forwarded-proto": "https"})
    for part in ("HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={LIFETIME_S}"):
        assert part in plain
    assert "Secure" not in plain
    assert "Secure" in https.headers["set-cookie"]
    assert token.text not in plain


def test_a_session_ends_with_a_token_that_expires_earlier(engine: Engine) -> None:
    token = engine.tokens.create("ann", ["read"], expires_s=60)
    with browser(engine) as client:
        cookie = client.post("/ui/login", data={"token": token.text}).headers["set-cookie"]
    [seconds] = re.findall(r"Max-Age=(\d+)", cookie)
    assert 0 < int(seconds) <= 60


@each_case("text", ["", "ot_", "ot_0123456789abcdef_" + "A" * 43, MARKUP, "ä", "x" * 3_000])
def test_a_token_that_is_none_begins_no_session(shared_engine: Engine, text: str) -> None:
    if not shared_engine.tokens.exist():
        shared_engine.tokens.create("ann", ["read"])
    with browser(shared_engine) as client:
        answer = client.post("/ui/login", data={"token": text})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert MARKUP not in answer.text


def test_a_login_that_is_too_long_is_refused(engine: Engine) -> None:
    engine.tokens.create("ann", ["read"])
    with browser(engine) as client:
        assert client.post("/ui/login", data={"token": "x" * 10_000}).status_code == 400


def test_a_login_from_another_origin_is_refused(engine: Engine) -> None:
    token = engine.tokens.create("ann", ["read"])
    with browser(engine) as client:
        answer = client.post("/ui/login", data={"token": token.text}, headers={"origin": "https://evil.example"})
        assert answer.status_code == 403
    with browser(engine, allowed_origins=("https://jobs.example",)) as client:
        # Behind a proxy that changes the Host header.
        answer = client.post("/ui/login", data={"token": token.text}, headers={"origin": "https://jobs.example"})
        assert answer.status_code == 303


ELSEWHERE = [
    "https://evil.example", "//evil.example", "/\\evil.example", "/ui/../..//evil.example\r\nx: y",
    "javascript:alert(1)", "/api/v1/jobs", "/ui", "\\\\evil.example", "/ui/queues\n", "/ui/" + "x" * 3_000, "",
    " //evil.example", "/ui/ä",
]  # fmt: skip


@each_case("path", ELSEWHERE)
def test_a_login_leads_nowhere_else(path: str) -> None:
    assert safe_path(path) == "/"


@each_case("path", ["/", "/?range=1h", "/ui/jobs?state=failed&state=queued", "/ui/jobs/0199-a"])
def test_a_login_leads_to_pages(path: str) -> None:
    assert safe_path(path) == path


def test_a_forged_cookie_is_refused(engine: Engine) -> None:
    with browser(engine) as client:
        id_ = log_in(client, engine)
        cookie = client.cookies[COOKIE]
        assert client.get("/ui/queues").status_code == 200
        own, end, signature = cookie.split(".")
        other = engine.tokens.create("bob", ["admin"], namespace="theirs").token
        assert own == id_
        forged = [
            f"{other.id}.{end}.{signature}", f"{own}.{int(end) + 3600}.{signature}", f"{own}.{end}.{'0' * 64}",
            f"{own}.{end}", f"{own}.{end}.{signature}0", "", "x" * 20_000, f"{own}.99999999999999999.{signature}",
        ]  # fmt: skip
        for value in forged:
            client.cookies.clear()
            answer = client.get("/ui/queues", headers={"cookie": f"{COOKIE}={value}"})
            assert (answer.status_code, answer.headers["location"][:9]) == (303, "/ui/login"), value
        twice = client.get("/ui/queues", headers={"cookie": f"{COOKIE}={cookie}; {COOKIE}={cookie}"})
        assert twice.status_code == 303


def test_a_session_ends_after_hours(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with browser(engine) as client:
        log_in(client, engine)
        cookie = {"cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
        client.cookies.clear()
        sessions: BrowserSessions = client.app.state.dashboard.sessions  # type: ignore[attr-defined]
        now = sessions._clock()
        monkeypatch.setattr(sessions, "_clock", lambda: now + LIFETIME_S - 10)
        assert client.get("/ui/queues", headers=cookie).status_code == 200
        monkeypatch.setattr(sessions, "_clock", lambda: now + LIFETIME_S + 10)
        assert client.get("/ui/queues", headers=cookie).status_code == 303


def test_a_session_ends_when_its_token_does(engine: Engine, clock: VirtualClock) -> None:
    with browser(engine) as client:
        id_ = log_in(client, engine)
        assert client.get("/ui/queues").status_code == 200
        engine.tokens.revoke(id_)
        assert client.get("/ui/queues").status_code == 303
        log_in(client, engine, "read", expires_s=5)
        assert client.get("/ui/queues").status_code == 200
        clock.advance(6)
        assert client.get("/ui/queues").status_code == 303


def test_a_session_holds_at_another_server_of_the_database(engine: Engine) -> None:
    with browser(engine) as client, browser(engine) as other:
        log_in(client, engine)
        other.cookies[COOKIE] = client.cookies[COOKIE]
        assert other.get("/ui/queues").status_code == 200


def test_the_api_does_not_take_the_cookie(engine: Engine) -> None:
    with browser(engine) as client:
        log_in(client, engine)
        for path in ("/api/v1/jobs", "/metrics", "/docs"):
            assert client.get(path).status_code == 401, path
        assert client.post("/api/v1/jobs", json={"kind": "mail"}).status_code == 401


def test_a_bearer_token_opens_pages_and_needs_no_csrf_token(engine: Engine) -> None:
    submit(engine, queue="letters")
    token = bearer(engine.tokens.create("ann", ["read", "operate"]).text)
    with browser(engine) as client:
        assert client.get("/ui/queues", headers=token).status_code == 200
        assert pause(client, None, **token).status_code == 303
    assert is_paused(engine)


def test_a_form_needs_the_csrf_token_of_its_session(engine: Engine) -> None:
    submit(engine, queue="letters")
    with browser(engine) as client, browser(engine) as other:
        log_in(client, engine)
        log_in(other, engine)
        for csrf in (None, "", csrf_of(other), client.cookies[COOKIE]):
            assert pause(client, csrf).status_code == 403
        assert not is_paused(engine)
        assert pause(client, csrf_of(client), origin="https://evil.example").status_code == 403
        assert not is_paused(engine)
        assert pause(client, csrf_of(client), origin=BASE).status_code == 303
        assert is_paused(engine)


def test_a_logout_ends_the_session_of_the_browser(engine: Engine) -> None:
    with browser(engine) as client:
        log_in(client, engine, "read")
        assert client.post("/ui/logout", data={"csrf": "0"}).status_code == 403
        answer = client.post("/ui/logout", data={"csrf": csrf_of(client)})
        assert answer.headers["location"] == "/ui/login"
        assert client.get("/ui/queues").status_code == 303


# Roles and namespaces.


def test_a_reader_sees_no_buttons_and_cannot_act(engine: Engine) -> None:
    submit(engine, queue="letters")
    with browser(engine) as client:
        log_in(client, engine, "read")
        page = client.get("/ui/queues").text
        assert "letters" in page
        assert "/pause" not in page
        answer = pause(client, csrf_of(client))
        assert answer.status_code == 403
        assert "scope operate" in answer.text
    assert not is_paused(engine)


@each_case("scope", [s for s in SCOPES if s not in ("read", "admin")])
def test_who_may_not_read_is_told_what_to_do(shared_engine: Engine, scope: str) -> None:
    with browser(shared_engine) as client:
        log_in(client, shared_engine, scope)
        for path in ("/", "/ui/queues"):
            answer = client.get(path)
            assert answer.status_code == 403
            assert "onetray token create --scope read" in answer.text


def test_a_token_never_sees_another_namespace(engine: Engine) -> None:
    submit(engine, namespace="theirs", queue="secret")
    submit(engine, queue="letters")
    with browser(engine) as client:
        log_in(client, engine)
        assert "secret" not in client.get("/ui/queues").text
        answer = client.get("/ui/queues?namespace=theirs")
        assert answer.status_code == 403
        assert "secret" not in answer.text
        data = {"csrf": csrf_of(client), "came_from": "/ui/queues"}
        client.post("/ui/queues/secret/pause?namespace=theirs", data=data)
    assert not [q for q in engine.queues(namespace="theirs") if q.paused_at]


def test_without_tokens_the_url_names_the_namespace(engine: Engine) -> None:
    submit(engine, namespace="theirs", queue="secret")
    with browser(engine) as client:
        assert "secret" not in client.get("/ui/queues").text
        page = client.get("/ui/queues?namespace=theirs").text
        assert "secret" in page
        assert 'href="/?namespace=theirs"' in page
        client.post("/ui/queues/secret/pause?namespace=theirs", data={"csrf": csrf_of_any(client)})
    assert [q.name for q in engine.queues(namespace="theirs") if q.paused_at] == ["secret"]


# What users have named.


def test_markup_in_names_is_shown_as_text(engine: Engine) -> None:
    submit(engine, queue=MARKUP, namespace=MARKUP)
    token = engine.tokens.create(MARKUP, ["admin"], namespace=MARKUP)
    with browser(engine) as client:
        client.post("/ui/login", data={"token": token.text})
        for path in ("/", "/ui/queues", "/ui/lifecycle", f"/ui/{MARKUP}", "/ui/queues?x=" + MARKUP):
            page = client.get(path).text
            assert MARKUP not in page, path
            assert "<script>" not in page, path
        data = {"csrf": csrf_of(client), "came_from": "/ui/queues"}
        answer = client.post("/ui/queues/%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E/pause", data=data)
        assert answer.status_code == 303
        assert MARKUP not in client.get("/ui/queues").text
    assert [q.name for q in engine.queues(namespace=MARKUP) if q.paused_at] == [MARKUP]


def test_an_error_of_an_action_is_shown_on_the_page_that_it_came_from(engine: Engine) -> None:
    with browser(engine) as client:
        log_in(client, engine)
        answer = pause(client, csrf_of(client), queue="x" * 5_000)
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/queues")
        page = client.get("/ui/queues").text
        assert 'class="flash error"' in page


@each_case(
    "cookie", ["onetray_flash=x", "onetray_flash=W10=", "onetray_flash=bnVsbA==", "onetray_flash=" + "A" * 9_000]
)
def test_a_message_that_is_none_is_ignored(shared_engine: Engine, cookie: str) -> None:
    token = bearer(shared_engine.tokens.create("ann", ["read"]).text)
    with browser(shared_engine) as client:
        assert client.get("/ui/queues", headers={"cookie": cookie, **token}).status_code == 200


# Headers and files.


def test_no_page_may_load_or_run_anything_of_others(engine: Engine) -> None:
    engine.tokens.create("ann", ["read"])
    with browser(engine) as client:
        pages = [client.get("/ui/login"), client.get("/ui/static/nothing"), client.get("/")]
        log_in(client, engine)
        pages += [client.get(path) for path in ("/", "/ui/queues", "/ui/nowhere", "/ui/lifecycle")]
    for page in pages:
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["cache-control"] == "no-store"
        assert " style=" not in page.text
        assert not re.findall(r"<script(?! src=)|\son\w+=", page.text)
        assert not re.findall(r'(?:src|href)="(?:https?:)?//', page.text)


def test_static_files_may_be_kept_and_change_their_name_with_their_content(engine: Engine) -> None:
    engine.tokens.create("ann", ["read"])
    with browser(engine) as client:
        files = re.findall(r'"(/ui/static/[^"]+)"', client.get("/ui/login").text)
        assert len(files) >= 3
        for path in files:
            found = client.get(path)
            assert found.status_code == 200
            assert "immutable" in found.headers["cache-control"]
            assert re.search(r"-[0-9a-f]{12}\.(css|js|svg)$", path)
        assert client.get("/ui/static/..%2f..%2fview.py").status_code == 404
