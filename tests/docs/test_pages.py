"""The documentation is true: its programs run, its links lead somewhere, nothing is left out."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from onetray.cli import COMMANDS
from tests.cli.run import every_command
from tests.support.cases import each_case

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")

# CONTRIBUTING shows a fragment of a test; README and tutorial are followed by test_tutorial.py.
PROGRAMS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    if page.name not in ("CONTRIBUTING.md", "README.md", "tutorial.md")
    for number, block in enumerate(PYTHON.findall(page.read_text()), 1)
]


def read(name: str) -> str:
    return (ROOT / name).read_text()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_in_the_documentation_runs(program: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@each_case("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@each_case(
    "page, places",
    [("docs/changing.md", [ROOT, ROOT / "src/onetray"]), ("docs/architecture.md", [ROOT / "src/onetray"])],
    ids=["changing", "architecture"],
)
def test_files_that_a_page_names_exist(page: str, places: list[Path]) -> None:
    named = re.findall(r"`([\w./]+\.(?:py|sql|md))(?::[^`]*)?`", read(page))
    assert len(named) > 10
    missing = [name for name in named if not any((place / name).exists() for place in places)]
    assert missing == []


def test_every_command_is_documented() -> None:
    page = read("docs/cli.md")
    for name in COMMANDS:
        assert f"## onetray {name}\n" in page
    for words in every_command():
        assert f"<!-- generated: {' '.join(words)} --help -->" in page


def test_every_table_is_explained() -> None:
    page = read("docs/internals.md")
    for path in (ROOT / "src/onetray/store/migrations").rglob("*.sql"):
        for table in re.findall(r"^CREATE TABLE (?:onetray\.)?(\w+)", path.read_text(), re.MULTILINE):
            assert f"\n| `{table}` |" in page, table


def test_every_dependency_is_explained() -> None:
    page = read("docs/dependencies.md")
    project = tomllib.loads(read("pyproject.toml"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["postgres"]]
    for name in ("dev.in", "uv.in"):
        lines += read(f"requirements/{name}").splitlines()
    for line in lines:
        package = re.match(r"[\w-]+", line)
        if package:
            assert f"\n| `{package[0]}` |" in page, package[0]


def test_the_tours_layout_is_the_packages() -> None:
    layout = read("docs/architecture.md").split("## The layout")[1].split("```")[1].replace("src/onetray/", "")
    package = ROOT / "src/onetray"
    named = set(re.findall(r"[\w/]+\.py\b|\b\w+/(?=\s)", layout))
    for name in named:
        assert any(package.rglob(name)), f"{name} is in the tour and not in the package"
    for path in package.iterdir():
        name = f"{path.name}/" if path.is_dir() else path.name
        if name not in ("__init__.py", "__pycache__/", "py.typed"):
            assert name in named, f"{name} is in the package and not in the tour's layout"
