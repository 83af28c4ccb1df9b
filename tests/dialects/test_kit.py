"""What every dialect owes: a table of states that the other system allows, and a description that is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fastapi import APIRouter

from onetray.config import BUILT_IN_DIALECTS, Limits
from onetray.dialects.kit import Dialect, DialectRoute, Json, Principal, StateTable, Submitter, answers_with
from onetray.dialects.so1 import DIALECT as SO1
from onetray.domain.lifecycle import TASK
from onetray.http.app import build
from onetray.http.dialects import load_dialect
from onetray.http.openapi.document import describe_dialect
from tests.support.cases import each_case
from tests.support.engines import must_verify, open_migrated
from tests.support.fuzz import furnish, run_campaign

PAGE = Path(__file__).parents[2] / "docs/dialects.md"


@each_case("name", BUILT_IN_DIALECTS)
def test_states_and_transitions_are_those_of_the_other_system(name: str) -> None:
    tables = load_dialect(name).states
    assert tables
    assert [fault for table in tables for fault in table.faults()] == []
    assert f"<!-- generated: tools/dialect_tables.py {name} -->" in PAGE.read_text()


@each_case("name", BUILT_IN_DIALECTS)
def test_the_description_of_a_dialect_is_whole(name: str) -> None:
    spec = describe_dialect(load_dialect(name), Limits())
    for ref in set(re.findall(r"'\$ref': '#/([^']+)'", str(spec))):
        place: Any = spec
        for part in ref.split("/"):
            place = place[part]
    operations = [op for item in spec["paths"].values() for op in item.values()]
    assert len({op["operationId"] for op in operations}) == len(operations)
    for operation in operations:
        assert operation["summary"]
        assert operation["x-onetray-scopes"]
        for answer in [*operation["responses"].values(), *spec["components"]["responses"].values()]:
            for content in answer.get("content", {}).values():
                schema = {**content["schema"], "components": spec["components"]}
                jsonschema.Draft202012Validator(schema).validate(content["example"])


@each_case("name", BUILT_IN_DIALECTS)
def test_no_request_breaks_a_dialect_and_every_answer_is_as_described(name: str) -> None:
    with open_migrated("sqlite://:memory:") as engine:
        app, ids = build(engine), furnish(engine)
        done = run_campaign(app, ids, cases=60, each=3, description=f"/api/v1/openapi/{name}.json")
        assert not done.faults, "\n\n".join(done.faults[:5])
        assert {200, 400, 404} <= set(done.statuses), done
        must_verify(engine)


def test_an_answer_is_declared_by_its_example() -> None:
    router = APIRouter(prefix="/v9", route_class=DialectRoute)
    example: dict[str, Any] = {"id": "7", "done": False, "lines": [{"n": 1, "share": 0.5}], "tags": [], "error": None}
    declared = answers_with("A thing", example, 201, {"share", "error"}, empty={204: "Nothing has changed"})

    @router.put("/things", summary="Put a thing", **declared)
    async def put(principal: Principal = Submitter) -> Json:
        raise NotImplementedError

    spec = describe_dialect(Dialect("v9", "/v9", router, SO1.shape, "", ""), Limits())
    answers = spec["paths"]["/v9/things"]["put"]["responses"]
    assert (set(answers) >= {"201", "204", "400", "409"}, answers["204"]) == (
        True,
        {"description": "Nothing has changed"},
    )
    schema = answers["201"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["id", "done", "lines", "tags"]
    check = jsonschema.Draft202012Validator(schema)
    fits: list[dict[str, Any]] = [{}, {"error": {"any": "thing"}}, {"tags": [1]}, {"lines": [{"n": 2}]}]
    other: list[dict[str, Any]] = [{"lines": [{"share": 2.0}]}, {"done": 0}, {"id": None}]
    assert [changed for changed in (*fits, *other) if check.is_valid(example | changed)] == fits


STATES = dict.fromkeys(TASK.states, "open") | dict.fromkeys(TASK.terminal, "done")
ALLOWED: tuple[tuple[str | None, str], ...] = ((None, "open"), ("open", "done"))


def test_a_table_of_states_finds_what_the_other_system_does_not_allow() -> None:
    assert list(StateTable("task", STATES, ALLOWED).faults()) == []
    unknown = STATES | {"lost": "done"}
    del unknown["blocked"]
    assert list(StateTable("task", unknown, ALLOWED).faults()) == ["blocked: not mapped", "lost: not a state of a task"]
    again = STATES | {"queued": ("new", "retried")}
    found = set(StateTable("task", again, ALLOWED, second_after=("retry",)).faults())
    assert "open → retried by retry: job has no such transition" in {
        re.sub("by .*retry.*:", "by retry:", fault) for fault in found
    }
    # A task that was released has not been retried.
    assert any(fault.startswith("open → new by release") for fault in found)
    no_departure = StateTable(
        "task", STATES, ALLOWED, departures={("done", "open"): "never", ("open", "done"): "allowed"}
    )
    assert len(list(no_departure.faults())) == 2


def test_a_table_of_states_is_rendered_with_both_lifecycles() -> None:
    lines = list(StateTable("task", STATES | {"failed": ("done", "bad")}, ALLOWED, "item", ("start",)).markdown())
    assert "| `failed` | `done`; `bad` after `start` |" in lines
    assert "| new → `open` | `submit` |" in lines
    with pytest.raises(KeyError):
        list(StateTable("task", {}, ALLOWED).markdown())
