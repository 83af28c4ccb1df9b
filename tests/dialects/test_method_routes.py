"""Routes that are methods of a class, on a server, for callers with and without the scope."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Response
from fastapi.testclient import TestClient

from onetray.dialects import kit
from onetray.dialects.calls import Call
from onetray.dialects.method_routes import answers_always, delete, get, post, put, router_of
from onetray.domain.commands import Submit
from onetray.domain.errors import NotFound
from onetray.domain.token import OPERATE, READ, SUBMIT, WORK
from onetray.engine import Engine
from onetray.http.app import build
from onetray.http.services import HttpConfig
from tests.http.callers import token
from tests.support.cases import each_case
from tests.support.tasks import UNKNOWN_ID

ITEM = {"item": UNKNOWN_ID, "state": "queued"}


class NewItem(kit.ClosedBody):
    kind: str
    payload: Any = None


class Items(Call):
    """A request of the tests."""

    @post("/items", SUBMIT, summary="Add an item", **kit.answers_with("The item", ITEM, 201))
    def add(self, new: NewItem) -> dict[str, Any]:
        return self.item(self.run(Submit, **dict(new)).id)

    @get("/items/{id}", READ, WORK, summary="Get an item", **kit.answers_with("The item", ITEM))
    def item(self, id: kit.Id) -> dict[str, Any]:
        task = self.read(self.engine.task, id)
        return {"item": task.id, "state": task.state}

    @delete("/items/{id}", OPERATE, summary="Drop an item", **answers_always("What was done", {"done": True}))
    def drop(self, id: kit.Id) -> None:
        self.abort(self.find_flow(id))

    @put("/items/{id}", OPERATE, summary="Change nothing", **kit.answers_with("Nothing", ITEM, empty={204: "Nothing"}))
    def keep(self, id: kit.Id) -> Response:
        return Response(status_code=204, headers={"reason": id})

    @get("/forgotten", READ, summary="Forgets its value", **kit.answers_with("The item", ITEM))
    def forgotten(self) -> None:
        """Returns nothing."""

    @get("/soon", READ, summary="Waits for nothing", **kit.answers_with("The caller", {"name": "ann"}))
    async def soon(self) -> kit.Json:
        if self.namespace != "default":
            raise NotFound("there is nothing")
        return kit.Json({"name": self.principal.name})


def shape(problem: dict[str, Any], scope: Any, headers: dict[str, str] | None = None) -> kit.Json:
    return kit.Json({"sorry": problem["code"]}, problem["status"], headers)


DIALECT = kit.Dialect("items", "/v9", router_of(Items, "/v9", "items"), shape, "Items", "")


@pytest.fixture
def items(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr("onetray.http.dialects.load_dialect", lambda name: DIALECT)
    app = build(engine, HttpConfig(dialects=("items",), token_cache_s=0.0))
    with TestClient(app, base_url="http://127.0.0.1:8321", raise_server_exceptions=False) as client:
        yield client


def test_a_method_is_a_route(items: TestClient) -> None:
    new = items.post("/v9/items", json={"kind": "water", "payload": [1]})
    assert (new.status_code, new.json()["state"]) == (201, "queued")
    path = f"/v9/items/{new.json()['item']}"
    assert items.get(path).json() == new.json()
    kept = items.put(path)
    assert (kept.status_code, kept.content, kept.headers["reason"]) == (204, b"", new.json()["item"])
    assert items.delete(path).json() == {"done": True}
    assert items.delete(path).json() == {"sorry": "illegal_transition"}
    assert items.get(path).json()["state"] == "cancelled"
    assert items.get("/v9/soon").json() == {"name": "local"}
    assert items.get(f"/v9/items/{UNKNOWN_ID}").json() == {"sorry": "not_found"}
    assert items.get(f"{path}?x=1").json() == items.get("/v9/items/x").json() == {"sorry": "invalid_input"}
    assert items.post("/v9/items", json={"kind": "water", "self": 1}).json() == {"sorry": "invalid_input"}


def test_a_method_that_forgets_its_value_is_an_error(items: TestClient) -> None:
    answer = items.get("/v9/forgotten")
    assert (answer.status_code, answer.json()) == (500, {"sorry": "internal"})


def test_each_method_needs_its_scope(engine: Engine, items: TestClient) -> None:
    id_ = items.post("/v9/items", json={"kind": "water"}).json()["item"]
    calls = {
        ("POST", "/v9/items"): {SUBMIT}, ("GET", f"/v9/items/{id_}"): {READ, WORK}, ("GET", "/v9/soon"): {READ},
        ("PUT", f"/v9/items/{id_}"): {OPERATE}, ("DELETE", f"/v9/items/{id_}"): {OPERATE},
    }  # fmt: skip
    for scope in (READ, SUBMIT, WORK, OPERATE):
        headers = token(engine, scope)
        for (method, path), scopes in calls.items():
            body = {"kind": "k"} if method == "POST" else None
            answer = items.request(method, path, headers=headers, json=body)
            assert (answer.status_code == 403) == (scope not in scopes), (scope, method, path)


@each_case("scopes, answer", [((), kit.answers_with("x", {})), ((READ,), {})])
def test_a_route_declares_its_scope_and_its_answer(scopes: tuple[str, ...], answer: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="GET /x: declare its scopes and its answer"):
        get("/x", *scopes, summary="X", **answer)
    with pytest.raises(TypeError, match="summary"):
        get("/x", READ, **kit.answers_with("x", {}))


def test_the_class_of_the_guide_has_routes() -> None:
    page = (Path(__file__).parents[2] / "docs/dialects.md").read_text()
    [program] = re.findall(r"^```py\n(class .*?)^```$", page, re.MULTILINE | re.DOTALL)
    names = {**globals(), "STATES": {}, "ENDED": kit.Refusal("{what}_ENDED", "The {what} is {state}")}
    exec(program, names)
    assert [(route.path, route.methods) for route in names["router"].routes] == [
        ("/todo/items/{id}", {"GET"}), ("/todo/items/{id}", {"DELETE"}),
    ]  # fmt: skip
