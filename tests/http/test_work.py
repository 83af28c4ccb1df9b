"""Workers over HTTP: claims, and reports about what they hold."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onetray.engine import Engine
from onetray.http.bell import Bell
from tests.http.calls import NOBODY, claim, flow, get, held, post, refusal, sent, submit, ticket, until

REPORTS: dict[str, dict[str, Any]] = {
    "start": {}, "beat": {}, "succeed": {"result": 1}, "fail": {"message": "no"}, "release": {},
    "pause": {"owner": "ann", "reason": "which?"}, "log": {"lines": ["x"]}, "progress": {"done": 1},
}  # fmt: skip
STATES = {"start": "running", "succeed": "succeeded", "fail": "queued", "release": "queued", "pause": "blocked",
          "progress": "assigned"}  # fmt: skip


def bell_of(client: TestClient) -> Bell:
    bell: Bell = client.app.state.desk.bell  # type: ignore[attr-defined]
    return bell


def test_a_claim_gives_what_is_to_be_run_and_its_ticket(shop: TestClient, queue: str) -> None:
    id_ = submit(shop, queue, payload={"x": [1, None, "é"]}, policy={"timeout_s": 7})
    [task] = claim(shop, queue, kinds=["mail"], lease_s=5)
    assert (task["id"], task["payload"], task["fence"], task["worker"]) == (id_, {"x": [1, None, "é"]}, 1, "w")
    assert (task["lease_s"], task["policy"]["timeout_s"], task["attempt"]) == (5, 7, 1)
    assert "succeed" in task["actions"]
    assert claim(shop, queue) == []


def test_the_same_claim_again_gives_the_same_tasks(shop: TestClient, queue: str) -> None:
    submit(shop, queue)
    submit(shop, queue)
    first = claim(shop, queue, limit=1, request_key="r")
    by_header = post(shop, "/tasks/claim", {"worker": "w", "queue": queue}, Idempotency_Key="r")["tasks"]
    assert [t["id"] for t in by_header] == [t["id"] for t in first]
    both = {"worker": "w", "queue": queue, "request_key": "other"}
    assert refusal(sent(shop, "/tasks/claim", both, Idempotency_Key="r")) == (400, "invalid_input")


@pytest.mark.parametrize(
    "body",
    [{}, {"worker": ""}, {"worker": "w", "limit": 0}, {"worker": "w", "limit": 10_001}, {"worker": "w", "wait_s": 31},
     {"worker": "w", "wait_s": -1}, {"worker": "w", "kinds": "mail"}, {"worker": "w", "lease_s": 0},
     {"worker": "w", "namespace": "other"}],
)  # fmt: skip
def test_a_bad_claim_is_refused(shop: TestClient, body: dict[str, Any]) -> None:
    assert refusal(sent(shop, "/tasks/claim", body)) == (400, "invalid_input")


@pytest.mark.parametrize("verb", REPORTS)
def test_a_report_is_accepted_from_whoever_holds_the_task(shop: TestClient, queue: str, verb: str) -> None:
    task = held(shop, queue)
    told = post(shop, f"/tasks/{task['id']}/{verb}", ticket(task, **REPORTS[verb]))
    if verb == "log":
        assert told == {"cursor": 1}
    elif verb == "beat":
        assert (told["cancel"], told["lost"]) == ([], [])
    else:
        assert (told["id"], told["state"]) == (task["id"], STATES[verb])


@pytest.mark.parametrize("verb", REPORTS)
def test_a_report_without_the_right_ticket_changes_nothing(shop: TestClient, queue: str, verb: str) -> None:
    task = held(shop, queue)
    path = f"/tasks/{task['id']}/{verb}"
    for wrong in ({"fence": task["fence"] + 1}, {"worker": "somebody else"}):
        assert refusal(sent(shop, path, {**ticket(task, **REPORTS[verb]), **wrong})) == (409, "lease_lost")
    for missing in ("fence", "worker"):
        body = {k: v for k, v in ticket(task, **REPORTS[verb]).items() if k != missing}
        found = sent(shop, path, body)
        assert refusal(found) == (400, "invalid_input")
        assert missing in found.text
    assert refusal(sent(shop, path, ticket(task, **REPORTS[verb], nonsense=1))) == (400, "invalid_input")
    assert refusal(sent(shop, f"/tasks/{NOBODY}/{verb}", ticket(task, **REPORTS[verb]))) == (404, "not_found")
    assert get(shop, f"/tasks/{task['id']}")["version"] == 2


def test_the_same_outcome_again_is_accepted_and_another_is_not(shop: TestClient, queue: str) -> None:
    task = held(shop, queue)
    post(shop, f"/tasks/{task['id']}/succeed", ticket(task, result=1))
    assert post(shop, f"/tasks/{task['id']}/succeed", ticket(task, result=1))["repeated"]
    assert refusal(sent(shop, f"/tasks/{task['id']}/fail", ticket(task, message="no")))[0] == 409


def test_many_reports_are_answered_each_in_its_place(shop: TestClient, queue: str) -> None:
    one, two = (submit(shop, queue) for _ in range(2))
    a, b = claim(shop, queue)
    reports = [
        {"verb": "start", "task": one, **ticket(a)},
        {"verb": "succeed", "task": two, **ticket(b), "fence": 9},
        {"verb": "beat", "task": two, **ticket(b)},
        {"verb": "log", "task": one, **ticket(a), "lines": ["x", "y"]},
        {"verb": "succeed", "task": one, **ticket(a), "result": 7},
        {"verb": "succeed", "task": NOBODY, **ticket(a)},
    ]
    verdicts = post(shop, "/tasks/reports", {"reports": reports})["verdicts"]
    assert [v.get("error", {}).get("code") for v in verdicts] == [None, "lease_lost", None, None, None, "not_found"]
    assert (verdicts[0]["value"]["id"], verdicts[3]["value"]) == (one, {"cursor": 2})
    assert get(shop, f"/tasks/{one}")["result"] == 7


@pytest.mark.parametrize(
    "report",
    [{"verb": "expire"}, {"verb": "dead_letter"}, {"verb": "resume"}, {}, {"verb": "start", "fence": None},
     {"verb": "start", "worker": None}],
)  # fmt: skip
def test_what_is_no_report_of_a_holder_is_refused(shop: TestClient, report: dict[str, Any]) -> None:
    body = {"task": NOBODY, "fence": 1, "worker": "w", **report}
    assert refusal(sent(shop, "/tasks/reports", {"reports": [body]})) == (400, "invalid_input")


def test_a_member_says_more_than_its_result(shop: TestClient, queue: str) -> None:
    made = flow(shop, queue, {"name": "a", "tasks": [{"kind": "k", "queue": queue}]}, {"name": "b"}, roll_up="mixed")
    task = claim(shop, queue)[0]
    more = {"partial": True, "errors": ["one"], "metrics": {"n": 2}, "spawn": {"b": [{"kind": "k", "queue": queue}]}}
    post(shop, f"/tasks/{task['id']}/succeed", ticket(task, result=1, **more))
    first, second = (get(shop, f"/stages/{id_}") for id_ in made["stages"])
    assert (first["state"], first["metrics"], second["counts"]["total"]) == ("partial", {"n": 2}, 1)


def test_a_claim_waits_for_the_first_task(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(claim, shop, queue, wait_s=30)
        until(lambda: bool(bell_of(shop)._waiting))
        id_ = shared_engine.submit("mail", queue=queue).id
        assert [t["id"] for t in waiting.result(timeout=60)] == [id_]


def test_many_claims_wait_with_one_thread(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    bell = bell_of(shop)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(claim, shop, f"{queue}-{n}", wait_s=30) for n in range(8)]
        until(lambda: len(bell._waiting) == 8)
        assert sum(t.name == "onetray-bell" for t in threading.enumerate()) == 1
        for n in range(8):
            shared_engine.submit("mail", queue=f"{queue}-{n}")
        assert all(len(w.result(timeout=60)) == 1 for w in waiting)


def test_nothing_is_claimed_for_a_client_that_has_gone(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    body = json.dumps({"worker": "w", "queue": queue, "wait_s": 30}).encode()
    scope = {
        "type": "http", "method": "POST", "path": "/api/v1/tasks/claim", "raw_path": b"/api/v1/tasks/claim",
        "query_string": b"", "headers": [(b"content-type", b"application/json"), (b"host", b"127.0.0.1:8321")],
        "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 8321), "client": ("127.0.0.1", 1),
    }  # fmt: skip
    left = iter([{"type": "http.request", "body": body, "more_body": False}])
    gone, sent_back = asyncio.Event(), list[Any]()

    async def receive() -> Any:
        for message in left:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent_back.append(message)

    async def both() -> None:
        asked = asyncio.create_task(shop.app(scope, receive, send))  # type: ignore[arg-type]
        await asyncio.to_thread(until, lambda: bool(bell_of(shop)._waiting))
        gone.set()
        await asyncio.to_thread(shared_engine.submit, "mail", queue=queue)
        await asyncio.wait_for(asked, 60)

    asyncio.run(both())
    assert sent_back[-1]["body"] == b'{"tasks":[]}'
    assert len(claim(shop, queue)) == 1


def test_a_claim_that_waits_in_vain_is_empty(shop: TestClient, queue: str) -> None:
    assert claim(shop, queue, wait_s=0.01) == []


def test_who_waits_is_sent_away_when_the_server_stops(api: TestClient, queue: str) -> None:
    bell = bell_of(api)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(claim, api, queue, wait_s=30)
        until(lambda: bool(bell._waiting))
        bell.close()
        assert waiting.result(timeout=60) == []
