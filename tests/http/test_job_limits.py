"""Limits and weights over HTTP: lists, values, holders, changes, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from onetray.domain.limits import Concurrency, Rate
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.http.calls import claim, get, post, refusal, submit
from tests.support.cases import each_case


def put(shop: TestClient, path: str, body: Any, expect: int = 200) -> Any:
    found = shop.put(f"/api/v1{path}", json=body)
    assert found.status_code == expect, found.text
    return found.json()


@pytest.fixture
def by_tenant(shared_engine: Engine, queue: str) -> str:
    """A kind that is limited to 2 for each tenant, and fair by it."""
    shared_engine.configure(queue, Policy(concurrency=(Concurrency(2, key="tenant"),), fair_by="tenant"))
    return queue


def test_a_limit_is_set_listed_changed_and_removed(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    made = put(shop, "/limits", {"queue": queue, "concurrency": 10, "reason": "slow"})
    assert (made["what"], made["queue"], made["most"], made["set_by"], made["declared"]) == (
        "concurrency", queue, 10, "local", None,
    )  # fmt: skip
    assert get(shop, "/limits", queue=queue)["limits"] == [made]
    assert get(shop, f"/limits/{made['id']}") == made
    changed = put(shop, "/limits", {"queue": queue, "concurrency": 3.0})
    assert (changed["id"], changed["most"]) == (made["id"], 3)
    gone = shop.delete(f"/api/v1/limits/{made['id']}", params={"reason": "fast again"})
    assert gone.json() == {"id": made["id"], "removed": True}
    assert get(shop, "/limits", queue=queue)["limits"] == []
    events = shared_engine.events_since(types=["limit.set", "limit.removed"]).events
    mine = [(e.type, e.cause) for e in events if queue in e.payload["limit"]]
    assert mine == [("limit.set", "slow"), ("limit.set", None), ("limit.removed", "fast again")]


def test_a_limit_of_the_code_is_overridden_and_reset(shop: TestClient, by_tenant: str) -> None:
    body = {"kind": by_tenant, "key": "tenant", "concurrency": 5}
    changed = put(shop, "/limits", body)
    assert (changed["most"], changed["declared"]["most"], changed["set_by"]) == (5, 2, "local")
    reset = post(shop, f"/limits/{changed['id']}/reset", {"reason": "calm"})
    assert (reset["most"], reset["set_by"], reset["set_at"]) == (2, None, None)
    assert refusal(shop.delete(f"/api/v1/limits/{changed['id']}")) == (409, "conflict")


def test_the_holders_of_a_limit_are_listed_a_page_at_a_time(shop: TestClient, queue: str) -> None:
    limit = put(shop, "/limits", {"queue": queue, "concurrency": 2})["id"]
    ids = [submit(shop, queue) for _ in range(3)]
    claim(shop, queue, worker="w7")
    first = get(shop, f"/limits/{limit}/holders", limit=1)
    rest = get(shop, f"/limits/{limit}/holders", cursor=first["next"])
    holders = first["holders"] + rest["holders"]
    assert [(h["task"], h["worker"]) for h in holders] == [(ids[0], "w7"), (ids[1], "w7")]
    assert rest["next"] is None
    shown = get(shop, f"/limits/{limit}")
    assert (shown["running"], shown["waiting"]) == (2, 1)


def test_the_values_of_a_key_are_listed_a_page_at_a_time(shop: TestClient, by_tenant: str) -> None:
    for tenant in ("acme", "acme", "acme", None):
        submit(shop, by_tenant, by_tenant, payload={"tenant": tenant})
    assert len(claim(shop, by_tenant)) == 3
    [limit] = get(shop, "/limits", kind=by_tenant)["limits"]
    first = get(shop, f"/limits/{limit['id']}/values", limit=1)
    rest = get(shop, f"/limits/{limit['id']}/values", cursor=first["next"])
    values = first["values"] + rest["values"]
    assert {v["value"]: (v["running"], v["blocked"]) for v in values} == {"acme": (2, 1), None: (1, 0)}
    assert (limit["running"], limit["waiting"]) == (3, 1)
    assert len(get(shop, f"/limits/{limit['id']}/holders", value='"acme"')["holders"]) == 2
    refused = get(shop, f"/limits/{limit['id']}/holders", 400)
    assert "pass a value of it, as JSON" in refused["detail"]


def test_a_rate_says_when_the_next_task_may_start(shop: TestClient, queue: str) -> None:
    limit = put(shop, "/limits", {"queue": queue, "rate": "1/5m", "smooth": True})
    assert (limit["per_s"], limit["smooth"], limit["next_start_at"]) == (300.0, True, None)
    submit(shop, queue), submit(shop, queue)
    assert len(claim(shop, queue)) == 1
    assert get(shop, f"/limits/{limit['id']}")["next_start_at"] is not None


def test_weights_are_set_and_listed(shop: TestClient, by_tenant: str) -> None:
    for value, weight in (("acme", 2), ({"b": 1, "a": 2}, 0.5)):
        put(shop, "/limits/weights", {"kind": by_tenant, "value": value, "weight": weight, "reason": "paid"})
    listed = get(shop, "/limits/weights", kind=by_tenant)["weights"]
    assert [(w["value"], w["weight"]) for w in listed] == [("acme", 2.0), ({"a": 2, "b": 1}, 0.5)]


@each_case(
    "body, says",
    [
        ({"concurrency": 3}, "a queue or for a kind"),
        ({"queue": "a", "kind": "b", "concurrency": 3}, "a queue or for a kind"),
        ({"queue": "a"}, "a concurrency or a rate"),
        ({"queue": "a", "rate": "fast"}, "as 10/s, 100/m"),
        ({"queue": "a", "concurrency": -1}, "greater than or equal to 0"),
        ({"queue": "a", "concurrency": 1, "smooth": True}, "smooth is for rates"),
        ({"kind": "b", "key": "tenant", "concurrency": 1}, "declare it in code"),
        ({"queue": "a", "most": 1}, "most"),
    ],
)
def test_a_bad_limit_is_refused(quick_api: TestClient, body: Any, says: str) -> None:
    found = quick_api.put("/api/v1/limits", json=body)
    assert refusal(found) == (400, "invalid_input")
    assert says in found.text


@each_case(
    "method, path, status",
    [
        ("GET", "/limits/99999", 404), ("DELETE", "/limits/99999", 404), ("POST", "/limits/99999/reset", 404),
        ("GET", "/limits/99999/values", 404), ("GET", "/limits/99999/holders", 404), ("GET", "/limits/0", 400),
        ("GET", "/limits/x", 400), ("GET", "/limits/1/values?cursor=x", 400),
    ],
)  # fmt: skip
def test_a_limit_that_is_not_there(quick_api: TestClient, method: str, path: str, status: int) -> None:
    assert quick_api.request(method, f"/api/v1{path}").status_code == status


def test_a_bad_weight_is_refused(shop: TestClient, by_tenant: str) -> None:
    for body in ({"kind": by_tenant, "value": "a", "weight": 0}, {"kind": "plain", "value": "a", "weight": 2}):
        assert refusal(shop.put("/api/v1/limits/weights", json=body)) == (400, "invalid_input")
    long = {"kind": by_tenant, "value": "a" * 1_000, "weight": 2}
    assert refusal(shop.put("/api/v1/limits/weights", json=long)) == (413, "too_large")


def test_kinds_are_declared_with_limits(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    limits = {"concurrency": [{"most": 3, "key": "tenant"}, {"most": 9}], "rate": [{"count": 100, "per_s": 60}]}
    post(shop, "/kinds", {"policies": {queue: {**limits, "fair_by": "tenant"}}})
    policy = shared_engine.policy_of(queue)
    assert (policy.concurrency, policy.rate, policy.fair_by) == (
        (Concurrency(3, "tenant"), Concurrency(9)), (Rate(100, 60),), "tenant",
    )  # fmt: skip
    assert len(get(shop, "/limits", kind=queue)["limits"]) == 3
