"""Who may use which tool of parallel-mcp, and that nothing of another namespace can be seen, counted or guessed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from mcp import MCPError

from onetray.domain.token import OPERATE, READ, SUBMIT, WORK
from onetray.mcp.parallel import TOOLS
from tests.http.callers import token
from tests.mcp.agents import Agent, agent_at
from tests.mcp.conftest import Place
from tests.mcp.parallel_agents import Crew, crew_of, own_id
from tests.support.waits import wait_until

SCOPE_OF = {
    SUBMIT: {"create_run", "enqueue_task", "append_context_snapshot"},
    WORK: {
        "claim_next_task", "heartbeat_lease", "mark_task_running", "pause_task", "release_task", "complete_task",
        "fail_task", "expire_leases",
    },
    OPERATE: {"resume_task", "requeue_dead_task", "cancel_run", "prune_runs"},
    READ: {
        "get_run", "get_task", "get_current_context_snapshot", "list_run_tasks", "list_run_events", "list_runs",
        "list_pending_tasks", "list_events_since", "list_dead_tasks",
    },
}  # fmt: skip
"""The scope of each tool, once more."""
NAMES = {tool.name for tool in TOOLS}


@pytest.fixture(scope="module")
def agents(place: Place) -> Iterator[dict[str, Agent]]:
    with ExitStack() as stack:
        callers = {scope: (scope, "ours") for scope in SCOPE_OF} | {
            "ours": ("admin", "ours"),
            "theirs": ("admin", "theirs"),
        }
        yield {
            name: stack.enter_context(agent_at(place.url, headers=token(place.engine, scope, namespace=ns)))
            for name, (scope, ns) in callers.items()
        }


@pytest.fixture
def ours(agents: dict[str, Agent]) -> Crew:
    return crew_of(agents["ours"])


@pytest.mark.parametrize("scope", SCOPE_OF)
def test_a_caller_sees_the_tools_of_its_scope_and_no_others(agents: dict[str, Agent], scope: str) -> None:
    assert agents[scope].tools().keys() & NAMES == SCOPE_OF[scope]
    for name in NAMES - SCOPE_OF[scope]:
        with pytest.raises(MCPError, match=f"there is no tool '{name}'"):
            agents[scope].result(name)


def test_every_tool_has_its_scope() -> None:
    assert {tool.name: tool.scopes for tool in TOOLS} == {n: (s,) for s, names in SCOPE_OF.items() for n in names}


def test_each_scope_suffices_for_its_tools(agents: dict[str, Agent]) -> None:
    submitter, worker, operator, reader = (Crew(agents[scope], "by-scope") for scope in (SUBMIT, WORK, OPERATE, READ))
    run = submitter.run(context=1)
    task = submitter.task(run)["id"]
    held = worker.take()
    worker.report("pause_task", held, status="blocked")
    assert operator.call("resume_task", taskId=task)["task"]["status"] == "queued"
    worker.report("complete_task", worker.take())
    assert reader.status(run) == "completed"


def test_a_time_in_the_future_needs_the_scope_admin(agents: dict[str, Agent]) -> None:
    future = "2099-01-01T00:00:00Z"
    assert agents[WORK].refusal("expire_leases", now=future).startswith("Forbidden: now is in the future")
    assert agents[WORK].call("expire_leases", now="2020-01-01T00:00:00Z")["count"] == 0
    assert agents["theirs"].call("expire_leases", now=future) == {"expiredTaskIds": [], "count": 0}


def everything(crew: Crew) -> dict[str, Any]:
    """Ids of something of everything: a held task, a dead one, a paused one, a snapshot."""
    run = crew.run(id=own_id("run"), namespace="label", externalId=own_id(), context={"n": 1})
    snapshot = crew.call("append_context_snapshot", runId=run, payload=1, id=own_id("snapshot"))["snapshot"]["id"]
    paused = crew.task(run, id=own_id("paused"))["id"]
    crew.report("pause_task", crew.take(), status="blocked")
    dead = crew.die(run, id=own_id("dead"))["id"]
    crew.task(run, id=own_id("held"), key="k")
    held = crew.take(clientToken=own_id("token"), leaseMs=600_000)
    return {"run": run, "snapshot": snapshot, "dead": dead, "paused": paused, "held": held}


def about(things: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Arguments of each tool that could reach what is ours."""
    run, held = {"runId": things["run"]}, things["held"]
    return {
        "enqueue_task": [{**run, "kind": "k"}], "append_context_snapshot": [{**run, "payload": 1}],
        "heartbeat_lease": [held], "mark_task_running": [held], "pause_task": [{**held, "status": "blocked"}],
        "release_task": [held], "complete_task": [held, {**held, "clientToken": "t"}],
        "fail_task": [{**held, "error": "e"}], "resume_task": [{"taskId": things["paused"]}],
        "requeue_dead_task": [{"taskId": things["dead"]}], "cancel_run": [run], "get_run": [run],
        "get_task": [{"taskId": things[name]} for name in ("dead", "paused")], "get_current_context_snapshot": [run],
        "list_run_tasks": [run], "list_run_events": [run], "list_pending_tasks": [run, {}],
        "list_events_since": [run, {}], "list_dead_tasks": [run, {}], "list_runs": [{}, {"namespace": "label"}],
        "expire_leases": [{"now": "2099-01-01T00:00:00Z"}], "prune_runs": [{"olderThan": "2099-01-01T00:00:00Z"}],
        "claim_next_task": [{"workerId": "w"}], "create_run": [],
    }  # fmt: skip


UNKNOWN = {"run": "run/none", "snapshot": "snapshot/none", "dead": "dead/none", "paused": "paused/none"}


@pytest.fixture(scope="module")
def things(agents: dict[str, Agent]) -> dict[str, Any]:
    return everything(crew_of(agents["ours"]))


@pytest.mark.parametrize("tool", sorted(NAMES))
def test_no_tool_reaches_another_namespace(
    agents: dict[str, Agent], things: dict[str, Any], ours: Crew, place: Place, tool: str
) -> None:
    theirs = agents["theirs"]
    # By the ids that we show, and by the engine's own.
    flow = place.engine.by_alias(things["run"], namespace="ours")
    task = place.engine.by_alias(things["held"]["taskId"], namespace="ours")
    natively = {**things, "run": flow.id, "held": {**things["held"], "taskId": task.id}}
    before = [ours.call("list_run_tasks", runId=things["run"]), {"events": ours.log(things["run"], "task.claimed", 3)}]
    nothing = {**UNKNOWN, "held": {"taskId": "held/none", "leaseId": things["held"]["leaseId"], "workerId": "w"}}
    for seen in (things, natively):
        for wanted, unknown in zip(about(seen)[tool], about(nothing)[tool], strict=True):
            found, none = theirs.result(tool, **wanted), theirs.result(tool, **unknown)
            # The same as for what does not exist anywhere.
            shown = str(found)
            for name in ("run", "dead", "paused", "snapshot"):
                shown = shown.replace(seen[name], nothing[name])
            assert shown.replace(seen["held"]["taskId"], "held/none") == str(none)
            assert "label" not in str(found.structured_content)
    assert [
        ours.call("list_run_tasks", runId=things["run"]),
        ours.call("list_run_events", runId=things["run"]),
    ] == before


def test_the_same_ids_live_side_by_side(agents: dict[str, Agent]) -> None:
    run, task, snapshot, token_ = (own_id() for _ in range(4))
    claims = []
    for name in ("ours", "theirs"):
        crew = Crew(agents[name], own_id("kind"))
        crew.run(id=run)
        crew.call("append_context_snapshot", runId=run, payload=name, id=snapshot)
        crew.task(run, id=task, input=name, contextSnapshotId=snapshot)
        claims.append((crew, crew.take(clientToken=token_)))
    (one, mine), (other, yours) = claims
    assert mine["leaseId"] != yours["leaseId"]
    assert one.refusal("complete_task", **yours).startswith("LeaseConflictError: ")
    one.report("complete_task", mine, output=1)
    assert [crew.get(task)["status"] for crew in (one, other)] == ["completed", "leased"]
    assert [crew.get(task)["input"] for crew in (one, other)] == ["ours", "theirs"]
    assert other.call("get_current_context_snapshot", runId=run)["snapshot"]["payload"] == "theirs"
    other.report("complete_task", yours)


def test_a_cursor_does_not_tell_what_others_do(agents: dict[str, Agent], ours: Crew) -> None:
    theirs = agents["theirs"]
    cursor = theirs.call("list_events_since", limit=1000)["nextCursor"]
    while theirs.call("list_events_since", afterId=cursor)["nextCursor"] != cursor:
        cursor = theirs.call("list_events_since", afterId=cursor)["nextCursor"]
    ours.task(ours.run())
    assert theirs.call("list_events_since", afterId=cursor) == {"events": [], "nextCursor": cursor}
    Crew(theirs, ours.kind).run()
    # The feed ends before the event while an older transaction is open.
    wait_until(lambda: theirs.call("list_events_since", afterId=cursor)["events"])
    assert [e["eventType"] for e in theirs.call("list_events_since", afterId=cursor)["events"]] == ["run.created"]
