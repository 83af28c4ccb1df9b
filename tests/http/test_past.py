"""A job as it was, and its states over time, over HTTP."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from onetray.domain.clock import VirtualClock
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.http.json_answers import iso_time
from tests.http.calls import NOBODY, claim, flow, get, post, refusal, submit, ticket


def test_a_task_is_shown_as_it_was(api: TestClient, engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(api, "q", payload={"to": "ann"})
    (task,) = claim(api, "q")
    clock.advance(3)
    post(api, f"/tasks/{id_}/succeed", ticket(task, result={"sent": True}))
    submitted, claimed, started, succeeded = engine.events(id_)
    now = get(api, f"/jobs/{id_}")
    for path in (f"/jobs/{id_}", f"/tasks/{id_}"):
        past = get(api, path, at=claimed.id)
        assert (past["entity"], past["state"], past["owner"], past["result"]) == ("task", "assigned", "w", None)
        assert (past["payload"], past["version"], past["actions"]) == ({"to": "ann"}, 2, [])
        assert past["past"] == {
            "event": claimed.id, "ts": iso_time(claimed.ts), "type": "task.claimed", "stages": [], "tasks": [],
            "cut": False, "unknown": {id_: ["lease", "lease_expires_at"]},
        }  # fmt: skip
        last = get(api, path, at=succeeded.id)
        assert {**now, "actions": []} == {name: value for name, value in last.items() if name != "past"}
    assert get(api, f"/jobs/{id_}", at=submitted.id)["state"] == "queued"
    assert get(api, f"/jobs/{id_}", at=started.id)["state"] == "running"


def test_a_flow_is_shown_with_its_stages_and_tasks(api: TestClient, engine: Engine) -> None:
    id_ = flow(api, "q")["id"]
    (task, _) = claim(api, "q")
    post(api, f"/tasks/{task['id']}/succeed", ticket(task))
    event = next(e.id for e in engine.flow_events(id_) if e.type == "task.succeeded")
    shown = get(api, f"/jobs/{id_}", at=event)
    assert (shown["entity"], shown["past"]["type"]) == ("flow", "task.succeeded")
    (stage,) = shown["past"]["stages"]
    assert (stage["counts"]["succeeded"], stage["counts"]["held"]) == (1, 1)
    assert [t["state"] for t in shown["past"]["tasks"]] == ["succeeded", "assigned"]
    fewer = get(api, f"/jobs/{id_}", at=event, tasks=1)["past"]
    assert (len(fewer["tasks"]), fewer["cut"]) == (1, True)
    assert get(api, f"/tasks/{id_}", 404, at=event)["code"] == "not_found", "a flow is no task"


@pytest.mark.parametrize("at", ["0", "-1", "x", "1.5", "", str(2**70)])
def test_an_event_must_be_a_number(shop: TestClient, queue: str, at: str) -> None:
    id_ = submit(shop, queue)
    for path in ("jobs", "tasks"):
        found = shop.get(f"/api/v1/{path}/{id_}", params={"at": at})
        assert refusal(found) == (400, "invalid_input")
        assert "at" in found.json()["detail"]


def test_what_is_not_there_is_not_found(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    id_, other = submit(shop, queue), submit(shop, queue)
    (event,) = shared_engine.events(other)
    found = shop.get(f"/api/v1/jobs/{id_}", params={"at": event.id})
    assert refusal(found) == (404, "not_found")
    assert f"`onetray jobs events {id_}`" in found.json()["detail"]
    assert refusal(shop.get(f"/api/v1/jobs/{NOBODY}", params={"at": event.id})) == (404, "not_found")
    assert refusal(shop.get(f"/api/v1/jobs/{NOBODY}/timeline")) == (404, "not_found")


def test_the_past_hides_what_the_kind_redacts(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    shared_engine.configure("secretive", Policy(redact=("password",)))
    id_ = submit(shop, queue, "secretive", payload={"password": "hunter2"})
    (event,) = shared_engine.events(id_)
    assert get(shop, f"/jobs/{id_}", at=event.id)["payload"] == {"password": "***"}


def test_a_timeline_has_the_states_of_a_job(api: TestClient, clock: VirtualClock) -> None:
    id_ = submit(api, "q")
    clock.advance(2)
    (task,) = claim(api, "q")
    clock.advance(3)
    post(api, f"/tasks/{id_}/succeed", ticket(task))
    found = get(api, f"/jobs/{id_}/timeline")
    assert (found["entity"], found["id"], found["cut"]) == ("task", id_, False)
    states = [(i["state"], i["attempt"], i["worker"], i["next_state"]) for i in found["intervals"]]
    assert states == [("queued", None, None, "assigned"), ("assigned", 1, "w", "succeeded")]
    assert found["intervals"][1]["until_at"] == found["until_at"] == iso_time(clock.now())
    assert refusal(api.get(f"/api/v1/jobs/{id_}/timeline", params={"tasks": 1_001})) == (400, "invalid_input")
