"""The peers' own Python environment, in .cache, made when it is first needed. Never the project's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
LOCKED = ROOT / "requirements/bench.txt"
ENVIRONMENT = ROOT / ".cache/bench"
PYTHON = ENVIRONMENT / "bin/python"


def python() -> str:
    """The Python that has the peers installed, in the locked versions."""
    stamp, wanted = ENVIRONMENT / "stamp", sha256(LOCKED.read_bytes()).hexdigest()
    if not stamp.is_file() or stamp.read_text() != wanted:
        click.echo("installing the peers in .cache/bench", err=True)
        _install()
        # Last: an environment without it is made anew.
        stamp.write_text(wanted)
    return str(PYTHON)


def _install() -> None:
    uv = shutil.which("uv")
    make = [sys.executable, "-m", "venv", "--clear", *(["--without-pip"] if uv else []), ENVIRONMENT]
    install = [uv, "pip", "install", "--python", PYTHON] if uv else [PYTHON, "-m", "pip", "install"]
    for command in (make, [*install, "--quiet", "--require-hashes", "-r", LOCKED]):
        try:
            subprocess.run(command, check=True)
        except subprocess.CalledProcessError as e:
            raise click.ClickException(
                f"the peers could not be installed ({e}). Check that a package index can be reached, then try again"
            ) from e
