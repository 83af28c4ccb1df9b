"""Short ways to say what tests of routes say often."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

NOBODY = "00000000-0000-7000-8000-000000000000"


def post(shop: TestClient, path: str, body: Any = None, expect: int = 200, **headers: str) -> Any:
    """The answer to a POST that must have this status."""
    found = sent(shop, path, body, **headers)
    assert found.status_code == expect, found.text
    return found.json()


def sent(shop: TestClient, path: str, body: Any = None, **headers: str) -> Any:
    """A POST and whatever comes back."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    given = {} if body is None else {"json": body}
    return shop.post(f"/api/v1{path}", headers=named, **given)


def get(shop: TestClient, path: str, expect: int = 200, **query: Any) -> Any:
    found = shop.get(f"/api/v1{path}", params=query)
    assert found.status_code == expect, found.text
    return found.json()


def refusal(found: Any) -> tuple[int, str]:
    """The status and the code of a problem."""
    assert found.headers["content-type"] == "application/problem+json", found.text
    body = found.json()
    assert body["status"] == found.status_code
    assert body["detail"]
    return found.status_code, body["code"]


def submit(shop: TestClient, queue: str, kind: str = "mail", **fields: Any) -> str:
    return str(post(shop, "/jobs", {"kind": kind, "queue": queue, **fields}, 201)["id"])


def claim(shop: TestClient, queue: str, **fields: Any) -> list[dict[str, Any]]:
    return list(post(shop, "/tasks/claim", {"worker": "w", "queue": queue, "limit": 10, **fields})["tasks"])


def held(shop: TestClient, queue: str) -> dict[str, Any]:
    """A task that the worker holds."""
    submit(shop, queue)
    return claim(shop, queue)[0]


def ticket(task: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"fence": task["fence"], "worker": task["worker"], **more}


def dead(shop: TestClient, queue: str, kind: str = "mail") -> str:
    """Make a dead letter; the id of its task."""
    submit(shop, queue, kind, max_attempts=1)
    task = claim(shop, queue)[0]
    post(shop, f"/tasks/{task['id']}/fail", ticket(task, message="no", error_class="Broken"))
    return str(task["id"])


def flow(shop: TestClient, queue: str, *stages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A flow of a stage with two tasks, unless it is given others."""
    made = stages or ({"name": "a", "tasks": [{"kind": "k", "queue": queue}, {"kind": "k", "queue": queue}]},)
    return dict(post(shop, "/jobs", {"name": "f", "stages": list(made), **fields}, 201))
