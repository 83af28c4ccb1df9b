"""Jobs over HTTP: submitted, listed, looked at."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.http.json_answers import iso_time, micros
from tests.http.calls import NOBODY, claim, dead, flow, get, post, refusal, submit, ticket
from tests.support.cases import each_case
from tests.support.listening import register

FLOW: dict[str, Any] = {
    "name": "news",
    "stages": [
        {"name": "fetch", "tasks": [{"kind": "fetch", "payload": n, "name": f"t{n}"} for n in range(3)]},
        {"name": "send", "tasks": [{"kind": "send", "depends_on": ["t0"]}]},
    ],
}


def test_a_task_is_submitted_and_found(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    body = {
        "kind": "mail", "payload": {"to": "ann"}, "queue": queue, "priority": 3, "max_attempts": 7, "delay_s": 60,
        "labels": {"a": "b"}, "correlation_id": "c", "policy": {"lease_s": 5, "retry_on": ["Broken"]},
    }  # fmt: skip
    found = shop.post("/api/v1/jobs", json=body)
    assert found.status_code == 201
    assert found.headers["location"] == f"/api/v1/jobs/{found.json()['id']}"
    assert found.json()["repeated"] is False
    task = shared_engine.task(found.json()["id"])
    assert (task.kind, task.queue, task.priority, task.max_attempts, task.labels) == ("mail", queue, 3, 7, {"a": "b"})
    assert (task.policy.lease_s, task.policy.retry_on, task.correlation_id) == (5, ("Broken",), "c")
    assert task.run_at == task.created_at + 60 * SECOND
    shown = get(shop, f"/jobs/{task.id}")
    assert (shown["entity"], shown["payload"], shown["created_at"]) == (
        "task",
        {"to": "ann"},
        iso_time(task.created_at),
    )


def test_a_kind_that_nobody_has_declared_is_accepted_with_a_warning(
    shop: TestClient, shared_engine: Engine, queue: str
) -> None:
    kind, other = f"unheard {queue} ß", f"heard {queue}"
    shared_engine.configure(other, Policy())
    body = {"kind": kind, "queue": queue}
    found = shop.post("/api/v1/jobs", json=body)
    assert found.status_code == 201
    assert found.headers["onetray-warning"] == (
        f"no worker has declared the kind 'unheard {queue} \\xdf': the task waits until one does"
    )
    # There is a job of it now; and the other one was declared.
    for known in (kind, other):
        assert "onetray-warning" not in shop.post("/api/v1/jobs", json={"kind": known, "queue": queue}).headers
    jobs = [{"kind": f"{queue} a"}, {"name": "f", "stages": [{"name": "s", "tasks": [{"kind": f"{queue} b"}]}]}]
    warning = shop.post("/api/v1/jobs/batch", json={"jobs": jobs}).headers["onetray-warning"]
    assert f"'{queue} a', '{queue} b'" in warning
    register(shared_engine, queue, kinds=(other,))
    (blocker,) = get(shop, f"/jobs/{found.json()['id']}/explain")["reasons"]
    shared_engine.worker_leave("listener")
    assert f"none of them knows the kind {kind!r}" in blocker["message"]
    described = get(shop, "/openapi.json")["paths"]["/api/v1/jobs"]["post"]["responses"]["201"]["headers"]
    assert described.keys() == {"Onetray-Warning", "Idempotent-Replay"}


def test_a_whole_number_may_be_written_with_a_point(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    raw = f'{{"kind": "a", "queue": "{queue}", "priority": 5.0, "max_attempts": 2.0}}'
    found = shop.post("/api/v1/jobs", content=raw, headers={"content-type": "application/json"})
    assert (shared_engine.task(found.json()["id"]).priority, found.status_code) == (5, 201)
    assert refusal(shop.post("/api/v1/jobs", json={"kind": "a", "priority": 5.5})) == (400, "invalid_input")


def test_what_is_submitted_is_by_whoever_asks_and_in_his_trace(shop: TestClient, shared_engine: Engine) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    id_ = post(shop, "/jobs", {"kind": "a"}, 201, traceparent=trace)["id"]
    event = get(shop, f"/jobs/{id_}/events")["events"][0]
    assert "local" in event["actor"]
    assert event["trace"] == trace
    assert shared_engine.task(post(shop, "/jobs", {"kind": "a"}, 201, traceparent="nonsense")["id"]).trace is None


def test_a_flow_is_submitted_when_there_are_stages(shop: TestClient) -> None:
    placed = post(shop, "/jobs", FLOW, 201)
    assert (placed["entity"], len(placed["stages"]), len(placed["tasks"])) == ("flow", 2, 4)
    shown = get(shop, f"/jobs/{placed['id']}")
    assert (shown["entity"], shown["name"], shown["stages"]) == ("flow", "news", 2)


@each_case(
    ("body", "status", "code", "names"),
    [
        ({}, 400, "invalid_input", "kind"),
        ({"kind": ""}, 400, "invalid_input", "kind"),
        ({"kind": 1}, 400, "invalid_input", "kind"),
        ({"kind": "a", "priority": "1"}, 400, "invalid_input", "priority"),
        ({"kind": "a", "nonsense": 1}, 400, "invalid_input", "nonsense"),
        ({"kind": "a", "namespace": "other"}, 400, "invalid_input", "namespace"),
        ({"kind": "a", "actor_name": "root"}, 400, "invalid_input", "actor_name"),
        ({"kind": "a", "delay_s": 1, "run_at": "2030-01-01T00:00:00Z"}, 400, "invalid_input", "delay_s"),
        ({"kind": "a", "run_at": "2030-01-01T00:00:00"}, 400, "invalid_input", "run_at"),
        ({"kind": "a", "run_at": "tomorrow"}, 400, "invalid_input", "run_at"),
        ({"kind": "a\0"}, 400, "invalid_input", "kind"),
        ({"kind": "a", "payload": "\0"}, 400, "invalid_input", "payload"),
        ({"kind": "x" * 201}, 413, "too_large", "kind"),
        ({"kind": "a", "policy": {"lease_s": -1}}, 400, "invalid_input", "lease_s"),
        ({"kind": "a", "policy": {"nonsense": 1}}, 400, "invalid_input", "nonsense"),
        ({"name": "f", "stages": [], "kind": "a"}, 400, "invalid_input", "kind"),
        ({"name": "f", "stages": [{"name": "a"}, {"name": "a"}]}, 400, "invalid_input", "stages"),
        ({"name": "f", "stages": [{"name": "a", "approval": {"form": {"type": 7}}}]}, 400, "invalid_input", "form"),
        ({"name": "f", "stages": [{"name": "a", "tasks": [
            {"kind": "k", "name": "x", "depends_on": ["x"]}]}]}, 409, "dependency_cycle", "x"),
    ],
)  # fmt: skip
def test_a_bad_submit_is_refused_by_the_name_of_the_field(
    shop: TestClient, body: dict[str, Any], status: int, code: str, names: str
) -> None:
    found = shop.post("/api/v1/jobs", json=body)
    assert refusal(found) == (status, code)
    assert names in found.text
    assert "body.task" not in found.text


@each_case(
    ("raw", "code"),
    [
        (b"", "invalid_input"), (b"{", "malformed_json"), (b"[]", "invalid_input"), (b"null", "invalid_input"),
        (b'"x"', "invalid_input"), (b'{"kind":"a","payload":NaN}', "invalid_input"),
        (b'{"kind":"\\ud800"}', "malformed_json"), (b"\xff", "malformed_json"),
        (b'{"kind":"a","payload":' + b"[" * 5000 + b"]" * 5000 + b"}", "too_deep"),
        (b'{"kind":"a","payload":"\\ud800"}', "malformed_json"),
        (b'{"kind":"a","payload":' + b"9" * 400 + b"}", "invalid_input"),
        (b'{"kind":"a","\\ud800":1}', "malformed_json"), (b'{"kind":"a","delay_s":1e999}', "invalid_input"),
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused(shop: TestClient, raw: bytes, code: str) -> None:
    found = shop.post("/api/v1/jobs", content=raw, headers={"content-type": "application/json"})
    assert refusal(found) == (400, code)


def test_many_jobs_are_answered_each_in_its_place(shop: TestClient) -> None:
    jobs = [{"kind": "a"}, {"kind": "x" * 201}, FLOW, {"kind": "a", "idempotency_key": "k"}]
    verdicts = post(shop, "/jobs/batch", {"jobs": jobs})["verdicts"]
    assert [v.get("error", {}).get("code") for v in verdicts] == [None, "too_large", None, None]
    assert verdicts[1]["error"]["status"] == 413
    assert verdicts[2]["value"]["entity"] == "flow"
    again = post(shop, "/jobs/batch", {"jobs": [jobs[3]]})["verdicts"][0]["value"]
    assert (again["id"], again["repeated"]) == (verdicts[3]["value"]["id"], True)


def test_a_batch_with_an_ill_formed_job_is_refused_whole(shop: TestClient) -> None:
    found = shop.post("/api/v1/jobs/batch", json={"jobs": [{"kind": "a"}, {"kind": "a", "nonsense": 1}]})
    assert refusal(found) == (400, "invalid_input")
    assert [e["field"] for e in found.json()["errors"]] == ["body.jobs.1.nonsense"]


def test_jobs_are_listed_newest_first_in_pages(shop: TestClient, queue: str) -> None:
    ids = [submit(shop, queue) for _ in range(5)]
    first = get(shop, "/jobs", queue=queue, limit=2)
    second = get(shop, "/jobs", queue=queue, limit=2, cursor=first["next"])
    third = get(shop, "/jobs", queue=queue, limit=2, cursor=second["next"])
    assert [j["id"] for page in (first, second, third) for j in page["jobs"]] == ids[::-1]
    assert third["next"] is None
    numbered = get(shop, "/jobs", queue=queue, limit=2, page=3, total=True)
    assert (numbered["jobs"], numbered["total"], third["total"]) == (third["jobs"], 5, None)
    assert refusal(shop.get("/api/v1/jobs?page=0")) == (400, "invalid_input")
    assert refusal(shop.get(f"/api/v1/jobs?page=2&cursor={first['next']}")) == (400, "invalid_input")


def test_jobs_are_listed_by_what_they_are(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    old = submit(shop, queue, queue, labels={"x": "1", "y": queue}, correlation_id=queue)
    clock = shared_engine.store.clock
    assert isinstance(clock, VirtualClock)
    clock.advance(100)
    new = submit(shop, queue)
    named = flow(shop, queue, name=f"{queue}-f")["id"]

    def found(**query: Any) -> list[str]:
        return [job["id"] for job in get(shop, "/jobs", **query)["jobs"]]

    assert found(kind=queue) == found(correlation_id=queue) == [old]
    assert found(label=["x=1", f"y={queue}"]) == [old]
    assert found(label=["x=2", f"y={queue}"]) == []
    assert found(kind=f"{queue}-f") == [named]
    assert found(queue=queue, state=["queued", "running"]) == [new, old]
    assert found(queue=queue, state="running") == []
    assert found(queue=queue, since=iso_time(clock.now())) == [new]
    assert new not in found(queue=queue, until=iso_time(clock.now() - 1))
    assert found(queue=queue, entity="flow") == []
    assert new in found(queue=queue, entity="task", priority="0")
    assert found(queue=queue, priority="7") == []


@each_case(
    "query", ["state=nonsense", "limit=0", "limit=1001", "limit=x", "cursor=nonsense", "since=yesterday", "label=x",
              "sate=queued", "since=0001-01-01T00:00:00Z", "kind=%00", "kind=", "entity=stage",
              "priority=x", "until=soon"],
)  # fmt: skip
def test_a_bad_filter_is_refused(shop: TestClient, query: str) -> None:
    assert refusal(shop.get(f"/api/v1/jobs?{query}")) == (400, "invalid_input")


def test_a_tree_shows_stages_and_the_first_of_their_tasks(shop: TestClient, queue: str) -> None:
    made = post(shop, "/jobs", FLOW, 201)
    tree = get(shop, f"/jobs/{made['id']}/tree", tasks=2, limit=1)
    assert [b["stage"]["name"] for b in tree["stages"]] == ["fetch"]
    assert [t["name"] for t in tree["stages"][0]["tasks"]] == ["t0", "t1"]
    rest = get(shop, f"/stages/{made['stages'][0]}/tasks", cursor=tree["stages"][0]["next"])
    assert [t["name"] for t in rest["tasks"]] == ["t2"]
    assert rest["next"] is None
    more = get(shop, f"/jobs/{made['id']}/tree", cursor=tree["next"])
    assert [b["stage"]["name"] for b in more["stages"]] == ["send"]
    assert more["next"] is None
    assert more["stages"][0]["next"] is None
    assert get(shop, f"/jobs/{submit(shop, queue)}/tree")["stages"] == []


def test_events_and_logs_go_on_from_a_cursor(shop: TestClient, queue: str) -> None:
    id_ = submit(shop, queue)
    task = claim(shop, queue)[0]
    post(shop, f"/tasks/{id_}/log", ticket(task, lines=["one", {"level": "warning", "line": "two", "data": {"n": 2}}]))
    events = get(shop, f"/jobs/{id_}/events", limit=1)
    assert [e["type"] for e in events["events"]] == ["task.submitted"]
    rest = get(shop, f"/jobs/{id_}/events", cursor=events["next"])
    assert [e["type"] for e in rest["events"]] == ["task.claimed"]
    assert rest["events"][0]["actor"].endswith("w")
    assert get(shop, f"/jobs/{id_}/events", cursor=rest["next"]) == {"events": [], "next": rest["next"]}
    lines = get(shop, f"/jobs/{id_}/logs", limit=1)
    assert [line["line"] for line in lines["logs"]] == ["one"]
    more = get(shop, f"/jobs/{id_}/logs", cursor=lines["next"])["logs"]
    assert [(line["level"], line["line"], line["data"]) for line in more] == [("warning", "two", {"n": 2})]


def test_a_flows_events_are_those_of_its_tasks_too(shop: TestClient) -> None:
    made = post(shop, "/jobs", FLOW, 201)["id"]
    types = {e["type"] for e in get(shop, f"/jobs/{made}/events")["events"]}
    assert {"flow.submitted", "stage.added", "task.submitted"} <= types


def test_the_errors_of_a_job_name_stage_and_task(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    stages = [StageSpec("a", [TaskSpec("x", queue=queue)] * 2), StageSpec("b", [TaskSpec("y", queue=queue)])]
    made = shared_engine.submit_flow("f", stages, roll_up="mixed").id
    one, two = shared_engine.claim(queue, worker="w", limit=2)
    shared_engine.fail(one, "no such shop", retryable=False)
    shared_engine.fail(two, "closed", retryable=False)
    found = get(shop, f"/jobs/{made}/errors")
    assert [(e["stage"], e["task"], e["message"]) for e in found["errors"]] == [
        ("a", one.id, "no such shop"), ("a", two.id, "closed"),
    ]  # fmt: skip
    assert (found["total"], len(get(shop, f"/jobs/{made}/errors", limit=1)["errors"])) == (2, 1)
    assert get(shop, f"/jobs/{one.id}/errors")["errors"][0]["message"] == "no such shop"
    assert get(shop, f"/jobs/{submit(shop, queue)}/errors") == {"errors": [], "total": 0}
    assert get(shop, f"/jobs/{made}/progress")["stages"] == [
        {"name": "a", "state": "failed", "percentage": 0}, {"name": "b", "state": "skipped", "percentage": 0},
    ]  # fmt: skip


def test_a_result_is_there_once_the_job_has_ended(shop: TestClient, queue: str) -> None:
    id_ = submit(shop, queue)
    task = claim(shop, queue)[0]
    not_yet = shop.get(f"/api/v1/jobs/{id_}/result")
    # Not 408: clients and proxies send a request again that was answered so.
    assert (refusal(not_yet), not_yet.headers["retry-after"]) == ((409, "not_yet"), "1")
    assert (not_yet.json()["id"], not_yet.json()["state"]) == (id_, "assigned")
    post(shop, f"/tasks/{id_}/succeed", ticket(task, result={"n": 1}))
    assert get(shop, f"/jobs/{id_}/result")["result"] == {"n": 1}
    failed = shop.get(f"/api/v1/jobs/{dead(shop, queue)}/result")
    assert refusal(failed) == (409, "job_failed")
    assert failed.json()["error"]["message"] == "no"


def test_a_flows_result_is_what_its_stages_gave(shop: TestClient, queue: str) -> None:
    made = flow(shop, queue)
    for n, task in enumerate(claim(shop, queue)):
        post(shop, f"/tasks/{task['id']}/succeed", ticket(task, result=n))
    assert get(shop, f"/jobs/{made['id']}/result")["result"] == {"a": [0, 1]}
    page = get(shop, f"/stages/{made['stages'][0]}/results", limit=1)
    assert [r["result"] for r in page["results"]] == [0]
    rest = get(shop, f"/stages/{made['stages'][0]}/results", cursor=page["next"])
    assert [r["result"] for r in rest["results"]] == [1]


def test_an_ended_job_is_deleted_and_an_open_one_is_not(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    id_, after = submit(shop, queue), shared_engine.feed.tail()
    path = f"/api/v1/jobs/{id_}"
    assert refusal(shop.delete(path)) == (409, "illegal_transition")
    post(shop, f"/jobs/{id_}/cancel", {"mode": "hard"})
    deleted = shop.delete(path, params={"reason": "as asked"})
    assert (deleted.status_code, deleted.json()) == (200, {"id": id_, "deleted": True})
    assert refusal(shop.delete(path)) == refusal(shop.get(path)) == (404, "not_found")
    events = [e for e in get(shop, "/feed", cursor=after)["events"] if e["job_id"] == id_]
    assert [(e["type"], e["cause"]) for e in events] == [("job.deleted", "as asked")]


def test_explain_says_what_stands_in_the_way(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    submit(shop, queue)
    lonely = get(shop, f"/jobs/{submit(shop, queue, priority=1)}/explain")
    assert ([r["code"] for r in lonely["reasons"]], lonely["before_it"]) == (["no_worker"], 0)
    register(shared_engine, queue, name=queue)
    ready, late = submit(shop, queue), submit(shop, queue, delay_s=60)
    assert get(shop, f"/jobs/{ready}/explain") == {
        "id": ready, "entity": "task", "reasons": [], "before_it": 2, "more_before_it": False,
    }  # fmt: skip
    reasons = get(shop, f"/jobs/{late}/explain")["reasons"]
    assert len(reasons) == 1
    assert micros(reasons[0]["ends_at"]) > 0


def test_actions_are_the_lifecycles(shop: TestClient, queue: str) -> None:
    assert get(shop, f"/jobs/{submit(shop, queue)}/actions")["actions"] == ["cancel"]
    made = post(shop, "/jobs", FLOW, 201)["id"]
    assert get(shop, f"/jobs/{made}/actions")["actions"] == ["pause", "cancel"]
    post(shop, f"/jobs/{made}/cancel")
    assert get(shop, f"/jobs/{made}/actions")["actions"] == ["retry"]


def test_progress_is_what_a_task_said_or_a_flows_numbers(shop: TestClient, queue: str) -> None:
    id_ = submit(shop, queue)
    before = get(shop, f"/jobs/{id_}/progress")
    assert (before["said"], before["percentage"]) == (None, None)
    post(shop, f"/tasks/{id_}/progress", ticket(claim(shop, queue)[0], done=1, total=2, message="half"))
    half = get(shop, f"/jobs/{id_}/progress")
    assert (half["said"]["message"], half["percentage"]) == ("half", 50)
    far = get(shop, f"/jobs/{post(shop, '/jobs', FLOW, 201)['id']}/progress")
    assert (far["percentage"], far["counts"]["total"]) == (0, 4)


@each_case("look", ["", "/tree", "/events", "/logs", "/result", "/explain", "/actions", "/progress", "/errors"])
def test_a_look_at_what_is_not_there(shop: TestClient, look: str) -> None:
    assert refusal(shop.get(f"/api/v1/jobs/{NOBODY}{look}")) == (404, "not_found")
    assert refusal(shop.get(f"/api/v1/jobs/nonsense{look}")) == (400, "invalid_input")
    assert refusal(shop.get(f"/api/v1/jobs/{NOBODY}{look}?nonsense=1")) == (400, "invalid_input")


def test_submits_are_debounced_and_throttled(shop: TestClient, shared_engine: Engine, queue: str) -> None:
    body = {"kind": f"index-{queue}", "queue": queue, "debounce_s": 3600, "debounce_key": "doc", "debounce_max_s": 7200}
    first = shop.post("/api/v1/jobs", json={**body, "payload": 1})
    again = shop.post("/api/v1/jobs", json={**body, "payload": 2})
    assert (first.status_code, again.status_code) == (201, 200)
    assert (again.json()["id"], again.json()["repeated"], again.json()["window"]) == (
        first.json()["id"], True, "debounced",
    )  # fmt: skip
    assert shared_engine.task(first.json()["id"]).payload == 2
    assert get(shop, f"/jobs/{first.json()['id']}/explain")["reasons"][0]["code"] == "debounced"
    job = {"kind": f"remind-{queue}", "queue": queue, "throttle_s": 3600}
    verdicts = post(shop, "/jobs/batch", {"jobs": [job, job]})["verdicts"]
    assert [v["value"]["window"] for v in verdicts] == [None, "throttled"]
    refused = shop.post("/api/v1/jobs", json={**job, "debounce_s": 5})
    assert (refused.status_code, "not both" in refused.json()["detail"]) == (400, True)
