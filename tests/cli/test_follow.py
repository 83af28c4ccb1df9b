"""`onetray jobs events -f` and `logs -f`: what happens is printed as it happens, and the end ends it."""

from __future__ import annotations

import json
import os
import subprocess

from tests.cli.conftest import Place
from tests.cli.run import ONETRAY
from tests.support.tasks import submit, take


def following(place: Place, *words: str) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    return subprocess.Popen([ONETRAY, *words, *place.at, "--json"], stdout=subprocess.PIPE, text=True, env=env)


def test_events_are_followed_until_the_task_has_ended(place: Place) -> None:
    task = submit(place.engine)
    with following(place, "jobs", "events", task, "-f") as reader:
        assert reader.stdout is not None
        # The first line says that it reads: what comes from here on was followed.
        seen = [json.loads(reader.stdout.readline())["type"]]
        place.engine.succeed(take(place.engine))
        rest, _ = reader.communicate(timeout=60)
    seen += [json.loads(line)["type"] for line in rest.splitlines()]
    assert seen == ["task.submitted", "task.claimed", "task.started", "task.succeeded"]
    assert reader.returncode == 0


def test_a_log_is_followed_to_its_last_line(place: Place) -> None:
    task = submit(place.engine)
    job = take(place.engine)
    place.engine.log(job, "begun")
    with following(place, "jobs", "logs", task, "-f") as reader:
        assert reader.stdout is not None
        assert json.loads(reader.stdout.readline())["line"] == "begun"
        place.engine.log(job, "done")
        place.engine.succeed(job)
        rest, _ = reader.communicate(timeout=60)
    assert [json.loads(line)["line"] for line in rest.splitlines()] == ["done"]
