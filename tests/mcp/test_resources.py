"""Resources: logs, events and lifecycles, by clients of each revision. test_stdio.py reads one over stdio, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError

from onetray.mcp.resources import PAGE
from tests.mcp.agents import LEGACY, MODERN, Agent, agent_at
from tests.mcp.conftest import Place


@pytest.fixture(scope="module", params=[MODERN, LEGACY])
def ann(request: pytest.FixtureRequest, place: Place) -> Iterator[Agent]:
    with agent_at(place.url, request.param) as connected:
        yield connected


def read(agent: Agent, uri: str) -> str:
    (content,) = agent.portal.call(agent.client.read_resource, uri).contents
    assert isinstance(content, types.TextResourceContents)
    return content.text


def page(agent: Agent, uri: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read(agent, uri))
    return found


def test_resources_and_templates_are_listed(ann: Agent) -> None:
    listed = ann.portal.call(ann.client.list_resources).resources
    assert [resource.uri for resource in listed] == [f"onetray://lifecycle/{e}" for e in ("task", "stage", "flow")]
    templates = ann.portal.call(ann.client.list_resource_templates).resource_templates
    assert [each.uri_template for each in templates] == [
        "onetray://jobs/{id}/log{?cursor}",
        "onetray://jobs/{id}/events{?cursor}",
    ]


def test_a_lifecycle_is_a_diagram(ann: Agent) -> None:
    diagram = read(ann, "onetray://lifecycle/task")
    assert diagram.startswith("stateDiagram-v2\n")
    assert "queued --> assigned: claim" in diagram


def test_a_log_is_read_in_pages(ann: Agent, queue: str) -> None:
    ann.submit(queue)
    held = ann.claim(queue)
    for start in range(0, PAGE + 50, 100):
        ann.call("report_progress", **held, log=[f"line {i}" for i in range(start, min(start + 100, PAGE + 50))])
    first = page(ann, f"onetray://jobs/{held['id']}/log")
    assert (first["state"], len(first["log"])) == ("running", PAGE)
    rest = page(ann, first["next"])
    assert [line["untrusted"] for line in rest["log"]] == [f"line {i}" for i in range(PAGE, PAGE + 50)]
    assert "next" not in rest


def test_events_are_read(ann: Agent, queue: str) -> None:
    id_ = ann.submit(queue)
    ann.call("cancel_job", id=id_, confirm=True, reason="no need")
    found = page(ann, f"onetray://jobs/{id_}/events")
    assert [event["type"] for event in found["events"]] == ["task.submitted", "task.cancelled"]


@pytest.mark.parametrize(
    "uri",
    [
        "onetray://jobs/00000000-0000-7000-8000-000000000000/log",
        "onetray://jobs/00000000-0000-7000-8000-000000000000/secrets",
        "onetray://jobs/../../etc/passwd/log",
        "onetray://lifecycle/nothing",
        "onetray://lifecycle",
        "file:///etc/passwd",
        "onetray://jobs/00000000-0000-7000-8000-000000000000/log?cursor=bG9nOjE&cursor=2",
    ],
)
def test_what_does_not_exist_is_an_error(ann: Agent, uri: str) -> None:
    with pytest.raises(MCPError) as refused:
        read(ann, uri)
    assert refused.value.error.code == -32602


def test_a_wrong_cursor_is_refused(ann: Agent, queue: str) -> None:
    id_ = ann.submit(queue)
    with pytest.raises(MCPError, match="is not a cursor"):
        read(ann, f"onetray://jobs/{id_}/log?cursor=ZXZlbnRzOjE")
