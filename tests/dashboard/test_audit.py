"""The audit: who did what, with filters and pages, on both databases."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from onetray.dashboard.views import audit as views
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.dashboard.test_waiting import HTML, MARKUP, approval, words
from tests.http.callers import bearer, served
from tests.support.tasks import submit, take


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    with served(engine) as found:
        found.headers.update(HTML)
        yield found


def rows(page: str) -> list[str]:
    return [words(f"<main>{row}") for row in re.findall(r"<tr data-key.*?</tr>", page, re.DOTALL)]


def test_what_people_did_is_listed_newest_first(client: TestClient, engine: Engine) -> None:
    assert "Nobody has done anything yet" in words(client.get("/ui/audit").text)
    engine.pause_queue("mail", by="ann", reason=MARKUP)
    submit(engine, kind="mail")
    dead = take(engine).id
    engine.dead_letter(dead, "timeout", "no")
    stage = approval(engine)
    engine.approve_stage(stage, actor_name="bob", note="fine")
    engine.redrive(dead, actor_name="cem")
    gone = submit(engine, kind="mail")
    engine.cancel(gone, actor_name="dan")
    page = client.get("/ui/audit").text
    found = rows(page)
    assert [re.search(r"\w+\.\w+", row)[0] for row in found] == [  # type: ignore[index]
        "task.cancelled", "task.redriven", "stage.approved", "queue.paused",
    ]  # fmt: skip
    assert f"dan task.cancelled {gone[-8:]}" in found[0]
    assert f"bob stage.approved {engine.stage(stage).flow_id[-8:]} fine" in found[2]
    assert f"ann queue.paused queue mail {MARKUP}" in found[3]
    assert MARKUP not in page


def test_it_is_filtered_by_person_and_by_type(client: TestClient, engine: Engine) -> None:
    for name in ("ann", "bob"):
        engine.pause_queue(name, by=name)
        engine.resume_queue(name, by=name)
    assert len(rows(client.get("/ui/audit").text)) == 4
    assert len(rows(client.get("/ui/audit?person=ann").text)) == 2
    [only] = rows(client.get("/ui/audit?person=ann&type=queue.resumed").text)
    assert "queue ann" in only
    assert "Nobody has done anything like this" in words(client.get("/ui/audit", params={"person": MARKUP}).text)
    assert client.get("/ui/audit?type=nothing").status_code == 400
    assert client.get("/ui/audit?before=x").status_code == 400


def test_it_goes_on_over_pages(client: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PER_PAGE", 2)
    for number in range(5):
        engine.pause_queue(f"q{number}", by="ann")
    seen: list[str] = []
    path = "/ui/audit?person=ann"
    while path:
        page = client.get(path).text
        seen += re.findall(r"queue (q\d)", " ".join(rows(page)))
        path = html.unescape(next(iter(re.findall(r'rel="next" href="([^"]+)"', page)), ""))
    assert seen == ["q4", "q3", "q2", "q1", "q0"]


def test_only_administrators_see_what_is_about_tokens_and_nobody_another_namespace(engine: Engine) -> None:
    made = engine.tokens.create("rita", ["read"], by="root")
    root = bearer(engine.tokens.create("root", ["admin"], by="root").text)
    other = bearer(engine.tokens.create("otto", ["admin"], namespace="other", by="otto").text)
    engine.pause_queue("mail", by="ann")
    with served(engine) as client:
        client.headers.update(HTML)
        seen = rows(client.get("/ui/audit", headers=bearer(made.text)).text)
        assert ["queue.paused" in row for row in seen] == [True]
        for path in ("/ui/audit?type=token.created", "/ui/audit?type=token.created&tokens=1"):
            assert rows(client.get(path, headers=bearer(made.text)).text) == []
        assert "token rita" in " ".join(rows(client.get("/ui/audit?type=token.created", headers=root).text))
        elsewhere = " ".join(rows(client.get("/ui/audit", headers=other).text))
        assert "token otto" in elsewhere
        assert "mail" not in elsewhere
        assert client.get("/ui/audit?namespace=other", headers=root).status_code == 403


def test_a_changed_limit_is_named(client: TestClient, engine: Engine) -> None:
    engine.configure("send", Policy(fair_by="tenant"))
    engine.set_limit(queue="mail", concurrency=3, by="ann", reason="slow server")
    engine.set_weight("send", '"acme"', 2, by="bob")
    weight, limit = rows(client.get("/ui/audit").text)
    assert "limit concurrency of queue mail" in limit
    assert "weight send" in weight
