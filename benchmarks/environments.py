"""The peers' own environments, in .cache, made when they are first needed. Never the project's.

Owns how they are installed, from locked versions, and how a program is run in them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
SIDES = ROOT / "benchmarks/sides"
PIP, PIP_LOCK = ROOT / ".cache/bench", ROOT / "requirements/bench.txt"
NPM, NPM_LOCK = ROOT / ".cache/bench-npm", ROOT / "requirements/npm/package-lock.json"


class NotInstalled(click.ClickException):
    """A peer cannot be measured here. The message says what is missing."""


def ours(program: str) -> list[str]:
    """The command that runs a program of sides/ with the project's Python."""
    return [sys.executable, "-m", f"benchmarks.sides.{program}"]


def python(program: str) -> list[str]:
    """The same with the Python that has the peers installed."""
    _once(PIP, PIP_LOCK, _install_from_pip)
    return [str(PIP / "bin/python"), "-m", f"benchmarks.sides.{program}"]


def node(program: str) -> list[str]:
    """The same with Node."""
    if not shutil.which("npm") or not shutil.which("node"):
        raise NotInstalled("it needs Node and npm. Install them (e.g. 'apt install nodejs npm'), then try again")
    _once(NPM, NPM_LOCK, _install_from_npm)
    # Node looks for packages beside the program.
    for source in SIDES.glob("*.mjs"):
        shutil.copy(source, NPM)
    return ["node", str(NPM / f"{program}.mjs")]


def _once(environment: Path, locked: Path, install: Callable[[], None]) -> None:
    stamp, wanted = environment / "stamp", sha256(locked.read_bytes()).hexdigest()
    if not stamp.is_file() or stamp.read_text() != wanted:
        click.echo(f"installing peers in {environment.relative_to(ROOT)}", err=True)
        install()
        # Last: an environment without it is made anew.
        stamp.write_text(wanted)


def _install_from_pip() -> None:
    uv = shutil.which("uv")
    made = PIP / "bin/python"
    install: list[str | Path] = [uv, "pip", "install", "--python", made] if uv else [made, "-m", "pip", "install"]
    _run([sys.executable, "-m", "venv", "--clear", *(["--without-pip"] if uv else []), PIP])
    # The lock is complete. Without --no-deps pip looks for a dependency with an extra again, and refuses what it finds.
    _run([*install, "--quiet", "--no-deps", "--require-hashes", "-r", PIP_LOCK])


def _install_from_npm() -> None:
    shutil.rmtree(NPM, ignore_errors=True)
    NPM.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(NPM_LOCK.with_name(name), NPM)
    # Not `ci`: it refuses a lock that was written where the packages of other platforms could not be had.
    _run(["npm", "install", "--no-save", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"], NPM)


def _run(command: Sequence[str | Path], directory: Path = ROOT) -> None:
    try:
        subprocess.run(command, cwd=directory, check=True)
    except subprocess.CalledProcessError as e:
        raise NotInstalled(
            f"it could not be installed ({e}). Check that a package index can be reached, then try again"
        ) from e
