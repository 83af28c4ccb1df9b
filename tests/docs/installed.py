"""Builds the package and installs it into a new virtual environment, without the network.

Owns where the dependencies come from: the environment that runs the tests has them already.
"""

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Installed:
    """A virtual environment, and the variables with which its pip finds the wheel."""

    root: Path
    pip_env: dict[str, str]

    @property
    def commands(self) -> Path:
        return self.root / "bin"

    @property
    def python(self) -> Path:
        return self.commands / "python"


def build(target: str, source: Path, out: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (made,) = out.glob("*.tar.gz" if target == "sdist" else "*.whl")
    return made


def install(wheel: Path, root: Path) -> Installed:
    subprocess.run([sys.executable, "-m", "venv", str(root)], check=True, capture_output=True, timeout=120)
    # Only the folder, not what its own .pth files add: the editable install of the checkout is one of these.
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(root)}))
    (packages / "dependencies.pth").write_text("\n".join(sorted(dependencies)) + "\n")
    pip_env = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheel.parent),
        "PIP_NO_DEPS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_CONFIG_FILE": os.devnull,
    }
    place = Installed(root, pip_env)
    # The checkout's own metadata is among the dependencies: without --ignore-installed pip would have nothing to do.
    command = [place.commands / "pip", "install", "--ignore-installed", "onetray"]
    subprocess.run(command, env=os.environ | pip_env, check=True, capture_output=True, timeout=120)
    return place
