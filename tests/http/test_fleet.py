"""Dead letters, queues, workers and breakers over HTTP."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from onetray.domain.clock import VirtualClock
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine
from tests.http.callers import served, token
from tests.http.calls import NOBODY, claim, dead, flow, get, post, refusal, sent, submit, ticket
from tests.support.cases import each_case
from tests.support.engines import engine_on


def test_dead_letters_are_listed_grouped_and_shown(shop: TestClient, queue: str) -> None:
    ids = [dead(shop, queue, queue) for _ in range(3)]
    first = get(shop, "/dead-letters", kind=queue, limit=2)
    rest = get(shop, "/dead-letters", kind=queue, cursor=first["next"])
    assert [x["id"] for x in first["dead_letters"] + rest["dead_letters"]] == ids
    assert rest["next"] is None
    [group] = get(shop, "/dead-letters/groups", kind=queue, reason_code="exhausted_retries", error="Broken: n")[
        "groups"
    ]
    assert (group["count"], group["error_class"]) == (3, "Broken")
    letter = get(shop, f"/dead-letters/{ids[0]}")
    assert (letter["task_id"], letter["kind"], letter["last_error"]["message"]) == (ids[0], queue, "no")


def test_a_dead_letter_is_redriven(shop: TestClient, queue: str) -> None:
    id_ = dead(shop, queue, queue)
    new = post(shop, f"/dead-letters/{id_}/redrive", {"reason": "mended"}, 201)
    assert get(shop, f"/dead-letters/{id_}")["successor_id"] == new["id"]
    assert get(shop, "/dead-letters", kind=queue)["dead_letters"] == []
    assert [x["id"] for x in get(shop, "/dead-letters", kind=queue, redriven=True)["dead_letters"]] == [id_]


def test_many_dead_letters_are_redriven_a_page_at_a_time(shop: TestClient, queue: str) -> None:
    ids = [dead(shop, queue, queue) for _ in range(3)]
    body = {"kind": queue, "reason_code": "exhausted_retries", "error": "Broken", "limit": 2}
    first = post(shop, "/dead-letters/redrive", body)
    second = post(shop, "/dead-letters/redrive", {**body, "cursor": first["next"]})
    assert [x["task"] for x in first["redriven"] + second["redriven"]] == ids
    assert second["next"] is None


def test_dead_letters_are_redriven_by_their_ids(shop: TestClient, queue: str) -> None:
    id_, alive = dead(shop, queue, queue), submit(shop, queue)
    done = post(shop, "/dead-letters/redrive", {"ids": [id_, NOBODY, alive, id_.upper()]})
    assert [x["task"] for x in done["redriven"]] == [id_]
    assert [(x["task"], x["error"]["code"]) for x in done["refused"]] == [
        (NOBODY, "not_found"), (alive, "illegal_transition"),
    ]  # fmt: skip


def test_letters_of_flows_that_have_ended_are_left(shop: TestClient, queue: str) -> None:
    made = flow(shop, queue, {"name": "a", "tasks": [{"kind": queue, "queue": queue, "max_attempts": 1}]})
    task = claim(shop, queue)[0]
    post(shop, f"/tasks/{task['id']}/fail", ticket(task, message="no"))
    assert get(shop, f"/jobs/{made['id']}")["state"] == "failed"
    done = post(shop, "/dead-letters/redrive", {"kind": queue})
    assert (done["redriven"], done["left"]) == ([], [{"task": task["id"], "flow": made["id"]}])


@each_case(
    "body", [{"ids": []}, {"ids": ["x"]}, {"ids": [NOBODY], "kind": "a"}, {"limit": 0}, {"limit": 1001},
             {"reason_code": "bad luck"}, {"cursor": "x"}, {"ids": [NOBODY] * 1001}],
)  # fmt: skip
def test_a_bad_redrive_is_refused(shop: TestClient, body: dict[str, object]) -> None:
    assert refusal(sent(shop, "/dead-letters/redrive", body)) == (400, "invalid_input")


@each_case(
    "body", [None, {}, {"limit": 10}, {"delay_s": 5, "reason": "why not"}, {"kind": None, "ids": None}, {"all": False},
             {"all": True, "kind": "a"}, {"all": True, "ids": [NOBODY]}],
)  # fmt: skip
def test_everything_is_redriven_only_for_who_says_so(shop: TestClient, queue: str, body: Any) -> None:
    id_ = dead(shop, queue)
    found = sent(shop, "/dead-letters/redrive", body)
    assert refusal(found) == (400, "invalid_input")
    assert '"all": true' in found.json()["detail"]
    assert get(shop, f"/dead-letters/{id_}")["successor_id"] is None


def test_who_may_not_read_cannot_guess_at_errors_by_a_redrive() -> None:
    """Which letters a part of their error leaves tells what stands in them."""
    with engine_on("sqlite://:memory:", VirtualClock()) as engine, served(engine) as api:
        operator, reader = token(engine, "operate"), token(engine, "operate", "read")
        found = [sent(api, "/dead-letters/redrive", {"error": "hunter2"}, **who) for who in (operator, reader)]
        assert [answer.status_code for answer in found] == [403, 200]
        assert found[0].json()["needs"] == ["read"]
        assert post(api, "/dead-letters/redrive", {"kind": "mail"}, **operator)["redriven"] == []


def test_all_dead_letters_are_redriven_a_page_at_a_time(shop: TestClient, queue: str) -> None:
    ids, found, cursor = {dead(shop, queue) for _ in range(3)}, set(), {}
    while True:
        page = post(shop, "/dead-letters/redrive", {"all": True, "limit": 2, **cursor})
        found |= {one["task"] for one in page["redriven"]}
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert ids <= found


def test_a_dead_letter_that_is_not_there(shop: TestClient, queue: str) -> None:
    assert refusal(shop.get(f"/api/v1/dead-letters/{submit(shop, queue)}")) == (404, "not_found")
    assert refusal(shop.get(f"/api/v1/dead-letters/{NOBODY}")) == (404, "not_found")
    assert refusal(sent(shop, f"/dead-letters/{NOBODY}/redrive")) == (404, "not_found")
    assert refusal(sent(shop, f"/dead-letters/{submit(shop, queue)}/redrive")) == (409, "illegal_transition")


@each_case("query", ["reason_code=x", "cursor=x", "redriven=maybe", "kin=a", "limit=0"])
def test_a_bad_look_at_dead_letters_is_refused(shop: TestClient, query: str) -> None:
    assert refusal(shop.get(f"/api/v1/dead-letters?{query}")) == (400, "invalid_input")


@each_case("slashes", ["", "/with/slashes/pause", "/ümlaut?&"])
def test_a_queue_is_paused_and_resumed_whatever_its_name(shop: TestClient, queue: str, slashes: str) -> None:
    name = queue + slashes
    submit(shop, name)
    path = name.replace("?", "%3F").replace("&", "%26")
    assert post(shop, f"/queues/{path}/pause", {"reason": "lunch"}) == {"queue": name, "paused": True}
    [found] = [q for q in get(shop, "/queues")["queues"] if q["name"] == name]
    assert (found["ready"], found["paused_by"], found["paused_at"] is not None) == (1, "local", True)
    assert claim(shop, name) == []
    assert post(shop, f"/queues/{path}/resume") == {"queue": name, "paused": False}
    assert len(claim(shop, name)) == 1


def test_breakers_are_opened_and_closed(shop: TestClient, queue: str) -> None:
    submit(shop, queue, queue)
    assert post(shop, f"/breakers/{queue}/open", {"for_s": 600, "reason": "down"})["open"]
    [found] = [b for b in get(shop, "/breakers")["breakers"] if b["kind"] == queue]
    assert (found["state"], found["why"], found["opened_by"]) == ("open", "down", "local")
    assert claim(shop, queue) == []
    assert post(shop, f"/breakers/{queue}/close")["open"] is False
    assert len(claim(shop, queue)) == 1


@each_case(
    ("path", "body", "wanted"),
    [
        ("/breakers/nobody-knows/close", {}, (404, "not_found")),
        ("/breakers/k/open", {}, (400, "invalid_input")),
        ("/breakers/k/open", {"for_s": 0}, (400, "invalid_input")),
        ("/breakers/k/open", {"for_s": 5e9}, (400, "invalid_input")),
        ("/breakers/k/close", {"for_s": 1}, (400, "invalid_input")),
        (f"/breakers/{'k' * 201}/open", {"for_s": 1}, (413, "too_large")),
        (f"/queues/{'q' * 201}/pause", {}, (413, "too_large")),
        ("/queues/a%00b/pause", {}, (400, "invalid_input")),
        ("/queues/q/pause", {"nonsense": 1}, (400, "invalid_input")),
        ("/queues/q/resume", [], (400, "invalid_input")),
    ],
)
def test_bad_commands_to_the_fleet_are_refused(
    shop: TestClient, path: str, body: object, wanted: tuple[int, str]
) -> None:
    assert refusal(sent(shop, path, body)) == wanted


def test_workers_are_listed_as_they_describe_themselves(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    shared_engine.worker_beat(WorkerBeat(name=queue, host="h", pid=1, version="1", kinds=("mail",)))
    [found] = [w for w in get(shop, "/workers")["workers"] if w["name"] == queue]
    assert (found["alive"], found["kinds"], found["queues"]) == (True, ["mail"], ["default"])


@each_case("path", ["queues", "workers", "breakers"])
def test_a_limit_is_a_limit(shop: TestClient, path: str) -> None:
    assert refusal(shop.get(f"/api/v1/{path}?limit=0")) == (400, "invalid_input")
    assert len(get(shop, f"/{path}", limit=1)[path]) <= 1
