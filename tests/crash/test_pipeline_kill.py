"""The news pipeline of the examples, whose worker is killed in the middle of it."""

from __future__ import annotations

from pathlib import Path

from onetray import Engine, Onetray
from onetray.examples.news_pipeline import NewsConfig, news
from tests.support.engines import must_verify
from tests.support.fleet import wait_until
from tests.support.workers import READY, WorkerProcess


def test_a_pipeline_whose_worker_was_killed_goes_on_at_the_first_stage_that_has_not_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Engine.open(url) as engine:
        app: Onetray = news.app
        before = app.use(engine)
        try:
            job = news.submit(NewsConfig(pace_s=0.4, evaluate=True))
            first = _worker(url, tmp_path / "first.log")
            wait_until(lambda: _state(engine, job.id, "classify") == "running")
            first.kill()
            done = {s.name: s.state for s in engine.stages(job.id)}
            assert (done["ingest"], done["gather"], done["neutralize"]) == ("succeeded", "succeeded", "created")
            second = _worker(url, tmp_path / "second.log")
            try:
                assert job.wait(60) == "succeeded", second.log
            finally:
                second.kill()
            runs = {s.name: [t.attempts for t in engine.stage_tasks(s.id)] for s in engine.stages(job.id)}
            # What had ended was not done again; what was under way was.
            assert (runs["ingest"], runs["gather"]) == ([1, 1], [1])
            assert 2 in runs["classify"]
            assert job.results()["evaluation"] == 1.0
            must_verify(engine)
        finally:
            app.use(before)


def _worker(url: str, log: Path) -> WorkerProcess:
    worker = WorkerProcess(url, log, "--app", "onetray.examples.news_pipeline:app")
    worker.until_logged(READY)
    return worker


def _state(engine: Engine, flow: str, stage: str) -> str:
    return next(s.state for s in engine.stages(flow) if s.name == stage)
