"""Send the API what nobody thought of: requests made from its own description, about things that exist and others.

A fault is an answer that the description does not allow, or one that says that something broke.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from onetray import Policy
from onetray.domain.declared_flow import FlowDeclaration, StageDeclaration
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.engine import Engine

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip
WORKER = "w"
MOST_FAULTS = 20
HOST = {"host": "127.0.0.1"}
HEADERS = ("Idempotency-Key", "traceparent", "Accept", "X-Request-Id")


@dataclass
class Campaign:
    """What was sent, and what came back that should not have."""

    cases: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counted = ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items()))
        return f"{self.cases} cases; {counted}; {len(self.faults)} faults"


def furnish(engine: Engine) -> dict[str, list[str]]:
    """One thing in each state that requests may be about, by what its id stands for."""
    engine.configure("once", Policy(max_attempts=1))
    engine.declare_flow(FlowDeclaration(name="news", stages=[StageDeclaration(name="a", kind="k", queue="idle")]))
    ids: dict[str, list[str]] = {"jobs": [], "stages": [], "tasks": [], "dead-letters": []}
    flow = engine.submit_flow(
        "f",
        [StageSpec("a", [TaskSpec("k", queue="flow")]), StageSpec("b", start_as_waiting=True, approval=Approval())],
    )
    grown = engine.submit_flow("g", [StageSpec("a", start_as_waiting=True)], sealed=False)
    ids["jobs"] += [flow.id, grown.id, str(engine.submit("k", {"x": 1}, queue="idle").id)]
    ids["stages"] += [*flow.stages, *grown.stages]
    for _ in range(8):
        engine.submit("once", queue="work")
    held = engine.claim("work", worker=WORKER, limit=8)
    engine.succeed(held[0], {"ok": True})
    engine.fail(held[1], "no")
    engine.pause(held[2], owner="ann", reason="which?")
    engine.start(held[3])
    ids["tasks"] += [a.id for a in held]
    ids["jobs"] += [a.id for a in held]
    ids["dead-letters"].append(held[1].id)
    return ids


def run_campaign(
    app: FastAPI,
    ids: dict[str, list[str]],
    *,
    cases: int,
    each: int = 10,
    luck: int = 1,
    description: str = "/api/v1/openapi.json",
) -> Campaign:
    """At least so many requests: of each operation in turn `each` that fit the description, and as many that do not."""
    schema = schemathesis.openapi.from_asgi(description, app, headers=HOST)
    found = [each.ok() for each in schema.get_all_operations()]
    # A stream goes on until somebody leaves.
    operations = [operation for operation in found if "text/event-stream" not in str(operation.definition.raw)]
    done = Campaign()
    # In rounds: what one operation has changed, the others meet. An operation without parameters has one case alone.
    while done.cases < cases and len(done.faults) < MOST_FAULTS:
        for operation in operations:
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                _try(operation, mode, ids, each, luck, done)
        luck += 1
    return done


def _try(
    operation: APIOperation, mode: GenerationMode, ids: dict[str, list[str]], each: int, luck: int, done: Campaign
) -> None:
    about = next((known for name, known in ids.items() if f"/{name}/" in operation.path), [])

    @seed(luck)
    @settings(
        max_examples=each, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(operation.as_strategy(generation_mode=mode), st.data())
    def attempt(case: Case, data: st.DataObject) -> None:
        _make_likely(case, about, data)
        _send(case, done)

    try:
        attempt()
    except Exception as e:
        if "Unsatisfi" not in type(e).__name__:
            done.faults.append(f"{mode.value} {operation.label}: {type(e).__name__}: {e}"[:2_000])


def _make_likely(case: Case, about: list[str], data: st.DataObject) -> None:
    """Let every other request be about something that is there, and by the worker that holds it."""
    if about and "id" in (case.path_parameters or {}) and data.draw(st.booleans()):
        case.path_parameters["id"] = data.draw(st.sampled_from(about))
    if data.draw(st.booleans()):
        (case.headers or {}).pop("Idempotency-Key", None)
    for part in (case.body, case.query):
        if isinstance(part, dict) and isinstance(part.get("wait_s"), int | float):
            part["wait_s"] = 0
    if isinstance(case.body, dict) and "fence" in case.body and data.draw(st.booleans()):
        case.body |= {"fence": 1, "worker": WORKER}
    if data.draw(st.integers(0, 9)) == 0:
        name = data.draw(st.sampled_from(HEADERS))
        case.headers = {**(case.headers or {}), name: data.draw(st.text("!~ az09-\xff", max_size=60)).strip()}


def _send(case: Case, done: Campaign) -> None:
    response = case.call(headers={**HOST, **(case.headers or {})})
    done.cases += 1
    done.statuses[response.status_code] = done.statuses.get(response.status_code, 0) + 1
    try:
        case.validate_response(response, checks=CHECKS)
    except BaseExceptionGroup as e:
        said = "; ".join(str(x) for x in e.exceptions)
        done.faults.append(f"{case.method} {case.path} {response.status_code}: {said} {_sent(case)}"[:2_000])


def _sent(case: Case) -> dict[str, Any]:
    return {"path": case.path_parameters, "query": case.query, "headers": case.headers, "body": case.body}
