"""Planted faults: the list fits the source, and what is said of a fault is true."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.soak.__main__ import soak
from tests.support import planted
from tests.support.fleet import wait_until
from tests.support.planted import LIST, PACKAGE, ROOT, CannotPlant, Copy, Fault, run_campaign
from tests.support.planted_faults import FAULTS
from tests.support.workers import is_alive

FUNCTIONS = """
def double(n):
    return 2 * n


def half(n):
    return n // 2


def third(n):
    return n // 3
"""
SOURCE = {
    "__init__.py": FUNCTIONS,
    # pytest loads the plugin of the installed onetray by its name, and finds this one.
    "testing/__init__.py": "",
    "testing/plugin.py": "",
}
TESTS = {
    "test_double.py": "import onetray\n\n\ndef test_double():\n    assert onetray.double(4) == 8\n",
    "test_half.py": "import onetray\n\n\ndef test_half():\n    assert onetray.half(4) == 2\n",
}

# Without plugins that take longer to load than these tests to run.
SETTINGS = """
[pytest]
addopts = --import-mode=importlib -p no:schemathesis -p no:hypothesispytest -p no:anyio
"""
LEAVES_A_PROCESS = """
import subprocess
import sys
from pathlib import Path


def test_double():
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path("pid").write_text(str(left.pid))
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of a very small onetray, of which nothing is committed."""
    # Two tests do not need processes of their own.
    monkeypatch.setattr(planted, "PROCESSES", "-n0")
    root = tmp_path / "original"
    for folder, files in ((PACKAGE, SOURCE), ("tests", TESTS)):
        for name, text in files.items():
            (root / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (root / folder / name).write_text(text)
    (root / "pytest.ini").write_text(SETTINGS)
    (root / ".gitignore").write_text("*.db\n")
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    return root


def fault(old: str, new: str) -> Fault:
    return Fault("a-fault", "Something goes wrong.", "__init__.py", old, new, ("test_double.py",))


DOUBLED = fault("2 * n", "3 * n")


def run(root: Path, *faults: Fault, **options: bool) -> tuple[list[str], str]:
    """The names of the faults that were not found, and what was said."""
    lines: list[str] = []
    missed = run_campaign(root, faults, lines.append, **options)
    return missed, "\n".join(lines)


def test_every_fault_of_the_list_can_be_planted() -> None:
    wrong = []
    for one in FAULTS:
        file = ROOT / PACKAGE / one.file
        try:
            text = one.plant_in(file.read_text())
            if file.suffix == ".py":
                ast.parse(text)
        except (CannotPlant, OSError, SyntaxError) as e:
            wrong.append(f"{one.name}: {e}")
        wrong += [f"{one.name}: there is no {name}" for name in one.hinted if not (ROOT / name).is_file()]
    assert wrong == [], f"bring {LIST} up to date"


def test_every_fault_of_the_list_has_a_name_of_its_own() -> None:
    names = [one.name for one in FAULTS]
    assert sorted(set(names)) == sorted(names)


def test_the_command_lists_the_faults_and_refuses_one_that_it_does_not_know() -> None:
    listed = CliRunner().invoke(soak, ["planted", "--list"])
    assert [line.partition(":")[0] for line in listed.output.splitlines()] == [one.name for one in FAULTS]
    unknown = CliRunner().invoke(soak, ["planted", "--only", "nonsense"])
    assert (unknown.exit_code, "nonsense" in unknown.output) == (2, True)


def test_a_fault_is_found_by_a_hinted_test(checkout: Path) -> None:
    missed, output = run(checkout, DOUBLED)
    assert missed == []
    assert "a-fault: found by tests/test_double.py::test_double in" in output
    assert output.endswith("1 of 1 found")


def test_a_fault_is_found_by_a_test_that_was_not_hinted(checkout: Path) -> None:
    missed, output = run(checkout, fault("n // 2", "n // 4"), baseline=False)
    assert missed == []
    assert "a-fault: found by tests/test_half.py::test_half in" in output


def test_a_fault_that_no_test_finds_is_named(checkout: Path) -> None:
    missed, output = run(checkout, fault("n // 3", "n // 4"), baseline=False)
    assert missed == ["a-fault"]
    assert "a-fault: NOT FOUND by any test" in output
    assert output.endswith("0 of 1 found")


def test_a_fault_that_breaks_the_import_counts_as_not_found(checkout: Path) -> None:
    missed, output = run(checkout, fault("def third", "raise ImportError\n\n\ndef third"), baseline=False)
    assert missed == ["a-fault"]
    assert "NO VERDICT" in output


def test_a_test_that_fails_anyway_finds_nothing(checkout: Path) -> None:
    (checkout / "tests/test_broken.py").write_text("def test_broken():\n    raise AssertionError\n")
    missed, output = run(checkout, fault("n // 3", "n // 4"), baseline=False)
    assert missed == ["a-fault"]
    assert "tests/test_broken.py::test_broken fails without the fault, too" in output


def test_hinted_tests_have_to_pass_without_a_fault(checkout: Path) -> None:
    (checkout / "tests/test_double.py").write_text("def test_double():\n    raise AssertionError\n")
    with pytest.raises(CannotPlant, match=r"without a fault:\n  tests/test_double\.py::test_double"):
        run(checkout, DOUBLED)


@pytest.mark.parametrize(("old", "times"), [("4 * n", 0), ("return", 3)])
def test_a_text_that_is_not_there_once_is_an_error_before_any_test_runs(checkout: Path, old: str, times: int) -> None:
    with pytest.raises(CannotPlant, match=f"the old text occurs {times} times"):
        run(checkout, DOUBLED, fault(old, ""))


def test_a_copy_is_the_working_tree_without_what_git_ignores(checkout: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "add", "."], cwd=checkout, check=True)
    (checkout / "jobs.db").write_text("ignored")
    (checkout / "tests/test_half.py").unlink()
    (checkout / PACKAGE / "__init__.py").write_text("changed = True\n")
    copy = Copy(checkout, tmp_path / "copy").folder
    copied = {str(file.relative_to(copy)) for file in copy.rglob("*.*") if file.is_file()}
    assert {".gitignore", "pytest.ini", "tests/test_double.py"} < copied
    assert copied.isdisjoint({"jobs.db", "tests/test_half.py"})
    assert (copy / PACKAGE / "__init__.py").read_text() == "changed = True\n"


def test_a_copy_is_as_before_after_a_fault_also_for_python(checkout: Path, tmp_path: Path) -> None:
    copy = Copy(checkout, tmp_path / "copy")
    file = copy.folder / PACKAGE / "__init__.py"
    text, changed_at = file.read_text(), file.stat().st_mtime_ns
    with copy.planted(DOUBLED):
        assert file.read_text() == text.replace("2 * n", "3 * n")
        assert not copy.run_tests("tests/test_double.py").has_passed
    assert (file.read_text(), file.stat().st_mtime_ns) == (text, changed_at)
    assert copy.run_tests("tests/test_double.py").has_passed


def test_a_copy_that_would_test_another_source_is_refused(checkout: Path, tmp_path: Path) -> None:
    (checkout / PACKAGE).rename(checkout / "src/another")
    with pytest.raises(CannotPlant, match="would import"):
        Copy(checkout, tmp_path / "copy")


def test_what_a_test_has_left_running_is_ended_with_its_run(checkout: Path, tmp_path: Path) -> None:
    (checkout / "tests/test_double.py").write_text(LEAVES_A_PROCESS)
    copy = Copy(checkout, tmp_path / "copy")
    assert copy.run_tests("tests/test_double.py").has_passed
    wait_until(lambda: not is_alive(int((copy.folder / "pid").read_text())))
