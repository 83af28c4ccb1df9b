"""The overview over HTTP: statistics, queues and workers at a glance, and what people have done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onetray.domain.clock import VirtualClock
from onetray.engine import Engine
from onetray.remote.engine import RemoteEngine
from tests.http.callers import served, token
from tests.http.calls import get, post, refusal
from tests.remote.conftest import at_work
from tests.support.engines import engine_on, migrated_sqlite
from tests.support.tasks import in_state, submit


def test_statistics_of_the_last_hour(api: TestClient, engine: Engine) -> None:
    in_state(engine, "succeeded")
    found = get(api, "/statistics", buckets=60)
    assert (found["bucket_s"], found["is_complete"], found["total"]["succeeded"]) == (60, True, 1)
    assert 60 <= len(found["buckets"]) <= 62
    assert (found["total"]["at"], found["total"]["run_p50_s"]) == (found["since_at"], 0.000001)
    assert found["buckets"][0]["run_p50_s"] is None


def test_statistics_of_a_range(api: TestClient, engine: Engine, clock: VirtualClock) -> None:
    submit(engine)
    clock.advance(7_200)
    submit(engine)
    found = get(api, "/statistics", since="2023-11-14T22:00:00Z", until="2023-11-14T23:00:00Z", buckets=1)
    assert [(b["at"], b["submitted"]) for b in found["buckets"]] == [("2023-11-14T22:00:00.000000Z", 1)]


@pytest.mark.parametrize("query", [
    {"buckets": 0}, {"buckets": 1_001}, {"since": "yesterday"}, {"since": "2023-11-14T22:00:00"},
    {"since": "2030-01-01T00:00:00Z", "until": "2029-01-01T00:00:00Z"}, {"bucket": 5},
])  # fmt: skip
def test_a_bad_range_is_refused(shop: TestClient, query: dict[str, Any]) -> None:
    assert refusal(shop.get("/api/v1/statistics", params=query)) == (400, "invalid_input")


def test_the_overview(api: TestClient, engine: Engine) -> None:
    asked = in_state(engine, "waiting_input")
    submit(engine)
    found = get(api, "/overview")
    (queue,) = found["queues"]
    assert (queue["name"], queue["ready"], queue["at_least"], queue["workers"]) == ("default", 1, [], 0)
    assert [item["id"] for item in found["needs_human"]["inputs"]["first"]] == [asked.id]
    assert found["needs_human"]["missing_workers"][0]["code"] == "no_worker"
    assert found["workers"] == []


def test_the_audit_in_pages(api: TestClient) -> None:
    for n in range(3):
        post(api, f"/queues/q{n}/pause", {"reason": "maintenance"})
    first = get(api, "/audit", limit=2)
    rest = get(api, "/audit", cursor=first["next"])
    assert [a["payload"]["queue"] for a in first["actions"] + rest["actions"]] == ["q2", "q1", "q0"]
    assert (rest["next"], rest["actions"][0]["cause"], rest["actions"][0]["count"]) == (None, "maintenance", 1)
    assert get(api, "/audit", type=["queue.resumed", "task.cancelled"])["actions"] == []
    person = first["actions"][0]["actor"].partition(":")[2]
    assert len(get(api, "/audit", person=person)["actions"]) == 3
    assert get(api, "/audit", person="nobody")["actions"] == []


@pytest.mark.parametrize("query", [{"type": "task.succeeded"}, {"cursor": "x"}, {"limit": 0}, {"person": ""}])
def test_a_bad_question_about_the_audit_is_refused(shop: TestClient, query: dict[str, Any]) -> None:
    assert refusal(shop.get("/api/v1/audit", params=query)) == (400, "invalid_input")


def test_only_admins_see_what_was_done_with_tokens() -> None:
    with engine_on("sqlite://:memory:", VirtualClock()) as engine, served(engine) as server:
        admin, reader = token(engine, "admin"), token(engine, "read")
        engine.pause_queue("mail", by="ann")
        types = [
            [a["type"] for a in server.get("/api/v1/audit", headers=who).json()["actions"]] for who in (admin, reader)
        ]
        assert types == [["queue.paused", "token.created", "token.created"], ["queue.paused"]]
        by_name = server.post("/api/v1/reads/audit", json={"tokens": True}, headers=reader)
        assert refusal(by_name) == (403, "forbidden")
        worker = token(engine, "work")
        for path in ("statistics", "overview", "audit"):
            assert refusal(server.get(f"/api/v1/{path}", headers=worker)) == (403, "forbidden")


def test_a_remote_engine_reads_the_same(tmp_path: Path) -> None:
    with at_work(migrated_sqlite(tmp_path)) as (own, server), RemoteEngine(server.url) as remote:
        in_state(own, "waiting_input")
        in_state(own, "running", queue="runs")
        own.pause_queue("mail", by="ann", reason="maintenance")
        end = own.now() + 1
        span = {"since": end - 10**9, "until": end}
        assert remote.statistics(**span) == own.statistics(**span)
        there, here = remote.overview(), own.overview()
        assert (there.queues, there.workers, there.needs_human.inputs) == (
            here.queues, here.workers, here.needs_human.inputs,
        )  # fmt: skip
        assert remote.audit(tokens=True) == own.audit(tokens=True)
