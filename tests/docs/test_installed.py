"""The package as its users get it: a wheel, installed outside of the checkout. README and tutorial are followed there.

A page is one test, because a block builds on those before it. They take seconds: they start what a reader starts.
"""

import ast
import importlib.metadata
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.installed import Installed, build, install
from tests.docs.reader import BLOCK, FILE, reading
from tests.support.fleet import wait_until

ROOT = Path(__file__).resolve().parents[2]
PORT = "8321"
OPTIONAL = {"IPython", "opentelemetry", "pytest"}
"""Used only where a program has them: onetray works without."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the source distribution, as `python -m build` and `uv build` do it."""
    folder = tmp_path_factory.mktemp("dist")
    with tarfile.open(build("sdist", ROOT, folder / "sdist")) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    return build("wheel", source, folder / "wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """A new virtual environment that has the wheel, and the project's dependencies."""
    place = install(wheel, tmp_path_factory.mktemp("installed"))
    yield place
    if sys.pycache_prefix:
        shutil.rmtree(Path(sys.pycache_prefix) / place.root.relative_to("/"), ignore_errors=True)


def test_the_wheel_has_every_file(wheel: Path) -> None:
    """A link in the root to a folder of the package took that folder out of the source distribution."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("onetray/")}
    files = (path for path in (ROOT / "src/onetray").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert packed == {str(path.relative_to(ROOT / "src")) for path in files}


def test_everything_that_is_imported_is_declared(wheel: Path) -> None:
    """The pages are followed with all packages of the project at hand: one that is not declared would not be missed."""
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [archive.read(name).decode() for name in archive.namelist() if name.endswith("METADATA")]
        imported = {
            name
            for path in archive.namelist()
            if path.endswith(".py")
            for name in imports_of(archive.read(path).decode())
        }
    declared = with_dependencies(re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE))
    packages = importlib.metadata.packages_distributions()
    foreign = imported - sys.stdlib_module_names - {"onetray", *OPTIONAL}
    assert len(foreign) > 10
    assert [name for name in foreign if not declared & {canonicalize_name(dist) for dist in packages[name]}] == []


def test_what_is_imported_is_the_wheel(installed: Installed, tmp_path: Path) -> None:
    program = "import onetray; print(onetray.__file__)"
    done = subprocess.run([installed.python, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout).is_relative_to(installed.root)


def test_the_tutorial_works_as_it_is_written(installed: Installed, tmp_path: Path, pg_url: str) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    assert {language for language, _ in BLOCK.findall(page)} == {"python", "sh", "text"}
    with reading(tmp_path, installed, pg_url) as reader:
        reader.follow(page)


def test_the_readmes_task_runs_as_it_says(installed: Installed, tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text()
    assert [language for language, _ in BLOCK.findall(section(page, "Install"))] == ["sh"]
    assert [language for language, _ in BLOCK.findall(section(page, "Use it"))] == ["python", "sh", "sh", "text", "sh"]
    with reading(tmp_path, installed) as reader:
        reader.follow(section(page, "Install"))
        reader.follow(section(page, "Use it"))


def test_the_readmes_requests_are_answered_as_it_says(installed: Installed, tmp_path: Path) -> None:
    """Also where other jobs are in the database: its commands follow the job that they submit."""
    assert shutil.which("curl"), "the README uses curl"
    page = (ROOT / "README.md").read_text()
    shop = next(block for _, block in BLOCK.findall(page) if FILE.match(block))
    port = _free_port()
    with reading(tmp_path, installed) as reader:
        reader.do("python", shop)
        reader.do("python", "import shop\nfor name in ('eve', 'dan'): shop.send.submit(to=name)\n")
        for language, block in BLOCK.findall(section(page, "Over HTTP")):
            reader.do(language, block.replace("up --app", f"up --port {port} --app").replace(f":{PORT}/", f":{port}/"))
            if "onetray up" in block:
                wait_until(lambda: _is_listening(port), 30)


def imports_of(source: str) -> set[str]:
    """The packages that a module imports, at its top or later."""
    nodes = list(ast.walk(ast.parse(source)))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    absolute = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0}
    return {name.split(".")[0] for name in plain | absolute}


def with_dependencies(lines: list[str]) -> set[str]:
    """The names of these requirements, with all extras, and of what they require."""
    found: set[str] = set()
    waiting = [Requirement(line) for line in lines]
    while waiting:
        needed = waiting.pop()
        if (name := canonicalize_name(needed.name)) in found or name == "onetray":
            continue
        found.add(name)
        extras = needed.extras or {""}
        for line in importlib.metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(requirement)
    return found


def section(page: str, title: str) -> str:
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
