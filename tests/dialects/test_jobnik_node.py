"""A client in Node that sends the requests of Jobnik's SDK, with 16 workers at once, against a real server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from onetray.engine import Engine
from tests.support.live import WAIT_S, serving
from tests.support.node import node

CLIENT = Path(__file__).with_name("jobnik_client.mjs")
TASKS, WORKERS = 30, 16


def test_sixteen_workers_of_the_sdk_run_a_job_to_its_end(engine: Engine) -> None:
    with serving(engine) as live:
        command = [node(), str(CLIENT), live.url, "resize", str(TASKS), str(WORKERS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    job, runs = seen["job"], seen["runs"]
    assert (job["status"], job["percentage"], job["priority"]) == ("COMPLETED", 100, "HIGH")
    assert [(s["order"], s["status"], s["summary"]["completed"]) for s in job["stages"]] == [
        (1, "COMPLETED", TASKS), (2, "COMPLETED", TASKS),
    ]  # fmt: skip
    flow = engine.flow(job["id"])
    tasks = [task for stage in engine.stages(flow.id) for task in engine.stage_tasks(stage.id)]
    # Nobody was given a task twice, but for the one retry of those that failed.
    assert runs == {task.id: [0, 1] if task.payload["n"] % 5 == 0 else [0] for task in tasks}
    assert seen["refused"] == len(tasks)
    assert (flow.state, {task.state for task in tasks}) == ("succeeded", {"succeeded"})
