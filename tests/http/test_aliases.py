"""Aliases over HTTP, by the remote client, and who may look one up."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from onetray.engine import Engine
from tests.http.callers import served, token
from tests.http.calls import get, post, refusal, sent
from tests.support.cases import each_case

STAGE = {"name": "a", "tasks": [{"kind": "x", "alias": "member"}]}


def test_what_has_an_alias_is_found_over_http(api: TestClient) -> None:
    task = post(api, "/jobs", {"kind": "mail", "alias": "order/17?x=%2F&y"}, 201)["id"]
    flow = post(api, "/jobs", {"name": "f", "stages": [STAGE], "alias": "run"}, 201)
    found = get(api, "/aliases", alias="order/17?x=%2F&y")
    assert found == {"alias": "order/17?x=%2F&y", "entity": "task", "id": task, "job_id": task}
    assert get(api, f"/jobs/{task}")["alias"] == "order/17?x=%2F&y"
    assert get(api, "/aliases", alias="member")["job_id"] == flow["id"] == get(api, "/aliases", alias="run")["id"]
    assert [job["alias"] for job in get(api, "/jobs")["jobs"]] == ["run", "order/17?x=%2F&y"]


def test_a_second_submit_over_http_is_told_what_has_the_alias(api: TestClient) -> None:
    task = post(api, "/jobs", {"kind": "mail", "alias": "a"}, 201)["id"]
    again = sent(api, "/jobs", {"kind": "mail", "alias": "a"})
    assert refusal(again) == (409, "alias_taken")
    assert (again.json()["entity"], again.json()["id"]) == ("task", task)


@each_case("alias", ["", "a\nb", "x" * 201, 5, None])
def test_bad_aliases_are_refused(shop: TestClient, alias: Any) -> None:
    if alias is not None:
        assert sent(shop, "/jobs", {"kind": "mail", "alias": alias}).status_code in (400, 413, 422)
    query = {} if alias is None else {"alias": alias}
    assert shop.get("/api/v1/aliases", params=query).status_code in (400, 404, 413, 422)


def test_another_namespace_finds_nothing(engine: Engine) -> None:
    here, there = token(engine, "read", namespace="a"), token(engine, "read", namespace="b")
    id_ = engine.submit("mail", alias="x", namespace="a").id
    with served(engine) as client:
        found = [client.get("/api/v1/aliases", params={"alias": "x"}, headers=caller) for caller in (here, there)]
    assert [f.status_code for f in found] == [200, 404]
    assert found[0].json()["id"] == id_
