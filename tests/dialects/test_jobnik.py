"""The Jobnik contract over real HTTP, on both databases: routes, fields, codes and rules, and the seed line by line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from onetray.dialects import paging
from onetray.dialects.calls import _run_about_tasks
from onetray.dialects.jobnik.routes import QUEUE
from onetray.dialects.jobnik.values import JOB_STATES, STAGE_STATES, TASK_STATES
from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Claim
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.lifecycle import FLOW, STAGE, TASK
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.http.services import HttpConfig, Services
from tests.support.cases import each_case
from tests.support.live import serving
from tests.support.tasks import UNKNOWN_ID, settle

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LEASE_S = 1800


class Jobnik:
    """A client of one server. Each test has types of its own: the server is shared."""

    def __init__(self, url: str, engine: Engine, clock: VirtualClock) -> None:
        self.http = httpx2.Client(base_url=url, timeout=60)
        self.engine, self.clock = engine, clock
        self.type = ""

    def call(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = self.http.request(method, f"/v1{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    def refused(self, method: str, path: str, body: Any, status: int, code: str) -> str:
        error = self.call(method, path, body, status)
        assert sorted(error) == ["code", "message"], error
        assert error["code"] == code, error
        message: str = error["message"]
        return message

    def job(self, **fields: Any) -> str:
        id_: str = self.call("POST", "/jobs", {"name": "thumbs", "data": {"album": 7}, **fields}, 201)["id"]
        return id_

    def stage(self, job: str, **fields: Any) -> str:
        body = {"type": self.type, "data": {"width": 640}, **fields}
        id_: str = self.call("POST", f"/jobs/{job}/stage", body, 201)["id"]
        return id_

    def tasks(self, stage: str, count: int = 1, **fields: Any) -> list[str]:
        bodies = [{"data": {"n": n}, **fields} for n in range(count)]
        return [task["id"] for task in self.call("POST", f"/stages/{stage}/tasks", bodies, 201)]

    def one(self, **task: Any) -> tuple[str, str, str]:
        """A job with one stage with one task."""
        job = self.job()
        stage = self.stage(job)
        return job, stage, self.tasks(stage, **task)[0]

    def dequeue(self, type_: str | None = None) -> Any:
        return self.call("PATCH", f"/stages/{type_ or self.type}/tasks/dequeue")

    def none_left(self, type_: str | None = None) -> None:
        self.refused("PATCH", f"/stages/{type_ or self.type}/tasks/dequeue", None, 404, "TASK_NOT_FOUND")

    def end(self, task: str, status: str = "COMPLETED") -> Any:
        return self.call("PUT", f"/tasks/{task}/status", {"status": status})

    def put(self, path: str, status: str) -> Any:
        return self.call("PUT", f"{path}/status", {"status": status})

    def state(self, path: str) -> str:
        status: str = self.call("GET", path)["status"]
        return status


@pytest.fixture(scope="module")
def served(shared_engine: Engine) -> Iterator[Jobnik]:
    with serving(shared_engine) as live:
        client = Jobnik(live.url, shared_engine, shared_engine.store.clock)
        yield client
        client.http.close()


@pytest.fixture
def jobnik(served: Jobnik, request: pytest.FixtureRequest) -> Jobnik:
    served.type = f"t{abs(hash(request.node.name)):x}"
    return served


# Jobs.


def test_a_job_is_shown_with_every_field_of_the_contract(jobnik: Jobnik) -> None:
    body = {
        "name": "thumbs", "data": {"album": 7}, "priority": "HIGH", "userMetadata": {"by": "ann"},
        "traceparent": TRACE, "tracestate": "a=b",
    }  # fmt: skip
    made = jobnik.call("POST", "/jobs", body, 201)
    times = {"creationTime", "updateTime"}
    assert made == {**body, "id": made["id"], "status": "PENDING", "percentage": 0, **{t: made[t] for t in times}}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", made[t]) for t in times)
    assert jobnik.call("GET", f"/jobs/{made['id']}") == made
    assert jobnik.call("GET", f"/jobs/{made['id']}?should_return_stages=true") == {**made, "stages": []}
    plain = jobnik.call("POST", "/jobs", {"name": "ab", "data": {}}, 201)
    assert (plain["priority"], plain["userMetadata"], plain["data"]) == ("MEDIUM", {}, {})
    assert re.fullmatch(r"[\da-f]{2}-[\da-f]{32}-[\da-f]{16}-[\da-f]{2}", plain["traceparent"])


def test_a_stage_and_its_tasks_are_shown_with_every_field_of_the_contract(jobnik: Jobnik) -> None:
    job = jobnik.job()
    body = {"type": jobnik.type, "data": {"w": 1}, "userMetadata": {"q": 9}, "traceparent": TRACE, "tracestate": "c=d"}
    stage = jobnik.call("POST", f"/jobs/{job}/stage", body, 201)
    empty = dict.fromkeys(("pending", "inProgress", "completed", "failed", "created", "retried", "total"), 0)
    assert stage == {
        **body, "id": stage["id"], "jobId": job, "order": 1, "status": "PENDING", "percentage": 0, "summary": empty,
    }  # fmt: skip
    task_body = {"data": {"n": 1}, "userMetadata": {"m": 2}, "traceparent": TRACE, "tracestate": "e=f"}
    (task,) = jobnik.call("POST", f"/stages/{stage['id']}/tasks", [task_body], 201)
    assert task == {
        **task_body, "id": task["id"], "stageId": stage["id"], "status": "PENDING", "attempts": 0, "maxAttempts": 1,
        "creationTime": task["creationTime"], "updateTime": task["updateTime"],
    }  # fmt: skip
    assert jobnik.call("GET", f"/tasks/{task['id']}") == task
    assert jobnik.call("GET", f"/stages/{stage['id']}/tasks") == [task]
    shown = jobnik.call("GET", f"/stages/{stage['id']}?should_return_tasks=true")
    assert (shown["tasks"], shown["summary"]) == ([task], {**empty, "pending": 1, "total": 1})
    assert jobnik.call("GET", f"/stages/{stage['id']}/summary") == shown["summary"]
    assert jobnik.call("GET", f"/jobs/{job}/stages?should_return_tasks=true") == [shown]
    taken = jobnik.dequeue()
    assert taken == {
        **task,
        "status": "IN_PROGRESS",
        "startTime": taken["startTime"],
        "updateTime": taken["updateTime"],
    }
    ended = jobnik.end(task["id"])
    assert (ended["status"], ended["attempts"], "endTime" in ended) == ("COMPLETED", 0, True)
    assert jobnik.call("GET", f"/stages/{stage['id']}")["percentage"] == 100
    assert jobnik.call("GET", f"/jobs/{job}")["percentage"] == 100


def test_percentage_of_a_job_is_that_of_its_completed_stages(jobnik: Jobnik) -> None:
    job = jobnik.job()
    stages = [jobnik.stage(job) for _ in range(3)]
    for stage in stages:
        jobnik.tasks(stage)
    seen = []
    for _ in stages:
        jobnik.end(jobnik.dequeue()["id"])
        seen.append(jobnik.call("GET", f"/jobs/{job}")["percentage"])
    assert seen == [33, 66, 100]


def test_metadata_is_replaced_on_jobs_stages_and_tasks(jobnik: Jobnik) -> None:
    for what, id_ in zip(("job", "stage", "task"), jobnik.one(userMetadata={"old": 1}), strict=True):
        path = f"/{what}s/{id_}"
        answer = jobnik.call("PATCH", f"{path}/user-metadata", {"new": [1, 2]})
        assert answer == {"code": f"{what.upper()}_MODIFIED_SUCCESSFULLY"}
        assert jobnik.call("GET", path)["userMetadata"] == {"new": [1, 2]}
        jobnik.refused("PATCH", f"/{what}s/{UNKNOWN_ID}/user-metadata", {}, 404, f"{what.upper()}_NOT_FOUND")
        message = jobnik.refused("PATCH", f"{path}/user-metadata", [1], 400, "VALIDATION_ERROR")
        assert message == "request/body must be object"


def test_a_jobs_priority_decides_the_order_in_which_tasks_are_dequeued_and_can_be_changed(jobnik: Jobnik) -> None:
    ids = {}
    for priority in ("LOW", "VERY_HIGH", "MEDIUM", "VERY_LOW", "HIGH"):
        job = jobnik.job(priority=priority)
        ids[jobnik.tasks(jobnik.stage(job))[0]] = priority
        jobs = {priority: job}
    job = jobs["HIGH"]
    assert jobnik.call("PATCH", f"/jobs/{job}/priority", {"priority": "VERY_LOW"}) == {
        "code": "JOB_MODIFIED_SUCCESSFULLY"
    }
    same = jobnik.http.patch(f"/v1/jobs/{job}/priority", json={"priority": "VERY_LOW"})
    assert (same.status_code, same.content) == (204, b"")
    assert same.headers["reason"] == "PRIORITY_CANNOT_BE_UPDATED_TO_SAME_VALUE"
    order = [ids[jobnik.dequeue()["id"]] for _ in ids]
    assert order == ["VERY_HIGH", "MEDIUM", "LOW", "VERY_LOW", "HIGH"]
    jobnik.refused("PATCH", f"/jobs/{UNKNOWN_ID}/priority", {"priority": "LOW"}, 404, "JOB_NOT_FOUND")


def test_tasks_of_one_priority_are_dequeued_in_the_order_of_their_creation(jobnik: Jobnik) -> None:
    created = [*jobnik.tasks(jobnik.stage(jobnik.job()), 3), *jobnik.tasks(jobnik.stage(jobnik.job()), 2)]
    assert [jobnik.dequeue()["id"] for _ in created] == created


# The seed: transitions of a job.


def test_a_job_moves_from_pending_over_in_progress_to_completed_by_itself(jobnik: Jobnik) -> None:
    job, stage, task = jobnik.one()
    paths = f"/jobs/{job}", f"/stages/{stage}", f"/tasks/{task}"
    assert [jobnik.state(path) for path in paths] == ["PENDING"] * 3
    jobnik.dequeue()
    assert [jobnik.state(path) for path in paths] == ["IN_PROGRESS"] * 3
    jobnik.end(task)
    assert [jobnik.state(path) for path in paths] == ["COMPLETED"] * 3


def test_a_task_that_fails_for_good_fails_its_stage_and_its_job(jobnik: Jobnik) -> None:
    job, stage, task = jobnik.one()
    later = jobnik.stage(job)
    sibling = jobnik.tasks(stage)[0]
    assert jobnik.dequeue()["id"] == task
    assert jobnik.end(task, "FAILED")["status"] == "FAILED"
    assert (jobnik.state(f"/stages/{stage}"), jobnik.state(f"/jobs/{job}")) == ("FAILED", "FAILED")
    assert (jobnik.state(f"/tasks/{sibling}"), jobnik.state(f"/stages/{later}")) == ("FAILED", "ABORTED")
    jobnik.none_left()


def test_a_paused_job_gives_out_no_tasks_until_it_is_resumed(jobnik: Jobnik) -> None:
    job, _, _ = jobnik.one()
    assert jobnik.put(f"/jobs/{job}", "PAUSED") == {"code": "JOB_MODIFIED_SUCCESSFULLY"}
    assert jobnik.state(f"/jobs/{job}") == "PAUSED"
    jobnik.none_left()
    jobnik.put(f"/jobs/{job}", "PENDING")
    assert jobnik.state(f"/jobs/{job}") == "PENDING"
    jobnik.end(jobnik.dequeue()["id"])
    assert jobnik.state(f"/jobs/{job}") == "COMPLETED"


def test_a_created_job_is_started_by_pending(jobnik: Jobnik) -> None:
    made = jobnik.engine.submit_flow("thumbs", [StageSpec("a", [TaskSpec(jobnik.type)])], start=False)
    assert jobnik.state(f"/jobs/{made.id}") == "CREATED"
    jobnik.none_left()
    jobnik.put(f"/jobs/{made.id}", "PENDING")
    assert jobnik.dequeue()["id"] == made.tasks[0]
    jobnik.end(made.tasks[0])


def test_illegal_transitions_of_a_job_are_refused_with_both_states(jobnik: Jobnik) -> None:
    job, _, task = jobnik.one()
    code = "ILLEGAL_JOB_STATUS_TRANSITION"

    def refused(status: str, was: str) -> None:
        message = jobnik.refused("PUT", f"/jobs/{job}/status", {"status": status}, 400, code)
        assert message == f"Illegal status transition from {was} to {status}"

    refused("PENDING", "PENDING")
    jobnik.put(f"/jobs/{job}", "PAUSED")
    refused("PAUSED", "PAUSED")
    jobnik.put(f"/jobs/{job}", "PENDING")
    jobnik.dequeue()
    refused("PENDING", "IN_PROGRESS")
    jobnik.end(task)
    for status in ("PENDING", "PAUSED", "ABORTED"):
        refused(status, "COMPLETED")
    for status in ("IN_PROGRESS", "COMPLETED", "FAILED", "CREATED", "nonsense"):
        message = jobnik.refused("PUT", f"/jobs/{job}/status", {"status": status}, 400, "VALIDATION_ERROR")
        assert message == "request/body/status must be equal to one of the allowed values"
    jobnik.refused("PUT", f"/jobs/{UNKNOWN_ID}/status", {"status": "PAUSED"}, 404, "JOB_NOT_FOUND")


def test_an_aborted_job_takes_its_stages_and_tasks_with_it_and_late_reports_change_nothing(jobnik: Jobnik) -> None:
    job, stage, task = jobnik.one()
    other, later = jobnik.tasks(stage)[0], jobnik.stage(job)
    assert jobnik.dequeue()["id"] == task
    jobnik.put(f"/jobs/{job}", "ABORTED")
    assert [jobnik.state(f"/stages/{id_}") for id_ in (stage, later)] == ["ABORTED", "ABORTED"]
    assert [jobnik.state(f"/tasks/{id_}") for id_ in (task, other)] == ["FAILED", "FAILED"]
    jobnik.none_left()
    message = jobnik.refused(
        "PUT", f"/tasks/{task}/status", {"status": "COMPLETED"}, 400, "ILLEGAL_TASK_STATUS_TRANSITION"
    )
    assert message == "Illegal status transition from FAILED to COMPLETED"
    assert jobnik.state(f"/jobs/{job}") == "ABORTED"
    jobnik.refused("PUT", f"/jobs/{job}/status", {"status": "ABORTED"}, 400, "ILLEGAL_JOB_STATUS_TRANSITION")


# Stages.


def test_stages_run_one_after_the_other_in_the_order_of_their_creation(jobnik: Jobnik) -> None:
    job = jobnik.job()
    first, second = jobnik.stage(job, type=f"{jobnik.type}a"), jobnik.stage(job, type=f"{jobnik.type}b")
    jobnik.tasks(second)
    jobnik.tasks(first, 2)
    listed = jobnik.call("GET", f"/jobs/{job}/stages")
    assert [(s["id"], s["order"], s["status"]) for s in listed] == [(first, 1, "PENDING"), (second, 2, "CREATED")]
    jobnik.none_left(f"{jobnik.type}b")
    tasks = [jobnik.dequeue(f"{jobnik.type}a")["id"] for _ in range(2)]
    jobnik.end(tasks[0])
    jobnik.none_left(f"{jobnik.type}b")
    jobnik.end(tasks[1])
    assert jobnik.state(f"/stages/{second}") == "PENDING"
    jobnik.end(jobnik.dequeue(f"{jobnik.type}b")["id"])
    assert jobnik.state(f"/jobs/{job}") == "COMPLETED"


def test_a_waiting_stage_takes_tasks_and_gives_them_out_after_its_approval(jobnik: Jobnik) -> None:
    stage = jobnik.stage(jobnik.job(), startAsWaiting=True)
    assert jobnik.state(f"/stages/{stage}") == "WAITING"
    jobnik.tasks(stage)
    jobnik.none_left()
    assert jobnik.put(f"/stages/{stage}", "PENDING") == {"code": "STAGE_MODIFIED_SUCCESSFULLY"}
    jobnik.put(f"/stages/{stage}", "PENDING")
    assert jobnik.state(f"/stages/{stage}") == "PENDING"
    jobnik.end(jobnik.dequeue()["id"])


def test_a_waiting_stage_stays_so_when_the_one_before_it_completes_and_cannot_be_approved_earlier(
    jobnik: Jobnik,
) -> None:
    job = jobnik.job()
    first = jobnik.stage(job)
    jobnik.tasks(first)
    second = jobnik.stage(job, startAsWaiting=True, type=f"{jobnik.type}b")
    jobnik.tasks(second)
    assert jobnik.state(f"/stages/{second}") == "WAITING"
    refused = "PUT", f"/stages/{second}/status", {"status": "PENDING"}, 400, "ILLEGAL_STAGE_STATUS_TRANSITION"
    assert jobnik.refused(*refused) == "Previous stage is not COMPLETED"
    jobnik.end(jobnik.dequeue()["id"])
    assert jobnik.state(f"/stages/{second}") == "WAITING"
    jobnik.none_left(f"{jobnik.type}b")
    jobnik.put(f"/stages/{second}", "PENDING")
    jobnik.end(jobnik.dequeue(f"{jobnik.type}b")["id"])
    assert jobnik.state(f"/jobs/{job}") == "COMPLETED"


def test_illegal_transitions_of_a_stage_are_refused(jobnik: Jobnik) -> None:
    job, stage, task = jobnik.one()
    created = jobnik.stage(job)
    code = "ILLEGAL_STAGE_STATUS_TRANSITION"

    def refused(id_: str, was: str) -> None:
        message = jobnik.refused("PUT", f"/stages/{id_}/status", {"status": "PENDING"}, 400, code)
        assert message == f"Illegal status transition from {was} to PENDING"

    jobnik.put(f"/stages/{stage}", "PENDING")
    refused(created, "CREATED")
    jobnik.dequeue()
    refused(stage, "IN_PROGRESS")
    jobnik.end(task, "FAILED")
    refused(stage, "FAILED")
    refused(created, "ABORTED")
    for status in ("IN_PROGRESS", "COMPLETED", "FAILED", "ABORTED", "WAITING", "CREATED"):
        jobnik.refused("PUT", f"/stages/{stage}/status", {"status": status}, 400, "VALIDATION_ERROR")
    jobnik.refused("PUT", f"/stages/{UNKNOWN_ID}/status", {"status": "PENDING"}, 404, "STAGE_NOT_FOUND")


def test_tasks_are_added_to_stages_that_have_not_begun_only(jobnik: Jobnik) -> None:
    job, stage, task = jobnik.one()
    created = jobnik.stage(job)
    jobnik.tasks(created)
    jobnik.dequeue()
    body = [{"data": {}}]
    jobnik.refused(
        "POST", f"/stages/{stage}/tasks", body, 400, "NOT_ALLOWED_TO_ADD_TASKS_TO_IN_PROGRESS_STAGE"
    )  # fmt: skip
    jobnik.end(task)
    jobnik.refused("POST", f"/stages/{stage}/tasks", body, 400, "STAGE_IN_FINITE_STATE")
    jobnik.put(f"/jobs/{job}", "ABORTED")
    jobnik.refused("POST", f"/stages/{created}/tasks", body, 400, "STAGE_IN_FINITE_STATE")
    jobnik.refused("POST", f"/jobs/{job}/stage", {"type": "x", "data": {}}, 400, "JOB_IN_FINITE_STATE")
    jobnik.refused("POST", f"/stages/{UNKNOWN_ID}/tasks", body, 404, "STAGE_NOT_FOUND")
    jobnik.refused("POST", f"/jobs/{UNKNOWN_ID}/stage", {"type": "x", "data": {}}, 404, "JOB_NOT_FOUND")


def test_an_empty_stage_does_not_complete_by_itself(jobnik: Jobnik) -> None:
    job = jobnik.job()
    first, empty = jobnik.stage(job), jobnik.stage(job)
    jobnik.tasks(first)
    jobnik.end(jobnik.dequeue()["id"])
    assert (jobnik.state(f"/stages/{empty}"), jobnik.state(f"/jobs/{job}")) == ("PENDING", "IN_PROGRESS")
    jobnik.tasks(empty)
    jobnik.end(jobnik.dequeue()["id"])
    assert jobnik.state(f"/jobs/{job}") == "COMPLETED"


# Tasks.


def test_a_failed_task_is_retried_at_once_while_it_has_attempts(jobnik: Jobnik) -> None:
    _, stage, task = jobnik.one(maxAttempts=3)
    for failed in (1, 2):
        assert jobnik.dequeue()["attempts"] == failed - 1
        shown = jobnik.end(task, "FAILED")
        assert (shown["status"], shown["attempts"], shown["maxAttempts"]) == ("RETRIED", failed, 3)
        counts = jobnik.call("GET", f"/stages/{stage}/summary")
        assert (counts["retried"], counts["pending"], counts["total"]) == (1, 0, 1)
    assert jobnik.dequeue()["status"] == "IN_PROGRESS"
    counts = jobnik.call("GET", f"/stages/{stage}/summary")
    assert (counts["retried"], counts["inProgress"]) == (0, 1)
    shown = jobnik.end(task, "FAILED")
    assert (shown["status"], shown["attempts"]) == ("FAILED", 3)


def test_illegal_transitions_of_a_task_are_refused(jobnik: Jobnik) -> None:
    _, _, task = jobnik.one(maxAttempts=2)
    code = "ILLEGAL_TASK_STATUS_TRANSITION"

    def refused(status: str, was: str) -> None:
        message = jobnik.refused("PUT", f"/tasks/{task}/status", {"status": status}, 400, code)
        assert message == f"Illegal status transition from {was} to {status}"

    refused("COMPLETED", "PENDING")
    jobnik.dequeue()
    jobnik.end(task, "FAILED")
    refused("COMPLETED", "RETRIED")
    refused("FAILED", "RETRIED")
    jobnik.dequeue()
    jobnik.end(task)
    for status in ("COMPLETED", "FAILED"):
        refused(status, "COMPLETED")
    for status in ("PENDING", "IN_PROGRESS", "RETRIED", "CREATED"):
        jobnik.refused("PUT", f"/tasks/{task}/status", {"status": status}, 400, "VALIDATION_ERROR")
    jobnik.refused("PUT", f"/tasks/{UNKNOWN_ID}/status", {"status": "FAILED"}, 404, "TASK_NOT_FOUND")


def test_of_two_reports_of_one_task_one_is_accepted(jobnik: Jobnik) -> None:
    """A client that repeats a lost request, or two workers of one task, cannot end it twice."""
    ids = jobnik.tasks(jobnik.stage(jobnik.job()), 10)
    for _ in ids:
        jobnik.dequeue()
    with ThreadPoolExecutor(8) as pool:
        sent = [(id_, status) for id_ in ids for status in ("COMPLETED", "COMPLETED")]
        answers = list(pool.map(lambda s: jobnik.http.put(f"/v1/tasks/{s[0]}/status", json={"status": s[1]}), sent))
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [200] * 10 + [400] * 10
    assert {a.json()["code"] for a in answers if a.status_code == 400} == {"ILLEGAL_TASK_STATUS_TRANSITION"}


def test_a_task_whose_worker_is_gone_is_given_out_again_after_the_stale_threshold(jobnik: Jobnik) -> None:
    _, _, task = jobnik.one(maxAttempts=2)
    jobnik.dequeue()
    jobnik.clock.advance(LEASE_S - 10)
    settle(jobnik.engine)
    assert jobnik.state(f"/tasks/{task}") == "IN_PROGRESS"
    jobnik.none_left()
    jobnik.clock.advance(20)
    # Its lease has run out, and nobody has seen it yet.
    jobnik.refused("PUT", f"/tasks/{task}/status", {"status": "COMPLETED"}, 409, "TASK_STATUS_UPDATE_FAILED")
    settle(jobnik.engine)
    assert jobnik.state(f"/tasks/{task}") == "RETRIED"
    assert jobnik.dequeue()["id"] == task
    # Jobnik's reports have no fence: they count for the current attempt.
    jobnik.end(task)


def test_tasks_that_are_dequeued_together_have_leases_of_their_own(jobnik: Jobnik) -> None:
    """All workers of a token have one name: a claim for all of them would keep the tasks of dead ones, too."""
    tasks = jobnik.tasks(jobnik.stage(jobnik.job()), 2)
    claim = Claim(worker="jobnik:anonymous", queue=QUEUE, kinds=(jobnik.type,), start=True)
    done = _run_about_tasks(Services(jobnik.engine, HttpConfig()), [claim, claim, claim])
    assert [task.id if task else None for _, task in done] == [*tasks, None]
    first, second, third = (verdict.unwrap() for verdict, _ in done)
    assert (first[0].lease != second[0].lease, third) == (True, [])
    for task in tasks:
        jobnik.end(task)


# The faults of the real manager.


def test_completing_the_last_task_while_paused_is_accepted(jobnik: Jobnik) -> None:
    job, stage, task = jobnik.one()
    jobnik.dequeue()
    jobnik.put(f"/jobs/{job}", "PAUSED")
    assert jobnik.end(task)["status"] == "COMPLETED"
    assert (jobnik.state(f"/stages/{stage}"), jobnik.state(f"/jobs/{job}")) == ("COMPLETED", "COMPLETED")


def test_a_job_that_was_resumed_with_a_task_in_progress_completes(jobnik: Jobnik) -> None:
    job, _, task = jobnik.one()
    jobnik.dequeue()
    jobnik.put(f"/jobs/{job}", "PAUSED")
    jobnik.put(f"/jobs/{job}", "PENDING")
    jobnik.end(task)
    assert jobnik.state(f"/jobs/{job}") == "COMPLETED"


def test_stages_that_are_added_at_once_have_orders_of_their_own(jobnik: Jobnik) -> None:
    job = jobnik.job()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: jobnik.stage(job), range(16)))
    assert [stage["order"] for stage in jobnik.call("GET", f"/jobs/{job}/stages")] == list(range(1, 17))


def test_no_tasks_are_a_validation_error(jobnik: Jobnik) -> None:
    stage = jobnik.stage(jobnik.job())
    message = jobnik.refused("POST", f"/stages/{stage}/tasks", [], 400, "VALIDATION_ERROR")
    assert message == "request/body must NOT have fewer than 1 items"


# Deletion.


def test_an_ended_job_is_deleted_with_all_below_it(jobnik: Jobnik) -> None:
    job, stage, task = jobnik.one()
    jobnik.refused("DELETE", f"/jobs/{job}", None, 400, "JOB_NOT_IN_FINITE_STATE")
    jobnik.end(jobnik.dequeue()["id"])
    assert jobnik.call("DELETE", f"/jobs/{job}") == {"code": "JOB_DELETED_SUCCESSFULLY"}
    for what, id_ in (("job", job), ("stage", stage), ("task", task)):
        jobnik.refused("GET", f"/{what}s/{id_}", None, 404, f"{what.upper()}_NOT_FOUND")
    jobnik.refused("DELETE", f"/jobs/{job}", None, 404, "JOB_NOT_FOUND")


# Lists.


def test_lists_are_filtered_and_are_arrays_unless_a_page_is_asked_for(jobnik: Jobnik) -> None:
    name = f"n{jobnik.type}"[:50]
    jobs = [jobnik.job(name=name, priority=priority) for priority in ("LOW", "HIGH", "HIGH")]
    stages = [jobnik.stage(job) for job in jobs]
    tasks = [jobnik.tasks(stage, 2, maxAttempts=2) for stage in stages]
    jobnik.end(jobnik.dequeue()["id"], "FAILED")

    def ids(path: str) -> list[str]:
        return [item["id"] for item in jobnik.call("GET", path)]

    assert ids(f"/jobs?job_name={name}") == jobs[::-1]
    assert ids(f"/jobs?job_name={name}&priority=HIGH") == jobs[:0:-1]
    assert ids(f"/jobs?job_name={name}&end_date=2001-01-01T00:00:00Z") == []
    assert ids(f"/jobs?job_name={name}&from_date=2001-01-01T00:00:00%2B02:00&end_date=2999-01-01") == jobs[::-1]
    with_stages = jobnik.call("GET", f"/jobs?job_name={name}&should_return_stages=true")
    assert [job["stages"][0]["id"] for job in with_stages] == stages[::-1]
    assert ids(f"/stages?stage_type={jobnik.type}") == stages[::-1]
    assert ids(f"/stages?stage_type={jobnik.type}&stage_operation_status=IN_PROGRESS") == [stages[1]]
    assert ids(f"/stages?job_id={jobs[0]}&stage_type={jobnik.type}") == [stages[0]]
    assert ids(f"/stages?job_id={jobs[0]}&stage_type=other") == []
    listed = jobnik.call("GET", f"/stages?stage_type={jobnik.type}&should_return_tasks=true")
    assert [[task["id"] for task in stage["tasks"]] for stage in listed] == tasks[::-1]
    assert ids(f"/tasks?stage_type={jobnik.type}") == [id_ for pair in tasks[::-1] for id_ in pair[::-1]]
    assert ids(f"/tasks?stage_id={stages[1]}&status=RETRIED") == [tasks[1][0]]
    assert ids(f"/tasks?stage_type={jobnik.type}&status=RETRIED") == [tasks[1][0]]
    assert len(ids(f"/tasks?stage_type={jobnik.type}&status=PENDING")) == 5
    assert ids(f"/tasks?stage_type={jobnik.type}&from_date=2999-01-01T00:00:00Z") == []
    page = jobnik.call("GET", f"/jobs?job_name={name}&page=2&page_size=2")
    assert (page["total"], [job["id"] for job in page["items"]]) == (3, jobs[:1])
    assert len(jobnik.call("GET", f"/tasks?stage_type={jobnik.type}&page=1")["items"]) == 6
    page = jobnik.call("GET", f"/tasks?stage_type={jobnik.type}&status=PENDING&page_size=2")
    assert (page["total"], len(page["items"])) == (5, 2)
    page = jobnik.call("GET", f"/stages/{stages[0]}/tasks?page=2&page_size=1")
    assert (page["total"], len(page["items"])) == (2, 1)
    page = jobnik.call("GET", f"/stages?stage_type={jobnik.type}&page=9")
    assert page == {"total": 3, "items": []}
    jobnik.refused("GET", f"/stages/{UNKNOWN_ID}/tasks", None, 404, "STAGE_NOT_FOUND")
    jobnik.refused("GET", f"/jobs/{UNKNOWN_ID}/stages", None, 404, "JOB_NOT_FOUND")


def test_a_list_that_is_too_long_asks_for_pages(jobnik: Jobnik, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = jobnik.stage(jobnik.job())
    jobnik.tasks(stage, 5, userMetadata={"long": "x" * 200})
    for limit, most in (("MAX_ITEMS", 4), ("MAX_BYTES", 2_000)):
        with monkeypatch.context() as patch:
            patch.setattr(paging, limit, most)
            message = jobnik.refused("GET", f"/tasks?stage_id={stage}", None, 400, "VALIDATION_ERROR")
            assert message.endswith("match: send page and page_size")
            assert len(jobnik.call("GET", f"/tasks?stage_id={stage}&page_size=5")["items"]) == 5
    assert len(jobnik.call("GET", f"/tasks?stage_id={stage}")) == 5


# Bad requests.

NAME, QUERY = "request/body/name", "request/query"
ENUM = "must be equal to one of the allowed values"
BAD: dict[str, tuple[str, str, Any, str]] = {
    "short name": ("POST", "/jobs", {"name": "a", "data": {}}, f"{NAME} must NOT have fewer than 2 characters"),
    "long name": ("POST", "/jobs", {"name": "a" * 51, "data": {}}, f"{NAME} must NOT have more than 50 characters"),
    "no data": ("POST", "/jobs", {"name": "ab"}, "request/body must have required property 'data'"),
    "key": ("POST", "/jobs", {"name": "ab", "data": {}, "x": 1}, "request/body must NOT have additional properties"),
    "data": ("POST", "/jobs", {"name": "ab", "data": [1]}, "request/body/data must be object"),
    "name": ("POST", "/jobs", {"name": 7, "data": {}}, f"{NAME} must be string"),
    "priority": ("POST", "/jobs", {"name": "ab", "data": {}, "priority": 1}, f"request/body/priority {ENUM}"),
    "trace": ("POST", "/jobs", {"name": "ab", "data": {}, "traceparent": "x"}, "request/body/traceparent must match"),
    "an array": ("POST", "/jobs", [], "request/body must be object"),
    "uuid": ("GET", "/jobs/7", None, "request/params/jobId must match"),
    "stage uuid": ("PUT", "/stages/7/status", {"status": "PENDING"}, "request/params/stageId must match"),
    "attempts": (
        "POST", f"/stages/{UNKNOWN_ID}/tasks", [{"data": {}, "maxAttempts": 0}],
        "request/body/0/maxAttempts must be >= 1",
    ),
    "no array": ("POST", f"/stages/{UNKNOWN_ID}/tasks", {}, "request/body must be array"),
    "unknown parameter": ("GET", "/jobs?nonsense=1", None, "Unknown query parameter 'nonsense'"),
    "unknown parameter of one": ("GET", f"/jobs/{UNKNOWN_ID}?page=1", None, "Unknown query parameter 'page'"),
    "page": ("GET", "/jobs?page=0", None, f"{QUERY}/page must be >= 1"),
    "page size": ("GET", "/tasks?page_size=101", None, f"{QUERY}/page_size must be <= 100"),
    "date": ("GET", "/jobs?from_date=yesterday", None, f'{QUERY}/from_date must match format "date-time"'),
    "status": ("GET", "/tasks?status=NEW", None, f"{QUERY}/status {ENUM}"),
    "flag": ("GET", "/jobs?should_return_stages=perhaps", None, f"{QUERY}/should_return_stages must be boolean"),
    "long type": ("PATCH", f"/stages/{'a' * 51}/tasks/dequeue", None, "request/params/stageType must NOT have more"),
}  # fmt: skip


@each_case("bad", BAD.values(), ids=BAD)
def test_bad_requests_are_answered_as_jobnik_does(quick_api: Any, bad: tuple[str, str, Any, str]) -> None:
    method, path, body, message = bad
    answer = quick_api.request(method, f"/v1{path}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_ERROR"), answer.text
    assert answer.json()["message"].startswith(message), answer.text


def test_other_errors_have_a_code_and_a_message_too(quick_api: Any) -> None:
    def error(method: str, path: str, **options: Any) -> tuple[int, list[str]]:
        answer = quick_api.request(method, path, **options)
        return answer.status_code, sorted(answer.json())

    keys = ["code", "message"]
    assert error("GET", "/v1/nothing") == (404, keys)
    assert error("POST", f"/v1/jobs/{UNKNOWN_ID}") == (405, keys)
    assert error("POST", "/v1/jobs", content=b"{", headers={"content-type": "application/json"}) == (400, keys)
    assert error("POST", "/v1/jobs", json={"name": "ab", "data": {"x": "y" * 1_100_000}}) == (413, keys)
    nan = b'{"name": "ab", "data": {"x": NaN}}'
    assert error("POST", "/v1/jobs", content=nan, headers={"content-type": "application/json"}) == (400, keys)


# With the native API and with workers in Python.


def test_jobs_of_jobnik_are_ordinary_jobs_and_a_worker_in_python_can_serve_them(jobnik: Jobnik) -> None:
    job, stage, task = jobnik.one(userMetadata={"m": 1})
    flow = jobnik.engine.flow(job)
    assert (flow.name, flow.data, flow.stages) == ("thumbs", {"album": 7}, 1)
    assert jobnik.http.get(f"/api/v1/jobs/{job}").json()["name"] == "thumbs"
    (claimed,) = jobnik.engine.claim(worker="python", kinds=(jobnik.type,))
    assert (claimed.id, claimed.payload) == (task, {"n": 0})
    jobnik.engine.succeed(claimed, {"ok": True})
    assert (jobnik.state(f"/tasks/{task}"), jobnik.state(f"/stages/{stage}")) == ("COMPLETED", "COMPLETED")
    assert jobnik.state(f"/jobs/{job}") == "COMPLETED"


def test_a_jobnik_worker_can_serve_flows_and_single_tasks_of_python(jobnik: Jobnik) -> None:
    flow = jobnik.engine.submit_flow("native", [StageSpec("first", [TaskSpec(jobnik.type, {"n": 1})])], priority=3)
    single = jobnik.engine.submit(jobnik.type, {"n": 2}, metadata={"who": "ann"}).id
    taken = [jobnik.dequeue() for _ in range(2)]
    assert {task["id"] for task in taken} == {flow.tasks[0], single}
    for task in taken:
        # A worker reads the stage and the job of each task.
        stage = jobnik.call("GET", f"/stages/{task['stageId']}?should_return_tasks=true")
        job = jobnik.call("GET", f"/jobs/{stage['jobId']}?should_return_stages=true")
        assert (stage["status"], job["status"], len(job["stages"])) == ("IN_PROGRESS", "IN_PROGRESS", 1)
        assert (stage["summary"]["inProgress"], [t["id"] for t in stage["tasks"]]) == (1, [task["id"]])
        jobnik.end(task["id"])
        assert jobnik.state(f"/jobs/{stage['jobId']}") == "COMPLETED"
    assert jobnik.engine.task(single).state == "succeeded"
    listed = jobnik.call("GET", f"/jobs?job_name={jobnik.type}")
    assert [(job["id"], job["name"], job["userMetadata"]) for job in listed] == [(single, jobnik.type, {"who": "ann"})]
    member = flow.tasks[0]
    jobnik.refused("GET", f"/jobs/{member}", None, 404, "JOB_NOT_FOUND")
    jobnik.refused("GET", f"/stages/{member}", None, 404, "STAGE_NOT_FOUND")


def test_a_single_task_of_python_can_be_controlled_as_a_job(jobnik: Jobnik) -> None:
    single = jobnik.engine.submit(jobnik.type).id
    jobnik.call("PATCH", f"/jobs/{single}/priority", {"priority": "HIGH"})
    jobnik.call("PATCH", f"/jobs/{single}/user-metadata", {"a": 1})
    shown = jobnik.call("GET", f"/jobs/{single}")
    assert (shown["priority"], shown["userMetadata"], shown["status"]) == ("HIGH", {"a": 1}, "PENDING")
    jobnik.refused("PUT", f"/jobs/{single}/status", {"status": "PAUSED"}, 400, "ILLEGAL_JOB_STATUS_TRANSITION")
    jobnik.put(f"/jobs/{single}", "ABORTED")
    assert (jobnik.state(f"/jobs/{single}"), jobnik.state(f"/stages/{single}")) == ("ABORTED", "ABORTED")
    jobnik.refused("PATCH", f"/jobs/{single}/priority", {"priority": "LOW"}, 400, "JOB_IN_FINITE_STATE")
    jobnik.call("DELETE", f"/jobs/{single}")


def test_the_policy_that_a_python_worker_declared_for_a_type_counts(jobnik: Jobnik) -> None:
    policy = Policy(max_attempts=9, backoff_base_s=60, redact=("n",))
    jobnik.engine.configure(jobnik.type, policy)
    _, _, task = jobnik.one(maxAttempts=2)
    assert jobnik.engine.task(task).policy.backoff_base_s == 60
    assert jobnik.dequeue()["data"] == {"n": 0}, "its worker sees all of it"
    assert jobnik.call("GET", f"/tasks/{task}")["data"] == {"n": "***"}
    assert jobnik.end(task, "FAILED")["status"] == "RETRIED"
    jobnik.none_left()


def test_every_native_state_has_one_of_jobnik() -> None:
    for machine, states in ((TASK, TASK_STATES), (STAGE, STAGE_STATES), (FLOW, JOB_STATES)):
        assert set(states) == set(machine.states)


def test_answers_are_plain_json_with_the_media_type(jobnik: Jobnik) -> None:
    answer = jobnik.http.get(f"/v1/jobs/{jobnik.job()}")
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.content)["name"] == "thumbs"
