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

from onetray.config import EngineConfig, Limits
from onetray.domain.diagram import as_dict
from onetray.domain.errors import InvalidInput, OnetrayError
from onetray.domain.lifecycle import MACHINES
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.http.app import ROUTERS, build
from onetray.http.native_route import BODIES, NativeRoute
from onetray.http.openapi.document import description_of
from onetray.http.openapi.page import rendered
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
    assert description_of(client.app) is description_of(client.app)


UNBOUNDED = {"PolicyBody.retry_on", "PolicyBody.no_retry_on"}
"""Lists that the engine itself does not bound: a body of the largest size is their limit."""
BOUND = {"string": "maxLength", "array": "maxItems", "integer": "maximum", "number": "maximum"}
ENOUGH = {"enum", "const", "format", "pattern"}


def unbounded(schema: Any, name: str) -> Iterator[str]:
    """Where a schema of what is sent does not say how much it may be."""
    if isinstance(schema, list):
        for part in schema:
            yield from unbounded(part, name)
    elif isinstance(schema, dict):
        bound = BOUND.get(schema.get("type", ""))
        if bound and bound not in schema and not ENOUGH & set(schema):
            yield name
        for key, part in schema.items():
            if key == "properties":
                for field, found in part.items():
                    yield from unbounded(found, f"{name}.{field}")
            elif key in ("anyOf", "oneOf", "items", "additionalProperties"):
                yield from unbounded(_with_bounds(part, schema), name)


def _with_bounds(part: Any, whole: dict[str, Any]) -> Any:
    """One of several types has the bounds that stand beside all of them."""
    beside = {key: whole[key] for key in BOUND.values() if key in whole and "anyOf" in whole}
    return [{**one, **beside} for one in part] if isinstance(part, list) else part


def test_everything_that_is_sent_says_how_much_it_may_be(spec: dict[str, Any]) -> None:
    taken = {name: spec["components"]["schemas"][name] for name in _names_of_bodies(spec)}
    for name, operation in operations(spec):
        taken |= {f"{name} {p['name']}": p["schema"] for p in operation.get("parameters", [])}
    found = {place for name, schema in taken.items() for place in unbounded(schema, name)}
    assert found == UNBOUNDED


def _names_of_bodies(spec: dict[str, Any]) -> set[str]:
    """Bodies, and what they are made of."""
    found, left = set[str](), set(BODIES)
    while left:
        name = left.pop()
        found.add(name)
        left |= set(re.findall(r"#/components/schemas/(\w+)", str(spec["components"]["schemas"][name]))) - found
    return found


def test_the_limits_in_the_description_are_those_of_the_engine() -> None:
    limits = Limits(name_chars=7, key_chars=11, reason_chars=13, line_chars=17, batch=19, labels=3, stages=5)
    store = open_store("sqlite://:memory:")
    store.migrate()
    with Engine(store, config=EngineConfig(limits=limits)) as engine:
        schemas = description_of(build(engine))["components"]["schemas"]
    task = schemas["TaskBody"]["properties"]
    assert task["kind"]["maxLength"] == 7
    assert [task[name]["anyOf"][0]["maxLength"] for name in ("unique_key", "cause")] == [11, 13]
    assert task["labels"]["anyOf"][0]["maxProperties"] == 3
    assert schemas["LineBody"]["properties"]["line"]["maxLength"] == 17
    assert schemas["BatchBody"]["properties"]["jobs"]["maxItems"] == 19
    assert schemas["FlowBody"]["properties"]["stages"]["maxItems"] == 5
    assert "x-onetray-limit" not in str(schemas)


@pytest.mark.parametrize("field", ["kind", "queue", "idempotency_key", "unique_key", "correlation_id", "cause"])
def test_a_text_of_the_largest_size_is_taken_and_a_longer_one_is_not(
    client: TestClient, spec: dict[str, Any], field: str
) -> None:
    schema = spec["components"]["schemas"]["TaskBody"]["properties"][field]
    most = (schema if "maxLength" in schema else schema["anyOf"][0])["maxLength"]
    answers = [client.post("/api/v1/jobs", json={"kind": "k", field: "x" * size}) for size in (most, most + 1)]
    assert [answer.status_code for answer in answers] == [201, 413]


@pytest.mark.parametrize("end", ["minimum", "maximum"])
def test_a_policy_at_the_ends_that_are_described_is_taken_and_one_past_them_is_not(
    spec: dict[str, Any], end: str
) -> None:
    for name, schema in spec["components"]["schemas"]["PolicyBody"]["properties"].items():
        if end in schema:
            # A lease is at most twice a heartbeat, a base of backoff at most the maximum.
            others = {"heartbeat_s": {"lease_s": 0.001}, "backoff_base_s": {"backoff_max_s": schema["maximum"]}}
            beside: dict[str, Any] = others.get(name, {})
            assert Policy(**{**beside, name: schema[end]}), name
            with pytest.raises(InvalidInput):
                Policy(**{**beside, name: schema[end] * 2 + 1 if end == "maximum" else schema[end] - 1})
