"""`onetray demo`: what it shows really happened, the verifier agrees, and it leaves no process behind."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from click.testing import CliRunner
from rich.console import Console

from onetray.cli import main
from onetray.cli.demo import scenario, screen
from onetray.cli.demo import workers as demo_workers
from onetray.cli.demo.event_counts import EventCounts
from onetray.domain.task import Event
from tests.cli.run import ONETRAY, onetray
from tests.support.engines import engine_on
from tests.support.fleet import wait_until
from tests.support.workers import is_alive


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """One run, for all tests that look at what it left."""
    scratch, kept = tmp_path_factory.mktemp("scratch"), tmp_path_factory.mktemp("demo") / "kept.db"
    done = onetray("demo", "--keep", str(kept), TMPDIR=str(scratch))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stderr, os.listdir(scratch)) == ("", [])
    return done.stdout, kept


def counted(text: str, what: str) -> int:
    [number] = re.findall(rf"^  +{what} +(\d+)$", text, re.MULTILINE)
    return int(number)


def test_every_act_is_told(played: tuple[str, Path]) -> None:
    text, _ = played
    for words in (
        "killed (SIGKILL)",
        "took over",
        "dead letter",
        "redrives",
        "editor approves",
        "stopped cleanly",
        "ann adds a schedule",
        "fire times so far",
        "2 at once at each van",
    ):
        assert words in text
    assert "\x1b" not in text


def test_the_numbers_are_those_of_the_database(played: tuple[str, Path]) -> None:
    text, path = played
    with engine_on(f"sqlite:///{path}") as engine:
        tasks = engine.tasks(limit=1000)
        letters = engine.dead_letters()
        [flow] = engine.flows()
    assert counted(text, "their tasks") == len(tasks)
    assert counted(text, "parcels of a van loaded at once") == 2
    assert counted(text, "succeeded") == sum(task.state == "succeeded" for task in tasks)
    assert counted(text, "dead_lettered") == len(letters) == 1
    assert counted(text, "dead letters redriven") == sum(letter.successor_id is not None for letter in letters)
    assert flow.state == "succeeded"


def test_what_the_killed_worker_held_was_done_by_the_other(played: tuple[str, Path]) -> None:
    text, path = played
    [(victim, hands)] = re.findall(r"(courier-\d) is killed \(SIGKILL\) while it holds (\d+) tasks", text)
    events: list[Event] = []
    with engine_on(f"sqlite:///{path}") as engine:
        EventCounts(engine.feed).read(events.append)
    holder, lost, last = {}, set(), {}
    for e in events:
        if e.type == "task.claimed":
            holder[e.entity_id] = e.actor
        elif e.type == "task.lease_expired" and holder[e.entity_id] == f"worker:{victim}":
            lost.add(e.entity_id)
        elif e.type == "task.succeeded":
            last[e.entity_id] = e.actor
    assert counted(text, "tasks taken over after the kill") == int(hands) == len(lost)
    assert {last[task] for task in lost} == {f"worker:{name}" for name in demo_workers.NAMES if name != victim}


def test_an_existing_file_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    path.write_text("mine")
    done = onetray("demo", "--keep", str(path))
    assert done.returncode == 2
    assert path.read_text() == "mine"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_ends_the_demo_and_its_workers(number: signal.Signals, code: int, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    demo = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, ONETRAY, "demo", "--keep", str(tmp_path / "kept.db")],
        env={**os.environ, "TMPDIR": str(tmp_path / "scratch"), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    assert "two worker processes start" in demo.stdout.readline()
    workers = pids_of_workers(tmp_path / "kept.db")
    demo.send_signal(number)
    _, err = demo.communicate(timeout=30)
    assert (demo.returncode, "Traceback" in err) == (code, False)
    if number == signal.SIGKILL:
        wait_until(lambda: not any(is_alive(worker) for worker in workers), 30)
    else:
        assert not any(is_alive(worker) for worker in workers)
        assert os.listdir(tmp_path / "scratch") == []


# A run in the background ignores SIGINT, and so would what it starts.
INTERRUPTIBLE = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def pids_of_workers(path: Path) -> list[int]:
    until = time.monotonic() + 30
    with engine_on(f"sqlite:///{path}") as engine:
        while time.monotonic() < until:
            seen = engine.wake.generation
            workers = engine.workers()
            if len(workers) == len(demo_workers.NAMES):
                return [worker.pid for worker in workers]
            engine.wake.wait(seen, 0.5)
    raise TimeoutError("the demo's workers did not come")


def test_what_is_stuck_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "TIMEOUT_S", 0.0)
    done = CliRunner().invoke(main, ["demo"])
    assert done.exit_code == 1
    assert "it waited for parcels to be loaded" in done.output
    assert "stage 'ingest'" in done.output


def test_a_worker_that_does_not_start_ends_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_workers, "APP", "no_such_module:app")
    done = CliRunner().invoke(main, ["demo"])
    assert done.exit_code == 1
    assert "there is no module 'no_such_module'" in done.output


@pytest.mark.parametrize(
    ("typed", "approved"), [("n\n", False), ("no\n", False), ("\n", True), ("y\n", True), ("", True)]
)
def test_only_a_no_rejects(typed: str, approved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.write(writing, typed.encode())
    os.close(writing)
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert screen.Screen(Console(file=io.StringIO()), live=False).ask("Approve?") is approved


def test_nobody_who_answers_means_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "ANSWER_S", 0.0)
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin, os.fdopen(writing, "w"):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert screen.Screen(Console(file=io.StringIO()), live=False).ask("Approve?")


def test_the_picture_shows_stages_states_workers_and_events(played: tuple[str, Path]) -> None:
    _, path = played
    out = Console(file=io.StringIO(), width=100)
    with engine_on(f"sqlite:///{path}") as engine:
        counts = EventCounts(engine.feed)
        counts.read(lambda event: None)
        stages = {stage.id: stage for stage in engine.stages(engine.flows()[0].id)}
        view = SimpleNamespace(counts=counts, stages=stages, workers=SimpleNamespace(killed={"courier-1"}))
        out.print(screen.picture(view))  # type: ignore[arg-type]
    text = out.file.getvalue()  # type: ignore[attr-defined]
    for words in ("classify", "6/6", "dead_lettered 1", "courier-1  killed", "courier-2  holds 0", "worker:courier-"):
        assert words in text


def test_the_page_shows_the_demos_jobs_until_the_demo_is_interrupted(tmp_path: Path) -> None:
    """A browser that fails does not matter."""
    (tmp_path / "browser").write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\nexit 1\n')
    (tmp_path / "browser").chmod(0o755)
    demo = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, ONETRAY, "demo", "--page", "--no-input"],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1", "BROWSER": str(tmp_path / "browser")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    url = demo.stdout.readline().split()[-1]
    assert url.startswith("http://127.0.0.1:")
    wait_until(lambda: (tmp_path / "opened").exists(), 30)
    assert (tmp_path / "opened").read_text().strip() == url
    for line in demo.stdout:
        if "stays at" in line:
            break
    page = httpx2.get(url).text
    assert "parcels" in page
    assert "courier-" in page
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=30)
    assert (demo.returncode, "Traceback" in err) == (0, False), err
    assert "What to try next" in out
