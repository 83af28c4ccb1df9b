"""The tools, errors, rules and events of parallel-mcp: each line of its contract, and the tests of what workers do.

test_parallel_runs.py has the tests of runs, contexts and lists.
"""

from __future__ import annotations

import json
import time
from datetime import datetime

import pytest

from onetray.mcp.parallel import TOOLS
from onetray.mcp.parallel.words import RUN_STATES, TASK_STATES
from tests.mcp import test_parallel_runs
from tests.mcp.agents import text_of
from tests.mcp.parallel_agents import Crew, own_id, until
from tests.support.seeds import row, ticked_off

TOOL_NAMES = (
    "create_run", "enqueue_task", "claim_next_task", "heartbeat_lease", "mark_task_running", "pause_task",
    "release_task", "complete_task", "fail_task", "resume_task", "get_task", "requeue_dead_task", "cancel_run",
    "get_run", "expire_leases", "append_context_snapshot", "get_current_context_snapshot", "list_run_tasks",
    "list_run_events", "list_runs", "list_pending_tasks", "list_events_since", "list_dead_tasks", "prune_runs",
)  # fmt: skip
ERRORS = (
    "RecordNotFoundError", "InvalidTransitionError", "LeaseConflictError", "LeaseExpiredError", "RunTerminalError",
    "DuplicateTaskKeyError", "DependencyCycleError", "MaxAttemptsExceededError",
)  # fmt: skip
MOVES = tuple(f"{was or 'new'} → {state}" for was, state in TASK_STATES.transitions)
STATUSES = tuple(f"run {status}" for status in ("pending", "active", "waiting", "completed", "failed", "cancelled"))
RULES = (
    "result: the same JSON as text and as structured content",
    "arguments: no others, and none of another type",
    "a missing get returns null",
    "the namespace of a run is a label",
    "ids: the caller's are kept",
    "claims: priority, then age",
    "claims: by kinds",
    "lease: valid until it expires, a few milliseconds suffice",
    "lease: its three fields are there exactly while the task is held",
    "attempts: every claim counts one",
    "attempts: by default there is no limit",
    "notBefore: only after a retry",
    "backoff: doubles with each attempt, capped",
    "timeoutMs: ends an attempt",
    "clientToken: the same claim again, for its worker, while the lease lives",
    "clientToken: the same completion or failure again",
    "clientToken: without it a report is not repeatable",
    "context: a task inherits the current snapshot",
    "context: nextContext moves the pointer, a task scope does not",
    "context: a snapshot is named by its id",
    "metadata: with complete and fail",
    "dependencies: a task waits for those it depends on",
    "a run ends with its last task and refuses more",
    "an open-ended run does not",
    "cancel: at once, for all open tasks",
    "requeue: the same id, with no attempts, in an active run",
    "requeue: the same id, and the same run, in an ended run",
    "requeue: attempts kept, and a time",
    "list_runs: filters, order, limit and offset",
    "list_events_since: a stable cursor without a gap",
    "prune_runs: ended runs only",
    "expire_leases: another time",
    "a late report changes nothing",
)
EVENTS = (
    "run.created", "run.cancelled", "run.status.changed", "task.enqueued", "task.claimed", "task.running",
    "task.released", "task.completed", "task.failed", "task.paused", "task.resumed", "task.lease_expired",
    "task.dead_lettered", "task.requeued_from_dlq", "context_snapshot.appended",
)  # fmt: skip
FAULTS = (
    "fault: release and pause eat an attempt",
    "fault: dependents of a failed task hang",
    "fault: cancel overwrites a completed run",
    "fault: a timeout never retries",
)
ROWS = (*TOOL_NAMES, *ERRORS, *MOVES, *STATUSES, *RULES, *EVENTS, *FAULTS)


def test_there_are_these_tools_and_no_others() -> None:
    assert tuple(tool.name for tool in TOOLS) == TOOL_NAMES


def test_they_are_listed_with_closed_schemas(crew: Crew) -> None:
    tools = crew.agent.tools()
    for name in TOOL_NAMES:
        schema = tools[name].input_schema
        assert schema["additionalProperties"] is False
    claim = tools["claim_next_task"].input_schema
    assert (set(claim["properties"]), claim["required"]) == (
        {"workerId", "leaseMs", "kinds", "clientToken"},
        ["workerId"],
    )
    assert tools["prune_runs"].annotations.destructive_hint is True  # type: ignore[union-attr]


def test_the_states_agree_with_the_lifecycle() -> None:
    assert [*RUN_STATES.faults(), *TASK_STATES.faults()] == []


@row(
    "create_run",
    "get_run",
    "run pending",
    "run.created",
    "context_snapshot.appended",
    "the namespace of a run is a label",
)
def test_create_run(crew: Crew) -> None:
    plain = crew.call("create_run")["run"]
    assert plain.keys() == {
        "id", "namespace", "externalId", "status", "metadata", "currentContextSnapshotId", "createdAt", "updatedAt"
    }  # fmt: skip
    assert (plain["namespace"], plain["externalId"], plain["status"], plain["metadata"]) == (
        "default",
        None,
        "pending",
        None,
    )
    id_ = own_id()
    run = crew.call("create_run", id=id_, namespace="build", externalId="x-1", metadata={"m": [1]}, context={"n": 0})[
        "run"
    ]
    assert (run["id"], run["namespace"], run["externalId"], run["metadata"]) == (id_, "build", "x-1", {"m": [1]})
    assert run["currentContextSnapshotId"] == crew.call("get_current_context_snapshot", runId=id_)["snapshot"]["id"]
    assert crew.call("get_run", runId=id_) == {"run": run}
    assert crew.events(id_, "context_snapshot.appended") == ["run.created", "context_snapshot.appended"]
    assert crew.refusal("create_run", id=id_).startswith("DuplicateIdError: ")


@row("enqueue_task", "get_task", "new → queued", "task.enqueued", "run active", "run.status.changed",
     "ids: the caller's are kept",
     "attempts: by default there is no limit")  # fmt: skip
def test_enqueue_task(crew: Crew) -> None:
    run, id_ = crew.run(), own_id()
    task = crew.task(
        run, id=id_, key="first", priority=3, maxAttempts=4, timeoutMs=5000, input={"a": 1}, metadata={"m": 1},
        retry={"delayMs": 100, "backoff": "exponential", "maxDelayMs": 300},
    )  # fmt: skip
    assert task.keys() == {
        "id", "runId", "key", "kind", "status", "priority", "maxAttempts", "attemptCount", "retryDelayMs",
        "retryBackoff", "retryMaxDelayMs", "timeoutMs", "notBefore", "input", "output", "metadata", "error", "dead",
        "contextSnapshotId", "leaseId", "leasedBy", "leaseExpiresAt", "dependsOnTaskIds", "createdAt", "updatedAt",
        "startedAt", "completedAt",
    }  # fmt: skip
    told = {
        name: task[name] for name in ("id", "runId", "key", "kind", "status", "priority", "maxAttempts", "attemptCount")
    }
    assert told == {
        "id": id_, "runId": run, "key": "first", "kind": crew.kind, "status": "queued", "priority": 3, "maxAttempts": 4,
        "attemptCount": 0,
    }  # fmt: skip
    retry = [task[name] for name in ("retryDelayMs", "retryBackoff", "retryMaxDelayMs", "timeoutMs")]
    assert retry == [100, "exponential", 300, 5000]
    assert (task["input"], task["metadata"], task["notBefore"], task["dependsOnTaskIds"]) == (
        {"a": 1},
        {"m": 1},
        None,
        [],
    )
    assert crew.get(id_) == task
    plain = crew.task(run, dependsOnTaskIds=[id_])
    assert (plain["maxAttempts"], plain["retryDelayMs"], plain["retryBackoff"], plain["key"]) == (
        None,
        None,
        None,
        None,
    )
    assert plain["dependsOnTaskIds"] == [id_]
    assert crew.status(run) == "active"
    (changed,) = [e for e in crew.log(run, "task.enqueued", 2) if e["eventType"] == "run.status.changed"]
    assert (changed["payload"], changed["taskId"]) == ({"from": "pending", "to": "active"}, None)


@row("claim_next_task", "queued → leased", "task.claimed", "attempts: every claim counts one", "claims: by kinds")
def test_claim_next_task(crew: Crew) -> None:
    run = crew.run(context={"n": 0})
    task = crew.task(run, input={"a": 1})
    assert crew.call("claim_next_task", workerId="w", kinds=["another"]) == {"claim": None}
    claim = crew.claim("w", leaseMs=60_000)
    assert claim is not None
    lease, attempt, leased = claim["lease"], claim["attempt"], claim["task"]
    assert claim["run"] == crew.call("get_run", runId=run)["run"]
    assert (leased["id"], leased["status"], leased["attemptCount"], leased["input"]) == (
        task["id"],
        "leased",
        1,
        {"a": 1},
    )
    assert (leased["leaseId"], leased["leasedBy"], leased["leaseExpiresAt"]) == (lease["id"], "w", lease["expiresAt"])
    assert attempt.keys() == {
        "id", "runId", "taskId", "workerId", "status", "leasedAt", "startedAt", "endedAt", "leaseExpiresAt", "error",
        "output", "metadata",
    }  # fmt: skip
    assert lease.keys() == {
        "id", "runId", "taskId", "attemptId", "workerId", "status", "acquiredAt", "expiresAt", "heartbeatAt",
        "releasedAt", "clientToken",
    }  # fmt: skip
    assert (attempt["status"], attempt["workerId"], lease["status"], lease["attemptId"]) == (
        "leased",
        "w",
        "active",
        attempt["id"],
    )
    assert {record["runId"] for record in (lease, attempt, leased)} == {run}
    assert crew.claim() is None
    event = crew.log(run, "task.claimed")[-1]
    assert (event["eventType"], event["taskId"], event["attemptId"]) == ("task.claimed", task["id"], attempt["id"])
    assert event["payload"] == {"workerId": "w"}
    crew.report("complete_task", {"taskId": task["id"], "leaseId": lease["id"], "workerId": "w"})


@row("claims: priority, then age")
def test_claims_go_by_priority_then_by_age(crew: Crew) -> None:
    run = crew.run()
    tasks = [crew.task(run, priority=priority)["id"] for priority in (0, 2, 1, 2)]
    pending = crew.call("list_pending_tasks", runId=run)["tasks"]
    taken = [crew.take()["taskId"] for _ in tasks]
    assert [tasks.index(id_) for id_ in taken] == [1, 3, 2, 0]
    assert [task["id"] for task in pending] == taken


@row("heartbeat_lease")
def test_heartbeat_lease(crew: Crew) -> None:
    crew.task(crew.run())
    claim = crew.claim(leaseMs=60_000)
    assert claim is not None
    held = {"taskId": claim["task"]["id"], "leaseId": claim["lease"]["id"], "workerId": "w"}
    lease = crew.call("heartbeat_lease", **held, leaseMs=90_000)["lease"]
    assert {**lease, "expiresAt": 0, "heartbeatAt": 0} == {**claim["lease"], "expiresAt": 0, "heartbeatAt": 0}
    assert lease["expiresAt"] > claim["lease"]["expiresAt"]
    crew.report("mark_task_running", held)
    assert crew.call("heartbeat_lease", **held)["lease"]["acquiredAt"] == lease["acquiredAt"]
    assert crew.refusal("heartbeat_lease", **{**held, "workerId": "other"}).startswith("LeaseConflictError: ")
    crew.report("complete_task", held)


@row("mark_task_running", "leased → running", "task.running", "InvalidTransitionError")
def test_mark_task_running(crew: Crew) -> None:
    run = crew.run()
    crew.task(run)
    held = crew.take()
    task = crew.report("mark_task_running", held)
    assert (task["status"], task["startedAt"] is not None) == ("running", True)
    assert crew.events(run, "task.running")[-1] == "task.running"
    assert crew.refusal("mark_task_running", **held).startswith("InvalidTransitionError: ")
    assert crew.refusal("resume_task", taskId=held["taskId"]).startswith("InvalidTransitionError: ")
    crew.report("complete_task", held)
    assert crew.refusal("mark_task_running", **held).startswith("LeaseConflictError: ")


@row("pause_task", "resume_task", "leased → blocked", "running → blocked", "leased → waiting_input",
     "running → waiting_input", "blocked → queued", "waiting_input → queued", "task.paused",
     "task.resumed", "run waiting",
     "fault: release and pause eat an attempt",
     "lease: its three fields are there exactly while the task is held")  # fmt: skip
@pytest.mark.parametrize("status", ["blocked", "waiting_input"])
@pytest.mark.parametrize("running", [False, True], ids=["leased", "running"])
def test_pause_and_resume_task(crew: Crew, status: str, running: bool) -> None:
    run = crew.run()
    crew.task(run, maxAttempts=1)
    for n in (1, 2):
        held = crew.take()
        if running:
            crew.report("mark_task_running", held)
        assert None not in [crew.get(held["taskId"])[name] for name in ("leaseId", "leasedBy", "leaseExpiresAt")]
        paused = crew.report("pause_task", held, status=status, reason="which one?")
        assert (paused["status"], paused["attemptCount"], crew.status(run)) == (status, 0, "waiting")
        assert [paused[name] for name in ("leaseId", "leasedBy", "leaseExpiresAt")] == [None] * 3
        event = [e for e in crew.log(run, "task.paused", n) if e["eventType"] == "task.paused"][-1]
        assert event["payload"] == {"status": status, "workerId": "w", "reason": "which one?"}
        assert crew.refusal("pause_task", **held, status=status).startswith("LeaseConflictError: ")
        assert crew.call("resume_task", taskId=held["taskId"])["task"]["status"] == "queued"
        assert crew.status(run) == "active"
    assert crew.events(run, "task.resumed", 2).count("task.paused") == 2
    crew.report("complete_task", crew.take())


@row("release_task", "leased → queued", "running → queued", "task.released")
@pytest.mark.parametrize("running", [False, True], ids=["leased", "running"])
def test_release_task(crew: Crew, running: bool) -> None:
    run = crew.run()
    crew.task(run, maxAttempts=1, retry={"delayMs": 60_000})
    for _ in range(2):
        held = crew.take()
        if running:
            crew.report("mark_task_running", held)
        released = crew.report("release_task", held, reason="wrong shard")
        assert (released["status"], released["attemptCount"], released["notBefore"]) == ("queued", 0, None)
    event = crew.log(run, "task.released", 2)[-1]
    assert (event["eventType"], event["payload"]) == ("task.released", {"workerId": "w", "reason": "wrong shard"})
    crew.report("complete_task", crew.take())


@row("complete_task", "leased → completed", "running → completed", "task.completed", "run completed",
     "metadata: with complete and fail", "LeaseConflictError", "clientToken: without it a report is not repeatable",
     "a run ends with its last task and refuses more", "RunTerminalError")  # fmt: skip
@pytest.mark.parametrize("running", [False, True], ids=["leased", "running"])
def test_complete_task(crew: Crew, running: bool) -> None:
    run = crew.run()
    crew.task(run, metadata={"m": 1})
    held = crew.take()
    if running:
        crew.report("mark_task_running", held)
    for wrong in ({"workerId": "other"}, {"leaseId": "1-0"}, {"leaseId": "none"}):
        assert crew.refusal("complete_task", **{**held, **wrong}).startswith("LeaseConflictError: ")
    done = crew.report("complete_task", held, output={"ok": True}, metadata={"m": 2})
    assert (done["status"], done["output"], done["metadata"], done["leaseId"]) == (
        "completed",
        {"ok": True},
        {"m": 2},
        None,
    )
    assert (done["startedAt"] is not None, done["completedAt"] is not None) == (True, True)
    assert crew.events(run, "run.status.changed", 2)[-2:] == ["task.completed", "run.status.changed"]
    assert crew.status(run) == "completed"
    assert crew.refusal("complete_task", **held).startswith("LeaseConflictError: ")
    assert crew.refusal("enqueue_task", runId=run, kind="k").startswith("RunTerminalError: ")


@row(
    "fail_task", "leased → failed", "running → failed", "task.failed", "run failed", "metadata: with complete and fail"
)
@pytest.mark.parametrize("running", [False, True], ids=["leased", "running"])
def test_fail_task_is_final(crew: Crew, running: bool) -> None:
    run = crew.run()
    crew.task(run, maxAttempts=5)
    held = crew.take()
    if running:
        crew.report("mark_task_running", held)
    failed = crew.report("fail_task", held, error="no such file", metadata={"m": 1})
    assert (failed["status"], failed["error"], failed["metadata"], failed["dead"]) == (
        "failed",
        "no such file",
        {"m": 1},
        False,
    )
    assert (crew.claim(), crew.status(run)) == (None, "failed")
    event = crew.log(run, "run.status.changed", 2)[-2]
    assert event["eventType"] == "task.failed"
    assert event["payload"]["error"] == "no such file"
    assert crew.refusal("requeue_dead_task", taskId=held["taskId"]).startswith("InvalidTransitionError: ")


@row("fault: dependents of a failed task hang", "dependencies: a task waits for those it depends on")
def test_dependents_of_a_failed_task_are_cancelled_and_the_run_ends(crew: Crew) -> None:
    run = crew.run()
    first, last = crew.task(run)["id"], own_id()
    second = crew.task(run, dependsOnTaskIds=[first])["id"]
    crew.task(run, id=last, dependsOnTaskIds=[first, second])
    held = crew.take()
    assert (held["taskId"], crew.claim()) == (first, None)
    assert [task["id"] for task in crew.call("list_pending_tasks", runId=run)["tasks"]] == []
    crew.report("fail_task", held, error="no")
    assert [crew.get(id_)["status"] for id_ in (second, last)] == ["cancelled", "cancelled"]
    assert crew.status(run) == "failed"


def test_a_task_is_claimed_after_those_it_depends_on(crew: Crew) -> None:
    run = crew.run()
    first = crew.task(run)["id"]
    second = crew.task(run, dependsOnTaskIds=[first])["id"]
    crew.report("complete_task", crew.take())
    held = crew.take()
    assert held["taskId"] == second
    crew.report("complete_task", held)
    assert crew.status(run) == "completed"


@row("cancel_run", "queued → cancelled", "leased → cancelled", "running → cancelled", "blocked → cancelled",
     "waiting_input → cancelled", "run.cancelled", "run cancelled", "cancel: at once, for all open tasks",
     "a late report changes nothing")  # fmt: skip
def test_cancel_run(crew: Crew) -> None:
    run = crew.run()
    held = []
    for _ in range(4):
        crew.task(run)
        held.append(crew.take())
    queued = crew.task(run)["id"]
    crew.report("mark_task_running", held[1])
    crew.report("pause_task", held[2], status="blocked")
    crew.report("pause_task", held[3], status="waiting_input")
    cancelled = crew.call("cancel_run", runId=run, reason="not needed")["run"]
    assert cancelled["status"] == "cancelled"
    tasks = crew.call("list_run_tasks", runId=run)["tasks"]
    assert {task["status"] for task in tasks} == {"cancelled"}
    assert len(tasks) == 5
    assert crew.get(queued)["completedAt"] is not None
    for late in held[:2]:
        assert crew.refusal("complete_task", **late, output=1).startswith("LeaseConflictError: ")
    (event,) = [e for e in crew.log(run, "run.cancelled") if e["eventType"] == "run.cancelled"]
    assert event["payload"] == {"reason": "not needed"}
    assert crew.call("cancel_run", runId=run)["run"] == cancelled
    assert crew.refusal("enqueue_task", runId=run, kind="k").startswith("RunTerminalError: ")
    empty = crew.run()
    assert crew.call("cancel_run", runId=empty)["run"]["status"] == "cancelled"


@row("fault: cancel overwrites a completed run")
def test_a_run_that_has_ended_is_not_cancelled(crew: Crew) -> None:
    run = crew.run()
    crew.task(run)
    crew.report("complete_task", crew.take())
    assert crew.refusal("cancel_run", runId=run).startswith("InvalidTransitionError: ")
    assert crew.status(run) == "completed"
    assert "run.cancelled" not in crew.events(run, "run.status.changed", 2)


@row("expire_leases", "LeaseExpiredError", "lease: valid until it expires, a few milliseconds suffice",
     "task.lease_expired", "notBefore: only after a retry", "backoff: doubles with each attempt, capped")  # fmt: skip
def test_an_expired_lease_returns_the_task_after_its_backoff(crew: Crew) -> None:
    run = crew.run()
    task = crew.task(run, retry={"delayMs": 40_000, "backoff": "exponential", "maxDelayMs": 50_000}, maxAttempts=9)
    held = crew.take(leaseMs=10)
    time.sleep(0.03)
    # Until it is swept it has expired; from then on it is somebody else's.
    first = crew.refusal("complete_task", **held)
    crew.expire(held)
    assert first.startswith(("LeaseExpiredError: ", "LeaseConflictError: "))
    assert crew.refusal("complete_task", **held).startswith("LeaseConflictError: ")
    queued = crew.get(task["id"])
    assert (queued["status"], queued["attemptCount"], queued["dead"]) == ("queued", 1, False)
    assert queued["notBefore"] > queued["updatedAt"]
    assert seconds_between(queued["updatedAt"], queued["notBefore"]) == 40
    assert crew.claim() is None
    assert crew.call("list_pending_tasks", runId=run, readyBy=queued["updatedAt"])["tasks"] == []
    assert [t["id"] for t in crew.call("list_pending_tasks", runId=run, readyBy=queued["notBefore"])["tasks"]] == [
        task["id"]
    ]
    assert crew.events(run, "task.lease_expired").count("task.claimed") == 1


def seconds_between(first: str, second: str) -> int:
    return int((datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds())


def test_without_a_delay_an_expired_task_is_claimed_again_at_once(crew: Crew) -> None:
    crew.task(crew.run())
    for attempt in (1, 2, 3):
        claim = crew.claim(leaseMs=10)
        assert claim is not None
        assert (claim["task"]["attemptCount"], claim["task"]["notBefore"]) == (attempt, None)
        crew.expire({"taskId": claim["task"]["id"], "leaseId": claim["lease"]["id"]})


@row("timeoutMs: ends an attempt", "fault: a timeout never retries")
def test_an_attempt_that_runs_too_long_is_followed_by_another(crew: Crew) -> None:
    run = crew.run()
    id_ = crew.task(run, timeoutMs=20, maxAttempts=2)["id"]
    for status in ("queued", "failed"):
        held = crew.take()
        crew.report("mark_task_running", held)
        until(lambda: crew.get(id_)["leaseId"] is None)
        assert crew.get(id_)["status"] == status
    assert (crew.get(id_)["dead"], crew.status(run)) == (True, "failed")


@row("clientToken: the same claim again, for its worker, while the lease lives")
def test_a_claim_with_the_same_token_is_answered_again(crew: Crew) -> None:
    run, token = crew.run(), own_id("token")
    crew.task(run)
    crew.task(run)
    first = crew.claim("w", clientToken=token)
    assert first is not None
    assert first["lease"]["clientToken"] == token
    assert crew.claim("w", clientToken=token) == first
    other = crew.claim("other", clientToken=token)
    assert other is not None
    assert other["task"]["id"] != first["task"]["id"]
    short = own_id("token")
    crew.task(run)
    held = crew.take("w", leaseMs=10, clientToken=short)
    crew.expire(held)
    again = crew.claim("w", clientToken=short)
    assert again is not None
    assert (again["task"]["id"], again["task"]["attemptCount"], again["lease"]["id"] != held["leaseId"]) == (
        held["taskId"],
        2,
        True,
    )


@row("clientToken: the same completion or failure again")
@pytest.mark.parametrize(("tool", "fields"), [("complete_task", {"output": 1}), ("fail_task", {"error": "no"})])
def test_a_report_with_a_token_is_answered_again(crew: Crew, tool: str, fields: dict[str, object]) -> None:
    run = crew.run()
    crew.task(run)
    held, token = crew.take(), own_id("token")
    first = crew.report(tool, held, **fields, clientToken=token)
    before = crew.events(run, "run.status.changed", 2)
    assert crew.report(tool, held, **fields, clientToken=token) == first
    assert crew.events(run, "run.status.changed", 2) == before
    other = "fail_task" if tool == "complete_task" else "complete_task"
    more = {"error": "no"} if other == "fail_task" else {}
    assert crew.refusal(other, **held, **more, clientToken=token).startswith("LeaseConflictError: ")


@row("result: the same JSON as text and as structured content", "arguments: no others, and none of another type")
def test_results_and_arguments(crew: Crew) -> None:
    found = crew.agent.result("create_run", metadata={"é": "☃"})
    assert json.loads(text_of(found)) == found.structured_content
    for tool, fields in (
        ("create_run", {"name": "x"}), ("create_run", {"id": 1}), ("create_run", {"id": ""}),
        ("create_run", {"id": "x" * 201}),
        ("enqueue_task", {"runId": "r"}), ("enqueue_task", {"runId": "r", "kind": "k", "priority": "1"}),
        ("enqueue_task", {"runId": "r", "kind": "k", "retry": {"delayMs": 0}}),
        ("enqueue_task", {"runId": "r", "kind": "k", "retry": {"backoff": "linear"}}),
        ("enqueue_task", {"runId": "r", "kind": "k", "maxAttempts": 0}),
        ("claim_next_task", {"workerId": "w", "leaseMs": 0}), ("claim_next_task", {"workerId": "w", "leaseMs": 1.5}),
        ("pause_task", {"taskId": "t", "leaseId": "l", "workerId": "w", "status": "queued"}),
        ("list_runs", {"limit": 1001}), ("list_runs", {"offset": -1}), ("list_runs", {"statuses": ["done"]}),
        ("list_runs", {"updatedAfter": "yesterday"}), ("list_events_since", {"afterId": -1}),
        ("prune_runs", {}), ("prune_runs", {"olderThan": 5}), ("expire_leases", {"now": "2026-01-01"}),
        ("append_context_snapshot", {"runId": "r"}),
    ):  # fmt: skip
        assert crew.refusal(tool, **fields).startswith("InvalidInput: ")


def test_every_row_has_a_test() -> None:
    assert {*ticked_off(globals()), *ticked_off(vars(test_parallel_runs))} == set(ROWS)
