"""Who sees and calls which tool: scopes and namespaces, on every tool, resource and task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from mcp import MCPError

from onetray.domain.policy import Policy
from onetray.domain.token import OPERATE, READ, SCOPES, SUBMIT, WORK
from onetray.mcp.registry import load_tools
from tests.http.callers import token
from tests.mcp.agents import Agent, agent_at
from tests.mcp.conftest import Place

SCOPE_OF = {
    "submit_job": {SUBMIT}, "run_job": {SUBMIT, READ}, "find_jobs": {READ}, "inspect_job": {READ}, "claim_work": {WORK},
    "report_progress": {WORK}, "finish_work": {WORK}, "hand_over": {WORK}, "ask_human": {WORK},
    "answer_human": {OPERATE}, "cancel_job": {OPERATE}, "redrive_job": {OPERATE},
}  # fmt: skip
"""The scopes of each native tool, once more: a tool that is opened has to be opened here, too."""


@pytest.fixture(scope="module")
def agents(place: Place) -> Iterator[dict[tuple[str, str], Agent]]:
    """Agents with one scope each, in our namespace and in another."""
    with ExitStack() as stack:
        yield {
            (ns, scope): stack.enter_context(agent_at(place.url, headers=token(place.engine, scope, namespace=ns)))
            for ns, scopes in (("ours", SCOPES), ("theirs", ("admin",)))
            for scope in scopes
        }


def test_a_caller_sees_the_tools_of_its_scopes(agents: dict[tuple[str, str], Agent]) -> None:
    for scope in (READ, SUBMIT, WORK, OPERATE):
        allowed = {name for name, scopes in SCOPE_OF.items() if scopes <= {scope}}
        assert agents["ours", scope].tools().keys() & SCOPE_OF.keys() == allowed
    assert agents["ours", "admin"].tools().keys() >= SCOPE_OF.keys()


def test_a_reader_sees_no_tool_that_changes_anything(agents: dict[tuple[str, str], Agent]) -> None:
    for tool in agents["ours", READ].tools().values():
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is True


def test_every_tool_has_a_scope_and_says_whether_it_changes_anything() -> None:
    for tools in load_tools("both").sets:
        for tool in tools.tools:
            assert tool.scopes
            assert set(tool.scopes) <= set(SCOPES)
            assert tool.reads_only is (set(tool.scopes) == {READ})


@pytest.mark.parametrize("tool", SCOPE_OF)
def test_a_tool_of_another_scope_is_unknown(agents: dict[tuple[str, str], Agent], tool: str) -> None:
    for scope in (READ, SUBMIT, WORK, OPERATE):
        if not SCOPE_OF[tool] <= {scope}:
            with pytest.raises(MCPError, match=f"there is no tool '{tool}'"):
                agents["ours", scope].result(tool)


def about(held: dict[str, Any], queue: str) -> dict[str, dict[str, Any]]:
    """Arguments of each tool that could reach a job of ours."""
    id_ = {"id": held["id"]}
    return {
        "submit_job": {"kind": "review", "queue": queue, "idempotency_key": queue},
        "run_job": {"kind": "review", "queue": queue, "idempotency_key": queue, "wait_s": 0},
        "find_jobs": {"correlation_id": queue},
        "inspect_job": {**id_, "show": ["explain", "events", "log"]},
        "claim_work": {"worker": held["worker"], "queue": queue, "request_key": queue},
        "report_progress": {**held, "done": 1, "log": ["theirs"], "notes": "theirs"},
        "finish_work": {**held, "outcome": "succeeded"},
        "hand_over": {**held, "notes": "theirs"},
        "ask_human": {**held, "question": "theirs?"},
        "answer_human": {**id_, "answer": 1},
        "cancel_job": {**id_, "confirm": True},
        "redrive_job": {**id_, "confirm": True},
    }


@pytest.mark.parametrize("tool", SCOPE_OF)
def test_no_tool_reaches_another_namespace(agents: dict[tuple[str, str], Agent], tool: str, queue: str) -> None:
    ours, theirs = agents["ours", "admin"], agents["theirs", "admin"]
    id_ = ours.submit(queue, idempotency_key=queue, correlation_id=queue)
    held = ours.claim(queue, request_key=queue)
    ours.call("report_progress", **held, log=["ours"])
    before = ours.call("inspect_job", id=id_, show=["events", "log"])
    found = theirs.result(tool, **about(held, queue)[tool])
    if tool in ("submit_job", "run_job", "find_jobs", "claim_work"):
        assert not found.is_error
        assert id_ not in str(found.structured_content)
        if tool == "find_jobs":
            assert found.structured_content == {"jobs": [], "next": ["inspect_job", "claim_work"]}
    else:
        unknown = {**held, "id": "00000000-0000-7000-8000-000000000000"}
        nothing = theirs.result(tool, **about(unknown, queue)[tool])
        assert found.is_error
        # The same as for a job that does not exist anywhere.
        assert str(found).replace(held["id"], unknown["id"]) == str(nothing)
    assert ours.call("inspect_job", id=id_, show=["events", "log"]) == before
    ours.call("finish_work", **held, outcome="succeeded")


def test_no_resource_reaches_another_namespace(agents: dict[tuple[str, str], Agent], queue: str) -> None:
    ours, theirs = agents["ours", "admin"], agents["theirs", "admin"]
    id_ = ours.submit(queue)
    for part in ("log", "events"):
        uri = f"onetray://jobs/{id_}/{part}"
        assert ours.portal.call(ours.client.read_resource, uri).contents
        with pytest.raises(MCPError, match="there is no job"):
            theirs.portal.call(theirs.client.read_resource, uri)
    for scope in (SUBMIT, WORK, OPERATE):
        other = agents["ours", scope]
        with pytest.raises(MCPError, match="needs the scope read"):
            other.portal.call(other.client.read_resource, f"onetray://jobs/{id_}/log")


def test_what_makes_sense_next_is_what_the_caller_may_do(agents: dict[tuple[str, str], Agent], queue: str) -> None:
    job = agents["ours", SUBMIT].call("submit_job", kind="review", queue=queue)
    assert job["next"] == []
    assert agents["ours", READ].call("inspect_job", id=job["id"])["next"] == ["inspect_job"]
    assert agents["ours", "admin"].call("inspect_job", id=job["id"])["next"] == ["inspect_job", "cancel_job"]


def test_what_a_kind_redacts_is_shown_to_its_worker_only(
    agents: dict[tuple[str, str], Agent], place: Place, queue: str
) -> None:
    place.engine.configure("secretive", Policy(redact=("password", "note")), namespace="ours")
    ann, secret = agents["ours", "admin"], "swordfish-42"
    id_ = ann.submit(queue, kind="secretive", payload={"password": secret})
    (task,) = ann.call("claim_work", worker="ann", queue=queue)["tasks"]
    assert task["untrusted"]["payload"] == {"password": secret}
    held = {"id": id_, "fence": task["fence"], "worker": "ann"}
    shown = [ann.call("report_progress", **held, done=1, message=f"used {secret}", log=[f"logged {secret}"])]
    shown.append(ann.call("ask_human", **held, question=f"is {secret} right?", notes={"note": secret}))
    shown.append(ann.call("inspect_job", id=id_, show=["explain", "events", "log"], whole=True))
    shown.append(ann.call("answer_human", id=id_, answer=f"yes, {secret}"))
    (task,) = ann.call("claim_work", worker="ann", queue=queue)["tasks"]
    assert task["untrusted"]["notes"] == {"note": secret}
    held["fence"] = task["fence"]
    shown.append(ann.call("finish_work", **held, outcome="failed", error=f"no {secret}", retry=False))
    shown.append(ann.call("inspect_job", id=id_, show=["explain", "events", "log"], whole=True))
    shown.append(ann.call("find_jobs", queue=queue))
    shown.append(ann.call("redrive_job", id=id_))
    shown += [ann.portal.call(ann.client.read_resource, f"onetray://jobs/{id_}/{part}") for part in ("log", "events")]
    for answer in shown:
        assert secret not in str(answer)
