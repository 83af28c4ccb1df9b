"""What the API says about itself is true, whole and readable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import jsonschema
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import TypeAdapter

from onetray.drawing import as_dict
from onetray.engine import Engine
from onetray.errors import OnetrayError
from onetray.http.app import ROUTERS, build
from onetray.http.native import BODIES, NativeRoute
from onetray.http.openapi import described
from onetray.http.page import rendered
from onetray.lifecycle import MACHINES
from onetray.store import open_store
from tests.http.calls import refusal


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    store = open_store("sqlite://:memory:")
    store.migrate()
    with Engine(store) as engine, TestClient(build(engine), base_url="http://127.0.0.1:8321") as client:
        yield client


@pytest.fixture(scope="module")
def spec(client: TestClient) -> dict[str, Any]:
    found = client.get("/api/v1/openapi.json")
    assert found.status_code == 200
    return dict(found.json())


def operations(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in spec["paths"].items():
        for method, operation in item.items():
            yield f"{method.upper()} {path}", operation


def contents(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every body and every answer of the native API."""
    for name, operation in operations(spec):
        if "requestBody" in operation:
            yield f"{name} body", operation["requestBody"]["content"]["application/json"]
        for status, answer in operation["responses"].items():
            found = answer
            if "$ref" in answer:
                found = spec["components"]["responses"][answer["$ref"].rpartition("/")[2]]
            for content in found.get("content", {}).values():
                yield f"{name} {status}", content


def test_every_body_and_answer_has_an_example_that_fits(spec: dict[str, Any]) -> None:
    count = 0
    for name, content in contents(spec):
        examples = [e["value"] for e in content.get("examples", {}).values()]
        examples += [content["example"]] if "example" in content else []
        assert examples, f"{name} has no example"
        for example in examples:
            jsonschema.Draft202012Validator({**content["schema"], "components": spec["components"]}).validate(example)
            count += 1
    assert count > 100


def test_every_example_of_a_body_is_taken() -> None:
    for name, model in BODIES.items():
        extra: Any = model.model_config["json_schema_extra"]
        for example in extra["examples"]:
            assert TypeAdapter(model).validate_python(example, strict=False) is not None, name


def test_every_operation_reads_well(spec: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, operation in operations(spec)]
    assert len(ids) == len(set(ids))
    for name, operation in operations(spec):
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", operation["operationId"]), name
        assert operation["summary"], name


def test_every_native_route_is_described_with_its_scope(spec: dict[str, Any]) -> None:
    told = dict(operations(spec))
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, NativeRoute) and route.include_in_schema:
                path = re.sub(r":path}", "}", route.path)
                for method in (route.methods or set()) - {"HEAD"}:
                    operation = told[f"{method} {path}"]
                    assert operation["x-onetray-scopes"], path
                    assert f"`{operation['x-onetray-scopes'][0]}`" in operation["description"]


def test_every_error_with_a_status_of_a_refusal_is_described(spec: dict[str, Any]) -> None:
    def errors(root: type[OnetrayError]) -> Iterator[type[OnetrayError]]:
        for error in root.__subclasses__():
            yield error
            yield from errors(error)

    told = {
        code
        for answer in spec["components"]["responses"].values()
        for code in answer["content"]["application/problem+json"]["examples"]
    }
    assert {error.code for error in errors(OnetrayError) if error.status != 500} <= told


def test_every_post_takes_a_key(spec: dict[str, Any]) -> None:
    for name, operation in operations(spec):
        if name.startswith("POST /api/v1"):
            assert "Idempotency-Key" in [p["name"] for p in operation["parameters"]], name


def test_limits_of_numbers_are_in_the_description(spec: dict[str, Any]) -> None:
    schemas = spec["components"]["schemas"]
    assert schemas["TaskBody"]["properties"]["priority"]["maximum"] == 2**31 - 1
    assert schemas["StartBody"]["properties"]["fence"]["minimum"] == 1
    assert schemas["ClaimBody"]["properties"]["limit"]["maximum"] == 10_000


def test_every_reference_leads_somewhere(spec: dict[str, Any]) -> None:
    for ref in set(re.findall(r'"\$ref": ?"([^"]+)"', repr(spec).replace("'", '"'))):
        place: Any = spec
        for part in ref.removeprefix("#/").split("/"):
            place = place[part]


class Seen(HTMLParser):
    """The tags of a page, and what they point to."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.points: list[str] = []
        self.ids: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"<{tag} {name}> would run something"
            if name in ("href", "src"):
                self.points.append(value or "")
            if name == "id":
                self.ids.add(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_runs_nothing_and_fetches_nothing(client: TestClient, spec: dict[str, Any]) -> None:
    found = client.get("/docs")
    assert found.headers["content-security-policy"].startswith("default-src 'none'")
    seen = Seen()
    seen.feed(found.text)
    assert seen.open == []
    assert not seen.tags & {"script", "link", "img", "iframe", "form", "object"}
    assert {p.removeprefix("#") for p in seen.points} <= seen.ids
    assert all(p.startswith("#") for p in seen.points)
    assert {operation["operationId"] for _, operation in operations(spec)} <= seen.ids
    assert 'name="viewport"' in found.text


def test_the_page_escapes_whatever_it_shows() -> None:
    evil = "<script>alert(1)</script>`<b>`\"'>"
    operation = {
        "operationId": evil, "summary": evil, "description": evil, "tags": [evil],
        "parameters": [{"name": evil, "in": evil, "description": evil}],
        "requestBody": {"content": {evil: {"schema": {"$ref": f"#/components/schemas/{evil}"}, "example": evil}}},
        "responses": {evil: {"description": evil, "content": {}}},
    }  # fmt: skip
    schemas = {evil: {"description": evil, "example": evil}}
    page = rendered(
        {"info": {"title": evil, "version": evil, "description": evil}, "paths": {evil: {evil: operation}},
         "components": {"schemas": schemas, "responses": {}}}
    )  # fmt: skip
    assert "<script" not in page
    assert "<b>" not in page
    seen = Seen()
    seen.feed(page)
    assert seen.open == []


def test_lifecycles_as_data_and_as_drawings(client: TestClient) -> None:
    tables = client.get("/api/v1/lifecycle").json()["lifecycles"]
    assert tables == [as_dict(machine) for machine in MACHINES.values()]
    assert client.get("/api/v1/lifecycle/flow").json() == tables[2]
    drawn = client.get("/api/v1/lifecycle/stage/mermaid")
    assert drawn.text.startswith("stateDiagram-v2\n")
    assert drawn.headers["content-type"].startswith("text/plain")
    assert refusal(client.get("/api/v1/lifecycle/parcel")) == (404, "not_found")
    assert refusal(client.get("/api/v1/lifecycle/parcel/mermaid")) == (404, "not_found")


def test_the_description_is_made_once(client: TestClient) -> None:
    assert isinstance(client.app, FastAPI)
    assert described(client.app) is described(client.app)
