"""Plant one fault at a time in a copy of the checkout, and see whether a test fails.

Owns the copy, the runs of pytest in it, and the verdict about each fault. The faults themselves are in
planted_faults.py. `./go soak planted` runs it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "src/onetray"
LIST = "tests/support/planted_faults.py"
CHECK_OF_THE_LIST = "tests/support/test_planted.py"
PROCESSES = "-n2"
LAST_LINES = 15


class CannotPlant(Exception):
    """A fault cannot be planted, or nothing would follow from what a test says about it."""


@dataclass(frozen=True)
class Fault:
    """A mistake of one to three lines that a change of the source may well make."""

    name: str
    harm: str
    """What goes wrong for a user, in one sentence."""
    file: str
    """Below src/onetray."""
    old: str
    """Occurs exactly once in the file."""
    new: str
    look_in: tuple[str, ...]
    """The test files, below tests, that are likely to find it. They run first; if they pass, all others follow."""

    def plant_in(self, text: str) -> str:
        count = text.count(self.old)
        if count != 1:
            raise CannotPlant(
                f"{self.name}: the old text occurs {count} times in {PACKAGE}/{self.file}, not once. "
                f"Bring {LIST} up to date"
            )
        return text.replace(self.old, self.new)

    @property
    def hinted(self) -> tuple[str, ...]:
        return tuple(f"tests/{name}" for name in self.look_in)


@dataclass(frozen=True)
class SuiteRun:
    """What one run of pytest came to."""

    exit_code: int
    failed: tuple[str, ...]
    """Tests that failed or broke, the first one first."""
    unloadable: tuple[str, ...]
    """Test files and folders that could not be collected, each with the error."""
    last_lines: str

    @property
    def has_passed(self) -> bool:
        return self.exit_code == 0

    @property
    def trouble(self) -> str:
        """Why this run says nothing about a fault; empty if it does."""
        if self.unloadable:
            return f"{self.unloadable[0]}\nAny test would notice this"
        if not self.has_passed and not self.failed:
            return f"pytest ended with exit code {self.exit_code}:\n{self.last_lines}"
        return ""


@dataclass(frozen=True)
class Verdict:
    fault: Fault
    took_s: float
    found_by: str | None = None
    trouble: str = ""

    def __str__(self) -> str:
        if self.trouble:
            return f"{self.fault.name}: NO VERDICT after {self.took_s:.0f} s, {self.trouble}"
        if self.found_by is None:
            return f"{self.fault.name}: NOT FOUND by any test in {self.took_s:.0f} s. {self.fault.harm}"
        return f"{self.fault.name}: found by {self.found_by} in {self.took_s:.0f} s"


def run_campaign(
    root: Path, faults: Sequence[Fault], say: Callable[[str], object], *, baseline: bool = True
) -> list[str]:
    """Plant each fault in a copy of the checkout, and say which test finds it. Answers the names of the others."""
    for fault in faults:
        fault.plant_in((root / PACKAGE / fault.file).read_text())
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="onetray-planted-") as folder:
        copy = Copy(root, Path(folder))
        if baseline:
            must_pass(copy, faults)
        for fault in faults:
            verdicts.append(judge(copy, fault))
            say(str(verdicts[-1]))
    missed = [verdict.fault.name for verdict in verdicts if verdict.found_by is None]
    say(f"{len(faults) - len(missed)} of {len(faults)} found")
    return missed


class Copy:
    """A copy of a checkout, as its working tree stands. Its tests run its own source."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder / "checkout"
        self._report, self._log = folder / "report.xml", folder / "pytest.log"
        _copy_files(root, self.folder)
        # Compiled modules stay in the copy, and go with it.
        left_out = ("PYTEST_", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
        # Before the editable install, which is a path in site-packages and leads to the original.
        path = os.pathsep.join(filter(None, [str(self.folder / "src"), inherited.get("PYTHONPATH")]))
        self._environment = {**inherited, "PYTHONPATH": path}
        self._must_import_its_own_source()

    def _must_import_its_own_source(self) -> None:
        command = [sys.executable, "-c", "import onetray; print(onetray.__file__)"]
        imported = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, check=True
        ).stdout.strip()
        wanted = self.folder / PACKAGE / "__init__.py"
        if Path(imported).resolve() != wanted.resolve():
            raise CannotPlant(f"the tests of the copy would import {imported}, not {wanted}")

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """The copy with the fault in it, for as long as the block runs."""
        file = self.folder / PACKAGE / fault.file
        before, times = file.read_text(), file.stat()
        file.write_text(fault.plant_in(before))
        try:
            yield
        finally:
            file.write_text(before)
            # Python knows a compiled module by this time: that of the fault must not be taken for the original's.
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    def run_tests(self, *arguments: str) -> SuiteRun:
        self._report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", PROCESSES, f"--junitxml={self._report}", *arguments]
        with self._log.open("w") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            code = _wait_for(process)
        failed, unloadable = _read_report(self._report) if self._report.exists() else ((), ())
        last_lines = "\n".join(self._log.read_text(errors="replace").splitlines()[-LAST_LINES:])
        return SuiteRun(code, failed, unloadable, last_lines)


def must_pass(copy: Copy, faults: Sequence[Fault]) -> None:
    """Run all hinted files without a fault: a test that fails anyway finds nothing."""
    run = copy.run_tests(*dict.fromkeys(file for fault in faults for file in fault.hinted))
    if not run.has_passed:
        failed = "".join(f"\n  {name}" for name in run.failed[:20]) or f"\n{run.last_lines}"
        raise CannotPlant(f"tests fail without a fault:{failed}")


def judge(copy: Copy, fault: Fault) -> Verdict:
    """Plant a fault, and run the hinted files; if these pass, all others."""
    began = time.monotonic()
    with copy.planted(fault):
        run = copy.run_tests("-x", *fault.hinted)
        is_hinted = not run.has_passed
        if run.has_passed:
            run = copy.run_tests("-x", *_all_but(fault.hinted))
    trouble = run.trouble
    if run.failed and not trouble and not is_hinted:
        trouble = _fails_anyway(copy, run.failed[0])
    found_by = run.failed[0] if run.failed and not trouble else None
    return Verdict(fault, time.monotonic() - began, found_by, trouble)


def _all_but(files: Sequence[str]) -> list[str]:
    # The check of the list compares it with the source, and would find every fault.
    return ["tests", *(f"--ignore={file}" for file in (*files, CHECK_OF_THE_LIST))]


def _fails_anyway(copy: Copy, test: str) -> str:
    """Run the file of a test, which the baseline left out, without the fault. Answers what is wrong if it fails."""
    again = copy.run_tests(test.partition("::")[0])
    return "" if again.has_passed else f"{test} fails without the fault, too"


def _copy_files(root: Path, to: Path) -> None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        # Git still lists a file that was deleted, as long as that is not committed.
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)


def _wait_for(process: subprocess.Popen[bytes]) -> int:
    """Wait for a run of pytest, and end what its tests have left running."""
    with process:
        try:
            _wait_without_reaping(process)
        except BaseException:
            # As Ctrl-C does in a terminal: pytest puts away what its tests have started.
            os.killpg(process.pid, signal.SIGINT)
            _wait_without_reaping(process)
            raise
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _wait_without_reaping(process: subprocess.Popen[bytes]) -> None:
    """Wait for its end, and leave its id taken, so that no other process group can have it yet."""
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:  # macOS before Python 3.13.
        process.wait()


def _end_of_error(case: xml.Element) -> str:
    """The last lines of an error: the first ones are where pytest was."""
    found = [text for kind in ("error", "failure") if (part := case.find(kind)) is not None and (text := part.text)]
    return "\n".join("".join(found).strip().splitlines()[-LAST_LINES:])


def _read_report(report: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tests that failed or broke, and the files that could not be imported, as pytest names them."""
    failed: dict[str, None] = {}
    unloadable: dict[str, None] = {}
    for case in xml.parse(report).getroot().iter("testcase"):
        if case.find("failure") is None and case.find("error") is None:
            continue
        module, name = case.get("classname") or "", case.get("name") or ""
        if module:
            failed[f"{module.replace('.', '/')}.py::{name}"] = None
        else:
            unloadable[f"{name.replace('.', '/')} cannot be collected: {_end_of_error(case)}"] = None
    return tuple(failed), tuple(unloadable)
