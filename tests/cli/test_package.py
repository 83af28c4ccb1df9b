"""What is installed from a package index is all of the package."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def built(target: str, source: Path, out: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (made,) = out.glob("*.tar.gz" if target == "sdist" else "*.whl")
    return made


def test_a_wheel_from_the_source_distribution_has_every_file(tmp_path: Path) -> None:
    """A link in the root to a folder of the package took that folder out of the source distribution."""
    with tarfile.open(built("sdist", ROOT, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    with zipfile.ZipFile(built("wheel", source, tmp_path / "wheel")) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("onetray/")}
    files = (path for path in (ROOT / "src/onetray").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert packed == {str(path.relative_to(ROOT / "src")) for path in files}
