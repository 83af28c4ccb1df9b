"""The tools of parallel-mcp on servers without a janitor, without tokens, behind another one, and for many at once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest

from onetray.domain import commands as c
from onetray.engine import Engine
from onetray.http.claim_waiters import ClaimWaiters
from onetray.mcp.call import Backend
from onetray.mcp.parallel.reports import Item, run_items
from onetray.mcp.registry import load_tools
from tests.mcp.agents import LEGACY, agent, agent_at, process
from tests.mcp.conftest import Place, at
from tests.mcp.parallel_agents import Crew, crew_of, own_id
from tests.support.databases import Databases
from tests.support.engines import engine_on, migrated_sqlite


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def idle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine without a janitor."""
    if request.param == "sqlite":
        with engine_on(migrated_sqlite(tmp_path_factory.mktemp("idle"))) as engine:
            yield engine
        return
    lent: Databases = request.getfixturevalue("databases")
    with lent.database() as url, engine_on(url) as engine:
        yield engine


@pytest.fixture(scope="module")
def alone(idle: Engine) -> Iterator[Crew]:
    with at(idle, mcp_tools="parallel-mcp") as server, agent_at(server.url) as ann:
        yield crew_of(ann)


def test_an_expired_lease_is_told_apart_from_that_of_another(alone: Crew) -> None:
    alone.task(alone.run(), maxAttempts=2)
    held = alone.take(leaseMs=10)
    time.sleep(0.05)
    assert alone.refusal("complete_task", **held).startswith("LeaseExpiredError: ")
    assert alone.refusal("heartbeat_lease", **held).startswith("LeaseExpiredError: ")
    assert alone.call("expire_leases") == {"expiredTaskIds": [held["taskId"]], "count": 1}
    assert alone.refusal("complete_task", **held).startswith("LeaseConflictError: ")
    alone.report("complete_task", alone.take())


def test_claims_sweep_before_they_choose(alone: Crew) -> None:
    run = alone.run()
    first = alone.task(run, retry={"delayMs": 50})["id"]
    held = alone.take(leaseMs=10)
    second = alone.task(run)["id"]
    time.sleep(0.05)
    assert alone.take()["taskId"] == second  # The sweep has only now taken the first one back, for after its delay.
    time.sleep(0.1)
    again = alone.take()
    assert (again["taskId"], again["leaseId"] != held["leaseId"]) == (first, True)
    third = alone.task(run, priority=-1)["id"]
    fourth = alone.task(run, maxAttempts=2)["id"]
    short = alone.take(leaseMs=10)
    assert short["taskId"] == fourth
    time.sleep(0.05)
    assert [alone.take()["taskId"] for _ in range(2)] == [fourth, third]


def test_tasks_that_have_a_timeout_are_swept_by_claims(alone: Crew) -> None:
    id_ = alone.task(alone.run(), timeoutMs=20, maxAttempts=1)["id"]
    alone.report("mark_task_running", alone.take())
    time.sleep(0.1)
    assert alone.claim() is None
    assert (alone.get(id_)["status"], alone.get(id_)["dead"]) == ("failed", True)


def test_a_tenant_is_named_by_a_header_without_tokens(place: Place) -> None:
    run = own_id()
    with agent_at(place.url, headers={"x-tenant": own_id("tenant")}) as ann, agent_at(place.url) as ben:
        crew_of(ann).run(id=run)
        assert ann.call("get_run", runId=run)["run"]["id"] == run
        assert ben.call("get_run", runId=run) == {"run": None}


def test_a_single_post_is_answered_without_a_session(place: Place) -> None:
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "create_run", "arguments": {"id": own_id()}},
    }
    with httpx2.Client(trust_env=False) as client:
        answer = client.post(f"{place.url}/mcp", json=body, headers={"accept": "application/json, text/event-stream"})
    result = answer.json()["result"]
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    assert result["structuredContent"]["run"]["status"] == "pending"


def test_a_server_is_a_database_too(place: Place) -> None:
    with agent(process("--database", place.url, "--tools", "parallel-mcp"), LEGACY) as ann:
        crew = crew_of(ann)
        run = crew.run(context={"n": 1})
        task = crew.task(run, id=own_id())
        crew.task(run, dependsOnTaskIds=[task["id"]])
        held = crew.take()
        assert crew.call("heartbeat_lease", **held)["lease"]["id"] == held["leaseId"]
        crew.report("complete_task", held, nextContext={"n": 2}, clientToken="t")
        assert crew.claim() is not None
        events = crew.log(run, "task.claimed", 2)
        assert crew.call("list_events_since", runId=run)["events"] == events
        assert crew.die(run)["dead"] is True
        assert [each["id"] for each in crew.call("list_runs", limit=1)["runs"]] == [run]
        crew.call("cancel_run", runId=run)
        # The client of the server has sent a key with the run, in case that it must repeat the request: the run stays
        # as long as the key.
        assert crew.call("prune_runs", olderThan="2099-01-01T00:00:00Z", statuses=["cancelled"])["count"] == 0
        assert crew.status(run) == "cancelled"


@contextmanager
def threads(count: int, work: object) -> Iterator[None]:
    started = [threading.Thread(target=work, args=(n,)) for n in range(count)]  # type: ignore[arg-type]
    for thread in started:
        thread.start()
    yield
    for thread in started:
        thread.join(120)
        assert not thread.is_alive()


def post(client: httpx2.Client, url: str, tool: str, **arguments: object) -> dict[str, object]:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    found: dict[str, object] = client.post(f"{url}/mcp", json=body).json()["result"]["structuredContent"]
    return found


def test_first_tasks_that_come_at_once_share_one_run(place: Place) -> None:
    with agent_at(place.url) as ann:
        crew = crew_of(ann)
        run = crew.run()

        def enqueue(n: int) -> None:
            with httpx2.Client(trust_env=False) as client:
                post(client, place.url, "enqueue_task", runId=run, kind=crew.kind, id=f"{run}-{n}")

        with threads(8, enqueue):
            pass
        assert {task["id"] for task in crew.call("list_run_tasks", runId=run)["tasks"]} == {
            f"{run}-{n}" for n in range(8)
        }
        assert crew.events(run, "task.enqueued", 8).count("run.status.changed") == 1


def test_no_task_is_claimed_twice_by_many_at_once(place: Place) -> None:
    with agent_at(place.url) as ann:
        crew = crew_of(ann)
        run = crew.run()
        tasks = {crew.task(run)["id"] for _ in range(24)}
        done: list[str] = []

        def work(n: int) -> None:
            with httpx2.Client(trust_env=False) as client:
                while claim := post(client, place.url, "claim_next_task", workerId=f"w{n}", kinds=[crew.kind])["claim"]:
                    held = {"taskId": claim["task"]["id"], "leaseId": claim["lease"]["id"], "workerId": f"w{n}"}  # type: ignore[index]
                    assert post(client, place.url, "complete_task", **held)["task"]["status"] == "completed"  # type: ignore[index]
                    done.append(held["taskId"])

        with threads(6, work):
            pass
        assert (sorted(done), crew.status(run)) == (sorted(tasks), "completed")
        assert crew.events(run, "task.completed", 24).count("task.claimed") == 24


def test_a_report_that_is_nobodys_does_no_harm_to_others_of_its_batch(idle: Engine, alone: Crew) -> None:
    """Whatever a request brings: those that it is gathered with get their answers."""
    backend = Backend(idle, load_tools("parallel-mcp"), ClaimWaiters(idle.wake))
    alone.task(alone.run())
    held = alone.take()
    about = {"worker": "w", "lease_id": held["leaseId"], "fence": 1}
    items = [Item(c.Succeed(id_, **about), id_) for id_ in ("\x01", "x" * 999, held["taskId"], "nobody")]
    items.append(Item(c.Claim(worker="w" * 999, queue="runs")))
    items.append(Item(c.Succeed(held["taskId"], **about, namespace="other"), held["taskId"]))
    errors = [type(verdict.error).__name__ for _, verdict in run_items(backend, items)]
    assert errors == ["NotFound", "NotFound", "NoneType", "NotFound", "TooLarge", "NotFound"]
    assert alone.get(held["taskId"])["status"] == "completed"


def test_a_native_task_in_the_queue_of_runs_is_claimed_as_a_run_of_its_own(idle: Engine, alone: Crew) -> None:
    id_ = idle.submit(alone.kind, {"n": 1}, queue="runs").id
    claim = alone.claim()
    assert claim is not None
    assert (claim["task"]["id"], claim["run"]["id"], claim["run"]["status"]) == (id_, id_, "active")
    done = alone.report("complete_task", {"taskId": id_, "leaseId": claim["lease"]["id"], "workerId": "w"}, output=1)
    assert done["status"] == "completed"
    assert id_ in {event["taskId"] for event in alone.call("list_events_since", limit=1000)["events"]}


def test_a_cursor_goes_on_behind_the_events_of_others(idle: Engine, alone: Crew) -> None:
    cursor = 0
    while (page := alone.call("list_events_since", afterId=cursor, limit=1000))["nextCursor"] != cursor:
        cursor = page["nextCursor"]
    for _ in range(3):
        idle.submit("x", namespace="theirs")
        assert alone.call("list_events_since", afterId=cursor) == {"events": [], "nextCursor": cursor}
    run = alone.run()
    assert [e["runId"] for e in alone.call("list_events_since", afterId=cursor)["events"]] == [run]
