"""Declared flows over HTTP: a server that has none of the app's code lists, describes and submits them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onetray.engine import Engine
from tests.cli.run import called, told
from tests.http.calls import refusal, sent
from tests.support.engines import migrated_sqlite
from tests.support.fleet import wait_until
from tests.support.serving import serving
from tests.support.workers import WorkerProcess

SCHEMA = {
    "type": "object", "required": ["shop"], "additionalProperties": False,
    "properties": {"shop": {"type": "string"}, "days": {"type": "integer", "default": 7}},
}  # fmt: skip


def declared(name: str, **fields: Any) -> dict[str, Any]:
    stages = [
        {"name": "fetch", "kind": f"{name}.fetch", "queue": name, "fan_out": "list", "payloads": [{"item": 1}]},
        {"name": "pay", "kind": f"{name}.pay", "queue": name, "approval": {"owner": "ann"},
         "when": {"kind": f"{name}.pay.when"}, "compensate": {"kind": f"{name}.pay.undo"}},
    ]  # fmt: skip
    return {"name": name, "stages": stages, "config_schema": SCHEMA, "worker": "w1", **fields}


class NewsWorker(WorkerProcess):
    def program(self, url: str, options: Sequence[str]) -> list[str]:
        return ["onetray", "worker", "--app", "onetray.examples.news_pipeline:app", "--database", url, *options]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_server_without_the_code_runs_what_a_worker_has_declared(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = migrated_sqlite(tmp_path) if store == "sqlite" else str(request.getfixturevalue("migrated_url"))
    with serving(tmp_path, "serve", "--database", url) as server, server.client() as client:
        # One worker by way of the server, one beside it at the same database.
        worker = NewsWorker(server.url if store == "sqlite" else url, tmp_path / "worker.log")
        try:
            worker.until_logged("claims from")
            assert "cannot be submitted by name" not in worker.log
            (line,) = client.get("/api/v1/flow-definitions").json()["flows"]
            news = client.get("/api/v1/flow-definitions/news").json()
            assert (line["name"], line["version"], line["stages"]) == ("news", news["version"], len(news["stages"]))
            assert [stage["fan_out"] for stage in news["stages"]][:3] == ["config", "one", "stage"]
            assert news["config_schema"]["properties"]["pace_s"]["default"] == 0.05
            config = {"pace_s": 0, "enable_evaluation": True}
            submitted = client.post("/api/v1/flow-definitions/news/submit", json={"config": config})
            assert submitted.status_code == 201, submitted.text
            path = submitted.headers["location"]
            wait_until(lambda: client.get(path).json()["finished_at"] is not None, 60)
            job = client.get(path).json()
            assert job["state"] == "succeeded"
            assert job["data"] == {**config, "feeds": ["harbour", "valley"], "enable_auto_optimize": False}
            states = {
                s["name"]: s["state"] for s in told("stages", "list", job["id"], "--database", server.url)["stages"]
            }
            assert (states["evaluation"], states["optimization"]) == ("succeeded", "skipped")
            done = called("flows", "submit", "news", "--config", '{"pace_s": 0}', "--wait", "--database", server.url)
            assert done.exit_code == 0, done.output
        finally:
            worker.kill()


def test_a_flow_is_declared_described_submitted_and_forgotten(shop: TestClient, shared_engine: Engine) -> None:
    assert sent(shop, "/flow-definitions", declared("pay/out", singleton=True, deadline_s=60)).json() == {}
    flow = shop.get("/api/v1/flow-definitions/pay/out").json()
    assert (flow["singleton"], flow["deadline_s"], flow["declared_by"]) == (True, 60, "w1")
    fetch, pay = flow["stages"]
    assert (fetch["items"], fetch["fan_out"], pay["approval"]["owner"]) == (1, "list", "ann")
    assert (pay["condition"], pay["compensation"]) == ("pay/out.pay.when", "pay/out.pay.undo")
    path = "/flow-definitions/pay/out/submit"
    assert refusal(sent(shop, path, {})) == (400, "invalid_input")
    assert refusal(sent(shop, path, {"config": {"shop": 5}})) == (400, "invalid_input")
    assert "config/days" in sent(shop, path, {"config": {"shop": "a", "days": "x"}}).json()["detail"]
    body = {"config": {"shop": "north"}, "labels": {"tenant": "a"}}
    first = sent(shop, path, body, Idempotency_Key="k")
    assert first.status_code == 201
    again = sent(shop, path, {**body, "config": {"shop": "north", "days": 7}}, Idempotency_Key="k")
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert refusal(sent(shop, path, {"config": {"shop": "south"}}, Idempotency_Key="k")) == (409, "key_reused")
    second = sent(shop, path, {"config": {"shop": "south"}})
    assert refusal(second) == (409, "already_open")
    assert (second.json()["job"], second.json()["state"]) == (first.json()["id"], "pending")
    job = shop.get(first.headers["location"]).json()
    assert (job["data"], job["labels"]) == ({"shop": "north", "days": 7}, {"tenant": "a"})
    commands = [{"verb": "submit_declared", "name": "pay/out", "config": {"shop": "a"}, "unique_key": "u"}]
    (verdict,) = sent(shop, "/commands", {"commands": commands}).json()["verdicts"]
    assert verdict["value"]["entity"] == "flow"
    assert sent(shop, "/flow-definitions/pay/out/forget", {}).status_code == 200
    assert refusal(sent(shop, path, body)) == (404, "not_found")
    assert refusal(shop.get("/api/v1/flow-definitions/pay/out")) == (404, "not_found")
    assert shop.get(first.headers["location"]).status_code == 200


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"stages": []}, "stages"),
        ({"stages": [{"name": "a"}]}, "kind"),
        ({"stages": [{"name": "a", "kind": "k"}] * 2}, "stages"),
        ({"stages": [{"name": "a", "kind": "k", "fan_out": "stage", "source": "b"}]}, "source"),
        ({"stages": [{"name": "a", "kind": "k", "fan_out": "list"}]}, "payloads"),
        ({"stages": [{"name": "a", "kind": "k", "fan_out": "config"}]}, "expand"),
        ({"stages": [{"name": "a", "kind": "k", "fan_out": "list", "payloads": [1] * 10_001}]}, "stage.tasks"),
        ({"stages": [{"name": "a", "kind": "k", "when": {"kind": "k", "name": "n"}}]}, "when"),
        ({"config_schema": {"type": 5}}, "config_schema"),
        ({"config_schema": {"pattern": "("}}, "config_schema"),
        ({"roll_up": "loose"}, "roll_up"),
        ({"worker": ""}, "worker"),
    ],
)
def test_a_declaration_that_could_not_be_submitted_is_refused(
    shop: TestClient, wrong: dict[str, Any], field: str
) -> None:
    answer = sent(shop, "/flow-definitions", declared("odd") | wrong)
    assert answer.status_code in (400, 413), answer.text
    assert field in answer.text
    assert shop.get("/api/v1/flow-definitions/odd").status_code == 404
