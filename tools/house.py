"""Look at the shape of the source, and fail when it grows out of hand. Run by `./go check`.

    python tools/house.py            what is wrong; exit code 1 if anything is
    python tools/house.py modules    every module with the first line of its docstring, as Markdown

Owns the limits on names and sizes. Which package may import which is import-linter's to say (pyproject.toml): every
package stands in a layer there, or the check fails.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/onetray"

MOST_TOP_MODULES = 14
MOST_LINES = 450
SMALL_LINES, MOST_SMALL = 60, 20
SAYS_NOTHING = {"told", "said", "heard", "asked", "shown", "given", "made"}
"""As names of functions: they hide who does what."""
SAME_NAME = {
    "Progress": "the command by which a task says how far it is, and how far a flow is: each is public under this name",
    "main": "where a process starts",
}
"""Names that two modules may define, and why."""


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def short(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def faults() -> Iterator[str]:
    """What is wrong with the source as a whole."""
    top = [path for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")]
    if len(top) > MOST_TOP_MODULES:
        yield f"{len(top)} modules at the top of the package, at most {MOST_TOP_MODULES}: put them into a package"
    lines = {path: len(path.read_text().splitlines()) for path in modules()}
    for path, count in lines.items():
        if count > MOST_LINES:
            yield f"{short(path)}: {count} lines, at most {MOST_LINES}: split it"
    small = [short(path) for path, count in lines.items() if count < SMALL_LINES and not may_be_small(path)]
    if len(small) > MOST_SMALL:
        yield f"{len(small)} files under {SMALL_LINES} lines, at most {MOST_SMALL}: merge some of {', '.join(small)}"
    yield from naming_faults()


def may_be_small(path: Path) -> bool:
    """Whether a file's size says nothing: each page of the dashboard is a file, which is found by its name."""
    return path.stem == "__init__" or path.parent.name == "views"


def naming_faults() -> Iterator[str]:
    """Functions whose name says nothing, and one name for two things."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        tree = ast.parse(path.read_text())
        if not ast.get_docstring(tree):
            yield f"{short(path)}: no docstring: its first line says what it owns"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.strip("_") in SAYS_NOTHING:
                yield f"{short(path)}:{node.lineno}: a function called {node.name}: say what it does"
        for definition in tree.body:
            if isinstance(definition, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and is_public(definition):
                places[definition.name].append(short(path))
    for name, where in places.items():
        if len(where) > 1 and name not in SAME_NAME:
            yield f"{name} is defined in {', '.join(where)}: two things need two names"


def is_public(definition: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether other modules use it by its name. What a decorator registers is used by another name."""
    return not definition.name.startswith("_") and not any(isinstance(d, ast.Call) for d in definition.decorator_list)


def print_modules() -> None:
    """A table for each package: its modules, each with the first line of its docstring."""
    by_package: dict[Path, list[Path]] = defaultdict(list)
    for path in modules():
        by_package[path.parent].append(path)
    for folder, paths in sorted(by_package.items()):
        print(f"### {'onetray/' + str(folder.relative_to(PACKAGE)) if folder != PACKAGE else 'onetray'}\n")
        for path in paths:
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            name = "" if path.stem == "__init__" else f"- `{path.name}`: "
            print(f"{name}{docstring.splitlines()[0] if docstring else ''}" + ("\n" if not name else ""))
        print()


def main(arguments: list[str]) -> int:
    if arguments == ["modules"]:
        print_modules()
        return 0
    found = list(faults())
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
