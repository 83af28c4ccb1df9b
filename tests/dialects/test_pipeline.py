"""The pipeline dialect over real sockets, with the news pipeline of the examples: every course that its jobs can take.

The tasks run when a test says so, on a virtual clock. tests/crash/test_pipeline_kill.py has real workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import httpx2
import pytest

from onetray import PermanentError
from onetray.app.flow_declaration import declaration_of_flow
from onetray.examples.news_pipeline import news
from onetray.testing import Harness
from tests.support.live import Frame, Live, serving, told
from tests.support.tasks import UNKNOWN_ID

JOBS = "/v1/pipeline/jobs"
STAGES = ("ingest", "gather", "classify", "neutralize", "brief", "summary", "evaluation", "optimization")
EVERYTHING = {"enable_evaluation": True, "enable_auto_optimize": True}


@dataclass
class Pipeline:
    """The news pipeline, its server and a client."""

    harness: Harness
    live: Live
    client: httpx2.Client

    def start(self, expect: int = 202, **config: Any) -> dict[str, Any]:
        answer = self.client.post(JOBS, json={"pipeline": "news", "config": {"pace_s": 0, **config}})
        assert answer.status_code == expect, answer.text
        return dict(answer.json())

    def get(self, path: str = "", expect: int = 200, **query: Any) -> dict[str, Any]:
        answer = self.client.get(f"{JOBS}{path}", params=query)
        assert answer.status_code == expect, answer.text
        return dict(answer.json())

    def cancel(self, id_: str, expect: int = 200) -> dict[str, Any]:
        answer = self.client.post(f"{JOBS}/{id_}/cancel")
        assert answer.status_code == expect, answer.text
        return dict(answer.json())

    def statuses(self, id_: str) -> dict[str, str]:
        return {name: stage["status"] for name, stage in self.get(f"/{id_}")["stage_progress"].items()}

    def run_until(self, id_: str, stage: str) -> None:
        """Run tasks until the stage is the next one to run."""
        while self.get(f"/{id_}")["current_stage"] != stage:
            assert self.harness.run_next()

    def stream(self, id_: str, last: str | None = None) -> list[Frame]:
        return told(self.live.port, f"{JOBS}/{id_}/stream", last)


@pytest.fixture
def pipeline(database_url: str) -> Iterator[Pipeline]:
    with Harness(news.app, database=database_url) as harness, serving(harness.engine) as live:
        harness.engine.declare_flow(declaration_of_flow(news))
        with httpx2.Client(base_url=live.url) as client:
            yield Pipeline(harness, live, client)


def test_each_course_of_the_pipeline_completes_and_says_why_a_stage_was_skipped(pipeline: Pipeline) -> None:
    for evaluate, optimize in product((False, True), repeat=2):
        new = pipeline.start(enable_evaluation=evaluate, enable_auto_optimize=optimize)
        id_ = new["job_id"]
        assert new == {
            "job_id": id_, "trace_id": new["trace_id"], "status": "PENDING", "status_url": f"{JOBS}/{id_}",
            "stream_url": f"{JOBS}/{id_}/stream",
        }  # fmt: skip
        pipeline.harness.drain()
        job = pipeline.get(f"/{id_}")
        assert (job["status"], job["errors"], job["percentage"]) == ("COMPLETED", [], 100)
        assert (job["trace_id"], job["pipeline"], job["cancel_requested"]) == (new["trace_id"], "news", False)
        assert job["started_at"] <= job["finished_at"]
        skipped = {"evaluation": not evaluate, "optimization": not (evaluate and optimize)}
        for name, stage in job["stage_progress"].items():
            assert stage["status"] == ("skipped" if skipped.get(name) else "completed")
            assert stage["reason"] == ("its condition is not met" if skipped.get(name) else None)
            assert (stage["duration_ms"] is None) == bool(skipped.get(name))
            assert stage["percentage"] == 100
        frames = pipeline.stream(id_)
        ran = [name for name in STAGES if not skipped.get(name)]
        assert [f.data["stage"] for f in frames if f.event == "stage_start"] == ran
        assert [f.data["stage"] for f in frames if f.event == "stage_complete"] == list(STAGES)
        assert (frames[-1].event, frames[-1].data["status"]) == ("job_complete", "COMPLETED")
        assert not [f for f in frames if f.event == "error"]
    assert pipeline.get(status="COMPLETED")["total"] == 4
    assert (len(pipeline.get(limit=3)["jobs"]), pipeline.get(limit=3)["total"]) == (3, 4)


def test_each_stage_that_fails_in_turn_is_named_with_its_error(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    for failing in STAGES:
        kind = f"news.{failing}"
        with monkeypatch.context() as patch:
            patch.setitem(news.app.tasks, kind, replace(news.app.tasks[kind], function=_fail))
            id_ = pipeline.start(**EVERYTHING)["job_id"]
            pipeline.harness.drain()
        job = pipeline.get(f"/{id_}")
        # Nothing has succeeded if the first stage failed.
        expected = "FAILED" if failing == "ingest" else "PARTIAL"
        assert (job["status"], job["stage_progress"][failing]["status"]) == (expected, "failed"), failing
        assert (job["percentage"], job["stage_progress"][failing]["percentage"]) == (100, 100)
        errors = job["errors"]
        assert {(e["stage"], e["message"]) for e in errors} == {(failing, "no more paper")}
        assert job["error_count"] == len(errors) == job["stage_progress"][failing]["failed"]
        frames = pipeline.stream(id_)
        ends = [(f.event, f.data.get("stage")) for f in frames if f.event in ("error", "stage_complete")]
        assert ends.index(("error", failing)) + 1 == ends.index(("stage_complete", failing))
        assert (frames[-1].event, frames[-1].data["status"], frames[-1].data["errors"]) == (
            "job_complete", expected, errors,
        )  # fmt: skip
    assert (pipeline.get(status="FAILED")["total"], pipeline.get(status="PARTIAL")["total"]) == (1, len(STAGES) - 1)


def _fail(**_: Any) -> None:
    raise PermanentError("no more paper")


def test_a_partial_stage_goes_on_and_names_the_task(pipeline: Pipeline) -> None:
    id_ = pipeline.start(feeds=["harbour", "moon"])["job_id"]
    pipeline.harness.drain()
    job = pipeline.get(f"/{id_}")
    ingest = job["stage_progress"]["ingest"]
    assert (job["status"], ingest["status"], ingest["completed"], ingest["failed"]) == ("PARTIAL", "partial", 1, 1)
    assert [e["message"] for e in job["errors"]] == ["there is no feed 'moon'"]
    (error,) = news.app.job(id_).errors()
    assert (error.stage, error.message) == ("ingest", "there is no feed 'moon'")
    assert [e.message for e in news.app.job(error.task or "").errors()] == [error.message]
    assert job["stage_progress"]["summary"]["status"] == "completed"


def test_a_job_is_cancelled_before_its_start_between_stages_and_inside_one(pipeline: Pipeline) -> None:
    engine = pipeline.harness.engine
    before = pipeline.start()["job_id"]
    assert pipeline.cancel(before) == {"cancelled": True, "message": "the job is CANCELLED"}
    assert set(pipeline.statuses(before).values()) == {"cancelled"}

    between = pipeline.start()["job_id"]
    pipeline.run_until(between, "neutralize")
    assert pipeline.get(status="RUNNING")["running_count"] == 1
    assert pipeline.cancel(between)["cancelled"] is True
    assert pipeline.get(f"/{between}")["status"] == "CANCELLED"
    assert pipeline.statuses(between)["classify"] == "completed"

    inside = pipeline.start()["job_id"]
    pipeline.run_until(inside, "neutralize")
    held = engine.claim(worker="w", limit=1)[0]
    engine.start(held)
    for _ in range(2):
        assert pipeline.cancel(inside) == {"cancelled": True, "message": "the job is RUNNING and will be cancelled"}
    job = pipeline.get(f"/{inside}")
    assert (job["status"], job["cancel_requested"], job["finished_at"]) == ("RUNNING", True, None)
    assert held.id in engine.beat(held).cancel
    engine.fail(held, "it was told to stop")
    job = pipeline.get(f"/{inside}")
    assert (job["status"], job["cancel_requested"], job["finished_at"] is None) == ("CANCELLED", True, False)
    assert pipeline.cancel(inside) == {"cancelled": False, "message": "the job is CANCELLED"}
    for id_ in (before, between, inside):
        assert pipeline.stream(id_)[-1].data["status"] == "CANCELLED"
    assert pipeline.get(status="CANCELLED")["total"] == 3
    assert pipeline.cancel(UNKNOWN_ID, 404)["code"] == pipeline.cancel("nonsense", 404)["code"] == "not_found"


def test_a_job_that_nobody_finishes_has_failed_after_two_hours(pipeline: Pipeline) -> None:
    engine = pipeline.harness.engine
    never_began = pipeline.start()["job_id"]
    pipeline.harness.advance(7199)
    assert pipeline.get(f"/{never_began}")["status"] == "PENDING"
    pipeline.harness.advance(2)
    orphaned = pipeline.start()["job_id"]
    pipeline.run_until(orphaned, "classify")
    engine.start(engine.claim(worker="dead", limit=1)[0])
    pipeline.harness.advance(7201)
    for id_, stages in ((never_began, {"skipped"}), (orphaned, {"completed", "failed", "skipped"})):
        job = pipeline.get(f"/{id_}")
        assert (job["status"], {s["status"] for s in job["stage_progress"].values()}) == ("FAILED", stages)
        assert [e["message"] for e in job["errors"]] == ["timed out or was orphaned (deadline)"]
        frames = pipeline.stream(id_)
        assert [f.event for f in frames][-2:] == ["error", "job_complete"]
        assert "timed out or was orphaned" in frames[-2].data["message"]


def test_only_one_runs_and_what_is_wrong_is_refused_in_the_dialects_words(pipeline: Pipeline) -> None:
    engine = pipeline.harness.engine
    running = pipeline.start()["job_id"]
    refused = pipeline.start(expect=409)
    assert (refused["job_id"], refused["code"]) == (running, "already_open")
    assert running in refused["detail"]
    pipeline.run_until(running, "gather")
    engine.pause_flow(running)
    # A paused job still runs for its users, and one that has not begun is still pending.
    assert pipeline.get()["jobs"][0]["status"] == "RUNNING"
    waiting = engine.submit_flow("other", [], sealed=False)
    engine.pause_flow(waiting.id)
    assert [job["job_id"] for job in pipeline.get(status="RUNNING")["jobs"]] == [running]
    found = pipeline.get(status="PENDING")
    assert ([job["job_id"] for job in found["jobs"]], found["total"], found["running_count"]) == ([waiting.id], 1, 1)
    assert pipeline.get()["total"] == 2
    pipeline.cancel(running)
    task = engine.submit("mail").id
    for path in (f"/{UNKNOWN_ID}", "/nonsense", f"/{task}", f"/{UNKNOWN_ID}/stream"):
        assert pipeline.get(path, 404)["code"] == "not_found"
    assert pipeline.get("", 400, limit=0)["code"] == pipeline.get("", 400, status="done")["code"] == "invalid_input"
    assert pipeline.get(f"/{running}/stream", 400, cursor="12")["code"] == "invalid_input"
    assert pipeline.get("", 400, page=2)["field"] == "query.page"
    for body, status in (
        ({"pipeline": "nobody"}, 404), ({}, 400), ({"pipeline": "news", "config": []}, 400), ([], 400),
        ({"pipeline": "news", "more": 1}, 400), ({"pipeline": "news", "config": {"pace_s": "slow"}}, 400),
        ({"pipeline": "news", "config": {"feeds": []}}, 400),
    ):  # fmt: skip
        answer = pipeline.client.post(JOBS, json=body)
        assert (answer.status_code, set(answer.json()) >= {"detail", "code"}) == (status, True), answer.text
    assert "nobody" in pipeline.client.post(JOBS, json={"pipeline": "nobody"}).json()["detail"]


def test_a_submit_with_a_key_is_repeated_without_a_second_job(pipeline: Pipeline) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body, headers = {"pipeline": "news"}, {"Idempotency-Key": "k", "traceparent": trace}
    first, second = (pipeline.client.post(JOBS, json=body, headers=headers) for _ in range(2))
    assert (first.status_code, second.json()) == (202, first.json())
    assert first.json()["trace_id"] == trace.split("-")[1]
    pipeline.cancel(first.json()["job_id"])


def test_a_stream_goes_on_after_any_of_its_events_without_one_twice(pipeline: Pipeline) -> None:
    id_ = pipeline.start(feeds=["harbour", "moon"], enable_evaluation=True)["job_id"]
    pipeline.harness.drain()
    frames = pipeline.stream(id_)
    assert {f.event for f in frames} == {"stage_start", "stage_progress", "stage_complete", "error", "job_complete"}
    reported = [f.data for f in frames if f.event == "stage_progress" and f.data["message"] is not None]
    assert {(f["stage"], f["message"], f["done"], f["total"]) for f in reported} == {("neutralize", "rewriting", 1, 2)}
    assert len({f.id for f in frames}) == len(frames)
    for i, frame in enumerate(frames[:-1]):
        assert pipeline.stream(id_, frame.id) == frames[i + 1 :], frame
    last = {"Last-Event-ID": str(frames[-1].id)}
    assert pipeline.client.get(f"{JOBS}/{id_}/stream", headers=last).status_code == 204
