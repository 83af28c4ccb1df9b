"""A run collects its tests once: the processes that run them are forked from the one that has imported them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.support.one_collection import OneCollection

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(OneCollection())
"""
IMPORTED = """
import os, signal
import pytest

imported_by = os.getpid()
with open("imported", "a") as imported:
    imported.write(f"{imported_by}\\n")
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each process collects for itself")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    return tmp_path


def outcome(folder: Path) -> str:
    """What a run of the tests in the folder prints, in two processes."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "-rA", "--disable-plugin-autoload", "-p", "xdist"]
    done = subprocess.run(
        [*command, "--basetemp", str(folder / "temp")], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_tests_are_imported_once_and_each_process_has_its_own_name_and_folder(folder: Path) -> None:
    test = """
@pytest.mark.parametrize("n", range(4))
def test_is_forked(n, worker_id, tmp_path):
    assert os.getppid() == imported_by
    assert os.environ["PYTEST_XDIST_WORKER"] == worker_id
    assert tmp_path.parent.name == f"popen-{worker_id}"
"""
    (folder / "test_a.py").write_text(IMPORTED + test)
    assert "4 passed" in outcome(folder)
    assert len((folder / "imported").read_text().splitlines()) == 1


def test_a_process_that_dies_is_replaced_and_what_went_wrong_is_told(folder: Path) -> None:
    tests = """
def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

def test_fails():
    print("its own output")
    assert [1, 2] == [1, 3]

@pytest.mark.parametrize("n", range(8))
def test_passes(n):
    pass
"""
    (folder / "test_a.py").write_text(IMPORTED + tests)
    (folder / "test_b.py").write_text("import nothing_of_this_name")
    said = outcome(folder)
    assert "8 passed" in said, said
    assert "crashed while running 'test_a.py::test_dies'" in said
    assert "At index 1 diff: 2 != 3" in said
    assert "its own output" in said
    assert "No module named 'nothing_of_this_name'" in said
    assert len((folder / "imported").read_text().splitlines()) == 1
