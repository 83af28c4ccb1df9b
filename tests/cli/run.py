"""Run `onetray` as a user does: in its own process, through the installed script; or more quickly, in this one."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from click import Context, Group
from click.testing import CliRunner, Result

from onetray.cli import main
from tests.support.prepared import PreparedProcess
from tests.support.relayed import relayed_command

ONETRAY = str(Path(sys.executable).with_name("onetray"))
SCRIPT = ("tests.cli.script", ONETRAY)
"""The installed script, for a prepared process."""


def onetray(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("ONETRAY_DATABASE", "NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    command = (*SCRIPT, *arguments)
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        running = PreparedProcess(*command, cwd=cwd, env=env | environment, stdout=out, stderr=err)
        try:
            code = running.wait(120)
        finally:
            running.kill()
        return subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())


def script(*arguments: str) -> list[str]:
    """The command line of the installed script, for a test that needs its streams: it starts without imports."""
    return relayed_command(*SCRIPT, *arguments)


def one_line(text: str) -> bool:
    return text.count("\n") == 1 and text.startswith("onetray: ")


def called(*arguments: str, stdin: str | None = None, **environment: str) -> Result:
    """Run a command in this process: quicker, and the same but for the script."""
    env: dict[str, str | None] = {"ONETRAY_DATABASE": None, "ONETRAY_NAMESPACE": None, "ONETRAY_CONFIG": None}
    return CliRunner().invoke(main, list(arguments), input=stdin, env={**env, **environment}, catch_exceptions=False)


def told(*arguments: str, **environment: str) -> Any:
    """The JSON that a command prints; it must succeed."""
    done = called(*arguments, "--json", **environment)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def every_command() -> list[list[str]]:
    """The words of every command, those of groups included."""
    found = []
    for name in main.list_commands(Context(main)):
        command = main.get_command(Context(main), name)
        found.append([name])
        if isinstance(command, Group):
            found += [[name, inner] for inner in command.commands]
    return found
