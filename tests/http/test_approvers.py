"""Through a server, the token says who answers an approval, and who reads what about tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.lifecycle import AUDIT_TYPES
from onetray.engine import Engine
from tests.http.calls import refusal
from tests.support.engines import must_verify

Sender = Callable[..., Any]


@pytest.fixture
def token(engine: Engine) -> Callable[..., dict[str, str]]:
    """Makes a token, and the header that sends it."""

    def make(name: str, *scopes: str, **fields: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {engine.tokens.create(name, scopes or ['operate'], **fields).text}"}

    return make


def waiting(engine: Engine, **fields: Any) -> str:
    stage = StageSpec("publish", [TaskSpec("x")], approval=Approval(owner="editor"))
    return engine.submit_flow("f", [stage], **fields).stages[0]


def by_route(api: TestClient, stage: str, verb: str, headers: dict[str, str], **body: Any) -> Any:
    return api.post(f"/api/v1/stages/{stage}/{verb}", json=body, headers=headers)


def in_batch(api: TestClient, stage: str, verb: str, headers: dict[str, str], **body: Any) -> Any:
    commands = {"commands": [{"verb": f"{verb}_stage", "stage": stage, **body}]}
    return api.post("/api/v1/commands", json=commands, headers=headers)


@pytest.mark.parametrize("verb", ["approve", "reject", "skip"])
def test_a_token_answers_in_its_name_or_for_its_groups_only(
    engine: Engine, api: TestClient, token: Sender, verb: str
) -> None:
    bob, ann, editor = token("bob"), token("ann", groups=["editor"]), token("editor")
    for allowed in (ann, editor):
        stage = waiting(engine)
        found = by_route(api, stage, verb, bob)
        assert refusal(found) == (403, "not_approver")
        assert (found.json()["owner"], "waits for 'editor'" in found.json()["detail"]) == ("editor", True)
        batch = in_batch(api, stage, verb, bob).json()["verdicts"][0]
        assert batch["error"]["code"] == "not_approver"
        assert engine.stage(stage).state == "waiting"
        assert by_route(api, stage, verb, allowed).status_code == 200
    must_verify(engine)


def test_an_admin_is_no_approver(engine: Engine, api: TestClient, token: Sender) -> None:
    assert refusal(by_route(api, waiting(engine), "approve", token("root", "admin"))) == (403, "not_approver")


@pytest.mark.parametrize("field", ["actor_name", "actor_groups"])
def test_a_body_cannot_say_who_answers(engine: Engine, api: TestClient, token: Sender, field: str) -> None:
    stage, bob = waiting(engine), token("bob")
    claimed = {field: "editor" if field == "actor_name" else ["editor"]}
    assert refusal(by_route(api, stage, "approve", bob, **claimed)) == (400, "invalid_input")
    assert "error" in in_batch(api, stage, "approve", bob, **claimed).json()["verdicts"][0]
    assert engine.stage(stage).state == "waiting"


def test_an_answer_in_a_batch_is_for_the_groups_too(engine: Engine, api: TestClient, token: Sender) -> None:
    (verdict,) = in_batch(api, waiting(engine), "approve", token("ann", groups=["editor"])).json()["verdicts"]
    assert verdict["value"]["state"] == "pending"


def test_without_tokens_whoever_is_on_the_machine_may_answer(engine: Engine, api: TestClient) -> None:
    assert by_route(api, waiting(engine), "approve", {}).json()["state"] == "pending"
    assert api.get("/api/v1/whoami").json()["groups"] == []


def test_a_token_is_told_its_groups(api: TestClient, token: Sender) -> None:
    assert api.get("/api/v1/whoami", headers=token("ann", groups=["b", "a"])).json()["groups"] == ["b", "a"]


def test_a_jobnik_client_is_bound_by_an_approval_too(engine: Engine, api: TestClient, token: Sender) -> None:
    stage, body = waiting(engine), {"status": "PENDING"}
    assert api.put(f"/v1/stages/{stage}/status", json=body, headers=token("bob")).status_code == 403
    assert engine.stage(stage).state == "waiting"
    ann = token("ann", groups=["editor"])
    assert api.put(f"/v1/stages/{stage}/status", json=body, headers=ann).status_code == 200


def types_of(api: TestClient, headers: dict[str, str], **query: Any) -> list[str]:
    found = api.get("/api/v1/feed", params=query, headers=headers)
    assert found.status_code == 200, found.text
    return [e["type"] for e in found.json()["events"] if e["type"] in AUDIT_TYPES]


def test_only_an_admin_of_the_namespace_reads_about_its_tokens(engine: Engine, api: TestClient, token: Sender) -> None:
    reader, admin = token("ann", "read"), token("root", "admin")
    engine.tokens.create("other", ["read"], namespace="elsewhere")
    engine.pause_queue("mail", by="root")
    assert types_of(api, reader) == types_of(api, reader, types="queue.paused,token.created") == ["queue.paused"]
    assert types_of(api, admin) == ["token.created", "token.created", "queue.paused"]
    assert types_of(api, reader, kind="mail") == []


def test_only_an_admin_asks_by_name_for_events_about_tokens(api: TestClient, token: Sender) -> None:
    reader, admin = token("ann", "read"), token("root", "admin")
    path, body = "/api/v1/reads/events_since", {"tokens": True}
    assert refusal(api.post(path, json=body, headers=reader)) == (403, "forbidden")
    assert api.post(path, json={}, headers=reader).json()["value"]["events"] == []
    events = api.post(path, json=body, headers=admin).json()["value"]["events"]
    assert [e["type"] for e in events] == ["token.created"] * 2


def test_a_change_of_a_queue_or_a_breaker_names_the_token_and_the_reason(
    engine: Engine, api: TestClient, token: Sender
) -> None:
    ann = token("ann", "operate", "read")
    engine.submit("mail", queue="q")
    for path, body in (
        ("queues/q/pause", {"reason": "down"}), ("queues/q/resume", {}),
        ("breakers/mail/open", {"for_s": 9, "reason": "slow"}), ("breakers/mail/close", {"reason": "fine"}),
    ):  # fmt: skip
        assert api.post(f"/api/v1/{path}", json=body, headers=ann).status_code == 200
    events = [e for e in api.get("/api/v1/feed", headers=ann).json()["events"] if e["type"] in AUDIT_TYPES]
    assert [(e["type"], e["actor"], e["cause"]) for e in events] == [
        ("queue.paused", "user:ann", "down"), ("queue.resumed", "user:ann", None),
        ("breaker.opened", "user:ann", "slow"), ("breaker.closed", "user:ann", "fine"),
    ]  # fmt: skip


def test_an_input_that_does_not_satisfy_its_form_is_refused_part_by_part(
    engine: Engine, api: TestClient, token: Sender
) -> None:
    form = {"required": ["a/b", "c"], "properties": {"d": {"items": {"type": "string"}}}}
    stage = engine.submit_flow("f", [StageSpec("s", [TaskSpec("x")], approval=Approval(form=form))]).stages[0]
    found = by_route(api, stage, "approve", token("ann"), input={"d": ["x", 1]})
    assert refusal(found) == (400, "invalid_input")
    assert {part["at"]: part["message"] for part in found.json()["parts"]} == {
        "/a~1b": "'a/b' is a required property", "/c": "'c' is a required property",
        "/d/1": "1 is not of type 'string'",
    }  # fmt: skip
