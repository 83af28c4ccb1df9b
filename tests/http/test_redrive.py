"""Redrive over HTTP: its options, and the new flow of a task whose flow has ended."""

from __future__ import annotations

from fastapi.testclient import TestClient

from onetray.domain.clock import VirtualClock
from onetray.engine import Engine
from tests.http.calls import claim, flow, get, post, refusal, sent
from tests.support.flows import tasks_of

DEAD = {"message": "no", "reason_code": "parse_error"}


def set_aside(api: TestClient, queue: str) -> str:
    """The second task of a flow that has failed for it; the first one has succeeded."""
    two = [{"kind": "x", "queue": queue}, {"kind": "bad", "queue": queue, "max_attempts": 2}]
    flow(api, queue, {"name": "a", "tasks": two}, roll_up="drain")
    for task in claim(api, queue, limit=2):
        ticket = {"fence": task["fence"], "worker": task["worker"]}
        end = ("succeed", {"result": 1}) if task["kind"] == "x" else ("fail", DEAD)
        post(api, f"/tasks/{task['id']}/{end[0]}", {**ticket, **end[1]})
    return str(get(api, "/dead-letters")["dead_letters"][0]["id"])


def test_one_task_of_an_ended_flow_is_redriven_with_its_attempts_and_a_delay(
    api: TestClient, engine: Engine, clock: VirtualClock
) -> None:
    letter = set_aside(api, "q")
    new = post(api, f"/dead-letters/{letter}/redrive", {"keep_attempts": True, "delay_s": 60, "reason": "mended"}, 201)
    task = get(api, f"/tasks/{new['id']}")
    assert (task["attempts"], task["retry_of"]) == (1, letter)
    assert engine.task(task["id"]).run_at == clock.now() + 60_000_000
    assert tasks_of(engine, task["stage_id"]) == ["succeeded", "queued"]
    assert engine.events(task["id"])[0].cause == "mended"


def test_a_redrive_without_an_attempt_left_is_refused(api: TestClient) -> None:
    letter = set_aside(api, "q")
    new = post(api, f"/dead-letters/{letter}/redrive", {"keep_attempts": True}, 201)["id"]
    (task,) = claim(api, "q")
    post(api, f"/tasks/{new}/fail", {"fence": task["fence"], "worker": task["worker"], **DEAD})
    found = sent(api, f"/dead-letters/{new}/redrive", {"keep_attempts": True})
    assert refusal(found) == (409, "no_attempts_left")
    assert (found.json()["attempts"], found.json()["max_attempts"]) == (2, 2)
    at = "2026-01-01T00:00:00Z"
    assert refusal(sent(api, f"/dead-letters/{new}/redrive", {"run_at": at, "delay_s": 5})) == (400, "invalid_input")
    many = post(api, "/dead-letters/redrive", {"ids": [new], "keep_attempts": True})
    assert [x["error"]["code"] for x in many["refused"]] == ["no_attempts_left"]
    assert get(api, f"/tasks/{post(api, f'/dead-letters/{new}/redrive', {'run_at': at}, 201)['id']}")["attempts"] == 0
