"""What an operator does about jobs and stages, over HTTP."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from tests.http.calls import NOBODY, claim, dead, flow, get, held, post, refusal, sent, submit, ticket
from tests.support.cases import each_case

CONTROLS = ("cancel", "pause", "resume", "retry", "open", "seal")
ANSWERS = ("approve", "reject", "skip", "wait", "seal")


def test_a_queued_task_is_cancelled_at_once(shop: TestClient, queue: str) -> None:
    placed = post(shop, f"/jobs/{submit(shop, queue)}/cancel", {"reason": "not needed"})
    assert (placed["state"], placed["actions"]) == ("cancelled", ["retry", "redrive"])
    assert get(shop, f"/jobs/{placed['id']}/events")["events"][-1]["cause"] == "not needed"


def test_a_soft_cancel_asks_and_a_hard_one_revokes(shop: TestClient, queue: str) -> None:
    task = held(shop, queue)
    assert post(shop, f"/jobs/{task['id']}/cancel")["state"] == "assigned"
    assert post(shop, f"/tasks/{task['id']}/beat", ticket(task))["cancel"] == [task["id"]]
    assert post(shop, f"/jobs/{task['id']}/cancel", {"mode": "hard"})["state"] == "cancelled"
    assert refusal(sent(shop, f"/tasks/{task['id']}/succeed", ticket(task)))[0] == 409


def test_a_conflict_says_what_may_be_done_instead(shop: TestClient, queue: str) -> None:
    made = flow(shop, queue)
    found = sent(shop, f"/jobs/{made['id']}/resume")
    assert refusal(found) == (409, "illegal_transition")
    assert found.json()["actions"] == ["pause", "cancel"]
    single = sent(shop, f"/jobs/{submit(shop, queue)}/pause")
    assert refusal(single) == (409, "illegal_transition")
    assert single.json()["actions"] == ["cancel"]
    assert queue in single.json()["detail"]


def test_a_flow_is_paused_and_resumed_and_cancelled(shop: TestClient, queue: str) -> None:
    id_ = flow(shop, queue)["id"]
    assert post(shop, f"/jobs/{id_}/pause", {"reason": "lunch"})["state"] == "paused"
    assert claim(shop, queue) == []
    assert refusal(sent(shop, f"/jobs/{id_}/resume", {"input": 1})) == (400, "invalid_input")
    assert post(shop, f"/jobs/{id_}/resume")["state"] == "pending"
    assert len(claim(shop, queue)) == 2
    assert post(shop, f"/jobs/{id_}/cancel", {"mode": "hard"})["state"] == "cancelled"


@each_case("where", ["jobs", "tasks"])
def test_a_task_that_waits_is_resumed_with_an_input(shop: TestClient, queue: str, where: str) -> None:
    task = held(shop, queue)
    post(shop, f"/tasks/{task['id']}/pause", ticket(task, state="waiting_input", owner="ann", reason="which?"))
    assert post(shop, f"/{where}/{task['id']}/resume", {"input": {"n": 1}})["state"] == "queued"
    assert claim(shop, queue)[0]["input"] == {"n": 1}


def test_a_job_that_has_ended_is_retried_as_a_new_one(shop: TestClient, queue: str) -> None:
    old = dead(shop, queue)
    new = post(shop, f"/jobs/{old}/retry", {}, 201)
    assert get(shop, f"/jobs/{new['id']}")["retry_of"] == old
    assert refusal(sent(shop, f"/jobs/{old}/retry", {"from_stage": "a"})) == (400, "invalid_input")
    id_ = flow(shop, queue)["id"]
    assert refusal(sent(shop, f"/jobs/{id_}/retry")) == (409, "illegal_transition")
    post(shop, f"/jobs/{id_}/cancel", {"mode": "hard"})
    again = post(shop, f"/jobs/{id_}/retry", {"from_stage": "a"}, 201)
    assert (again["entity"], get(shop, f"/jobs/{again['id']}")["retry_of"]) == ("flow", id_)


def test_a_tasks_priority_is_set(shop: TestClient, queue: str) -> None:
    first, second = submit(shop, queue), submit(shop, queue)
    post(shop, f"/jobs/{second}/priority", {"priority": 5})
    assert [t["id"] for t in claim(shop, queue)] == [second, first]
    assert refusal(sent(shop, f"/jobs/{first}/priority", {"priority": 2**31})) == (400, "invalid_input")
    assert refusal(sent(shop, f"/jobs/{first}/priority")) == (400, "invalid_input")


def test_a_flows_priority_is_that_of_its_queued_tasks(shop: TestClient, queue: str) -> None:
    alone, made = submit(shop, queue), flow(shop, queue)
    moved = post(shop, f"/jobs/{made['id']}/priority", {"priority": 5, "reason": "urgent"})
    assert (moved["entity"], moved["was"]) == ("flow", "pending")
    assert get(shop, f"/jobs/{made['id']}")["priority"] == 5
    assert claim(shop, queue)[-1]["id"] == alone


def test_the_metadata_of_a_job_a_task_and_a_stage_is_replaced(shop: TestClient, queue: str) -> None:
    alone, made = submit(shop, queue, metadata={"a": 1}), flow(shop, queue)
    assert get(shop, f"/jobs/{alone}")["metadata"] == {"a": 1}
    post(shop, f"/tasks/{alone}/metadata", {"metadata": [2]})
    assert get(shop, f"/jobs/{alone}")["metadata"] == [2]
    for id_ in (alone, made["id"]):
        post(shop, f"/jobs/{id_}/metadata", {"metadata": {"b": 2}})
        assert get(shop, f"/jobs/{id_}")["metadata"] == {"b": 2}
    post(shop, f"/stages/{made['stages'][0]}/metadata", {"metadata": 3})
    assert get(shop, f"/stages/{made['stages'][0]}")["metadata"] == 3


def test_a_stage_is_cancelled(shop: TestClient, queue: str) -> None:
    made = flow(shop, queue)
    moved = post(shop, f"/stages/{made['stages'][0]}/cancel", {"hard": True, "reason": "not needed"})
    assert (moved["entity"], moved["state"], moved["was"]) == ("stage", "cancelled", "pending")
    assert refusal(sent(shop, f"/stages/{made['stages'][0]}/cancel")) == (409, "illegal_transition")


def test_a_flow_is_grown_opened_and_sealed(shop: TestClient, queue: str) -> None:
    id_ = flow(shop, queue, {"name": "a", "sealed": False}, sealed=False, start=False)["id"]
    added = post(shop, f"/jobs/{id_}/stages", {"name": "b", "tasks": [{"kind": "k", "queue": queue}]}, 201)
    assert (len(added["stages"]), len(added["tasks"])) == (1, 1)
    assert refusal(sent(shop, f"/jobs/{id_}/stages", {"name": "b"})) == (409, "name_taken")
    first = get(shop, f"/jobs/{id_}/tree")["stages"][0]["stage"]["id"]
    post(shop, f"/stages/{first}/tasks", {"tasks": [{"kind": "k", "queue": queue}]}, 201)
    assert claim(shop, queue) == []
    assert post(shop, f"/jobs/{id_}/open")["state"] == "pending"
    post(shop, f"/jobs/{id_}/seal")
    post(shop, f"/stages/{first}/seal")
    for _ in range(2):
        task = claim(shop, queue)[0]
        post(shop, f"/tasks/{task['id']}/succeed", ticket(task))
    assert get(shop, f"/jobs/{id_}")["state"] == "succeeded"


def test_a_stage_waits_and_is_approved_by_its_form(shop: TestClient, queue: str) -> None:
    form = {"type": "object", "required": ["budget"]}
    waits = {"name": "a", "start_as_waiting": True, "approval": {"owner": "ann", "form": form}}
    stage = flow(shop, queue, {**waits, "tasks": [{"kind": "k", "queue": queue}]})["stages"][0]
    assert get(shop, f"/stages/{stage}")["state"] == "waiting"
    assert refusal(sent(shop, f"/stages/{stage}/approve", {"input": {}})) == (400, "invalid_input")
    placed = post(shop, f"/stages/{stage}/approve", {"input": {"budget": 1}, "note": "fine"})
    assert (placed["entity"], placed["state"]) == ("stage", "pending")
    assert len(claim(shop, queue)) == 1
    assert post(shop, f"/stages/{stage}/wait", {"approval": {"owner": "ben"}})["state"] == "waiting"
    assert get(shop, f"/stages/{stage}")["approval"]["owner"] == "ben"


@each_case(("word", "state", "ends"), [("reject", "failed", "failed"), ("skip", "skipped", "succeeded")])
def test_a_stage_is_rejected_or_skipped(shop: TestClient, queue: str, word: str, state: str, ends: str) -> None:
    made = flow(shop, queue, {"name": "a", "start_as_waiting": True})
    assert post(shop, f"/stages/{made['stages'][0]}/{word}", {"note": "no"})["state"] == state
    assert get(shop, f"/jobs/{made['id']}")["state"] == ends
    again = sent(shop, f"/stages/{made['stages'][0]}/{word}")
    assert refusal(again) == (409, "illegal_transition")
    assert again.json()["actions"] == []


@each_case("path", [*(f"/jobs/ID/{word}" for word in CONTROLS), *(f"/stages/ID/{word}" for word in ANSWERS)])
def test_commands_about_what_is_not_there_or_say_too_much(shop: TestClient, path: str) -> None:
    assert refusal(sent(shop, path.replace("ID", NOBODY))) == (404, "not_found")
    assert refusal(sent(shop, path.replace("ID", "nonsense"))) == (400, "invalid_input")
    found = sent(shop, path.replace("ID", NOBODY), {"nonsense": 1})
    assert refusal(found) == (400, "invalid_input")
    assert "nonsense" in found.text


@each_case(
    ("path", "body"),
    [("/jobs/ID/stages", {"name": "a"}), ("/stages/ID/tasks", {"tasks": [{"kind": "k"}]}),
     ("/jobs/ID/priority", {"priority": 1}), ("/jobs/ID/metadata", {"metadata": 1}),
     ("/tasks/ID/metadata", {"metadata": 1}), ("/stages/ID/metadata", {"metadata": 1})],
)  # fmt: skip
def test_additions_to_what_is_not_there(shop: TestClient, path: str, body: dict[str, Any]) -> None:
    assert refusal(sent(shop, path.replace("ID", NOBODY), body)) == (404, "not_found")
    assert refusal(sent(shop, path.replace("ID", NOBODY), {})) == (400, "invalid_input")


@each_case("look", ["", "/tasks", "/results"])
def test_a_look_at_a_stage_that_is_not_there(shop: TestClient, look: str) -> None:
    assert refusal(shop.get(f"/api/v1/stages/{NOBODY}{look}")) == (404, "not_found")
    assert refusal(shop.get(f"/api/v1/stages/{NOBODY}{look}?cursor=x")) == (400, "invalid_input")
