"""The documentation is true: its programs run, its links lead somewhere, nothing is left out."""

import json
import re
import shlex
import tomllib
import xml.etree.ElementTree as ET
from contextlib import suppress
from pathlib import Path

import click
import pytest

from onetray.cli import COMMANDS
from onetray.cli import main as onetray
from onetray.domain.errors import InvalidInput
from onetray.domain.policy import Policy
from tests.cli.run import every_command
from tests.docs.reader import without_log
from tests.support.cases import each_case
from tests.support.prepared import PreparedProcess

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)")
COMMAND_LINE = re.compile(r"^(?:ExecStart=\S*/)?(onetray [^#\n|>&()]+)", re.MULTILINE)
CONTAINER = re.compile(r"^CMD (\[.*\])$", re.MULTILINE)
SHELL = re.compile(r"^```(?:sh|ini|dockerfile)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# CONTRIBUTING shows a fragment of a test; README and tutorial are followed by test_installed.py.
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
    folder, file, errors = tmp_path / "here", tmp_path / "program.py", tmp_path / "errors"
    folder.mkdir()
    file.write_text(program)
    running = PreparedProcess("tests.docs.program", str(file), cwd=folder, stdout=tmp_path / "output", stderr=errors)
    code = running.wait(120)
    assert (code, without_log(errors.read_text())) == (0, "")


@each_case("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in _anchors(path), f"{target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


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


@each_case("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_command_that_a_page_shows_can_be_parsed(page: Path) -> None:
    for block in SHELL.findall(page.read_text()):
        lines = [shlex.split(line) for line in COMMAND_LINE.findall(block.replace("\\\n", " "))]
        lines += [json.loads(line) for line in CONTAINER.findall(block)]
        for line in lines:
            _parse(onetray, line[1:])


def _parse(command: click.Command | None, words: list[str]) -> None:
    """Raises a UsageError for an unknown option, or a value that is not allowed. Runs nothing."""
    while isinstance(command, click.Group) and words:
        name, *words = words
        command = command.get_command(click.Context(command), name)
        assert command is not None, f"there is no command {name}"
    assert command is not None
    with suppress(InvalidInput):  # The app that it names is the reader's.
        command.make_context(command.name, words)


def test_every_option_of_a_task_is_explained() -> None:
    table = read("docs/jobs.md").split("## Options of a task")[1].split("\n## ")[0]
    for name in Policy.__dataclass_fields__:
        assert f"`{name}`" in table, name


def test_the_picture_of_the_demo_shows_lines_of_the_demo() -> None:
    """The page of the command line has what the demo prints, and ./go check compares that with a true run."""
    printed = read("docs/cli.md").split("<!-- generated: demo -->")[1].split("<!-- /generated -->")[0]
    known = {_without_numbers(line) for line in re.findall(r"^ *[\d.]+ s  (.*)$", printed, re.MULTILINE)}
    texts = [
        element.text or "" for element in ET.parse(ROOT / "docs/images/demo.svg").iter() if element.tag.endswith("text")
    ]
    shown = {_without_numbers(texts[n + 1]) for n, text in enumerate(texts) if re.fullmatch(r"[\d.]+ s", text)}
    assert len(shown) > 5
    assert shown <= known


def _without_numbers(line: str) -> str:
    return re.sub(r"\d+", "0", line)


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
