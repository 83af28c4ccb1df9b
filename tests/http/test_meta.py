"""What the server says about itself, and about what is not there."""

from __future__ import annotations

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient

from onetray import __version__
from onetray.engine import Engine
from onetray.http import app as app_module
from onetray.http.app import build
from onetray.http.json_answers import iso_time, micros
from tests.support.cases import each_case


def test_health_and_version(api: TestClient) -> None:
    assert api.get("/healthz").json() == {"status": "ok"}
    assert api.get("/readyz").json() == {"status": "ok"}
    assert api.get("/api/v1/version").json() == {"version": __version__}
    assert __version__ in api.get("/").text


def test_a_job_by_its_id(api: TestClient, engine: Engine) -> None:
    id_ = engine.submit("mail", {"to": "ann"}).id
    found = api.get(f"/api/v1/jobs/{id_}")
    assert found.status_code == 200
    job = found.json()
    assert (job["id"], job["state"], job["payload"]) == (id_, "queued", {"to": "ann"})
    assert "cancel" in job["actions"]
    assert micros(job["created_at"]) == engine.task(str(id_)).created_at


@each_case(
    ("path", "status", "code"),
    [
        ("/api/v1/jobs/00000000-0000-7000-8000-000000000000", 404, "not_found"),
        ("/api/v1/jobs/nonsense", 400, "invalid_input"),
        ("/nowhere", 404, "no_such_route"),
    ],
)
def test_errors_are_problems(api: TestClient, path: str, status: int, code: str) -> None:
    found = api.get(path)
    assert found.status_code == status
    assert found.headers["content-type"] == "application/problem+json"
    assert found.json()["code"] == code
    assert found.json()["detail"]


def test_a_route_that_names_no_scope_does_not_start(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    router = APIRouter()
    router.add_api_route("/open", lambda: None)
    monkeypatch.setattr(app_module, "ROUTERS", (router,))
    with pytest.raises(RuntimeError, match="/open"):
        build(engine)


def test_times_lose_nothing_on_the_wire() -> None:
    assert iso_time(1_700_000_000_123_456) == "2023-11-14T22:13:20.123456Z"
    assert micros(iso_time(1_700_000_000_123_456)) == 1_700_000_000_123_456
