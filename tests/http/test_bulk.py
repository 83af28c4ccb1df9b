"""Bulk operations over HTTP, and by the remote engine's routes: preview, start, watch, stop, resume; scopes."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.http.callers import served, token
from tests.http.calls import get, post, refusal, sent
from tests.support.cases import each_case
from tests.support.tasks import UNKNOWN_ID, in_state, submit, take


def carry_out(engine: Engine) -> None:
    steps = engine.bulk_steps()
    while engine.bulks(unfinished=True) and engine.bulks(unfinished=True)[0].state == "running":
        steps.step()


def test_a_cancel_is_previewed_started_and_watched(api: TestClient, engine: Engine) -> None:
    ids = [submit(engine, labels={"team": "a"}) for _ in range(3)]
    other = submit(engine)
    filters = {"labels": {"team": "a"}, "since": "2020-01-01T00:00:00Z"}
    preview = post(api, "/bulk/preview", {"action": "cancel", "filters": filters, "limit": 2})
    assert (preview["count"], preview["more"], [j["id"] for j in preview["jobs"]]) == (3, False, ids[:0:-1])
    started = post(api, "/bulk", {"action": "cancel", "filters": filters, "reason": "no"}, 201)
    assert (started["state"], started["filters"]["since"]) == ("running", "2020-01-01T00:00:00.000000Z")
    carry_out(engine)
    done = get(api, f"/bulk/{started['id']}")
    assert (done["state"], done["done"], done["refused"], done["refusals"]) == ("done", 3, 0, [])
    assert engine.task(other).state == "queued"
    assert [b["id"] for b in get(api, "/bulk")["bulk_operations"]] == [started["id"]]
    assert get(api, "/bulk", unfinished=True)["bulk_operations"] == []


def test_a_canary_is_watched_and_resumed_or_stopped(api: TestClient, engine: Engine) -> None:
    for _ in range(3):
        in_state(engine, "dead_lettered")
    started = post(api, "/bulk", {"action": "redrive", "canary": 1}, 201)
    carry_out(engine)
    paused = get(api, f"/bulk/{started['id']}")
    assert (paused["state"], paused["canary_states"], len(paused["canary_ids"])) == ("paused", {"queued": 1}, 1)
    assert post(api, f"/bulk/{started['id']}/resume")["state"] == "running"
    assert post(api, f"/bulk/{started['id']}/stop", {"reason": "enough"})["state"] == "stopped"
    assert refusal(sent(api, f"/bulk/{started['id']}/resume")) == (409, "illegal_transition")


BAD: dict[str, tuple[str, Any]] = {
    "action": ("/bulk", {"action": "drop"}),
    "no action": ("/bulk", {}),
    "filter": ("/bulk", {"action": "cancel", "filters": {"knd": "x"}}),
    "filter of letters": ("/bulk", {"action": "cancel", "filters": {"error": "x"}}),
    "since": ("/bulk", {"action": "cancel", "filters": {"since": 17}}),
    "ids": ("/bulk", {"action": "cancel", "filters": {"ids": ["'; DROP TABLE task"]}}),
    "states": ("/bulk", {"action": "cancel", "filters": {"states": ["lost"]}}),
    "text": ("/bulk", {"action": "cancel", "filters": {"text": "a\x00b"}}),
    "canary": ("/bulk", {"action": "redrive", "canary": 0}),
    "priority": ("/bulk", {"action": "priority"}),
    "limit": ("/bulk/preview", {"action": "cancel", "limit": 101}),
}


@each_case(("path", "body"), BAD.values(), ids=BAD)
def test_bad_bodies_are_refused(shop: TestClient, path: str, body: Any) -> None:
    status, _ = refusal(sent(shop, path, body))
    assert status in (400, 422)


def test_a_token_needs_its_scopes_and_sees_its_own_namespace(engine: Engine) -> None:
    submit(engine)
    with served(engine) as api:
        reader, operator = token(engine, "read"), token(engine, "operate")
        both = token(engine, "read", "operate", namespace="other")
        body = {"action": "cancel", "filters": {"kind": "mail"}}
        assert sent(api, "/bulk", body, **reader).status_code == 403
        assert sent(api, "/bulk/preview", body, **operator).status_code == 403
        assert sent(api, "/bulk", body, **operator).json()["needs"] == ["read"]
        started = post(api, "/bulk", {"action": "cancel"}, 201, **operator)
        assert started["created_by"] == "ann"
        assert api.get(f"/api/v1/bulk/{started['id']}", headers=reader).status_code == 200
        assert api.get(f"/api/v1/bulk/{started['id']}", headers=both).status_code == 404
        assert sent(api, f"/bulk/{started['id']}/stop", **both).status_code == 404
        assert sent(api, f"/bulk/{started['id']}/stop", **reader).status_code == 403
        assert (
            sent(api, "/acts/start_bulk", {"action": "cancel", "filters": {"kind": "mail"}}, **operator).status_code
            == 403
        )
        assert api.get(f"/api/v1/bulk/{UNKNOWN_ID}", headers=reader).status_code == 404


def test_a_preview_of_a_redrive_hides_secrets(api: TestClient, engine: Engine) -> None:
    engine.configure("mail", Policy(max_attempts=1, redact=("password",)))
    submit(engine, "mail", {"password": "hunter2"})
    engine.fail(take(engine), "hunter2 is wrong")
    assert "hunter2" not in sent(api, "/bulk/preview", {"action": "redrive"}).text
    assert "hunter2" not in api.get("/api/v1/dead-letters/groups").text


def test_jobs_are_found_by_a_text(api: TestClient, engine: Engine) -> None:
    named = submit(engine, "resize_image", correlation_id="order-17")
    other = submit(engine, "mail", alias="my-mail")

    def found(text: str) -> list[str]:
        return [job["id"] for job in get(api, "/jobs", text=text)["jobs"]]

    assert found("order-17") == [named]
    assert found("my-mail") == [other]
    assert found(other) == found(other.upper()) == [other]
    assert found("Image") == [named]
    assert set(found(named[:13])) >= {named}
    assert found("no such thing") == found("%") == []


def test_a_text_finds_nothing_of_another_namespace(api: TestClient, engine: Engine) -> None:
    theirs = submit(engine, "secret_kind", namespace="other", correlation_id="mail")
    mine = submit(engine, "mail")
    assert [job["id"] for job in get(api, "/jobs", text="mail")["jobs"]] == [mine]
    for text in (theirs, "secret_kind"):
        assert get(api, "/jobs", text=text)["jobs"] == []
