"""Keep the generated blocks in README.md and docs/ equal to what the program prints.

    <!-- generated: lifecycle task --mermaid -->
    (replaced with the output of `onetray lifecycle task --mermaid`)
    <!-- /generated -->

A .sql file under docs/ is generated as a whole: its first line says by what.

    -- generated: tools/rendered_sql.py postgres

Run with --check to change nothing and fail when a block is out of date. Owns only what is between markers.

The demo is a true run: its numbers and the order of its lines are its own each time. Its block is out of date when
another line is in it, or one is missing.
"""

import contextlib
import importlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(
    r"^<!-- generated: (?P<command>.+?) -->\n(?P<body>.*?)^<!-- /generated -->$", re.MULTILINE | re.DOTALL
)
VARYING = ("demo",)
"""Commands whose output is compared by its lines, without numbers and order."""
NUMBER = re.compile(r" *\d+(\.\d+)?")
WHOLE_FILE = re.compile(r"^-- generated: (?P<command>.+)$", re.MULTILINE)
OPENING = re.compile(r"^<!-- generated:", re.MULTILINE)

Run = Callable[[str], str]


class BrokenBlock(Exception):
    """A block cannot be generated. The message names the file and says what to mend."""


def main(arguments: Sequence[str], *, root: Path = ROOT, run: Run | None = None) -> int:
    """Rewrite the blocks, or with --check only name those that are out of date."""
    if arguments not in ([], ["--check"]):
        print("usage: gendocs.py [--check]", file=sys.stderr)
        return 2
    try:
        stale = refresh(root, run or run_onetray, write=not arguments)
    except BrokenBlock as error:
        print(f"gendocs: {error}", file=sys.stderr)
        return 1
    for path, command in stale:
        print(f"{path.relative_to(root)}: block '{command}' {'is out of date' if arguments else 'rewritten'}")
    if arguments and stale:
        print("Run ./go docs and commit the result.")
    return 1 if arguments and stale else 0


def refresh(root: Path, run: Run, *, write: bool) -> list[tuple[Path, str]]:
    """Bring every page up to date, in memory or also on disk; return the blocks that differed."""
    stale = []
    for path in pages(root):
        old = path.read_text(encoding="utf-8")
        new, changed = rewritten(old, run, path.relative_to(root))
        stale += [(path, command) for command in changed]
        if write and changed:
            path.write_text(new, encoding="utf-8")
    return stale + refresh_whole_files(root, run, write=write)


def refresh_whole_files(root: Path, run: Run, *, write: bool) -> list[tuple[Path, str]]:
    """The same for the files that are generated as a whole."""
    stale = []
    for path in sorted((root / "docs").rglob("*.sql")):
        old = path.read_text(encoding="utf-8")
        found = WHOLE_FILE.match(old)
        if found is None:
            raise BrokenBlock(f"{path.relative_to(root)}: its first line has to say by what it is generated")
        new = f"{found[0]}\n{run(found['command']).strip()}\n"
        if new != old:
            stale.append((path, found["command"]))
            if write:
                path.write_text(new, encoding="utf-8")
    return stale


def pages(root: Path) -> list[Path]:
    """README.md and every page under docs/."""
    readme = root / "README.md"
    return [*([readme] if readme.exists() else []), *sorted((root / "docs").rglob("*.md"))]


def rewritten(text: str, run: Run, name: Path) -> tuple[str, list[str]]:
    """The text with fresh blocks, and the commands whose block was not."""
    changed = []

    def fresh(block: re.Match[str]) -> str:
        command = block["command"]
        body = fenced(command, run(command))
        if same(command, body, block["body"]):
            body = block["body"]
        else:
            changed.append(command)
        return f"<!-- generated: {command} -->\n{body}<!-- /generated -->"

    if len(OPENING.findall(text)) != len(BLOCK.findall(text)):
        raise BrokenBlock(f"{name}: a generated block has no end. Add <!-- /generated --> on a line of its own.")
    return BLOCK.sub(fresh, text), changed


def same(command: str, fresh: str, old: str) -> bool:
    """Whether a block says what the program says."""
    return shape(fresh) == shape(old) if command in VARYING else fresh == old


def shape(body: str) -> list[str]:
    """A block's lines in one order, without their numbers and the blanks before these."""
    return sorted(NUMBER.sub(" 0", line) for line in body.splitlines())


def fenced(command: str, output: str) -> str:
    """The output as Markdown: a table or a page as it is, the rest in a fence."""
    output = "\n".join(line.rstrip() for line in output.strip("\n").splitlines())
    if output.startswith(("|", "#")):
        return f"{output}\n"
    language = "mermaid" if "--mermaid" in shlex.split(command) else "text"
    fence = "````" if "```" in output else "```"
    return f"{fence}{language}\n{output}\n{fence}\n"


PROGRAM = Path(sys.executable).with_name("onetray")
STEADY = {
    "PATH": str(PROGRAM.parent),
    # The code beside this file, also in a second checkout that shares the first one's packages.
    "PYTHONPATH": str(ROOT / "src"),
    "COLUMNS": "100",
    "NO_COLOR": "1",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    # Otherwise each of them would compile once more what this process has in its cache.
    **{name: os.environ[name] for name in ("PYTHONPYCACHEPREFIX",) if name in os.environ},
}
"""The environment of commands: their output is the same on every machine."""


def run_onetray(command: str) -> str:
    """What `onetray COMMAND` prints, or one of our tools."""
    words = shlex.split(command)
    if command not in VARYING:
        return run_here(words)
    done = subprocess.run([PROGRAM, *words], env=STEADY, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BrokenBlock(f"'{command}' failed:\n{done.stderr.strip()}")
    return done.stdout


def run_here(words: Sequence[str]) -> str:
    """What a command prints, run in this process: there are a hundred of them, and a new one imports anew."""
    if STEADY["PYTHONPATH"] not in sys.path:
        sys.path.insert(0, STEADY["PYTHONPATH"])
    out, before, arguments = io.StringIO(), dict(os.environ), sys.argv
    os.environ.clear()
    os.environ.update(STEADY)
    try:
        with contextlib.redirect_stdout(out), contextlib.chdir(ROOT):
            if words[0].startswith("tools/"):
                sys.argv = list(words)
                runpy.run_path(words[0], run_name="__main__")
            else:
                importlib.import_module("onetray.cli").main(list(words), prog_name="onetray")
    except SystemExit as ended:
        if ended.code:
            raise BrokenBlock(f"'{shlex.join(words)}' failed: exit code {ended.code}") from None
    finally:
        sys.argv = arguments
        os.environ.clear()
        os.environ.update(before)
    return out.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
