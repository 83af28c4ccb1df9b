"""The suite under load: what burns the cores never outlives the command, and failures are counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.fleet import wait_until
from tests.support.suite import ROOT, _counts, busy_cores
from tests.support.workers import is_alive

BUSY = """
import signal
from tests.support.suite import busy_cores
with busy_cores(1) as burning:
    print(burning[0].pid, flush=True)
    signal.pause()
"""


def test_what_burns_a_core_ends_with_its_block() -> None:
    with busy_cores(1) as burning:
        assert is_alive(burning[0].pid)
    assert not is_alive(burning[0].pid)


def test_what_burns_a_core_ends_when_the_command_is_killed() -> None:
    command = subprocess.Popen([sys.executable, "-c", BUSY], cwd=ROOT, stdout=subprocess.PIPE)
    with command:
        assert command.stdout is not None
        pid = int(command.stdout.readline())
        command.kill()
    wait_until(lambda: not is_alive(pid))


def test_failures_and_errors_are_counted_by_name_and_skipped_tests_do_not_pass(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    cases = [("good", ""), ("bad", "failure"), ("bad", "error"), ("broken", "error"), ("not-run", "skipped")]
    lines = (f'<testcase classname="a" name="{name}">{f"<{how}/>" if how else ""}</testcase>' for name, how in cases)
    report.write_text(f"<testsuites><testsuite>{''.join(lines)}</testsuite></testsuites>")
    assert _counts(report) == (1, ("a::bad", "a::broken"))
