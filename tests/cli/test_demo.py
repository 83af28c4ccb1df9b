"""`onetray demo`: what it shows really happened, the verifier agrees, and it leaves no process behind."""

import io
import os
import re
import signal
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
from tests.cli.run import SCRIPT, onetray
from tests.support.engines import engine_on
from tests.support.fleet import wait_until
from tests.support.prepared import PreparedProcess
from tests.support.workers import is_alive


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """One run, for all tests that look at what it left."""
    scratch, kept = tmp_path_factory.mktemp("scratch"), tmp_path_factory.mktemp("demo") / "kept.db"
    done = onetray("demo", "--keep", str(kept), TMPDIR=str(scratch))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stderr, os.listdir(scratch)) == ("", [])
    return done.stdout, kept


class Demo:
    """A demo that runs, forked from a process that has imported what it needs."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        self._out, self._err = folder / "out", folder / "err"
        for path in (self._out, self._err):
            path.touch()
        self.process = PreparedProcess(
            *SCRIPT, "demo", *words, env=os.environ | environment, stdout=self._out, stderr=self._err
        )

    def says(self, words: str) -> str:
        """What it has said, once these words are among it."""
        wait_until(lambda: words in self.output or self.process.poll() is not None, 60)
        assert words in self.output, self.complaints
        return self.output

    @property
    def output(self) -> str:
        """All whole lines so far."""
        return "".join(line for line in self._out.read_text().splitlines(keepends=True) if line.endswith("\n"))

    @property
    def complaints(self) -> str:
        return self._err.read_text()


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
    demo = Demo(tmp_path, "--keep", str(tmp_path / "kept.db"), TMPDIR=str(tmp_path / "scratch"))
    assert "two worker processes start" in demo.says("two worker").splitlines()[0]
    workers = pids_of_workers(tmp_path / "kept.db")
    demo.process.send_signal(number)
    assert (demo.process.wait(30), "Traceback" in demo.complaints) == (code, False)
    if number == signal.SIGKILL:
        wait_until(lambda: not any(is_alive(worker) for worker in workers), 30)
    else:
        assert not any(is_alive(worker) for worker in workers)
        assert os.listdir(tmp_path / "scratch") == []


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
    demo = Demo(tmp_path, "--page", "--no-input", TMPDIR=str(tmp_path), BROWSER=str(tmp_path / "browser"))
    url = demo.says("http://").splitlines()[0].split()[-1]
    assert url.startswith("http://127.0.0.1:")
    wait_until(lambda: (tmp_path / "opened").exists(), 30)
    wait_until(lambda: (tmp_path / "opened").read_text(), 30)
    assert (tmp_path / "opened").read_text().strip() == url
    demo.says("stays at")
    page = httpx2.get(url).text
    assert "parcels" in page
    assert "courier-" in page
    demo.process.send_signal(signal.SIGINT)
    assert (demo.process.wait(30), "Traceback" in demo.complaints) == (0, False), demo.complaints
    assert "What to try next" in demo.output
