"""`Idempotency-Key`: what is sent again is carried out once, and answered the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient

from onetray.clock import VirtualClock
from onetray.engine import Engine
from onetray.engine.requests import DIED_S, KEPT_S
from onetray.errors import Forbidden, Unavailable
from onetray.http import keys
from onetray.http.access import READ, Principal
from onetray.http.gate import LOCAL
from onetray.http.native import NativeRoute
from onetray.http.routes import fleet
from tests.http.calls import NOBODY, claim, dead, flow, get, held, post, refusal, sent, submit, ticket

REPLAY = "idempotent-replay"


def test_a_submit_under_a_key_makes_one_job(shop: TestClient, queue: str) -> None:
    body = {"kind": "mail", "queue": queue, "payload": {"a": 1, "b": 2}}
    first = post(shop, "/jobs", body, 201, Idempotency_Key=queue)
    again = post(shop, "/jobs", {**body, "payload": {"b": 2, "a": 1}}, 200, Idempotency_Key=queue)
    assert (again["id"], again["repeated"]) == (first["id"], True)
    other = sent(shop, "/jobs", {**body, "payload": {}}, Idempotency_Key=queue)
    assert refusal(other) == (409, "key_reused")


def test_a_flow_under_a_key_is_made_once(shop: TestClient, queue: str) -> None:
    body = {"name": "f", "stages": [{"name": "a", "tasks": [{"kind": "k", "queue": queue}]}]}
    first = post(shop, "/jobs", body, 201, Idempotency_Key=queue)
    assert post(shop, "/jobs", body, 200, Idempotency_Key=queue)["id"] == first["id"]
    assert refusal(sent(shop, "/jobs", {**body, "stages": []}, Idempotency_Key=queue)) == (409, "key_reused")


def test_the_key_in_the_body_is_the_same_as_that_in_the_header(shop: TestClient, queue: str) -> None:
    body = {"kind": "mail", "queue": queue, "idempotency_key": queue}
    first = post(shop, "/jobs", body, 201)
    assert post(shop, "/jobs", body, 200, Idempotency_Key=queue)["id"] == first["id"]
    assert refusal(sent(shop, "/jobs", body, Idempotency_Key="other")) == (400, "invalid_input")


def test_a_key_that_the_body_leaves_open_is_the_headers(shop: TestClient, queue: str) -> None:
    body = {"kind": "mail", "queue": queue, "idempotency_key": None}
    first = post(shop, "/jobs", body, 201, Idempotency_Key=queue)
    assert post(shop, "/jobs", body, 200, Idempotency_Key=queue)["id"] == first["id"]
    claimed = {"worker": "w", "queue": queue, "request_key": None}
    assert post(shop, "/tasks/claim", claimed, Idempotency_Key=queue)["tasks"][0]["id"] == first["id"]


def test_any_other_post_is_carried_out_once(shop: TestClient, queue: str) -> None:
    jobs = {"jobs": [{"kind": "mail", "queue": queue}]}
    first = sent(shop, "/jobs/batch", jobs, Idempotency_Key=queue)
    again = sent(shop, "/jobs/batch", jobs, Idempotency_Key=queue)
    assert REPLAY not in first.headers
    assert again.headers[REPLAY] == "true"
    assert (again.status_code, again.content, again.headers["content-type"]) == (
        200, first.content, first.headers["content-type"],
    )  # fmt: skip
    assert len(get(shop, "/jobs", queue=queue)["jobs"]) == 1


def test_a_status_other_than_200_is_given_again(shop: TestClient, queue: str) -> None:
    id_ = dead(shop, queue)
    first = post(shop, f"/jobs/{id_}/retry", {}, 201, Idempotency_Key=queue)
    assert post(shop, f"/jobs/{id_}/retry", {}, 201, Idempotency_Key=queue) == first


@pytest.mark.parametrize("other", ["/jobs/{id}/pause", "/jobs/{nobody}/cancel"])
def test_a_key_belongs_to_one_route_and_one_thing(shop: TestClient, queue: str, other: str) -> None:
    id_ = submit(shop, queue)
    post(shop, f"/jobs/{id_}/cancel", {}, Idempotency_Key=queue)
    found = sent(shop, other.format(id=id_, nobody=NOBODY), {}, Idempotency_Key=queue)
    assert refusal(found) == (409, "key_reused")


def test_another_body_under_the_key_is_refused(shop: TestClient, queue: str) -> None:
    id_ = submit(shop, queue)
    post(shop, f"/jobs/{id_}/cancel", {"mode": "soft", "reason": "x"}, Idempotency_Key=queue)
    post(shop, f"/jobs/{id_}/cancel", {"reason": "x", "mode": "soft"}, Idempotency_Key=queue)
    found = sent(shop, f"/jobs/{id_}/cancel", {"mode": "hard"}, Idempotency_Key=queue)
    assert refusal(found) == (409, "key_reused")


def test_a_refusal_is_an_answer_too(shop: TestClient, queue: str) -> None:
    id_ = flow(shop, queue)["id"]
    first = sent(shop, f"/jobs/{id_}/resume", {}, Idempotency_Key=queue)
    post(shop, f"/jobs/{id_}/pause")
    again = sent(shop, f"/jobs/{id_}/resume", {}, Idempotency_Key=queue)
    assert refusal(first) == refusal(again) == (409, "illegal_transition")
    assert again.headers[REPLAY] == "true"
    assert again.json() == first.json()


def test_what_was_not_understood_leaves_the_key_free(shop: TestClient, queue: str) -> None:
    id_ = submit(shop, queue)
    assert refusal(sent(shop, f"/jobs/{id_}/priority", {}, Idempotency_Key=queue)) == (400, "invalid_input")
    post(shop, f"/jobs/{id_}/priority", {"priority": 1}, Idempotency_Key=queue)


def test_what_broke_leaves_the_key_free(
    shop: TestClient, shared_engine: Engine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise Unavailable

    with monkeypatch.context() as broken:
        broken.setattr(shared_engine, "pause_queue", away)
        assert refusal(sent(shop, f"/queues/{queue}/pause", {}, Idempotency_Key=queue)) == (503, "unavailable")
    assert post(shop, f"/queues/{queue}/pause", {}, Idempotency_Key=queue)["paused"]


def test_an_answer_that_cannot_be_kept_is_given_all_the_same(
    shop: TestClient, shared_engine: Engine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise Unavailable

    with monkeypatch.context() as broken:
        broken.setattr(shared_engine, "answer_request", away)
        assert post(shop, f"/queues/{queue}/pause", {}, Idempotency_Key=queue)["paused"]
    assert refusal(sent(shop, f"/queues/{queue}/pause", {}, Idempotency_Key=queue)) == (409, "in_progress")


def test_an_answer_that_is_too_large_is_not_kept(shop: TestClient, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "ANSWER_BYTES", 10)
    task = held(shop, queue)
    post(shop, f"/tasks/{task['id']}/start", ticket(task), Idempotency_Key=queue)
    again = sent(shop, f"/tasks/{task['id']}/start", ticket(task), Idempotency_Key=queue)
    assert refusal(again) == (409, "answer_not_kept")


@pytest.mark.parametrize("key", ["", " ", "ümlaut".encode("latin-1"), b"\xff", "a\tb", "x" * 501])
def test_a_bad_key_is_refused(shop: TestClient, queue: str, key: str | bytes) -> None:
    for path, body in (("/jobs", {"kind": "a"}), ("/jobs/batch", {"jobs": [{"kind": "a"}]})):
        found = shop.post(f"/api/v1{path}", json=body, headers=[("Idempotency-Key", key)])
        assert refusal(found)[0] == (413 if len(key) > 500 else 400)


def test_two_keys_at_once_are_refused(shop: TestClient) -> None:
    found = shop.post("/api/v1/jobs", json={"kind": "a"}, headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")])
    assert refusal(found) == (400, "invalid_input")


def test_a_key_is_free_after_a_day(api: TestClient, clock: VirtualClock, queue: str) -> None:
    post(api, f"/queues/{queue}/pause", {}, Idempotency_Key="k")
    clock.advance(KEPT_S)
    assert not post(api, f"/queues/{queue}/resume", {}, Idempotency_Key="k")["paused"]


def test_a_request_whose_server_died_is_carried_out_again(
    api: TestClient, engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(engine, "answer_request", lambda *_: None)
        post(api, "/queues/q/pause", {}, Idempotency_Key="k")
    assert refusal(sent(api, "/queues/q/pause", {}, Idempotency_Key="k")) == (409, "in_progress")
    clock.advance(DIED_S)
    again = sent(api, "/queues/q/pause", {}, Idempotency_Key="k")
    assert again.status_code == 200
    assert REPLAY not in again.headers


def test_a_batch_whose_server_died_makes_no_second_jobs(
    api: TestClient, engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {"jobs": [{"kind": "a"}, {"kind": "a"}, {"name": "f", "stages": []}, {"kind": "a", "idempotency_key": "x"}]}
    with monkeypatch.context() as killed:
        killed.setattr(engine, "answer_request", lambda *_: None)
        first = post(api, "/jobs/batch", jobs, Idempotency_Key="k")
    clock.advance(DIED_S)
    again = post(api, "/jobs/batch", jobs, Idempotency_Key="k")
    assert [v["value"]["id"] for v in again["verdicts"]] == [v["value"]["id"] for v in first["verdicts"]]
    assert all(v["value"]["repeated"] for v in again["verdicts"])


def test_a_second_request_is_told_while_the_first_is_under_way(api: TestClient) -> None:
    """Both at once, through the app itself: the first one is held between its two halves."""

    async def both() -> list[Any]:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(_: Request) -> Any:
            begun.set()
            await go_on.wait()
            return keys.Json({"done": True})

        def asked() -> Request:
            scope = {
                "type": "http", "method": "POST", "path": "/x", "query_string": b"", "app": api.app,
                "headers": [(b"idempotency-key", b"k")], "onetray.principal": LOCAL,
            }  # fmt: skip

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": b"{}", "more_body": False}

            return Request(scope, receive)

        first = asyncio.create_task(keys.under_its_key(asked(), "/x", slowly))
        await asyncio.wait_for(begun.wait(), 60)
        second = await asyncio.gather(keys.under_its_key(asked(), "/x", slowly), return_exceptions=True)
        go_on.set()
        await first
        return [*second, await keys.under_its_key(asked(), "/x", slowly)]

    refused, again = asyncio.run(both())
    assert refused.code == "in_progress"
    assert again.headers[REPLAY] == "true"


@pytest.mark.parametrize("query", [b"", b"nonsense=1"])
def test_nothing_is_given_again_to_who_may_not_ask(api: TestClient, query: bytes) -> None:
    post(api, "/queues/q/pause", {}, Idempotency_Key="k")
    route = next(r for r in fleet.router.routes if isinstance(r, NativeRoute) and r.path.endswith("/pause"))
    scope = {
        "type": "http", "method": "POST", "path": "/api/v1/queues/q/pause", "query_string": query, "app": api.app,
        "headers": [(b"idempotency-key", b"k")], "onetray.principal": Principal("local", "default", frozenset({READ})),
    }  # fmt: skip
    with pytest.raises(Forbidden):
        asyncio.run(route.get_route_handler()(Request(scope)))


def test_a_claim_under_a_key_is_the_same_claim(shop: TestClient, queue: str) -> None:
    submit(shop, queue)
    body = {"worker": "w", "queue": queue}
    first = post(shop, "/tasks/claim", body, Idempotency_Key=queue)["tasks"]
    assert post(shop, "/tasks/claim", body, Idempotency_Key=queue)["tasks"][0]["id"] == first[0]["id"]
    assert claim(shop, queue) == []
