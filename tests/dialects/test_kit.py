"""What every dialect owes: a table of states that the other system allows, and a description that is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fastapi import APIRouter
from pydantic import Field, ValidationError

from onetray.config import BUILT_IN_DIALECTS, Limits
from onetray.dialects.kit import (
    Dialect,
    DialectError,
    DialectRoute,
    Json,
    Levels,
    Principal,
    Refusal,
    StateTable,
    Submitter,
    TracedBody,
    answers_with,
    instead_of,
    read_transitions,
    traceparent_of,
)
from onetray.dialects.paging import DatedQuery, Found, PageQuery, page_or_all
from onetray.dialects.so1 import DIALECT as SO1
from onetray.domain.errors import Conflict, IllegalTransition, NotFound
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


[EXAMPLE] = re.findall(r"^```py\n(TABLE = .*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
"""The table of docs/dialects.md."""
names: dict[str, Any] = {"StateTable": StateTable}
exec(EXAMPLE, names)
READ_TABLE: StateTable = names["TABLE"]


def test_a_table_of_states_can_be_a_text() -> None:
    assert READ_TABLE.states["queued"] == ("open", "again")
    assert {state: READ_TABLE.state(state) for state in ("assigned", "running", "waiting_input", "failed")} == {
        "assigned": "busy", "running": "busy", "waiting_input": "open", "failed": "dropped",
    }  # fmt: skip
    assert set(READ_TABLE) == set(TASK.states)
    assert READ_TABLE.transitions == (
        (None, "open"), ("open", "busy"), ("busy", "done"), ("busy", "dropped"), ("busy", "again"), ("busy", "open"),
        ("again", "busy"),
    )  # fmt: skip
    dropped = dict.fromkeys([("again", "dropped"), ("open", "dropped")], "somebody dropped it")
    taken_over = dict.fromkeys([("again", "done"), ("open", "done")], "a redriven flow takes it over")
    assert dict(READ_TABLE.departures) == {("open", "again"): "a user resumed it", **dropped, **taken_over}
    assert read_transitions("new → a → b, c", "b → a") == ((None, "a"), ("a", "b"), ("a", "c"), ("b", "a"))
    assert list(READ_TABLE.faults()) == []
    strict = StateTable.read("task", "item", EXAMPLE.split('"""')[1].replace("open → again: a user resumed it", ""))
    assert list(strict.faults())
    for wrong in ("queued open", "queued = ", "queued = open; running"):
        with pytest.raises(ValueError, match=r"is neither states"):
            StateTable.read("task", "item", wrong)
    with pytest.raises(ValueError, match="queued: mapped twice"):
        StateTable.read("task", "item", "queued, running = open\nqueued = busy")


class SomeTask:
    state, attempts, started_at = "queued", 0, None


def test_a_table_of_states_shows_a_value_and_finds_the_states_of_a_filter() -> None:
    task = SomeTask()
    assert (READ_TABLE.show(task), READ_TABLE.show(task, "running"), READ_TABLE.show(task, None)) == (
        "open", "busy", "open",
    )  # fmt: skip
    task.attempts = 1
    assert READ_TABLE.show(task) == "again"
    by_start = StateTable("task", STATES | {"queued": ("new", "begun")}, ALLOWED)
    assert by_start.show(task) == "new"
    task.started_at = 7  # type: ignore[assignment]
    assert by_start.show(task) == "begun"
    assert READ_TABLE.of_error(IllegalTransition("no", **{"from": "queued"})) == "again"
    assert READ_TABLE.natives("open") == ["queued", "blocked", "waiting_input"]
    assert (READ_TABLE.natives("again"), READ_TABLE.natives(None), READ_TABLE.natives("x")) == (["queued"], [], [])


def test_a_dialect_refuses_in_its_own_words() -> None:
    ended = Refusal("{what}_ENDED", "The {what} is {state}")
    with pytest.raises(DialectError, match="The job is over") as refused:
        raise ended(what="job", state="over")
    assert (refused.value.facts, refused.value.status) == ({"refusal": "JOB_ENDED"}, 400)
    with (
        pytest.raises(DialectError, match="The task is failed"),
        instead_of(Conflict, ended, what="task", state=lambda e: str(e.facts["from"])),
    ):
        raise IllegalTransition("it has ended", **{"from": "failed"})
    with pytest.raises(NotFound), instead_of(Conflict, ended, what="task", state="?"):
        raise NotFound("other errors stay what they are")
    with instead_of(Conflict, ended):
        pass


def test_a_priority_between_two_levels_has_the_name_of_the_lower_one() -> None:
    levels = Levels(HIGH=10, LOW=-10)
    assert [levels.name_of(priority) for priority in (99, 10, 9, -10, -99)] == ["HIGH", "HIGH", "LOW", "LOW", "LOW"]


def test_a_trace_parent_is_made_of_an_id() -> None:
    made = traceparent_of("019a8c3e-5b1f-7c20-9a51-3f4e8d2b6a70")
    assert made == "00-019a8c3e5b1f7c209a513f4e8d2b6a70-9a513f4e8d2b6a70-01"


class NewItem(TracedBody):
    max_attempts: int = Field(default=1, alias="maxAttempts")


def test_a_body_has_the_names_of_the_other_system_and_gives_those_of_the_engine() -> None:
    trace = traceparent_of("019a8c3e-5b1f-7c20-9a51-3f4e8d2b6a70")
    body = NewItem.model_validate({"maxAttempts": 3, "traceparent": trace})
    assert dict(body) == {"max_attempts": 3, "trace": trace, "tracestate": None}
    for wrong in ({"max_attempts": 3}, {"trace": trace}, {"maxAttempts": "3"}, {"traceparent": "00"}):
        with pytest.raises(ValidationError):
            NewItem.model_validate(wrong)


class ItemQuery(DatedQuery):
    kind: str | None = Field(default=None, alias="name")
    shown: bool = Field(default=False, exclude=True)


def test_a_query_gives_the_filters_of_the_engine() -> None:
    query = ItemQuery.model_validate({"name": "x", "from_date": "1970-01-01T00:00:01", "page": "2", "shown": "true"})
    assert query.filters == {"kind": "x", "since": 1_000_000}
    assert ItemQuery().filters == {}
    assert ItemQuery.model_validate({"end_date": "1960-01-01T00:00:00+01:00"}).filters == {"until": 0}
    with pytest.raises(ValidationError):
        ItemQuery.model_validate({"kind": "x"})


def test_values_at_hand_are_a_list_or_a_page_with_what_else_is_shown_of_them() -> None:
    found = Found([1, 2, 3, 4, 5], lambda some: [(n, n * n) for n in some])
    assert page_or_all(PageQuery(), Found([1, 2]), str) == ["1", "2"]
    assert page_or_all(PageQuery(page=2, page_size=2), found, lambda n, square: n + square) == {
        "total": 5, "items": [12, 20],
    }  # fmt: skip
    assert page_or_all(PageQuery(), found, max, always=True) == {"total": 5, "items": [1, 4, 9, 16, 25]}
    assert page_or_all(PageQuery(page=9), found, max) == {"total": 5, "items": []}
