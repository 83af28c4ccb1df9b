"""`onetray workers` and `onetray breakers`: who works, and what is left alone."""

from __future__ import annotations

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine
from tests.cli.conftest import Place
from tests.cli.run import called, one_line, told
from tests.support.tasks import submit


def beat(place: Place, name: str, **fields: object) -> None:
    given = {"host": "h1", "pid": 7, "version": "0.1.0", "queues": ("mail",), "concurrency": 4, **fields}
    place.engine.worker_beat(WorkerBeat(name=name, **given))  # type: ignore[arg-type]


def test_workers_are_listed_with_what_they_do(place: Place) -> None:
    beat(place, "w1", running=3)
    head, line = called("workers", *place.at).stdout.splitlines()
    assert head.split()[:3] == ["worker", "state", "running"]
    assert line.startswith("w1      running  3 of 4   mail    all    h1    7")
    assert [w["name"] for w in told("workers", *place.at)["workers"]] == ["w1"]
    assert told("workers", *place.at, "--namespace", "other")["workers"] == []


def test_a_worker_that_was_not_heard_of_in_time_is_silent(place: Place) -> None:
    with Engine.open(place.url, clock=VirtualClock()) as long_ago:
        beat(Place(place.url, long_ago), "gone")
    assert called("workers", *place.at).stdout.splitlines()[1].split()[:2] == ["gone", "silent"]
    assert told("workers", *place.at, "--alive")["workers"] == []


def test_a_breaker_is_opened_seen_and_closed_by_hand(place: Place) -> None:
    submit(place.engine, "sync")
    done = called("breakers", "open", "sync", "--for", "10m", "--reason", "the shop moves", *place.at, LOGNAME="ann")
    assert (done.exit_code, done.stdout) == (0, "the breaker of sync is open\n"), done.stderr
    assert place.engine.claim(worker="w") == []
    line = called("breakers", "list", *place.at).stdout.splitlines()[1]
    assert line.startswith("sync  open")
    assert line.endswith("ann  the shop moves")
    assert told("breakers", "close", "sync", *place.at) == {"kind": "sync", "state": "closed"}
    assert len(place.engine.claim(worker="w")) == 1


def test_how_long_a_breaker_stays_open_has_to_be_said(place: Place) -> None:
    assert called("breakers", "open", "sync", *place.at).exit_code == 2
    assert "is not a duration" in called("breakers", "open", "sync", "--for", "ever", *place.at).stderr


def test_the_doctor_names_a_queue_that_no_living_worker_takes(place: Place) -> None:
    submit(place.engine, queue="slow")
    assert "no worker is alive" in called("doctor", *place.at).stdout
    beat(place, "w1")
    assert "onetray worker --app MODULE:APP --queues slow" in called("doctor", *place.at).stdout
    beat(place, "w2", queues=("slow",))
    found = {c["name"]: c["verdict"] for c in told("doctor", *place.at)["checks"]}
    assert found["workers"] == "ok"


def test_of_several_worker_processes_one_removes_old_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    class Recorded:
        def __init__(self, commands: list[list[str]], drain_s: float) -> None:
            started.extend(commands)

        def ask_to_stop(self) -> None: ...

        def run(self) -> None: ...

    monkeypatch.setattr("onetray.worker.supervisor.Supervisor", Recorded)
    monkeypatch.setattr("onetray.worker.stop_signals.stop_program_on_signals", lambda _: None)
    words = ["worker", "--app", "shop:app", "--retention", "30d", "--processes", "3"]
    monkeypatch.setattr("sys.argv", ["onetray", *words])
    assert called(*words).exit_code == 0
    assert [" ".join(command).count("--retention off") for command in started] == [0, 1, 1]


@pytest.mark.parametrize("command", ["worker", "up"])
def test_queues_are_separated_by_commas(command: str) -> None:
    done = called(command, "--app", "shop:app", "--queues", "mail slow,post")
    assert (done.exit_code, one_line(done.stderr)) == (2, True)
    assert "separate queues by commas, --queues mail,slow,post; a queue whose name is 'mail slow'" in done.stderr


def test_a_retention_that_is_no_length_of_time_is_refused_in_one_line() -> None:
    done = called("worker", "--app", "shop:app", "--retention", "soon")
    assert (done.exit_code, one_line(done.stderr)) == (2, True)
    assert "30d" in done.stderr
