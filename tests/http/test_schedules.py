"""Schedules over HTTP: the same as on the command line, for those whose scope allows it."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.remote.engine import RemoteEngine
from tests.http.callers import bearer
from tests.http.calls import get, post, refusal, sent
from tests.support.servers import served


def body(name: str = "s", **fields: Any) -> dict[str, Any]:
    return {"name": name, "kind": "mail", "every_s": 3_600, **fields}


def test_a_schedule_is_added_read_paused_triggered_backfilled_and_removed(
    api: TestClient, engine: Engine, clock: VirtualClock
) -> None:
    added = post(
        api, "/schedules", body("a/b", payload={"to": "ann"}, labels={"team": "a"}, starts_at="2020-01-01T00:00:00Z")
    )
    assert (added["state"], added["starts_at"], added["labels"]) == (
        "active",
        "2020-01-01T00:00:00.000000Z",
        {"team": "a"},
    )
    assert get(api, "/schedules")["schedules"][0]["payload"] == {"to": "ann"}
    clock.advance(3_600)
    engine.fire_schedules()
    shown = get(api, "/schedules/a/b")
    assert (shown["last_outcome"], shown["fires"]) == ("submitted", 1)
    (fire,) = get(api, "/schedules/a/b/fires")["fires"]
    assert fire["job"] == shown["last_job"]
    assert len(get(api, "/schedules/a/b/preview", limit=3)["times"]) == 3
    assert post(api, "/schedules/a/b/pause", {"reason": "holiday"})["paused_why"] == "holiday"
    explained = get(api, "/schedules/a/b/explain")
    assert "paused by user:" in explained["reasons"][0]
    assert post(api, "/schedules/a/b/trigger")["is_triggered"]
    assert post(api, "/schedules/a/b/resume")["state"] == "active"
    span = {"since": "2023-11-14T00:00:00Z", "until": "2023-11-14T05:00:00Z"}
    assert len(post(api, "/schedules/a/b/backfill", {**span, "preview": True})["times"]) == 6
    assert post(api, "/schedules/a/b/backfill", span)["submitted"] == 6
    assert post(api, "/schedules/a/b/remove") == {}
    assert refusal(api.get("/api/v1/schedules/a/b")) == (404, "not_found")


def test_an_expression_is_previewed_before_it_is_used(api: TestClient) -> None:
    wanted = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "since": "2026-10-24T12:00:00Z", "limit": 1}
    (time,) = post(api, "/schedules/preview", wanted)["times"]
    assert time == {"fire_at": "2026-10-25T00:30:00.000000Z", "local": "2026-10-25T02:30:00+02:00", "note": "twice"}
    assert refusal(sent(api, "/schedules/preview", {"cron": "no"}))[0] == 400


def test_bad_definitions_are_refused(api: TestClient) -> None:
    for bad in ({"every_s": 0}, {"cron": "x"}, {"overlap": "no"}, {"timezone": "x"}, {"kind": 5}, {"nonsense": 1}):
        assert sent(api, "/schedules", {**body(), **bad}).status_code == 400, bad
    assert get(api, "/schedules")["schedules"] == []


def test_what_is_in_the_code_of_an_app_is_changed_there(api: TestClient) -> None:
    declared = {"schedules": [body()], "app": "shop", "worker": "w1"}
    assert post(api, "/schedules/declare", declared) == {"refused": []}
    assert refusal(sent(api, "/schedules", body(every_s=60))) == (409, "declared_in_code")
    assert get(api, "/schedules/s")["seen_in_code_at"] is not None


def test_whoever_schedules_needs_to_be_allowed_to_submit(api: TestClient, engine: Engine) -> None:
    tokens = {
        scopes: engine.tokens.create("t", scopes.split()).text for scopes in ("operate", "operate submit", "work")
    }
    for scopes, path, sends, status in (
        ("operate", "/schedules", body(), 403), ("operate submit", "/schedules", body(), 200),
        ("operate", "/acts/put_schedule", body(), 403), ("operate submit", "/acts/put_schedule", body(), 200),
        ("work", "/schedules/declare", {"schedules": []}, 403),
    ):  # fmt: skip
        answer = api.post(f"/api/v1{path}", json=sends, headers=bearer(tokens[scopes]))
        assert answer.status_code == status, answer.text


def test_secrets_of_a_payload_are_shown_to_nobody(api: TestClient, engine: Engine) -> None:
    engine.configure("login", Policy(redact=("password",)))
    for path in ("/schedules", "/schedules/s/pause", "/schedules/s/resume"):
        answer = sent(api, path, body(kind="login", payload={"password": "hunter2"}) if path == "/schedules" else {})
        assert (answer.status_code, "hunter2" in answer.text) == (200, False)
    for path in ("", "/s", "/s/explain"):
        assert "hunter2" not in api.get(f"/api/v1/schedules{path}").text


def test_a_remote_engine_has_the_same_schedules(engine: Engine, clock: VirtualClock) -> None:
    from onetray.domain.schedule import ScheduleSpec

    with served(engine) as server, RemoteEngine(server.url) as remote:
        added = remote.put_schedule("s", kind="mail", payload=[1], every_s=3_600, starts_at=SECOND)
        assert added == engine.schedule("s") == remote.schedule("s")
        assert remote.declare_schedules(
            [ScheduleSpec(name="t", kind="mail", cron="@daily"), ScheduleSpec(name="s", kind="mail", every_s=60)],
            app="shop",
        ) == ["s"]
        assert [line.name for line in remote.schedules()] == ["s", "t"]
        clock.advance(3_600)
        engine.fire_schedules()
        assert remote.schedule_fires("s") == engine.schedule_fires("s")
        assert remote.explain_schedule("s") == engine.explain_schedule("s")
        assert remote.preview_schedule("s", limit=2) == engine.preview_schedule("s", limit=2)
        assert remote.trigger_schedule("s").is_triggered
        assert remote.pause_schedule("s", reason="x").paused_why == "x"
        assert remote.resume_schedule("s").state == "active"
        since = clock.now() - 3 * 3_600 * SECOND
        assert remote.backfill_schedule("s", since=since, until=clock.now(), preview=True).submitted == 0
        remote.remove_schedule("s")
        assert [line.name for line in engine.schedules()] == ["t"]
