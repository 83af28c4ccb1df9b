"""`onetray jobs watch`, `events -f` and `logs -f`: what happens is printed as it happens, and the end ends it."""

from __future__ import annotations

import json
import os
import pty
import subprocess

from onetray import StageSpec, TaskSpec
from tests.cli.conftest import Place
from tests.cli.run import called, script
from tests.support.tasks import UNKNOWN_ID, submit, take


def following(place: Place, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(script(*words, *place.at, "--json"), stdout=subprocess.PIPE, text=True)


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


def test_progress_is_watched_until_the_task_has_ended(place: Place) -> None:
    task = submit(place.engine)
    job = take(place.engine)
    place.engine.start(job)
    place.engine.say_progress(job, 1, 4, "page 1")
    with following(place, "jobs", "watch", task) as reader:
        assert reader.stdout is not None
        first = json.loads(reader.stdout.readline())
        place.engine.succeed(job)
        rest, _ = reader.communicate(timeout=60)
    assert (first["id"], first["entity"], first["state"], first["percentage"]) == (task, "task", "running", 25)
    assert (first["reported"]["message"], first["reported"]["at"][-1]) == ("page 1", "Z")
    last = json.loads(rest.splitlines()[-1])
    assert (last["state"], last["percentage"], reader.returncode) == ("succeeded", 100, 0)


def test_each_change_is_a_line_where_nobody_sees_it_change(place: Place) -> None:
    flow = place.engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 2), StageSpec("b", [TaskSpec("y")])]).id
    command = script("jobs", "watch", flow[-8:], *place.at)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == f"flow {flow}\n"
        assert reader.stdout.readline() == "pending  0 %, stage 1 of 2: a, 0 of 3 tasks\n"
        place.engine.succeed(take(place.engine))
        # State and counts are two reads, so the state of a line may be older.
        assert "running  25 %, stage 1 of 2: a, 1 of 3 tasks\n" in iter(reader.stdout.readline, "")
        place.engine.fail(take(place.engine), "no", retryable=False)
        rest, _ = reader.communicate(timeout=60)
    assert (rest.splitlines()[-1], reader.returncode) == ("failed  25 %, 3 of 3 tasks", 1)


def test_a_terminal_shows_one_line_that_changes(place: Place) -> None:
    task = submit(place.engine)
    job = take(place.engine)
    place.engine.start(job)
    place.engine.say_progress(job, 1, 4, "red \x1b[31m" + "x" * 100)
    screen, inside = pty.openpty()
    env = os.environ | {"COLUMNS": "40", "TERM": "xterm"}
    with subprocess.Popen(script("jobs", "watch", task, *place.at), stdout=inside, env=env) as reader:
        os.close(inside)
        shown = read_until(screen, b"x\xe2\x80\xa6")
        place.engine.succeed(job)
        shown += read_until(screen, b"succeeded")
        assert reader.wait(60) == 0
    head, changing = shown.decode().split("\r\n", 1)
    first, *_, last = changing.split("\r\x1b[K")[1:]
    assert head == f"task {task}"
    assert first == "running  25 %, 1 of 4: red  [31mxxxxxx…"
    assert last.startswith("succeeded")
    os.close(screen)


def read_until(screen: int, end: bytes) -> bytes:
    """What a terminal shows, up to this text."""
    shown = b""
    while end not in shown:
        shown += os.read(screen, 1000)
    return shown


def test_watching_ends_with_the_outcome_of_the_job(place: Place) -> None:
    dead, done = place.dead(), submit(place.engine)
    place.engine.succeed(take(place.engine))
    assert called("jobs", "watch", done, *place.at).exit_code == 0
    ended = called("jobs", "watch", dead, *place.at)
    assert (ended.exit_code, ended.stdout.splitlines()) == (1, [f"task {dead}", "dead_lettered  0 %"])
    late = called("jobs", "watch", submit(place.engine), *place.at, "--timeout", "0s")
    assert (late.exit_code, "the job is still queued after 0 s: see `onetray jobs explain" in late.stderr) == (1, True)
    assert called("jobs", "watch", UNKNOWN_ID, *place.at).exit_code == 4
