"""The so1 contract, sentence by sentence: CONTRACT at the end says which test holds which."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from fastapi.testclient import TestClient

from onetray.dialects.kit import without_paths
from onetray.dialects.so1.job import STATES, TERMINAL
from onetray.dialects.so1.routes import _bind_key, _submit_all
from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Submit
from onetray.domain.errors import InvalidInput, KeyReused, OnetrayError, Unavailable
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.lifecycle import FLOW, TASK
from onetray.domain.policy import Policy
from onetray.domain.task import MAX_SPARED
from onetray.engine import Engine
from onetray.engine import submit as submit_module
from onetray.http.app import build
from onetray.http.services import HttpConfig, Services
from tests.support.cases import each_case
from tests.support.live import Frame, parsed, serving, stream
from tests.support.tasks import STATES as TASK_STATES
from tests.support.tasks import UNKNOWN_ID, in_state, running, settle, submit, take

KEY = "7d0c1f5e-5b52-4c2e-9d6c-0a9a5a3f0b11"
BODY = {"action": "deploy", "inputs": {"site": "acme", "count": 2}}
UUID = re.compile(r"[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}")
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
DAY_S = 86_400


def post(api: TestClient, body: Any = BODY, key: str | None = None) -> Any:
    return api.post("/api/jobs", json=body, headers={} if key is None else {"Idempotency-Key": key})


def made(api: TestClient, **body: Any) -> str:
    id_: str = post(api, {**BODY, **body}).json()["job"]["id"]
    return id_


def job(api: TestClient, id_: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/api/jobs/{id_}").json()["job"]
    return found


def frames_of(api: TestClient, id_: str, **asked: Any) -> list[Frame]:
    answer = api.get(f"/api/jobs/{id_}/events", **asked)
    assert answer.status_code == 200, answer.text
    return [f for f in map(parsed, answer.text.split("\n\n")) if f.event]


def plainly(frames: list[Frame]) -> list[Any]:
    return [f.data["state"] if f.event == "status" else f.data["cursor"] for f in frames]


def must_be_an_error(answer: Any, status: int, code: str) -> None:
    body = answer.json()
    assert (answer.status_code, body["error"]["code"]) == (status, code)
    assert body["requestId"] == answer.headers["X-Request-Id"]
    assert set(body) == {"requestId", "error"}
    assert set(body["error"]) <= {"code", "message", "details"}
    assert body["error"]["message"]


# The job.


def test_a_job_has_the_fields_of_the_contract(api: TestClient, engine: Engine) -> None:
    new = post(api).json()
    id_ = new["job"]["id"]
    assert set(new["job"]) == {"id", "state", "createdAt", "logs", "metadata"}
    claimed = running(engine)
    assert set(job(api, id_)) == {"id", "state", "createdAt", "startedAt", "logs", "metadata"}
    engine.log(claimed, "one")
    engine.succeed(claimed, {"url": "x"})
    done = job(api, id_)
    assert set(done) == {"id", "state", "createdAt", "startedAt", "completedAt", "output", "logs", "metadata"}
    assert done["output"] == {"url": "x"}
    assert done["logs"] == [{"line": "one", "cursor": 1}]


def test_metadata_says_who_asked_for_what(api: TestClient, engine: Engine) -> None:
    new = post(api).json()
    assert job(api, new["job"]["id"])["metadata"] == {
        "requestId": new["requestId"], "userId": "local", "orgId": "default",
        "action": "deploy", "inputs": {"site": "acme", "count": 2},
    }  # fmt: skip


def test_the_handlers_payload_is_the_inputs(api: TestClient, engine: Engine) -> None:
    made(api)
    claimed = take(engine)
    assert (claimed.kind, claimed.payload, claimed.queue) == ("deploy", BODY["inputs"], "default")


def test_a_failure_has_a_code_and_a_message(api: TestClient, engine: Engine) -> None:
    id_ = made(api)
    engine.fail(running(engine), "no such site", error_class="LookupError", retryable=False)
    assert job(api, id_)["error"] == {"code": "LookupError", "message": "no such site"}


def test_times_are_iso(api: TestClient, engine: Engine) -> None:
    id_ = made(api)
    engine.succeed(running(engine))
    found = job(api, id_)
    assert all(ISO.fullmatch(found[name]) for name in ("createdAt", "startedAt", "completedAt"))


def test_started_at_stays_when_the_job_is_started_again(api: TestClient, engine: Engine, clock: VirtualClock) -> None:
    """A worker that stops in order gives the job back, and another one starts it: it entered `running` once."""
    id_ = made(api)
    first = running(engine)
    began = job(api, id_)["startedAt"]
    clock.advance(60)
    engine.release(first)
    assert job(api, id_)["startedAt"] == began
    again = running(engine)
    clock.advance(60)
    assert engine.task(id_).started_at == clock.now() - 60 * 1_000_000
    assert job(api, id_)["startedAt"] == began
    engine.succeed(again)
    assert job(api, id_)["startedAt"] == api.get("/api/jobs").json()["jobs"][0]["startedAt"] == began


def test_completed_at_is_set_on_a_cancelled_job(api: TestClient) -> None:
    id_ = made(api)
    api.post(f"/api/jobs/{id_}/cancel")
    assert ISO.fullmatch(job(api, id_)["completedAt"])


# POST /api/jobs


def test_a_submit_is_answered_with_202_and_a_pending_job(api: TestClient) -> None:
    answer = post(api)
    assert answer.status_code == 202
    assert set(answer.json()) == {"requestId", "job"}
    assert answer.json()["job"]["state"] == "pending"


@each_case("redact", [(), ("site",)])
def test_a_submit_is_pending_however_quick_the_worker_is(
    api: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch, redact: tuple[str, ...]
) -> None:
    engine.configure("deploy", Policy(redact=redact))
    run = engine.run

    def before_the_answer(commands: Any, **kwargs: Any) -> Any:
        verdicts = run(commands, **kwargs)
        monkeypatch.setattr(engine, "run", run)
        engine.succeed(running(engine))
        return verdicts

    monkeypatch.setattr(engine, "run", before_the_answer)
    new = post(api).json()["job"]
    assert new["state"] == "pending"
    assert "completedAt" not in new
    done = job(api, new["id"])
    assert done["state"] == "success"
    # Nothing else is different: what was not read is told as it was written.
    later = ("state", "startedAt", "completedAt", "output")
    assert [{name: value for name, value in each.items() if name not in later} for each in (new, done)] == [
        {name: value for name, value in done.items() if name not in later}
    ] * 2


def test_a_job_that_redacts_nothing_is_submitted_and_shown_without_a_look_at_what_to_hide(
    api: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = engine.store.read

    def counted(name: str, /, **params: Any) -> Any:
        reads.append(name)
        return read(name, **params)

    made(api)
    monkeypatch.setattr(engine.store, "read", counted)
    id_ = post(api, key=KEY).json()["job"]["id"]
    assert [name for name in reads if name != "any_token"] == []
    job(api, id_)
    assert api.get(f"/api/v1/jobs/{id_}").status_code == 200
    assert [name for name in reads if name not in ("any_token", "task_by_id")] == ["tasks_by_keys", "first_lines"]
    engine.configure("deploy", Policy(redact=("site",)))
    assert job(api, id_)["metadata"]["inputs"]["site"] == "***"
    assert api.get(f"/api/v1/jobs/{id_}").json()["payload"]["site"] == "***"


def test_a_key_and_its_job_are_written_together(
    api: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the job cannot be written, its key stays free for any body."""
    write, broken = submit_module.write_tasks, [True]

    def fails(*args: Any) -> Any:
        if broken:
            raise OnetrayError("the database is full")
        return write(*args)

    monkeypatch.setattr(submit_module, "write_tasks", fails)
    assert post(api, key=KEY).status_code == 500
    broken.clear()
    assert post(api, {"action": "destroy"}, KEY).status_code == 202
    must_be_an_error(post(api, key=KEY), 409, "CONFLICT")


def test_of_two_bodies_with_one_key_in_one_batch_the_first_counts(engine: Engine) -> None:
    services = Services(engine, HttpConfig())
    commands = [Submit(kind=kind, payload={"n": n}, tells_written=True) for kind, n in (("a", 1), ("b", 1), ("a", 1))]
    for command in commands:
        _bind_key(services, command, KEY)
    done = _submit_all(services, commands)
    assert done[0][0].unwrap().id == done[2][0].unwrap().id
    assert [job is not None for _, job in done] == [True, False, False]
    assert isinstance(done[1][0].error, KeyReused)
    assert [job.kind for job in engine.jobs().jobs] == ["a"]


def test_submits_that_arrive_together_are_answered_apart_and_only_what_hides_something_is_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.declare({"secret": Policy(redact=("pin",))}, namespace="b")
    first = engine.submit("deploy", namespace="a", idempotency_key="k")
    commands = [
        Submit(kind="deploy", payload={"n": 1}, namespace="a", tells_written=True),
        Submit(kind="deploy", namespace="a", idempotency_key="k", tells_written=True),
        Submit(kind="", namespace="a", tells_written=True),
        Submit(kind="deploy", payload={"n": 2}, namespace="a", tells_written=True),
        Submit(kind="secret", payload={"pin": 1234}, namespace="b", tells_written=True),
        Submit(kind="secret", payload={"pin": 5678}, namespace="b", tells_written=True),
    ]
    reads: list[str] = []
    read = engine.tasks_by_id

    def counted(*args: Any, **kwargs: Any) -> Any:
        reads.append(kwargs["namespace"])
        return read(*args, **kwargs)

    monkeypatch.setattr(engine, "tasks_by_id", counted)
    done = _submit_all(Services(engine, HttpConfig()), commands)
    assert reads == ["b"]
    assert [job and orjson.loads(orjson.dumps(job))["metadata"]["inputs"] for _, job in done] == [
        {"n": 1}, None, None, {"n": 2}, {"pin": "***"}, {"pin": "***"},
    ]  # fmt: skip
    assert (done[1][0].unwrap().id, done[1][0].unwrap().repeated) == (first.id, True)
    assert isinstance(done[2][0].error, InvalidInput)


def test_inputs_may_be_left_out(api: TestClient) -> None:
    assert post(api, {"action": "deploy"}).json()["job"]["metadata"]["inputs"] == {}


@each_case(
    "body",
    [
        {}, {"action": ""}, {"action": 1}, {"action": "x" * 201}, {"action": "deploy", "inputs": []},
        {"action": "deploy", "input": {}}, [], "deploy", {"action": "a\0b"}, {"action": "a", "inputs": {"a": "\0"}},
    ],
)  # fmt: skip
def test_a_body_that_is_wrong_is_a_validation_error(quick_api: TestClient, body: Any) -> None:
    must_be_an_error(post(quick_api, body), 400, "VALIDATION_ERROR")
    assert quick_api.get("/api/jobs").json()["jobs"] == []


NATIVE = re.compile(
    r"\b(task|flow|kind|payload|queue|queued|assigned|succeeded|dead_lettered|waiting_input|onetray)\b", re.I
)
"""Words of the native API, which whoever knows so1 has never heard of."""


def test_errors_speak_so1(api: TestClient, engine: Engine) -> None:
    """Also those that the engine itself has found."""
    done = {state: in_state(engine, state).id for state in ("succeeded", "dead_lettered", "cancelled")}
    flow = engine.submit_flow("report", [])
    engine.cancel_flow(flow.id, hard=True)
    answers = [
        post(api, {"action": "a\0b"}), post(api, {"action": "a", "inputs": {"x": "y" * 1_000_001}}),
        post(api, {"action": "a", "inputs": {"x": 2**70}}), post(api, {"action": "x" * 201}), post(api, []),
        post(api, key="nonsense"), api.get(f"/api/jobs/{UNKNOWN_ID}"), api.get("/api/jobs/nonsense"),
        api.post(f"/api/jobs/{flow.id}/cancel"), *(api.post(f"/api/jobs/{id_}/cancel") for id_ in done.values()),
        api.delete("/api/jobs"), api.get("/api/jobs?limit=0"),
    ]  # fmt: skip
    assert [a.status_code for a in answers] == [400, 413, 400, 400, 400, 400, 404, 404, 409, 409, 409, 409, 405, 400]
    for answer in answers:
        assert not NATIVE.search(answer.text), answer.text
    ended = {a.json()["error"]["details"]["state"] for a in answers[9:12]}
    assert ended == {"success", "failed", "cancelled"}
    assert answers[1].json()["error"]["details"]["field"] == "inputs"


def test_what_is_no_json_is_a_bad_request(quick_api: TestClient) -> None:
    answer = quick_api.post("/api/jobs", content=b"{nonsense", headers={"content-type": "application/json"})
    must_be_an_error(answer, 400, "BAD_REQUEST")


def test_a_replay_gets_the_same_job_and_a_fresh_request_id(api: TestClient, engine: Engine) -> None:
    first, again = post(api, key=KEY), post(api, key=KEY.upper())
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["job"] == again.json()["job"]
    assert first.json()["requestId"] != again.json()["requestId"]
    assert len(engine.jobs().jobs) == 1


def test_a_replay_with_its_inputs_in_another_order_is_the_same(api: TestClient) -> None:
    first = post(api, key=KEY).json()["job"]["id"]
    assert post(api, {"inputs": {"count": 2, "site": "acme"}, "action": "deploy"}, KEY).json()["job"]["id"] == first


@each_case("other", [{"inputs": {"site": "other"}}, {"action": "destroy"}])
def test_the_same_key_with_another_body_is_a_conflict(api: TestClient, engine: Engine, other: dict[str, Any]) -> None:
    post(api, key=KEY)
    must_be_an_error(post(api, {**BODY, **other}, KEY), 409, "CONFLICT")
    assert len(engine.jobs().jobs) == 1


@each_case("ttl_s", [60, 86_400, 10 * 86_400])
def test_a_key_lives_for_a_day_whatever_the_action_says(
    api: TestClient, engine: Engine, clock: VirtualClock, ttl_s: float
) -> None:
    engine.configure("deploy", Policy(idempotency_ttl_s=ttl_s))
    first = post(api, key=KEY).json()["job"]["id"]
    clock.advance(DAY_S - 1)
    assert post(api, key=KEY).json()["job"]["id"] == first
    must_be_an_error(post(api, {"action": "destroy"}, KEY), 409, "CONFLICT")
    clock.advance(2)
    assert post(api, key=KEY).json()["job"]["id"] != first


def test_a_body_that_was_refused_does_not_keep_its_key(api: TestClient) -> None:
    must_be_an_error(post(api, {"action": "deploy", "inputs": {"a": "\0"}}, KEY), 400, "VALIDATION_ERROR")
    assert post(api, key=KEY).status_code == 202


@each_case("key", ["nonsense", UNKNOWN_ID, "00000000-0000-4000-0000-000000000000", KEY + "0", KEY.replace("-", ""), ""])
def test_a_key_that_is_no_uuid4_is_refused(quick_api: TestClient, key: str) -> None:
    must_be_an_error(post(quick_api, key=key), 400, "VALIDATION_ERROR")


def test_a_job_is_tried_once(api: TestClient, engine: Engine) -> None:
    id_ = made(api)
    engine.fail(running(engine), "the network is down", retryable=True)
    assert engine.task(id_).max_attempts == 1
    assert job(api, id_)["state"] == "failed"


# GET /api/jobs/{id}, GET /api/jobs


def test_a_job_by_its_id(api: TestClient) -> None:
    new = post(api).json()["job"]
    answer = api.get(f"/api/jobs/{new['id']}")
    assert answer.status_code == 200
    assert answer.json() == {"requestId": answer.headers["X-Request-Id"], "job": new}


@each_case(("method", "path"), [("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("GET", "/nothing")])
def test_what_is_not_there_is_not_found(quick_api: TestClient, method: str, path: str) -> None:
    must_be_an_error(quick_api.request(method, f"/api/jobs/{UNKNOWN_ID}{path}"), 404, "NOT_FOUND")


@each_case("id_", ["nonsense", "1", UNKNOWN_ID[:-1], UNKNOWN_ID + "0", "x" * 5_000, "%00", "ü"])
@each_case(("method", "path"), [("GET", ""), ("GET", "/events"), ("POST", "/cancel")])
def test_an_id_that_can_be_no_jobs_is_not_found_either(quick_api: TestClient, method: str, path: str, id_: str) -> None:
    must_be_an_error(quick_api.request(method, f"/api/jobs/{id_}{path}"), 404, "NOT_FOUND")


def test_a_job_of_another_namespace_is_not_found(api: TestClient, engine: Engine) -> None:
    id_ = submit(engine, namespace="theirs")
    must_be_an_error(api.get(f"/api/jobs/{id_}"), 404, "NOT_FOUND")
    must_be_an_error(api.post(f"/api/jobs/{id_}/cancel"), 404, "NOT_FOUND")
    assert api.get("/api/jobs").json()["jobs"] == []


def test_the_list_is_newest_first_and_goes_on_from_its_cursor(api: TestClient) -> None:
    ids = [made(api, inputs={"number": i}) for i in range(5)]
    found, cursor = [], None
    for _ in range(3):
        page = api.get("/api/jobs", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        found += [one["id"] for one in page["jobs"]]
        cursor = page["nextCursor"]
    assert found == ids[::-1]
    assert cursor is None


def test_a_job_in_the_list_is_shown_as_by_its_id(api: TestClient, engine: Engine) -> None:
    id_ = made(api)
    claimed = running(engine)
    engine.log(claimed, "one")
    engine.succeed(claimed, 1)
    assert api.get("/api/jobs").json()["jobs"] == [job(api, id_)]


def test_a_list_costs_a_few_statements_however_long_it_is(
    api: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With lines, outputs, flows, jobs that were started twice, and something to hide."""
    engine.configure("deploy", Policy(redact=("site",)))
    costs = []
    for _ in range(2):
        for _ in range(8):
            made(api, inputs={"site": "hidden-acme"})
            engine.release(running(engine))
            again = running(engine)
            engine.log(again, "one for hidden-acme", "two")
            engine.succeed(again, {"site": "hidden-acme", "said": "hidden-acme"})
        for _ in range(2):
            engine.submit_flow("report", [StageSpec("fetch", tasks=[TaskSpec("get")])])
            engine.succeed(running(engine), 1)
        costs.append(_statements(api, engine, monkeypatch))
    assert costs[0] == costs[1] <= 17
    assert "hidden-acme" not in api.get("/api/jobs").text


def _statements(api: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many reads the list makes."""
    reads: list[str] = []
    read = engine.store.read

    def counted(name: str, /, **params: Any) -> Any:
        reads.append(name)
        return read(name, **params)

    with monkeypatch.context() as watched:
        watched.setattr(engine.store, "read", counted)
        assert api.get("/api/jobs?limit=50").status_code == 200
    # Whether there are tokens is asked again every few seconds, whatever the request.
    return len([name for name in reads if name != "any_token"])


@each_case("asked", ["cursor=x", "cursor=j", "cursor=jffffffffffffffffffff", "limit=0", "limit=51"])
def test_what_is_no_cursor_of_the_list_is_refused(quick_api: TestClient, asked: str) -> None:
    must_be_an_error(quick_api.get(f"/api/jobs?{asked}"), 400, "VALIDATION_ERROR")


def test_jobs_that_were_made_otherwise_are_shown_too(api: TestClient, engine: Engine) -> None:
    task = submit(engine, "mail", {"to": "ann"})
    flow = engine.submit_flow("report", [StageSpec("fetch", tasks=[TaskSpec("get")])])
    shown = {one["id"]: one["metadata"]["action"] for one in api.get("/api/jobs").json()["jobs"]}
    assert shown == {task: "mail", flow.id: "report"}
    assert job(api, task)["metadata"]["inputs"] == {"to": "ann"}
    for _ in range(2):
        for claimed in engine.claim(worker="w"):
            engine.succeed(claimed, {"got": claimed.kind})
    assert (job(api, flow.id)["state"], list(job(api, flow.id)["output"])) == ("success", ["fetch"])


# GET /api/jobs/{id}/events


def test_a_stream_tells_states_and_lines_under_two_names(api: TestClient, engine: Engine) -> None:
    id_ = made(api)
    claimed = running(engine)
    engine.log(claimed, "one", "two")
    engine.succeed(claimed, {"url": "x"})
    found = frames_of(api, id_, params={"cursor": 0})
    assert [(f.event, f.data) for f in found] == [
        ("log", {"line": "one", "cursor": 1}),
        ("log", {"line": "two", "cursor": 2}),
        ("status", {"state": "success", "output": {"url": "x"}}),
    ]


def test_a_failed_status_carries_its_error(api: TestClient, engine: Engine) -> None:
    id_ = made(api)
    engine.fail(running(engine), "no such site", error_class="LookupError", retryable=False)
    (status,) = frames_of(api, id_)
    assert status.data == {"state": "failed", "error": {"code": "LookupError", "message": "no such site"}}


def test_a_stream_goes_on_after_the_line_that_was_seen(api: TestClient, engine: Engine) -> None:
    id_ = made(api)
    claimed = running(engine)
    engine.log(claimed, "one", "two", "three")
    engine.succeed(claimed)
    assert plainly(frames_of(api, id_, params={"cursor": 1})) == [2, 3, "success"]
    assert plainly(frames_of(api, id_, headers={"Last-Event-ID": "2"})) == [3, "success"]
    assert plainly(frames_of(api, id_, params={"cursor": 0}, headers={"Last-Event-ID": "3"})) == ["success"]


def test_the_id_of_a_line_is_its_cursor(api: TestClient, engine: Engine) -> None:
    id_ = made(api)
    claimed = running(engine)
    engine.log(claimed, "one")
    engine.succeed(claimed)
    assert [f.id for f in frames_of(api, id_, params={"cursor": 0})] == ["1", "1.success"]


def test_a_late_client_without_a_cursor_gets_one_status(api: TestClient, engine: Engine) -> None:
    id_ = made(api)
    claimed = running(engine)
    engine.log(claimed, "one")
    engine.succeed(claimed)
    assert plainly(frames_of(api, id_)) == ["success"]


def test_whoever_knows_the_end_is_told_to_stay_away(api: TestClient, engine: Engine) -> None:
    """Also a late client that was told of the end alone: lines after it would be told before a second end."""
    id_ = made(api)
    claimed = running(engine)
    engine.log(claimed, "one")
    engine.succeed(claimed)
    (end,) = frames_of(api, id_)
    assert api.get(f"/api/jobs/{id_}/events", headers={"Last-Event-ID": str(end.id)}).status_code == 204


@each_case("cursor", ["x", "-1", "1.nothing", "9" * 19, "1.running.2"])
def test_what_is_no_cursor_of_a_stream_is_refused(quick_api: TestClient, cursor: str) -> None:
    answer = quick_api.get(f"/api/jobs/{UNKNOWN_ID}/events", params={"cursor": cursor})
    must_be_an_error(answer, 400, "VALIDATION_ERROR")


def test_a_stream_is_live_and_ends_with_the_terminal_status(engine: Engine) -> None:
    id_ = submit(engine, max_attempts=1)

    async def watch(port: int) -> list[Frame]:
        async with stream(port, f"/api/jobs/{id_}/events") as one:
            found = await one.events(1)
            claimed = await asyncio.to_thread(running, engine)
            found += await one.events(1)
            await asyncio.to_thread(engine.log, claimed, "one")
            found += await one.events(1)
            await asyncio.to_thread(engine.succeed, claimed)
            assert UUID.fullmatch(one.headers["x-request-id"])
            return found + await one.events()

    with serving(engine) as live:
        assert plainly(asyncio.run(watch(live.port))) == ["pending", "running", 1, "success"]


def test_a_client_that_was_cut_off_is_told_what_it_missed_and_nothing_twice(api: TestClient, engine: Engine) -> None:
    """From every id that a client may have seen last."""
    id_ = made(api)
    claimed = running(engine)
    engine.log(claimed, "one", "two")
    engine.succeed(claimed)
    whole = ["0.pending", "0.running", "1", "2", "2.success"]
    expected = ["pending", "running", 1, 2, "success"]
    for i, last in enumerate(whole[:-1]):
        assert plainly(frames_of(api, id_, headers={"Last-Event-ID": last})) == expected[i + 1 :]


def test_a_stream_has_no_third_event_when_the_server_stops(engine: Engine) -> None:
    id_ = submit(engine)

    async def watch(live: Any) -> list[Frame]:
        async with stream(live.port, f"/api/jobs/{id_}/events") as one:
            found = await one.events(1)
            live.services.hub.close()
            return found + await one.events()

    with serving(engine) as live:
        assert plainly(asyncio.run(watch(live))) == ["pending"]


def test_lines_of_an_attempt_that_never_started_wait_for_the_start(
    api: TestClient, engine: Engine, clock: VirtualClock
) -> None:
    """A worker may log before its start is recorded. The client hears `running` first, and only once."""
    id_ = made(api)
    lost = take(engine)
    engine.log(lost, "too early")
    clock.advance(lost.lease_s + 1)
    settle(engine)
    assert job(api, id_)["state"] == "pending"
    engine.succeed(running(engine))
    assert plainly(frames_of(api, id_, headers={"Last-Event-ID": "0.pending"})) == ["running", 1, "success"]


# POST /api/jobs/{id}/cancel


def test_a_pending_job_is_cancelled_at_once(api: TestClient) -> None:
    answer = api.post(f"/api/jobs/{made(api)}/cancel")
    assert (answer.status_code, answer.json()["job"]["state"]) == (200, "cancelled")


def test_a_job_that_lies_with_a_worker_and_has_not_begun_is_cancelled_at_once(api: TestClient, engine: Engine) -> None:
    id_ = made(api)
    take(engine)
    assert api.post(f"/api/jobs/{id_}/cancel").json()["job"]["state"] == "cancelled"


def test_the_worker_of_a_running_job_is_asked_to_stop(api: TestClient, engine: Engine) -> None:
    id_ = made(api)
    claimed = running(engine)
    assert api.post(f"/api/jobs/{id_}/cancel").json()["job"]["state"] == "running"
    assert engine.beat(claimed).cancel == (id_,)
    engine.release(claimed)
    assert job(api, id_)["state"] == "cancelled"


@each_case("state", ["succeeded", "failed", "cancelled", "dead_lettered"])
def test_a_terminal_job_cannot_be_cancelled(api: TestClient, engine: Engine, state: str) -> None:
    id_ = in_state(engine, state).id
    must_be_an_error(api.post(f"/api/jobs/{id_}/cancel"), 409, "CONFLICT")


# Errors.


def test_every_answer_has_a_request_id_of_its_own(api: TestClient) -> None:
    id_ = made(api)
    answers = [api.get(f"/api/jobs/{id_}") for _ in range(2)] + [api.get("/api/jobs"), post(api), post(api, {})]
    ids = [a.json()["requestId"] for a in answers]
    assert ids == [a.headers["X-Request-Id"] for a in answers]
    assert len(set(ids)) == len(ids)
    assert all(UUID.fullmatch(i) for i in ids)


def test_the_request_id_is_the_servers(api: TestClient) -> None:
    answer = api.get("/api/jobs", headers={"X-Request-Id": "mine"})
    assert answer.json()["requestId"] == answer.headers["X-Request-Id"] != "mine"


def test_a_method_that_is_not_there_has_the_shape_of_so1(quick_api: TestClient) -> None:
    answer = quick_api.delete("/api/jobs")
    must_be_an_error(answer, 405, "BAD_REQUEST")
    assert "POST" in answer.headers["Allow"] or "GET" in answer.headers["Allow"]


def test_too_much_input_has_the_shape_of_so1(quick_api: TestClient) -> None:
    must_be_an_error(post(quick_api, {"action": "a", "inputs": {"x": "y" * 1_000_001}}), 413, "VALIDATION_ERROR")


def test_a_scope_that_is_missing_has_the_shape_of_so1(quick_api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from onetray.http.auth import middleware
    from onetray.http.auth.scopes import Principal

    monkeypatch.setattr(middleware, "LOCAL", Principal("reader", "default", frozenset({"read"})))
    must_be_an_error(post(quick_api), 403, "FORBIDDEN")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(Unavailable("gone"), 503, "SERVICE_UNAVAILABLE"), (ValueError("/etc/secret"), 500, "INTERNAL_SERVER_ERROR")],
)
def test_what_breaks_has_the_shape_of_so1_and_tells_nothing(
    api: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(engine, "jobs", broken)
    answer = api.get("/api/jobs")
    must_be_an_error(answer, status, code)
    assert "/etc" not in answer.text


def test_errors_elsewhere_keep_their_own_shape(quick_api: TestClient) -> None:
    assert quick_api.get("/api/jobsworth").headers["content-type"] == "application/problem+json"
    assert quick_api.get("/api/v1/jobs/nonsense").headers["content-type"] == "application/problem+json"


@each_case(
    ("message", "shown"),
    [
        ("cannot read /srv/app/secrets/key.pem now", "cannot read <path> now"),
        ("[Errno 2] No such file: '/var/lib/x'", "[Errno 2] No such file: '<path>'"),
        ("C:\\Users\\ann\\key.txt is locked", "<path> is locked"),
        ("GET https://api.acme.dev/v1/sites gave 503", "GET https://api.acme.dev/v1/sites gave 503"),
        ("3/4 done, and/or more", "3/4 done, and/or more"),
        ("cannot open:/srv/app/key.pem", "cannot open:<path>"),
        ("see file:///srv/app/key.pem", "see file://<path>"),
        ("~/.ssh/id_rsa is missing", "<path> is missing"),
        ("/secrets: permission denied", "<path>: permission denied"),
        ("C:/Users/ann/key.txt and \\\\fs01\\home\\ann", "<path> and <path>"),
        ("at src/app/main.py, line 3; ./run.sh; ../x/y", "at <path>, line 3; <path>; <path>"),
        ("path=/srv/my-app/ü.txt (/opt/x)", "path=<path> (<path>)"),
        (
            "POST http://h:80/a/b?c=/d failed at 2026/11/16, 1/2, n/a",
            "POST http://h:80/a/b?c=/d failed at 2026/11/16, 1/2, n/a",
        ),
    ],
)
def test_paths_are_left_out_of_messages(message: str, shown: str) -> None:
    assert without_paths(message) == shown


def test_an_error_shows_no_paths_and_no_stack_trace(api: TestClient, engine: Engine) -> None:
    id_ = made(api)
    message = "no /srv/app/key.pem\nTraceback (most recent call last):\n  File x"
    engine.fail(running(engine), message, retryable=False, detail={"stack": "Traceback /srv/app"})
    assert job(api, id_)["error"]["message"] == "no <path>"
    assert "/srv" not in api.get(f"/api/jobs/{id_}").text


def test_what_an_action_hides_is_shown_nowhere(api: TestClient, engine: Engine) -> None:
    """Inputs, error, lines and statuses are answers of the redacted engine."""
    engine.configure("deploy", Policy(redact=("password",)))
    new = post(api, {"action": "deploy", "inputs": {"password": "hunter2"}})
    id_ = new.json()["job"]["id"]
    claimed = running(engine)
    assert claimed.payload == {"password": "hunter2"}
    engine.log(claimed, "hunter2")
    engine.fail(claimed, "hunter2 is wrong", retryable=False)
    looks = [new, *(api.get(path) for path in ("/api/jobs", f"/api/jobs/{id_}", f"/api/jobs/{id_}/events?cursor=0"))]
    looks += [api.get(f"/api/v1/jobs/{id_}/stream"), api.get("/api/v1/feed")]
    assert all(look.is_success for look in looks)
    assert not [look.url.path for look in looks if "hunter2" in look.text]


# States.


def test_a_worker_that_is_lost_before_it_started_gives_the_job_back(
    api: TestClient, engine: Engine, clock: VirtualClock
) -> None:
    id_ = made(api)
    lost = take(engine)
    clock.advance(lost.lease_s + 1)
    settle(engine)
    assert job(api, id_)["state"] == "pending"
    assert take(engine).id == id_


def _lost_too_often(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(MAX_SPARED + 1):
        clock.advance(take(engine).lease_s + 1)
        settle(engine)


def _too_late(engine: Engine, clock: VirtualClock) -> None:
    clock.advance(61)
    settle(engine)


@each_case("happens", [_lost_too_often, _too_late])
def test_a_job_never_goes_from_pending_to_failed(
    api: TestClient, engine: Engine, clock: VirtualClock, happens: Callable[[Engine, VirtualClock], None]
) -> None:
    """What the engine gives up before anybody began is recalled, and says why."""
    engine.configure("deploy", Policy(queue_ttl_s=60 if happens is _too_late else None))
    id_ = made(api)
    happens(engine, clock)
    found = job(api, id_)
    assert found["state"] == "cancelled"
    assert found["error"]["message"]
    assert [f.data["state"] for f in frames_of(api, id_, headers={"Last-Event-ID": "0.pending"})] == ["cancelled"]


@each_case("state", TASK_STATES)
def test_native_states_have_their_so1_names(api: TestClient, engine: Engine, state: str) -> None:
    expected = {
        "queued": "pending", "assigned": "pending", "running": "running", "blocked": "running",
        "waiting_input": "running", "succeeded": "success", "failed": "failed", "dead_lettered": "failed",
        "cancelled": "cancelled",
    }  # fmt: skip
    assert job(api, in_state(engine, state).id)["state"] == expected[state]


@each_case("state", ["blocked", "waiting_input"])
def test_a_job_that_waits_and_has_not_started_is_pending(api: TestClient, engine: Engine, state: str) -> None:
    id_ = made(api)
    engine.pause(take(engine), state=state, owner="ann", reason="asks")
    assert job(api, id_)["state"] == "pending"


def test_a_job_that_was_given_back_after_it_started_stays_running(api: TestClient, engine: Engine) -> None:
    id_ = made(api)
    engine.release(running(engine))
    assert (engine.task(id_).state, job(api, id_)["state"]) == ("queued", "running")


def test_every_native_state_has_a_name() -> None:
    assert set(STATES) == set(TASK.states) | set(FLOW.states)
    for machine in (TASK, FLOW):
        for state in machine.states:
            assert all((name in TERMINAL) == (state in machine.terminal) for name in STATES[state])


def test_the_dialect_can_be_left_out(engine: Engine) -> None:
    with TestClient(build(engine, HttpConfig(dialects=())), base_url="http://127.0.0.1:8321") as api:
        assert api.get("/api/jobs").headers["content-type"] == "application/problem+json"


CONTRACT: dict[str, list[Callable[..., None]]] = {
    "Job: id, state, createdAt, startedAt?, completedAt?, output?, error?, logs[], metadata": [
        test_a_job_has_the_fields_of_the_contract, test_completed_at_is_set_on_a_cancelled_job,
        test_started_at_stays_when_the_job_is_started_again,
    ],
    "error {code, message}": [test_a_failure_has_a_code_and_a_message],
    "metadata {requestId, userId, orgId, action, inputs}": [
        test_metadata_says_who_asked_for_what, test_the_handlers_payload_is_the_inputs,
    ],
    "ISO timestamps": [test_times_are_iso],
    "POST /api/jobs {action, inputs}: 202 {requestId, job}, state pending": [
        test_a_submit_is_answered_with_202_and_a_pending_job,
        test_a_submit_is_pending_however_quick_the_worker_is, test_inputs_may_be_left_out,
        test_submits_that_arrive_together_are_answered_apart_and_only_what_hides_something_is_read,
        test_a_job_that_redacts_nothing_is_submitted_and_shown_without_a_look_at_what_to_hide,
    ],
    "Idempotency-Key (UUIDv4)": [test_a_key_that_is_no_uuid4_is_refused],
    "kept 24 h": [
        test_a_key_lives_for_a_day_whatever_the_action_says, test_a_body_that_was_refused_does_not_keep_its_key,
        test_a_key_and_its_job_are_written_together,
    ],
    "replay: 202, the same job, a fresh requestId": [
        test_a_replay_gets_the_same_job_and_a_fresh_request_id,
        test_a_replay_with_its_inputs_in_another_order_is_the_same,
    ],
    "same key with another body: 409 CONFLICT": [
        test_the_same_key_with_another_body_is_a_conflict,
        test_of_two_bodies_with_one_key_in_one_batch_the_first_counts,
    ],
    "a retry is a new job: max_attempts=1": [test_a_job_is_tried_once],
    "GET /api/jobs/{id}: 200 {requestId, job}; 404 NOT_FOUND": [
        test_a_job_by_its_id, test_what_is_not_there_is_not_found, test_a_job_of_another_namespace_is_not_found,
        test_an_id_that_can_be_no_jobs_is_not_found_either,
    ],
    "GET /api/jobs: list, newest first, cursor": [
        test_the_list_is_newest_first_and_goes_on_from_its_cursor, test_a_job_in_the_list_is_shown_as_by_its_id,
        test_a_list_costs_a_few_statements_however_long_it_is,
        test_what_is_no_cursor_of_the_list_is_refused, test_jobs_that_were_made_otherwise_are_shown_too,
    ],
    "GET /api/jobs/{id}/events: exactly two event names": [
        test_a_stream_tells_states_and_lines_under_two_names, test_a_failed_status_carries_its_error,
        test_a_stream_has_no_third_event_when_the_server_stops,
    ],
    "cursor or Last-Event-ID: N+1 onward, then live": [
        test_a_stream_goes_on_after_the_line_that_was_seen, test_the_id_of_a_line_is_its_cursor,
        test_what_is_no_cursor_of_a_stream_is_refused, test_a_stream_is_live_and_ends_with_the_terminal_status,
        test_a_client_that_was_cut_off_is_told_what_it_missed_and_nothing_twice,
    ],
    "the stream closes after a terminal status": [
        test_a_stream_is_live_and_ends_with_the_terminal_status, test_whoever_knows_the_end_is_told_to_stay_away,
    ],
    "a late client without a cursor gets one status": [test_a_late_client_without_a_cursor_gets_one_status],
    "POST /api/jobs/{id}/cancel, pending: flips at once": [
        test_a_pending_job_is_cancelled_at_once,
        test_a_job_that_lies_with_a_worker_and_has_not_begun_is_cancelled_at_once,
    ],
    "running: signals the worker": [test_the_worker_of_a_running_job_is_asked_to_stop],
    "terminal: 409 CONFLICT": [test_a_terminal_job_cannot_be_cancelled],
    "Errors: {requestId, error {code, message, details?}}": [
        test_errors_speak_so1, test_errors_elsewhere_keep_their_own_shape,
        test_a_method_that_is_not_there_has_the_shape_of_so1,
        test_too_much_input_has_the_shape_of_so1,
    ],
    "X-Request-Id is set by the server": [
        test_every_answer_has_a_request_id_of_its_own, test_the_request_id_is_the_servers,
    ],
    "Codes": [
        test_a_scope_that_is_missing_has_the_shape_of_so1, test_a_body_that_is_wrong_is_a_validation_error,
        test_what_is_no_json_is_a_bad_request, test_what_breaks_has_the_shape_of_so1_and_tells_nothing,
    ],
    "Inputs are redacted per action before they are shown": [test_what_an_action_hides_is_shown_nowhere],
    "errors carry no secrets, stack traces or paths": [
        test_an_error_shows_no_paths_and_no_stack_trace, test_paths_are_left_out_of_messages,
    ],
    "a so1 job never goes from pending to failed": [test_a_job_never_goes_from_pending_to_failed],
    "a worker lost before it started gives the job back to the bin": [
        test_a_worker_that_is_lost_before_it_started_gives_the_job_back,
        test_lines_of_an_attempt_that_never_started_wait_for_the_start,
    ],
    "Native to so1": [
        test_native_states_have_their_so1_names, test_a_job_that_waits_and_has_not_started_is_pending,
        test_a_job_that_was_given_back_after_it_started_stays_running, test_every_native_state_has_a_name,
    ],
    "mounted by default, can be left out": [test_the_dialect_can_be_left_out],
}  # fmt: skip


def test_every_test_holds_a_sentence_of_the_contract() -> None:
    named = {test.__name__ for tests in CONTRACT.values() for test in tests}
    there = {name for name in vars(sys.modules[__name__]) if name.startswith("test_")}
    assert named == there - {"test_every_test_holds_a_sentence_of_the_contract"}
