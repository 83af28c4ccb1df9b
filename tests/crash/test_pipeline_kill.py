"""The news pipeline of the examples, started over HTTP, whose worker is killed in every one of its stages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2

from onetray import Engine
from onetray.examples.news_pipeline import news
from tests.support.engines import migrated_sqlite, must_verify
from tests.support.fleet import wait_until
from tests.support.hanging_news import HANG_IN
from tests.support.live import serving, told
from tests.support.workers import READY, WorkerProcess

JOBS = "/v1/pipeline/jobs"
CONFIG = {"pace_s": 0, "enable_evaluation": True, "enable_auto_optimize": True}


def test_a_pipeline_whose_worker_is_killed_in_every_stage_goes_on_there(migrated_url: str, tmp_path: Path) -> None:
    (tmp_path / "sqlite").mkdir()
    (tmp_path / "postgres").mkdir()
    # Both at once: most of the time leases run out.
    with ThreadPoolExecutor(2) as threads:
        runs = [
            threads.submit(kill_in_every_stage, url, tmp_path / name)
            for name, url in (("sqlite", migrated_sqlite(tmp_path)), ("postgres", migrated_url))
        ]
        for run in runs:
            run.result()


def kill_in_every_stage(url: str, logs: Path) -> None:
    with Engine.open(url) as engine, serving(engine) as live, httpx2.Client(base_url=live.url) as client:
        names = [*news.stages, None]
        worker = _worker(url, logs / "0.log", names[0])
        try:
            worker.until_logged(READY)
            new = client.post(JOBS, json={"pipeline": "news", "config": CONFIG}).json()
            path = new["status_url"]
            for number, stage in enumerate(news.stages, 1):
                wait_until(lambda stage=stage: client.get(path).json()["stage_progress"][stage]["status"] == "running")
                worker.kill()
                worker = _worker(url, logs / f"{number}.log", names[number])
            wait_until(lambda: client.get(path).json()["finished_at"] is not None)
        finally:
            worker.kill()
        job = client.get(path).json()
        assert (job["status"], job["errors"]) == ("COMPLETED", []), worker.log
        stages = {stage.name: engine.stage_tasks(stage.id) for stage in engine.stages(job["job_id"])}
        # In every stage something was under way and was run again.
        assert all(max(task.attempts for task in tasks) >= 2 for tasks in stages.values())
        frames = told(live.port, new["stream_url"])
        assert [f.data["stage"] for f in frames if f.event == "stage_complete"] == list(news.stages)
        must_verify(engine)


def _worker(url: str, log: Path, hang_in: str | None) -> WorkerProcess:
    """A worker whose tasks hang in one stage: it is killed there. The next one runs them, and hangs one stage later."""
    env = {} if hang_in is None else {HANG_IN: hang_in}
    return WorkerProcess(url, log, "--app", "tests.support.hanging_news:app", env=env)
