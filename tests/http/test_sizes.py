"""Large bodies with too much of something: they are refused before every item is looked at."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from tests.http.calls import get, post, refusal, sent
from tests.support.cases import each_case

UNKNOWN = {f"unknown-{n}": 1 for n in range(20_000)}
MANY = 70_000


@each_case(
    ("path", "body", "expected"),
    [
        ("/jobs/batch", {"jobs": [1] * MANY}, (413, "too_large")),
        ("/jobs/batch", {"jobs": [{}] * MANY}, (413, "too_large")),
        ("/jobs/batch", {"jobs": [{"name": "f", "stages": [{"name": "s", "tasks": [{}] * 10_000}] * 11}]},
         (413, "too_large")),
        ("/jobs/batch", {"jobs": [{"kind": "k", **UNKNOWN}]}, (400, "invalid_input")),
        ("/jobs", {"kind": "k", **UNKNOWN}, (400, "invalid_input")),
        ("/jobs", {"kind": "k", "labels": UNKNOWN}, (413, "too_large")),
        ("/jobs", {"kind": "k", "policy": UNKNOWN}, (400, "invalid_input")),
        ("/jobs", {"kind": "k", "policy": {"retry_on": [1] * MANY}}, (413, "too_large")),
        ("/tasks/reports", {"reports": [1] * MANY}, (413, "too_large")),
        ("/tasks/claim", {"worker": "w", "kinds": [1] * MANY}, (400, "invalid_input")),
        ("/dead-letters/redrive", {"ids": ["x"] * MANY}, (400, "invalid_input")),
    ],
)  # fmt: skip
def test_too_much_in_a_large_body_is_refused_in_a_word(
    shop: TestClient, path: str, body: Any, expected: tuple[int, str]
) -> None:
    found = sent(shop, path, body)
    assert refusal(found) == expected
    assert found.json()["field"].startswith("body")
    assert "errors" not in found.json()


@each_case("wrong", [1, {}, {"kind": 1}])
def test_of_a_list_the_first_that_is_wrong_is_told(shop: TestClient, wrong: Any) -> None:
    found = sent(shop, "/jobs/batch", {"jobs": [{"kind": "k"}, wrong, wrong, wrong]})
    assert refusal(found) == (400, "invalid_input")
    assert {e["field"].split(".")[2] for e in found.json()["errors"] if "." in e["field"]} == {"1"}


def test_thousands_of_errors_are_counted_and_not_told(shop: TestClient) -> None:
    found = sent(shop, "/jobs", {"kind": "k", **dict.fromkeys(map(str, range(1_001)), 1)})
    assert refusal(found) == (400, "invalid_input")
    assert "1,001 errors" in found.json()["detail"]


def test_what_is_large_and_may_be_so_is_taken(shop: TestClient, queue: str) -> None:
    payload = {"rows": list(UNKNOWN), **UNKNOWN}
    id_ = post(shop, "/jobs", {"kind": "k", "queue": queue, "payload": payload, "labels": {"a": "b"}}, 201)["id"]
    assert get(shop, f"/jobs/{id_}")["payload"] == payload
    jobs = [{"kind": "k", "queue": queue, "policy": {"retry_on": ["A"]}}] * 2_000
    jobs.append({"name": "f", "stages": [{"name": "s", "tasks": [{"kind": "k", "payload": UNKNOWN}], "data": UNKNOWN}]})
    assert all("value" in v for v in post(shop, "/jobs/batch", {"jobs": jobs})["verdicts"])


def test_so1_counts_unknown_fields_and_does_not_tell_each(shop: TestClient) -> None:
    found = shop.post("/api/jobs", json={"action": "a", **UNKNOWN})
    assert (found.status_code, len(found.json()["error"]["details"]["errors"])) == (400, 1)
    assert "20,001 fields" in found.json()["error"]["message"]
