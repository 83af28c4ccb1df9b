"""Runs, contexts, requeues, lists and pruning by the tools of parallel-mcp. test_parallel.py lists the contract."""

from __future__ import annotations

import pytest
from uuid_utils import uuid4

from onetray import StageSpec
from tests.mcp.conftest import Place
from tests.mcp.parallel_agents import Crew, own_id, until
from tests.support.seeds import row


@row("append_context_snapshot", "get_current_context_snapshot", "context: a task inherits the current snapshot",
     "context: nextContext moves the pointer, a task scope does not",
     "context: a snapshot is named by its id")  # fmt: skip
def test_contexts(crew: Crew) -> None:
    run, own = crew.run(context={"n": 0}), own_id("snapshot")
    first = crew.call("get_current_context_snapshot", runId=run)["snapshot"]
    task = crew.task(run)
    second = crew.call("append_context_snapshot", runId=run, payload={"n": 1}, id=own, label="more")["snapshot"]
    assert second == {
        "id": own, "runId": run, "taskId": None, "scope": "run", "parentSnapshotId": first["id"], "label": "more",
        "payload": {"n": 1}, "createdAt": second["createdAt"],
    }  # fmt: skip
    inherits, named = crew.task(run), crew.task(run, contextSnapshotId=first["id"])
    assert [t["contextSnapshotId"] for t in (task, inherits, named)] == [first["id"], own, first["id"]]
    scoped = crew.call(
        "append_context_snapshot", runId=run, payload=[], scope="task", taskId=task["id"], parentSnapshotId=own
    )
    assert (scoped["snapshot"]["taskId"], scoped["snapshot"]["parentSnapshotId"]) == (task["id"], own)
    assert crew.call("get_current_context_snapshot", runId=run)["snapshot"] == second
    crew.report("complete_task", crew.take(), nextContext={"n": 2}, nextContextLabel="after")
    third = crew.call("get_current_context_snapshot", runId=run)["snapshot"]
    assert (third["payload"], third["label"], third["parentSnapshotId"], third["taskId"]) == (
        {"n": 2},
        "after",
        own,
        task["id"],
    )
    assert crew.call("get_run", runId=run)["run"]["currentContextSnapshotId"] == third["id"]
    assert crew.refusal("append_context_snapshot", runId=run, payload=1, id=own).startswith("DuplicateIdError: ")
    assert crew.refusal("append_context_snapshot", runId=run, payload=1, parentSnapshotId="none").startswith(
        "RecordNotFoundError: "
    )
    assert crew.refusal("enqueue_task", runId=run, kind="k", contextSnapshotId="none").startswith(
        "RecordNotFoundError: "
    )
    assert crew.call("get_current_context_snapshot", runId=crew.run()) == {"snapshot": None}


@row("DuplicateTaskKeyError", "DependencyCycleError", "RecordNotFoundError")
def test_what_enqueue_task_refuses(crew: Crew) -> None:
    run, id_ = crew.run(), own_id()
    crew.task(run, id=id_, key="once")
    elsewhere = crew.task(crew.run())["id"]

    def refused(**fields: object) -> str:
        return str(crew.refusal("enqueue_task", **{"runId": run, "kind": crew.kind, **fields})).partition(":")[0]

    assert refused(key="once") == "DuplicateTaskKeyError"
    assert refused(id=id_) == "DuplicateTaskKeyError"
    assert refused(id=id_, dependsOnTaskIds=[id_]) == "DependencyCycleError"
    assert refused(dependsOnTaskIds=["nobody"]) == "RecordNotFoundError"
    assert refused(dependsOnTaskIds=[str(uuid4())]) == "RecordNotFoundError"
    assert refused(dependsOnTaskIds=[elsewhere]) == "RecordNotFoundError"
    assert refused(runId="nobody") == "RecordNotFoundError"
    assert refused(runId=str(uuid4())) == "RecordNotFoundError"
    assert refused(runId=id_) == "RecordNotFoundError"
    assert len(crew.call("list_run_tasks", runId=run)["tasks"]) == 1


@row("a missing get returns null")
@pytest.mark.parametrize("id_", ["00000000-0000-7000-8000-000000000000", "é ☃ ' OR 1=1"])
def test_what_does_not_exist(crew: Crew, id_: str) -> None:
    assert crew.call("get_run", runId=id_) == {"run": None}
    assert crew.call("get_task", taskId=id_) == {"task": None}
    assert crew.call("get_current_context_snapshot", runId=id_) == {"snapshot": None}
    held = {"taskId": id_, "leaseId": "1-0", "workerId": "w"}
    for tool, fields in (
        ("complete_task", held), ("heartbeat_lease", held), ("resume_task", {"taskId": id_}),
        ("requeue_dead_task", {"taskId": id_}), ("cancel_run", {"runId": id_}), ("list_run_tasks", {"runId": id_}),
        ("list_run_events", {"runId": id_}), ("list_pending_tasks", {"runId": id_}),
        ("list_dead_tasks", {"runId": id_}),
        ("list_events_since", {"runId": id_}), ("append_context_snapshot", {"runId": id_, "payload": 1}),
    ):  # fmt: skip
        assert crew.refusal(tool, **fields).startswith("RecordNotFoundError: ")


@row("an open-ended run does not")
def test_a_run_that_was_created_open_ended_takes_tasks_until_it_is_sealed(crew: Crew, place: Place) -> None:
    run = own_id()
    flow = place.engine.submit_flow(
        "run",
        [StageSpec("tasks", sealed=False)],
        roll_up="drain",
        sealed=False,
        start=False,
        alias=run,
        correlation_id=run,
    )
    for _ in range(2):
        crew.task(run)
        crew.report("complete_task", crew.take())
        assert crew.status(run) == "active"
    place.engine.seal_flow(flow.id)
    assert crew.status(run) == "completed"


@row("list_dead_tasks", "requeue_dead_task", "task.dead_lettered", "task.requeued_from_dlq",
     "requeue: the same id, with no attempts, in an active run", "requeue: attempts kept, and a time",
     "MaxAttemptsExceededError")  # fmt: skip
@pytest.mark.parametrize("named", [True, False], ids=["own id", "no id"])
def test_requeue_in_an_active_run(crew: Crew, named: bool) -> None:
    run = crew.run()
    crew.task(run, kind=f"{crew.kind}-other")
    dead = crew.die(run, key="k", **({"id": own_id()} if named else {}))
    assert (dead["status"], dead["dead"], dead["error"], dead["attemptCount"]) == (
        "failed",
        True,
        "max_attempts_exceeded",
        1,
    )
    assert crew.call("list_dead_tasks", runId=run) == {"tasks": [dead]}
    assert crew.call("list_dead_tasks", kinds=[crew.kind]) == {"tasks": [dead]}
    assert crew.call("list_dead_tasks", kinds=[crew.kind], offset=1) == {"tasks": []}
    assert crew.refusal("requeue_dead_task", taskId=dead["id"], resetAttempts=False).startswith(
        "MaxAttemptsExceededError: "
    )
    queued = crew.call("requeue_dead_task", taskId=dead["id"], reason="try again")["task"]
    changed = {"status", "dead", "error", "attemptCount", "createdAt", "updatedAt", "completedAt"}
    assert {name for name in dead if dead[name] != queued[name]} == changed
    assert (queued["status"], queued["dead"], queued["error"], queued["attemptCount"]) == ("queued", False, None, 0)
    assert crew.call("list_dead_tasks", runId=run) == {"tasks": []}
    assert crew.refusal("requeue_dead_task", taskId=dead["id"]).startswith("InvalidTransitionError: ")
    claim = crew.claim()
    assert claim is not None
    assert (claim["task"]["id"], claim["task"]["attemptCount"], claim["run"]["id"]) == (dead["id"], 1, run)
    assert crew.get(dead["id"])["leaseId"] == claim["lease"]["id"]
    assert sorted(t["id"] for t in crew.call("list_run_tasks", runId=run)["tasks"] if t["kind"] == crew.kind) == [
        dead["id"]
    ]
    events = crew.log(run, "task.claimed", 2)
    of_task = [(e["eventType"]) for e in events if e["taskId"] == dead["id"]]
    assert of_task == ["task.enqueued", "task.claimed", "task.dead_lettered", "task.requeued_from_dlq", "task.claimed"]
    assert next(e["payload"] for e in events if e["eventType"] == "task.requeued_from_dlq") == {"reason": "try again"}
    crew.report("complete_task", {"taskId": dead["id"], "leaseId": claim["lease"]["id"], "workerId": "w"})


def test_requeue_at_a_time(crew: Crew) -> None:
    run = crew.run()
    dead = crew.die(run)
    queued = crew.call("requeue_dead_task", taskId=dead["id"], notBefore="2099-01-01T00:00:00Z")["task"]
    assert (queued["status"], queued["notBefore"]) == ("queued", "2099-01-01T00:00:00.000000Z")
    assert crew.claim() is None


@row("requeue: the same id, and the same run, in an ended run")
@pytest.mark.parametrize("named", [True, False], ids=["own id", "no id"])
def test_requeue_in_an_ended_run(crew: Crew, named: bool) -> None:
    run = crew.run(metadata={"m": 1}, externalId=own_id(), **({"id": own_id()} if named else {}))
    finished = crew.task(run)["id"]
    held = crew.take()
    dead = crew.die(run)
    crew.report("complete_task", held, output="kept")
    before = crew.call("get_run", runId=run)["run"]
    assert before["status"] == "failed"
    events = crew.log(run, "run.status.changed", 2)
    queued = crew.call("requeue_dead_task", taskId=dead["id"], reason="try again")["task"]
    assert (queued["id"], queued["runId"], queued["status"], queued["attemptCount"]) == (dead["id"], run, "queued", 0)
    after = crew.call("get_run", runId=run)["run"]
    assert after == {**before, "status": "active", "createdAt": after["createdAt"], "updatedAt": after["updatedAt"]}
    tasks = {task["id"]: task for task in crew.call("list_run_tasks", runId=run)["tasks"]}
    assert {id_: task["status"] for id_, task in tasks.items()} == {finished: "completed", dead["id"]: "queued"}
    assert (tasks[finished]["output"], crew.get(finished)["runId"]) == ("kept", run)
    listed = crew.call("list_runs", externalId=before["externalId"])["runs"]
    assert [each["id"] for each in listed] == [run]
    more = crew.log(run, "run.status.changed", 3)
    assert more[: len(events)] == events
    assert [e["eventType"] for e in more[len(events) :]] == ["task.requeued_from_dlq", "run.status.changed"]
    assert more[-1]["payload"] == {"from": "failed", "to": "active", "reason": "try again"}
    assert crew.call("list_events_since", runId=run, limit=1000)["events"] == more
    added = crew.task(run)["id"]
    for id_ in (dead["id"], added):
        held = crew.take()
        assert held["taskId"] == id_
        crew.report("complete_task", held)
    assert crew.status(run) == "completed"
    assert {e["taskId"] for e in crew.log(run, "task.completed", 3)} == {None, finished, dead["id"], added}


@row("list_runs", "list_runs: filters, order, limit and offset")
def test_list_runs(crew: Crew) -> None:
    label = own_id("label")
    first, second, third = (crew.run(namespace=label, externalId=f"{label}-{n}") for n in range(3))
    crew.task(first)

    def found(**filters: object) -> list[str]:
        return [run["id"] for run in crew.call("list_runs", namespace=label, **filters)["runs"]]

    assert found() == [first, third, second]
    assert found(orderBy="created_at") == [third, second, first]
    assert found(orderBy="created_at", orderDir="asc", limit=1, offset=1) == [second]
    assert found(statuses=["pending"]) == [third, second]
    assert found(statuses=["active", "waiting"]) == [first]
    assert found(externalId=f"{label}-1") == [second]
    updated = crew.call("get_run", runId=third)["run"]["updatedAt"]
    assert found(updatedAfter=updated) == [first, third]
    assert found(updatedBefore=updated) == [second]
    assert crew.call("list_runs", namespace="nobody's") == {"runs": []}
    crew.report("complete_task", crew.take())
    assert found(statuses=["completed"]) == [first]


@row("list_run_tasks", "list_run_events", "list_pending_tasks")
def test_lists_of_a_run(crew: Crew) -> None:
    run, other = crew.run(), f"{crew.kind}-other"
    low, high = crew.task(run, priority=1), crew.task(run, priority=2, kind=other)
    assert [task["id"] for task in crew.call("list_run_tasks", runId=run)["tasks"]] == [high["id"], low["id"]]
    assert crew.call("list_pending_tasks", kinds=[other]) == {"tasks": [high]}
    assert crew.call("list_pending_tasks", runId=run, limit=1) == {"tasks": [high]}
    assert crew.call("list_pending_tasks", kinds=[crew.kind, other]) == {"tasks": [high, low]}
    assert crew.call("list_run_tasks", runId=crew.run()) == {"tasks": []}
    events = crew.log(run, "task.enqueued", 2)
    assert events[0].keys() == {"id", "runId", "taskId", "attemptId", "eventType", "payload", "createdAt"}
    assert [event["id"] for event in events] == sorted(event["id"] for event in events)
    assert {event["runId"] for event in events} == {run}


@row("list_events_since", "list_events_since: a stable cursor without a gap")
def test_list_events_since(crew: Crew) -> None:
    run = crew.run()
    for _ in range(3):
        crew.task(run)
    crew.report("complete_task", crew.take())
    whole = crew.log(run, "task.completed")
    read, cursor = [], 0
    while page := crew.call("list_events_since", runId=run, afterId=cursor, limit=2)["events"]:
        assert len(page) <= 2
        read += page
        cursor = page[-1]["id"]
    assert read == whole
    assert crew.call("list_events_since", runId=run, afterId=cursor) == {"events": [], "nextCursor": cursor}
    start = whole[0]["id"] - 1
    among_all = crew.call("list_events_since", afterId=start, limit=1000)
    assert [event for event in among_all["events"] if event["runId"] == run] == whole
    some = crew.call("list_events_since", runId=run, eventTypes=["task.enqueued", "task.completed"])
    assert [e["eventType"] for e in some["events"]] == ["task.enqueued"] * 3 + ["task.completed"]
    assert crew.call("list_events_since", eventTypes=["no.such"], afterId=7) == {"events": [], "nextCursor": 7}
    end = crew.call("list_events_since", eventTypes=["run.cancelled"], afterId=cursor)["nextCursor"]
    assert crew.call("list_events_since", eventTypes=["run.cancelled"], afterId=end)["nextCursor"] == end


@row("prune_runs", "prune_runs: ended runs only")
def test_prune_runs(crew: Crew, place: Place) -> None:
    flow = place.engine.submit_flow("no run", sealed=True)
    until(lambda: place.engine.flow(flow.id).state == "succeeded")
    ended, open_, waiting = crew.run(), crew.run(), crew.run()
    for run in (ended, open_, waiting):
        crew.task(run)
    held = crew.take()
    crew.report("complete_task", held)
    crew.task(open_)
    crew.report("pause_task", crew.take(), status="blocked")
    past, future = "2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z"
    assert crew.call("prune_runs", olderThan=past) == {"prunedRunIds": [], "count": 0}
    assert crew.call("prune_runs", olderThan=future, statuses=["active", "waiting"])["count"] == 0
    assert ended not in crew.call("prune_runs", olderThan=future, statuses=["failed"])["prunedRunIds"]
    pruned = crew.call("prune_runs", olderThan=future, limit=10_000)
    assert pruned["count"] == len(pruned["prunedRunIds"])
    assert ended in pruned["prunedRunIds"]
    assert crew.call("get_run", runId=ended) == {"run": None}
    assert crew.call("get_task", taskId=held["taskId"]) == {"task": None}
    assert [crew.status(run) for run in (open_, waiting)] == ["active", "active"]
    assert place.engine.flow(flow.id).state == "succeeded"


@row("expire_leases: another time")
def test_expire_leases_at_another_time(crew: Crew) -> None:
    crew.task(crew.run())
    held = crew.take(leaseMs=3_600_000)
    assert held["taskId"] not in crew.call("expire_leases")["expiredTaskIds"]
    assert held["taskId"] not in crew.call("expire_leases", now="2020-01-01T00:00:00Z")["expiredTaskIds"]
    expired = crew.call("expire_leases", now="2099-01-01T00:00:00+00:00")
    assert held["taskId"] in expired["expiredTaskIds"]
    assert expired["count"] == len(expired["expiredTaskIds"])
    assert crew.get(held["taskId"])["status"] == "queued"
