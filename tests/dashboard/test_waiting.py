"""What waits for a person: the list, the forms, who may answer, and answers that come too late, on both databases."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onetray.dashboard.views import waiting as views
from onetray.domain.clock import VirtualClock
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.lifecycle import WAITING_INPUT
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.http.callers import BASE, bearer, served
from tests.support.cases import each_case
from tests.support.engines import must_verify
from tests.support.tasks import submit, take

HTML = {"accept": "text/html"}
MARKUP = '"><script>alert(1)</script>'
FORM = {
    "type": "object",
    "required": ["budget", "city"],
    "properties": {
        "budget": {"type": "integer", "minimum": 1, "title": "Budget"},
        "city": {"type": "string", "minLength": 2},
        "urgent": {"type": "boolean", "default": False},
        "who": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}},
    },
}


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    with served(engine) as found:
        found.headers.update(HTML)
        yield found


def approval(engine: Engine, **fields: Any) -> str:
    stage = StageSpec("publish", [TaskSpec("x")], approval=Approval(**fields))
    return engine.submit_flow("news", [stage]).stages[0]


def asking(
    engine: Engine, form: Any = None, question: str = "Which address?", owner: str = "ann", **fields: Any
) -> str:
    submit(engine, kind="letter", **fields)
    job = take(engine)
    engine.start(job)
    if form is not None:
        engine.checkpoint(job, {"form": form, "notes": "the first bounced"})
    engine.pause(job, state=WAITING_INPUT, owner=owner, reason=question)
    return job.id


def words(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text.partition("<main")[2])).split())


def answer(client: TestClient, path: str, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    """Fill in the form of a page, and send it."""
    page = client.get(path, headers=headers).text
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page))
    typed = {name.replace("__", "/"): value for name, value in fields.items()}
    return client.post(path, data={**hidden, **typed}, headers=headers)


def of(id_: str, entity: str = "stage") -> str:
    return f"/ui/waiting/{entity}/{id_}"


# The list.


def test_the_list_is_oldest_first_and_says_who_is_asked_what(
    client: TestClient, engine: Engine, clock: VirtualClock
) -> None:
    assert "Nothing waits for a person" in words(client.get("/ui/waiting").text)
    first = approval(engine, owner="editor", reason=f"May it go out? {MARKUP}", deadline_s=3_600)
    clock.advance(60)
    second = asking(engine)
    clock.advance(60)
    page = client.get("/ui/waiting").text
    assert page.index(first) < page.index(second)
    shown = words(page)
    assert f"approval news / publish {engine.stage(first).flow_id[-8:]} May it go out? {MARKUP} for editor" in shown
    assert "deadline in 58 min" in shown
    assert "question letter" in shown
    assert "Which address? for ann" in shown
    assert MARKUP not in page


def test_stages_whose_turn_has_not_come_are_left_out(client: TestClient, engine: Engine) -> None:
    flow = engine.submit_flow("news", [
        StageSpec("write", [TaskSpec("x")]), StageSpec("publish", [TaskSpec("x")], approval=Approval()),
    ])  # fmt: skip
    assert engine.stage(flow.stages[1]).state == "waiting"
    assert engine.waiting().entries == []
    assert flow.stages[1] not in client.get("/ui/waiting").text
    early = client.get(of(flow.stages[1]))
    assert "not the turn of this stage yet" in words(early.text)
    assert 'value="approve"' not in early.text


def test_the_list_goes_on_over_pages(
    client: TestClient, engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "PER_PAGE", 2)
    wanted = []
    for number in range(5):
        wanted.append(asking(engine) if number % 2 else approval(engine))
        if number != 2:
            clock.advance(1)
    seen: list[str] = []
    path = "/ui/waiting"
    while path:
        page = client.get(path).text
        seen += re.findall(r'data-key="([^"]+)"', page)
        path = html.unescape(next(iter(re.findall(r'rel="next" href="([^"]+)"', page)), ""))
    assert seen == wanted


def test_the_read_ends_however_many_stages_are_not_to_be_answered(engine: Engine) -> None:
    later = StageSpec("publish", [TaskSpec("x")], approval=Approval())
    for _ in range(7):
        engine.submit_flow("news", [StageSpec("write", [TaskSpec("x")]), later])
    last = approval(engine)
    found, pages = [], 0
    since: int | None = 0
    after: int | None = 0
    while after is not None and since is not None:
        entries, since, after = engine.waiting(since=since, after=after, limit=1)
        found += entries
        pages += 1
    assert [entry.id for entry in found] == [last]
    assert pages <= 3
    assert engine.waiting(namespace="other").entries == []


# Answers.


def test_an_approval_is_given_with_its_input_and_a_comment(client: TestClient, engine: Engine) -> None:
    stage = approval(engine, form=FORM)
    done = answer(
        client, of(stage), v__budget="7", v__city="Ulm", v__urgent="true", v__who__name="Eve", note="go", by="bob",
        verdict="approve",
    )  # fmt: skip
    assert done.url.path == "/ui/waiting"
    assert "publish is approved" in words(done.text)
    given = engine.stage(stage).answer
    assert (given["by"], given["verdict"], given["note"]) == ("user:bob", "approved", "go")
    assert given["input"] == {"budget": 7, "city": "Ulm", "urgent": True, "who": {"name": "Eve"}}
    assert f"bob has {given['verdict']} it" in words(client.get(of(stage)).text)
    must_verify(engine)


def test_an_approval_without_a_form_takes_a_comment_only(client: TestClient, engine: Engine) -> None:
    stage = approval(engine)
    answer(client, of(stage), verdict="approve")
    given = engine.stage(stage).answer
    assert (given["by"], given["input"], given["note"]) == ("user:local", None, None)


def test_a_rejection_needs_no_input(client: TestClient, engine: Engine) -> None:
    stage = approval(engine, form=FORM)
    done = answer(client, of(stage), verdict="reject", note="not this week")
    assert "publish is rejected" in words(done.text)
    assert engine.stage(stage).answer["note"] == "not this week"
    assert engine.stage(stage).state == "failed"


def test_what_is_wrong_is_said_beside_its_field_and_what_was_typed_stays(client: TestClient, engine: Engine) -> None:
    stage = approval(engine, form=FORM)
    back = answer(client, of(stage), v__budget="0", v__city="U", v__who__name=MARKUP, note="hm", verdict="approve")
    assert (back.status_code, back.headers["cache-control"]) == (400, "no-store")
    assert back.text.count('class="wrong"') == 3
    for name, says in (
        ("budget", "0 is less than the minimum of 1"),
        ("city", "is too short"),
        ("who/name", "too long"),
    ):
        about = re.search(rf'id="v/{name}-about">(.*?)</div>', back.text)
        assert about is not None
        assert says in html.unescape(about[1])
    for typed in ('value="0"', 'value="U"', 'value="hm"', html.escape(MARKUP).replace("&quot;", "&#34;")):
        assert typed in back.text
    assert MARKUP not in back.text
    assert engine.stage(stage).state == "waiting"


def test_what_is_missing_or_of_another_type_is_said_beside_its_field(client: TestClient, engine: Engine) -> None:
    stage = approval(engine, form=FORM)
    back = answer(client, of(stage), v__budget="many", verdict="approve")
    assert back.status_code == 400
    assert "'many' is not a whole number" in words(back.text)
    assert "fill this in" in words(back.text)
    back = answer(client, of(stage), **{"v.json": '{"budget": 3}'}, verdict="approve")
    assert "'city' is a required property" in words(back.text)
    assert re.search(r'id="v/city-about"><p class="wrong">', back.text)
    assert "{&#34;budget&#34;: 3}" in back.text


def test_somebody_else_has_answered_meanwhile(client: TestClient, engine: Engine) -> None:
    for verb in ("approve_stage", "reject_stage"):
        stage = approval(engine, form={"type": "object", "properties": {"why": {"type": "string"}}})
        page = client.get(of(stage)).text
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page))
        fields = {"input": {"why": "first"}} if verb == "approve_stage" else {}
        engine.do(verb, flow=stage, actor_name="ann", **fields)
        back = client.post(of(stage), data={**hidden, "verdict": "approve", "v/why": "a long text", "note": "mine"})
        assert back.status_code == 409
        assert "ann has" in words(back.text)
        assert re.search(r"(your answer|yours) was not used", words(back.text))
        assert 'value="a long text"' in back.text
        assert 'value="mine"' in back.text
        assert 'class="flash error"' in back.text
        assert engine.stage(stage).answer["by"] == "user:ann"


def test_a_question_is_answered_by_its_form(client: TestClient, engine: Engine) -> None:
    task = asking(engine, FORM, question=f"Where to? {MARKUP}")
    page = client.get(of(task, "task")).text
    assert f"Where to? {MARKUP}" in words(page)
    assert MARKUP not in page
    assert "the first bounced" in words(page)
    back = answer(client, of(task, "task"), v__budget="7", v__city="U")
    assert (back.status_code, "is too short" in words(back.text)) == (400, True)
    assert engine.task(task).state == "waiting_input"
    done = answer(client, of(task, "task"), v__budget="7", v__city="Ulm", note="as agreed", by="bob")
    assert "letter continues with your answer" in words(done.text)
    assert engine.task(task).input == {"budget": 7, "city": "Ulm", "urgent": False}
    [resumed] = [e for e in engine.events(task) if e.type == "task.resumed"]
    assert (resumed.actor, resumed.cause) == ("user:bob", "as agreed")
    must_verify(engine)


def test_a_question_without_a_form_takes_a_text(client: TestClient, engine: Engine) -> None:
    task = asking(engine)
    answer(client, of(task, "task"), v="to the <old> one")
    assert engine.task(task).input == "to the <old> one"


def test_an_answer_to_an_earlier_question_is_not_taken_for_the_next(client: TestClient, engine: Engine) -> None:
    task = asking(engine, question="Which address?")
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', client.get(of(task, "task")).text))
    engine.resume(task, input="home")
    back = client.post(of(task, "task"), data={**hidden, "v": "work"})
    assert (back.status_code, "your answer was not used" in words(back.text)) == (409, True)
    assert "work</textarea>" in back.text
    job = take(engine)
    engine.start(job)
    engine.pause(job, state=WAITING_INPUT, owner="ann", reason="Delete it all?")
    back = client.post(of(task, "task"), data={**hidden, "v": "yes"})
    assert (back.status_code, engine.task(task).state) == (409, "waiting_input")


# Who may.


def test_only_those_who_are_asked_may_answer_and_others_see_why(engine: Engine) -> None:
    stage = approval(engine, owner="editor", form=FORM)

    def token(name: str, *scopes: str, **fields: Any) -> dict[str, str]:
        return bearer(engine.tokens.create(name, scopes, **fields).text)

    reader, bob = token("rita", "read"), token("bob", "read", "operate")
    eve = token("eve", "read", "operate", groups=["editor"])
    good = {"v/budget": "7", "v/city": "Ulm", "verdict": "approve", "by": "mallory"}
    with served(engine) as client:
        client.headers.update(HTML)
        for headers, why in ((reader, "lacks the scope operate"), (bob, "waits for 'editor', and 'bob' is neither")):
            assert why in words(client.get("/ui/waiting", headers=headers).text)
            page = client.get(of(stage), headers=headers).text
            assert why in words(page)
            assert 'value="approve"' not in page
            refused = client.post(of(stage), data=good, headers=headers)
            assert refused.status_code == 403
            assert engine.stage(stage).state == "waiting"
        assert 'value="Ulm"' in refused.text
        assert client.post(of(stage), data=good, headers=eve).status_code == 200
        # With tokens, the token says who it is.
        assert engine.stage(stage).answer["by"] == "user:eve"


def test_other_namespaces_and_other_origins_are_refused(engine: Engine) -> None:
    stage, task = approval(engine), asking(engine)
    elsewhere = bearer(engine.tokens.create("ann", ["admin"], namespace="other").text)
    with served(engine) as client:
        client.headers.update(HTML)
        assert stage not in client.get("/ui/waiting", headers=elsewhere).text
        for path in (of(stage), of(task, "task")):
            assert client.get(path, headers=elsewhere).status_code == 404
            sent = client.post(path, data={"verdict": "approve", "v": "x"}, headers=elsewhere)
            assert sent.status_code in (303, 200, 404)
    assert (engine.stage(stage).state, engine.task(task).state) == ("waiting", "waiting_input")


def test_a_form_needs_its_csrf_token(engine: Engine) -> None:
    stage = approval(engine)
    token = engine.tokens.create("ann", ["admin"]).text
    with served(engine) as client:
        client.headers.update(HTML)
        client.post("/ui/login", data={"token": token}, headers={"origin": BASE})
        assert client.post(of(stage), data={"verdict": "approve"}).status_code == 403
        assert client.post(of(stage), data={"verdict": "approve", "csrf": "0" * 64}).status_code == 403
        assert engine.stage(stage).state == "waiting"
        assert answer(client, of(stage), verdict="approve").status_code == 200
    assert engine.stage(stage).answer["by"] == "user:ann"


# Hostile schemas.

HOSTILE: list[dict[str, Any]] = [
    {"type": "object", "title": MARKUP, "description": MARKUP, "properties": {
        MARKUP: {"title": MARKUP, "description": MARKUP, "enum": [MARKUP, "b"], "default": MARKUP},
        "</textarea><script>": {"type": "string", "default": f"</textarea>{MARKUP}\n"},
        "x": {"const": MARKUP}, "y": {"type": "string", "pattern": '^">'}, "z": {"default": {MARKUP: MARKUP}},
    }, "required": ["x"]},
    {"$ref": "#"},
    {"type": "object", "properties": {"a": {"$ref": "#"}}},
    {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3_000)}},
    {"type": "object", "properties": {"a": {"enum": list(range(5_000))}}},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$", "default": "a" * 40 + "!"}}},
]  # fmt: skip


@each_case("schema", HOSTILE)
def test_a_hostile_schema_is_drawn_without_harm(engine: Engine, schema: dict[str, Any]) -> None:
    task = asking(engine, schema)
    stage = approval(engine, form=schema)
    with served(engine) as client:
        client.headers.update(HTML)
        for path in (of(task, "task"), of(stage)):
            page = client.get(path)
            assert page.status_code == 200
            assert "<script>alert" not in page.text
            assert page.text.count("<script") == 1
            assert len(page.text) < 200_000
    engine.resume(task)
    take(engine)


def test_redacted_fields_of_what_is_asked_about_stay_hidden(client: TestClient, engine: Engine) -> None:
    engine.configure("letter", Policy(redact=("secret",)))
    task = asking(engine, payload={"secret": "hunter2", "open": "yes"})
    page = client.get(of(task, "task")).text
    assert "hunter2" not in page
    assert "&#34;open&#34;: &#34;yes&#34;" in page
