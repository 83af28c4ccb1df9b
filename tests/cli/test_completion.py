"""`onetray completion`: what a shell needs to complete commands."""

import subprocess

import pytest

from tests.cli.run import called, onetray


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(shell: str) -> None:
    done = called("completion", shell)
    assert done.exit_code == 0
    assert "_ONETRAY_COMPLETE" in done.stdout


def test_what_the_script_asks_for_is_answered() -> None:
    done = onetray(_ONETRAY_COMPLETE="bash_complete", COMP_WORDS="onetray jobs can", COMP_CWORD="2")
    assert done.stdout.split() == ["plain,cancel"]


def test_the_bash_script_is_sound() -> None:
    script = called("completion", "bash").stdout
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
