"""In a new checkout one process compiles the tests, and the others wait for it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest

from tests.support import first_collection
from tests.support.first_collection import LAST_FOLDER, compiled_once

PATIENCE_S = 60.0


@pytest.fixture
def bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "pycache"))
    return tmp_path / "pycache" / LAST_FOLDER.relative_to("/")


def collecting(worker: str | None, lock: Path, began: list[str | None]) -> Thread:
    def collect() -> None:
        with compiled_once(worker, "this run", lock):
            began.append(worker)

    thread = Thread(target=collect)
    thread.start()
    return thread


@pytest.mark.usefixtures("bytecode")
def test_the_others_begin_when_the_first_has_compiled(tmp_path: Path) -> None:
    order: list[str | None] = []
    with compiled_once("gw0", "this run", tmp_path / "lock"):
        others = [collecting(name, tmp_path / "lock", order) for name in ("gw1", "gw2")]
        order.append("compiled")
    for thread in others:
        thread.join(PATIENCE_S)
    assert (order[0], {*order[1:]}) == ("compiled", {"gw1", "gw2"})


@pytest.mark.usefixtures("bytecode")
def test_they_wait_for_a_first_one_that_begins_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str | None] = []
    has_looked = Event()
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: has_looked.set())
    monkeypatch.setattr(first_collection, "time", clock)
    with compiled_once("gw0", "an earlier run", tmp_path / "lock"):
        pass
    other = collecting("gw1", tmp_path / "lock", order)
    assert has_looked.wait(PATIENCE_S)
    with compiled_once("gw0", "this run", tmp_path / "lock"):
        order.append("compiled")
    other.join(PATIENCE_S)
    assert order == ["compiled", "gw1"]


@pytest.mark.usefixtures("bytecode")
def test_a_first_one_that_never_begins_is_not_waited_for_without_end(tmp_path: Path) -> None:
    with compiled_once("gw1", "this run", tmp_path / "lock", patience_s=0.0):
        pass


def test_nobody_waits_for_what_is_compiled(tmp_path: Path, bytecode: Path) -> None:
    began: list[str | None] = []
    with compiled_once("gw0", "this run", tmp_path / "lock"):
        bytecode.mkdir(parents=True)
        (bytecode / "test_a.cpython-311-pytest-9.2.0.pyc").touch()
        collecting("gw1", tmp_path / "lock", began).join(PATIENCE_S)
        assert began == ["gw1"]


@pytest.mark.usefixtures("bytecode")
def test_a_run_in_one_process_waits_for_nobody(tmp_path: Path) -> None:
    began: list[str | None] = []
    with compiled_once("gw0", "this run", tmp_path / "lock"):
        collecting(None, tmp_path / "lock", began).join(PATIENCE_S)
        assert began == [None]
