"""`actions` over HTTP: each listed one is accepted by its route, each other one is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi.testclient import TestClient

from onetray.engine import Engine
from onetray.http.app import build
from tests.http.calls import get, sent
from tests.support.cases import each_case
from tests.support.situations import FLOWS, STAGES, TASKS, Maker

OF_JOB: dict[str, Any] = {"open": None, "pause": None, "resume": None, "cancel": {"mode": "hard"}, "retry": None}
OF_STAGE: dict[str, Any] = {"wait": {}, "approve": None, "reject": None, "skip": None, "cancel": {"hard": True}}


def takes_effect(shop: TestClient, path: str, body: Any) -> bool:
    found = sent(shop, path, body)
    assert found.status_code in (200, 201, 404, 409), found.text
    assert path.rpartition("/")[2] not in found.json().get("actions", []) or found.status_code < 300, found.text
    return found.status_code < 300 and not found.json()["repeated"]


def try_all(shop: TestClient, collection: str, make: Callable[[], str], bodies: dict[str, Any]) -> list[str]:
    """Try every action: all that are refused on one entity, each that is accepted on a new one."""
    refusing = make()
    listed: list[str] = get(shop, f"/{collection}/{refusing}")["actions"]
    for action, body in bodies.items():
        accepted = action in listed
        id_ = make() if accepted else refusing
        assert takes_effect(shop, f"/{collection}/{id_}/{action}", body) == accepted, (action, listed)
    assert get(shop, f"/{collection}/{refusing}")["actions"] == listed
    if collection == "jobs":
        assert get(shop, f"/jobs/{refusing}/actions")["actions"] == listed
    return listed


@each_case("situation", TASKS)
def test_the_actions_of_a_task_are_what_its_routes_accept(
    shop: TestClient, shared_engine: Engine, situation: str
) -> None:
    made: list[str] = []

    def make() -> str:
        made.append(TASKS[situation](Maker(shared_engine)).id)
        return made[-1]

    listed = try_all(shop, "jobs", make, OF_JOB)
    assert get(shop, f"/tasks/{made[0]}")["actions"] == listed
    assert set(listed) <= {*OF_JOB, "redrive"}
    assert ("redrive" in listed) == ("retry" in listed)


@each_case("situation", FLOWS)
def test_the_actions_of_a_flow_are_what_its_routes_accept(
    shop: TestClient, shared_engine: Engine, situation: str
) -> None:
    listed = try_all(shop, "jobs", lambda: FLOWS[situation](Maker(shared_engine)).id, OF_JOB)
    assert set(listed) <= set(OF_JOB)


@each_case("situation", STAGES)
def test_the_actions_of_a_stage_are_what_its_routes_accept(
    shop: TestClient, shared_engine: Engine, situation: str
) -> None:
    listed = try_all(shop, "stages", lambda: STAGES[situation](Maker(shared_engine)), OF_STAGE)
    assert set(listed) <= set(OF_STAGE)


def test_a_token_is_told_what_its_scopes_allow(engine: Engine) -> None:
    made = {name: Maker(engine) for name in ("created", "failed")}
    created, failed = (FLOWS[name](maker).id for name, maker in made.items())
    expected = {"read": ([], []), "read,submit": (["open"], []), "read,operate": (["cancel"], ["retry"])}
    secrets = {scopes: engine.tokens.create(scopes, scopes=tuple(scopes.split(","))).text for scopes in expected}
    with TestClient(build(engine), base_url="http://127.0.0.1:8321") as client:
        for scopes, lists in expected.items():
            client.headers["authorization"] = f"Bearer {secrets[scopes]}"
            assert tuple(get(client, f"/jobs/{id_}/actions")["actions"] for id_ in (created, failed)) == lists
