from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import memory_files


@pytest.fixture(autouse=True)
def no_place_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(memory_files, "ENOUGH", 1)


def test_a_folder_is_used_until_it_is_removed(tmp_path: Path) -> None:
    folder = memory_files.make_folder(tmp_path)
    assert folder is not None
    memory_files.use_folder(folder)
    assert Path(tempfile.gettempdir()) == folder
    memory_files.remove_folder(folder)
    assert not folder.exists()
    assert "TMPDIR" not in os.environ


def test_the_folder_of_a_run_that_was_killed_is_removed_by_the_next(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    left, lives = (tmp_path / f"{memory_files.PREFIX}{pid}" for pid in (ended.pid, os.getppid()))
    for folder in (left, lives):
        folder.mkdir()
    assert memory_files.make_folder(tmp_path) is not None
    assert not left.exists()
    assert lives.exists()


@pytest.mark.parametrize("why", ["TMPDIR", "missing", "small"])
def test_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "TMPDIR":
        monkeypatch.setenv("TMPDIR", str(tmp_path))
    elif why == "small":
        monkeypatch.setattr(memory_files, "ENOUGH", 2**62)
    assert memory_files.make_folder(tmp_path / "none" if why == "missing" else tmp_path) is None
    assert not list(tmp_path.iterdir())
