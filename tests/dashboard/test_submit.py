"""Submitting from the page: flows with their forms, kinds with JSON, options, and forms that are sent twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onetray.domain.declared_flow import FlowDeclaration, StageDeclaration
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.dashboard.test_waiting import HOSTILE, HTML, MARKUP, words
from tests.http.callers import bearer, served
from tests.support.cases import each_case

SCHEMA = {
    "type": "object",
    "required": ["width"],
    "properties": {
        "width": {"type": "integer", "minimum": 1},
        "format": {"enum": ["png", "jpg"], "default": "png"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    engine.declare_flow(flow("thumbs", SCHEMA))
    engine.configure("mail", Policy())
    with served(engine) as found:
        found.headers.update(HTML)
        yield found


def flow(name: str, schema: Any) -> FlowDeclaration:
    return FlowDeclaration(name=name, stages=[StageDeclaration(name="one", kind="resize")], config_schema=schema)


def filled(client: TestClient, path: str, **fields: str) -> dict[str, str]:
    """The form of a page, filled in."""
    page = client.get(path).text
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page))
    return {**hidden, **{name.replace("__", "/"): value for name, value in fields.items()}}


def jobs(engine: Engine) -> list[str]:
    return [job.id for job in engine.jobs().jobs]


FLOW, KIND = "/ui/submit?flow=thumbs", "/ui/submit?kind=mail"


def test_what_can_be_submitted_is_found_by_a_part_of_its_name(client: TestClient) -> None:
    page = words(client.get("/ui/submit").text)
    assert "thumbs" in page
    assert "mail" in page
    found = words(client.get("/ui/submit?q=THU").text)
    assert ("thumbs" in found, "mail" in found) == (True, False)
    assert "No flow or kind has <b> in its name" in words(client.get("/ui/submit?q=%3Cb%3E").text)


def test_a_flow_is_submitted_by_its_form(client: TestClient, engine: Engine) -> None:
    page = client.get(FLOW).text
    assert 'name="v/width"' in page
    assert "selected>png" in page
    form = filled(client, FLOW, v__width="640", v__format='"jpg"', v__tags="a\r\nb", priority="3", labels="tenant=a")
    client.post(FLOW, data=form)
    [job] = engine.flows()
    assert (job.name, job.data, job.priority) == ("thumbs", {"width": 640, "format": "jpg", "tags": ["a", "b"]}, 3)
    assert job.labels == {"tenant": "a"}


def test_a_task_is_submitted_with_its_options(client: TestClient, engine: Engine) -> None:
    form = filled(
        client, KIND, v='{"to": "ann"}', queue="slow", priority="-2", run_at="2100-01-01T10:00",
        labels="a=b=c\r\n\r\ne=f", idempotency_key="k",
    )  # fmt: skip
    assert client.post(KIND, data=form).status_code == 200
    [id_] = jobs(engine)
    task = engine.task(id_)
    assert (task.payload, task.queue, task.priority, task.labels) == ({"to": "ann"}, "slow", -2, {"a": "b=c", "e": "f"})
    assert task.run_at == 4_102_480_800_000_000
    assert engine.submit("mail", {"to": "ann"}, queue="slow", idempotency_key="k").repeated


def test_a_form_that_is_sent_twice_submits_once(client: TestClient, engine: Engine) -> None:
    for path, typed in ((KIND, {"v": "1"}), (FLOW, {"v/width": "9"})):
        before = len(jobs(engine))
        form = {**filled(client, path), **typed}
        client.post(path, data=form)
        client.post(path, data=form)
        assert len(jobs(engine)) == before + 1
        # Another content is not lost, and not mistaken for the first.
        back = client.post(path, data={**form, "v": "2", "v/width": "10"})
        assert (back.status_code, len(jobs(engine))) == (409, before + 1)
        assert "submitted a job already" in words(back.text)
        once = re.search(r'name="once" value="(\w+)"', back.text)
        assert once is not None
        client.post(path, data={**form, "v": "2", "v/width": "10", "once": once[1]})
        assert len(jobs(engine)) == before + 2


@each_case(
    ("path", "typed", "says", "field"),
    [
        (FLOW, {"v/width": "0"}, "0 is less than the minimum of 1", "v/width"),
        (FLOW, {"v/width": "x"}, "'x' is not a whole number", "v/width"),
        (FLOW, {"v.json": '{"width": 1, "format": "gif"}'}, "'gif' is not one of", "v/format"),
        (KIND, {"v": "{"}, "this is not JSON", "v"),
        (KIND, {"v": "1", "labels": "novalue"}, "name=value", "labels"),
        (KIND, {"v": "1", "priority": "high"}, "must be a whole number", "priority"),
        (KIND, {"v": "1", "delay_s": "soon"}, "number of seconds", "delay_s"),
        (KIND, {"v": "1", "delay_s": "-1"}, "delay_s", "delay_s"),
        (KIND, {"v": "1", "run_at": "tomorrow"}, "must be a time", "run_at"),
        (KIND, {"v": "1", "queue": "x" * 5_000}, "queue", "queue"),
    ],
)
def test_what_is_wrong_is_said_beside_its_field(
    engine: Engine, path: str, typed: dict[str, str], says: str, field: str
) -> None:
    engine.declare_flow(flow("thumbs", SCHEMA))
    engine.configure("mail", Policy())
    with served(engine) as client:
        client.headers.update(HTML)
        before = jobs(engine)
        back = client.post(path, data={**filled(client, path), **typed})
        assert back.status_code in (400, 413)
        about = re.search(rf'id="{field}-about">(.*?)</div>', back.text, re.DOTALL)
        assert about is not None
        assert says in words(f"<main>{about[1]}")
        for text in typed.values():
            assert text.replace('"', "&#34;").replace("'", "&#39;") in back.text
        assert jobs(engine) == before


def test_what_there_is_not_cannot_be_submitted(client: TestClient, engine: Engine) -> None:
    for path in ("/ui/submit?flow=nothing", "/ui/submit?kind=%3Cb%3E"):
        assert client.get(path).status_code == 404
        client.post(path, data=filled(client, KIND, v="1"))
    assert jobs(engine) == []


def test_a_reader_cannot_submit(client: TestClient, engine: Engine) -> None:
    reader = bearer(engine.tokens.create("rita", ["read"]).text)
    assert "/ui/submit" not in client.get("/ui/queues", headers=reader).text
    assert "may not submit" in client.get(KIND, headers=reader).text
    assert client.post(KIND, data={"v": "1"}, headers=reader).status_code == 403
    other = bearer(engine.tokens.create("otto", ["read", "submit"], namespace="other").text)
    assert client.get(FLOW, headers=other).status_code == 404
    mine = bearer(engine.tokens.create("sue", ["read", "submit"]).text)
    assert client.post(KIND, data={"v": "1", "once": "x"}, headers=mine).status_code == 200
    assert len(jobs(engine)) == 1


@each_case("schema", HOSTILE)
def test_a_hostile_schema_is_drawn_without_harm(engine: Engine, schema: dict[str, Any]) -> None:
    engine.declare_flow(flow(f"evil {MARKUP}", schema))
    with served(engine) as client:
        client.headers.update(HTML)
        page = client.get("/ui/submit", params={"flow": f"evil {MARKUP}"})
        assert page.status_code == 200
        assert page.text.count("<script") == 1
        assert "<script>alert" not in client.get("/ui/submit").text
