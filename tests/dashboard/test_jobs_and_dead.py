"""The pages of jobs, dead letters and operations on many jobs."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from fastapi.testclient import TestClient

from onetray.domain.clock import VirtualClock
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.dashboard.test_session import browser, csrf_of, log_in
from tests.http.callers import BASE
from tests.support.cases import each_case
from tests.support.tasks import UNKNOWN_ID, in_state, submit, take

MARKUP = "<script>alert(1)</script>"
PAGES = ("/ui/jobs", "/ui/dead", "/ui/dead/letters", "/ui/bulk", "/ui/bulk/new?action=cancel")


def letters(engine: Engine, count: int, message: str = "mailbox full", kind: str = "mail") -> list[str]:
    engine.configure(kind, Policy(max_attempts=1))
    ids = [submit(engine, kind, queue=kind) for _ in range(count)]
    for claimed in engine.claim(kind, worker="w", limit=count):
        engine.fail(claimed, message, error_class="SmtpError")
    return ids


def posted(client: TestClient, path: str, page: str = "/ui/queues", **data: Any) -> Any:
    return client.post(
        path, data={"csrf": csrf_of(client, page), "came_from": "/ui/jobs", **data}, headers={"origin": BASE}
    )


def carry_out(engine: Engine) -> None:
    steps = engine.bulk_steps()
    while any(b.state == "running" for b in engine.bulks()):
        steps.step()


def test_jobs_are_filtered_by_the_url_and_counted_by_state(engine: Engine) -> None:
    mail = submit(engine, "mail", labels={"team": "a"})
    sync = submit(engine, "sync", queue="slow")
    with browser(engine) as client:
        everything = client.get("/ui/jobs").text
        assert mail in everything
        assert sync in everything
        for query in ("kind=mail", "q=" + mail, "label=team%3Da", "queue=default", "q=mail"):
            page = client.get(f"/ui/jobs?{query}")
            assert (page.status_code, mail in page.text, sync in page.text) == (200, True, False), query
        none = client.get("/ui/jobs?state=failed").text
        assert mail not in none
        assert "No job matches" in none
        # The tabs count all states, whichever is shown.
        assert re.search(r'queued <span class="count">2</span>', none)


def test_pages_of_jobs_follow_each_other(engine: Engine) -> None:
    ids = [submit(engine) for _ in range(60)]
    with browser(engine) as client:
        first = client.get("/ui/jobs").text
        (older,) = re.findall(r'rel="next" href="([^"]+)"', first)
        second = client.get(unescape(older)).text
    assert ids[-1] in first
    assert ids[0] not in first
    assert ids[0] in second
    assert ids[-1] not in second


def test_markup_of_users_is_shown_as_text(engine: Engine) -> None:
    job = submit(engine, MARKUP, labels={MARKUP: MARKUP}, queue=MARKUP)
    letters(engine, 1, MARKUP, kind=f"k{MARKUP}")
    started = engine.start_bulk("cancel", {"kind": MARKUP}, reason=MARKUP, by=MARKUP)
    with browser(engine) as client:
        pages = [*PAGES, f"/ui/bulk/{started.id}", f"/ui/jobs?q={MARKUP}&kind={MARKUP}&label=a%3D{MARKUP}",
                 f"/ui/dead?error={MARKUP}", f"/ui/bulk/new?action=cancel&id={job}"]  # fmt: skip
        for path in pages:
            page = client.get(path)
            assert page.status_code == 200, path
            assert MARKUP not in page.text, path
        assert "&lt;script&gt;" in client.get("/ui/jobs").text


def test_a_reader_sees_no_buttons_and_may_not_act(engine: Engine) -> None:
    ids = letters(engine, 2)
    submit(engine)
    with browser(engine) as client:
        log_in(client, engine, "read")
        for path in ("/ui/jobs", "/ui/dead", f"/ui/dead/letters?alike={ids[0]}", "/ui/bulk"):
            page = client.get(path)
            assert page.status_code == 200
            assert "/ui/bulk/new?" not in page.text, path
            assert 'type="checkbox"' not in page.text, path
            assert set(re.findall(r'method="post" action="([^"]+)"', page.text)) == {"/ui/logout"}, path
        assert client.get("/ui/bulk/new?action=cancel").status_code == 403
        refused = posted(client, "/ui/bulk/start", "/ui/queues", action="cancel", sure="1")
        assert refused.status_code == 403
    assert engine.bulks() == []


def test_a_form_without_the_token_of_its_session_does_nothing(engine: Engine) -> None:
    (letter,) = letters(engine, 1)
    with browser(engine) as client:
        log_in(client, engine)
        for path in ("/ui/bulk/start", f"/ui/dead/{letter}/redrive", f"/ui/dead/{letter}/delete"):
            answer = client.post(path, data={"action": "cancel", "sure": "1"}, headers={"origin": BASE})
            assert answer.status_code == 403, path
    assert engine.bulks() == []
    assert [line.id for line in engine.dead_lines()] == [letter]


def test_all_matching_jobs_are_cancelled_after_a_preview(engine: Engine) -> None:
    ids = [submit(engine, "mail") for _ in range(3)]
    other = submit(engine, "sync")
    with browser(engine) as client:
        preview = client.get("/ui/bulk/new?action=cancel&kind=mail")
        assert "Cancel 3 jobs" in preview.text
        unsure = posted(client, "/ui/bulk/start", action="cancel", kind="mail")
        assert unsure.headers["location"] == "/ui/jobs"
        assert "tick the box" in client.get("/ui/jobs").text
        started = posted(client, "/ui/bulk/start", action="cancel", kind="mail", sure="1", reason="no more")
        assert started.headers["location"] == f"/ui/bulk/{engine.bulks()[0].id}"
        carry_out(engine)
        page = client.get(started.headers["location"]).text
        assert "3 done" in page
        assert "no more" in page
    assert {engine.task(id_).state for id_ in ids} == {"cancelled"}
    assert engine.task(other).state == "queued"


def test_selected_jobs_are_retried(engine: Engine) -> None:
    first, second = in_state(engine, "failed").id, in_state(engine, "failed").id
    with browser(engine) as client:
        preview = client.get(f"/ui/bulk/new?action=retry&id={first}").text
        assert "Retry 1 job<" in preview
        assert first in preview
        assert second not in preview
        posted(client, "/ui/bulk/start", action="retry", id=first)
    carry_out(engine)
    assert engine.retried([first, second]) == [first]


def test_a_group_is_redriven_by_a_canary_and_then_the_rest(engine: Engine, clock: VirtualClock) -> None:
    full = letters(engine, 4, "mailbox 17 is full")
    letters(engine, 1, "no such user")
    clock.advance(1)
    with browser(engine) as client:
        groups = client.get("/ui/dead").text
        assert "mailbox # is full" in groups
        lines = client.get(f"/ui/dead/letters?alike={full[0]}").text
        assert all(id_ in lines for id_ in full)
        assert "Redrive 4 dead letters" in client.get(f"/ui/bulk/new?action=redrive&alike={full[0]}").text
        started = posted(client, "/ui/bulk/start", action="redrive", alike=full[0], canary="1", sure="1")
        carry_out(engine)
        page = started.headers["location"]
        assert "Do the rest" in client.get(page).text
        engine.succeed(take(engine, queue="mail"))
        assert "1 of 1 succeeded" in client.get(page).text
        posted(client, f"{page}/resume", page)
        carry_out(engine)
        assert "4 done" in client.get(page).text
    assert [line.message for line in engine.dead_lines()] == ["no such user"]


def test_one_letter_is_redriven_and_one_deleted(engine: Engine) -> None:
    first, second = letters(engine, 2)
    with browser(engine) as client:
        where = f"/ui/dead/letters?alike={first}"
        assert posted(client, f"/ui/dead/{first}/redrive", where).status_code == 303
        assert posted(client, f"/ui/dead/{second}/delete", where).status_code == 303
    assert engine.dead_lines() == []
    assert engine.retried([first]) == [first]


def test_secrets_are_not_shown(engine: Engine) -> None:
    engine.configure("mail", Policy(max_attempts=1, redact=("password",)))
    id_ = submit(engine, "mail", {"password": "hunter2"}, labels={"pass": "hunter2"})
    engine.fail(take(engine), "hunter2 is wrong")
    with browser(engine) as client:
        for path in ("/ui/jobs", "/ui/dead", f"/ui/dead/letters?alike={id_}", "/ui/bulk/new?action=redrive"):
            page = client.get(path)
            assert page.status_code == 200
            assert "hunter2" not in page.text, path


def test_a_token_never_sees_another_namespace(engine: Engine) -> None:
    theirs = submit(engine, namespace="other")
    operation = engine.start_bulk("cancel", namespace="other")
    with browser(engine) as client:
        log_in(client, engine)
        assert theirs not in client.get("/ui/jobs").text
        assert client.get(f"/ui/bulk/{operation.id}").status_code == 404
        assert operation.id not in client.get("/ui/bulk").text
        posted(client, f"/ui/bulk/{operation.id}/stop", "/ui/queues")
    assert engine.bulk(operation.id, namespace="other").state == "running"


BAD = (
    "/ui/jobs?before=x", "/ui/jobs?label=x", "/ui/jobs?from=yesterday", "/ui/jobs?state=lost", "/ui/jobs?q=a%00b",
    "/ui/jobs?entity=stage", "/ui/jobs?id=x", "/ui/dead?reason=bad", "/ui/dead/letters?alike=x",
    "/ui/dead/letters?after=1", f"/ui/dead/letters?alike={UNKNOWN_ID}", "/ui/bulk/new?action=drop", "/ui/bulk/x",
    f"/ui/bulk/{UNKNOWN_ID}", "/ui/bulk/new?action=cancel&id=x",
)  # fmt: skip


@each_case("path", BAD)
def test_a_bad_url_is_refused_with_a_page(shared_engine: Engine, path: str) -> None:
    with browser(shared_engine) as client:
        page = client.get(path)
    assert page.status_code in (400, 404, 422), page.text
    assert "<html" in page.text
