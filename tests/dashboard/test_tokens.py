"""Tokens from the page: for administrators of a namespace, and their texts only once."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onetray.engine import Engine
from tests.dashboard.test_waiting import HTML, MARKUP, words
from tests.http.callers import BASE, bearer, served
from tests.support.cases import each_case

SOME = {"came_from": "/ui/tokens"}
TEXT = re.compile(r"ot_[0-9a-f]{16}_[A-Za-z0-9_-]{43}")


def admin(engine: Engine, **fields: Any) -> dict[str, str]:
    return {**HTML, **bearer(engine.tokens.create("root", ["admin"], **fields).text)}


def create(client: TestClient, headers: dict[str, str], **fields: Any) -> Any:
    return client.post("/ui/tokens", data={"name": "ci", "scopes": ["read"], **fields}, headers=headers)


def test_a_new_token_is_shown_once_and_works(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    root = admin(engine)
    with served(engine) as client:
        made = create(client, root, name=f"ci {MARKUP}", scopes=["read", "operate"], groups="editor, ops", expires="7")
        assert (made.status_code, made.headers["cache-control"]) == (200, "no-store")
        [text] = set(TEXT.findall(made.text))
        assert f'data-copy="{text}"' in made.text
        assert not TEXT.search(str(made.url))
        assert "set-cookie" not in made.headers
        assert MARKUP not in made.text
        assert not TEXT.search(client.get("/ui/tokens", headers=root).text)
        assert client.get("/ui/queues", headers=bearer(text)).status_code == 200
        # Only what the server itself logs counts: the test's client logs nothing about bodies.
        assert text not in caplog.text
    (token,) = [each for each in engine.tokens.list() if each.name != "root"]
    assert (token.name, token.scopes, token.groups) == (f"ci {MARKUP}", ("read", "operate"), ("editor", "ops"))
    assert token.expires_at == token.created_at + 7 * 86_400_000_000
    [event] = [e for e in engine.audit(tokens=True).events if e.actor == "user:root"]
    assert event.type == "token.created"


def test_the_list_says_what_each_token_is_for(engine: Engine) -> None:
    root = admin(engine)
    old = engine.tokens.create("old", ["work"])
    engine.tokens.revoke(old.token.id)
    engine.tokens.create("elsewhere", ["admin"], namespace="other")
    with served(engine) as client:
        page = words(client.get("/ui/tokens", headers=root).text)
    assert "revoked" in page
    assert "root you" in page
    assert "elsewhere" not in page
    assert old.token.hash not in page


def test_a_revoked_token_is_refused(engine: Engine) -> None:
    root, victim = admin(engine), engine.tokens.create("victim", ["read"])
    with served(engine) as client:
        page = client.get("/ui/tokens", headers=root).text
        path = f"/ui/tokens/{victim.token.id}/revoke"
        assert f'action="{path}"' in page
        assert client.get("/ui/queues", headers=bearer(victim.text)).status_code == 200
        done = client.post(path, headers=root, data={"came_from": "/ui/tokens"})
        assert "The token victim is revoked" in words(done.text)
        assert client.get("/ui/queues", headers=bearer(victim.text)).status_code == 401
        assert f'action="{path}"' not in done.text
    assert engine.audit(tokens=True).events[0].actor == "user:root"


def test_tokens_of_other_namespaces_are_out_of_reach(engine: Engine) -> None:
    root, other = admin(engine), engine.tokens.create("other", ["admin"], namespace="other")
    with served(engine) as client:
        for id_ in (other.token.id, "0" * 16):
            refused = client.post(f"/ui/tokens/{id_}/revoke", headers=root, data=SOME)
            assert f"there is no token {id_} in this namespace" in words(refused.text)
        assert create(client, root, namespace="other").status_code == 200
        assert client.get("/ui/tokens?namespace=other", headers=root).status_code == 403
    assert engine.tokens.get_many([other.token.id])[other.token.id][0].revoked_at is None
    assert [t.namespace for t in engine.tokens.list() if t.name == "ci"] == ["default"]


def test_only_administrators_see_tokens(engine: Engine) -> None:
    admin(engine)
    most = {**HTML, **bearer(engine.tokens.create("most", ["read", "submit", "work", "operate"]).text)}
    with served(engine) as client:
        assert "/ui/tokens" not in client.get("/ui/queues", headers=most).text
        assert client.get("/ui/tokens", headers=most).status_code == 403
        assert create(client, most).status_code == 403
        id_ = engine.tokens.list()[-1].id
        assert client.post(f"/ui/tokens/{id_}/revoke", headers=most).status_code == 403
    assert {t.name for t in engine.tokens.list() if t.revoked_at is None} == {"root", "most"}


def test_a_session_needs_its_csrf_token_to_create_and_revoke(engine: Engine) -> None:
    token = engine.tokens.create("root", ["admin"])
    with served(engine) as client:
        client.headers.update(HTML)
        client.post("/ui/login", data={"token": token.text}, headers={"origin": BASE})
        assert create(client, {}).status_code == 403
        assert client.post(f"/ui/tokens/{token.token.id}/revoke", data=SOME).status_code == 403
        csrf = re.findall(r'name="csrf" value="(\w+)"', client.get("/ui/tokens").text)[0]
        assert create(client, {}, csrf=csrf).status_code == 200
    assert sorted(t.name for t in engine.tokens.list()) == ["ci", "root"]


def test_the_first_token_is_announced_and_then_required(engine: Engine) -> None:
    with served(engine) as client:
        client.headers.update(HTML)
        page = client.get("/ui/tokens").text
        assert "This is the first token" in words(page)
        csrf = re.findall(r'name="csrf" value="(\w+)"', page)[0]
        made = create(client, {}, csrf=csrf, scopes=["admin"])
        [text] = set(TEXT.findall(made.text))
        assert client.get("/ui/tokens", follow_redirects=False).status_code == 303
        assert client.get("/ui/tokens", headers=bearer(text)).status_code == 200


@each_case(
    ("fields", "says"),
    [
        ({"name": ""}, "name"), ({"name": "a\nb"}, "printable"), ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes"), ({"groups": "*"}, "a group cannot be called"),
        ({"expires": "1e9"}, "expires must be"), ({"name": "x" * 5_000}, "name"),
    ],
)  # fmt: skip
def test_a_token_that_cannot_be_is_refused(engine: Engine, fields: dict[str, Any], says: str) -> None:
    root = admin(engine)
    before = len(engine.tokens.list())
    with served(engine) as client:
        back = create(
            client, root, groups=fields.get("groups", "editor"), **{k: v for k, v in fields.items() if k != "groups"}
        )
    assert back.status_code in (400, 413)
    assert says in words(back.text)
    assert fields.get("groups", "editor") in back.text
    assert len(engine.tokens.list()) == before
