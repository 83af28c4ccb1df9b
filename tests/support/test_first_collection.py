"""In a new checkout one process compiles the tests, and the others wait for it."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Thread

import pytest

from tests.support.first_collection import LAST_FOLDER, compiled_once

PATIENCE_S = 60.0


@pytest.fixture
def bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "pycache"))
    return tmp_path / "pycache" / LAST_FOLDER.relative_to("/")


def collecting(worker: str | None, lock: Path, began: list[str | None]) -> Thread:
    def collect() -> None:
        with compiled_once(worker, lock):
            began.append(worker)

    thread = Thread(target=collect)
    thread.start()
    return thread


@pytest.mark.usefixtures("bytecode")
def test_the_others_begin_when_the_first_has_compiled(tmp_path: Path) -> None:
    order: list[str | None] = []
    with compiled_once("gw0", tmp_path / "lock"):
        others = [collecting(name, tmp_path / "lock", order) for name in ("gw1", "gw2")]
        order.append("compiled")
    for thread in others:
        thread.join(PATIENCE_S)
    assert (order[0], {*order[1:]}) == ("compiled", {"gw1", "gw2"})


def test_nobody_waits_for_what_is_compiled(tmp_path: Path, bytecode: Path) -> None:
    began: list[str | None] = []
    with compiled_once("gw0", tmp_path / "lock"):
        bytecode.mkdir(parents=True)
        (bytecode / "test_a.cpython-311-pytest-9.2.0.pyc").touch()
        collecting("gw1", tmp_path / "lock", began).join(PATIENCE_S)
        assert began == ["gw1"]


@pytest.mark.usefixtures("bytecode")
def test_a_run_in_one_process_waits_for_nobody(tmp_path: Path) -> None:
    began: list[str | None] = []
    with compiled_once("gw0", tmp_path / "lock"):
        collecting(None, tmp_path / "lock", began).join(PATIENCE_S)
        assert began == [None]
