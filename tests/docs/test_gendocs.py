"""Generated blocks in the documentation: rewritten on demand, and refused when out of date."""

import re
from pathlib import Path

import pytest

from onetray.store.sql_template import POSTGRES, SQLITE
from onetray.store.statements import statements_for
from tools import gendocs

PAGE = """# Title

<!-- generated: lifecycle task --mermaid -->
old
<!-- /generated -->

Between.

<!-- generated: config -->
<!-- /generated -->
"""

FRESH = """# Title

<!-- generated: lifecycle task --mermaid -->
```mermaid
graph of lifecycle task --mermaid
```
<!-- /generated -->

Between.

<!-- generated: config -->
```text
graph of config
```
<!-- /generated -->
"""


def run(command: str) -> str:
    return f"graph of {command}\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "docs" / "adr").mkdir(parents=True)
    (tmp_path / "docs" / "adr" / "one.md").write_text(PAGE)
    return tmp_path


def test_blocks_are_replaced_and_the_rest_is_left_alone(root: Path) -> None:
    assert gendocs.main([], root=root, run=run) == 0
    assert (root / "README.md").read_text() == FRESH
    assert (root / "docs" / "adr" / "one.md").read_text() == FRESH


def test_check_names_the_file_and_the_block_and_writes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gendocs.main(["--check"], root=root, run=run) == 1
    said = capsys.readouterr().out
    assert "README.md: block 'lifecycle task --mermaid' is out of date" in said
    assert "docs/adr/one.md: block 'config' is out of date" in said
    assert (root / "README.md").read_text() == PAGE


def test_check_accepts_what_was_just_written(root: Path) -> None:
    gendocs.main([], root=root, run=run)
    assert gendocs.main(["--check"], root=root, run=run) == 0


def test_a_table_needs_no_fence() -> None:
    assert gendocs.fenced("states", "| a | b |\n|---|---|\n") == "| a | b |\n|---|---|\n"


def test_trailing_blanks_are_dropped() -> None:
    assert gendocs.fenced("config", "\na   \n\nb\n\n") == "```text\na\n\nb\n```\n"


def test_a_fence_inside_the_output_does_not_end_the_block() -> None:
    assert gendocs.fenced("config", "```\na\n```") == "````text\n```\na\n```\n````\n"


def test_a_block_without_an_end_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "README.md").write_text("<!-- generated: config -->\ntext\n")
    assert gendocs.main([], root=root, run=run) == 1
    assert "README.md: a generated block has no end" in capsys.readouterr().err


def test_a_block_may_not_swallow_the_next_ones_opening(root: Path) -> None:
    (root / "README.md").write_text("<!-- generated: a -->\n<!-- generated: b -->\ntext\n<!-- /generated -->\n")
    assert gendocs.main([], root=root, run=run) == 1


def test_a_command_that_fails_fails_the_check(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(command: str) -> str:
        raise gendocs.BrokenBlock(f"'onetray {command}' failed")

    assert gendocs.main(["--check"], root=root, run=refuse) == 1
    assert "'onetray lifecycle task --mermaid' failed" in capsys.readouterr().err


def test_a_true_run_is_compared_without_its_numbers_and_its_order() -> None:
    old = "  0.1 s  two workers start\n 12.9 s  taken over: 12 tasks\nevents   1405\n"
    assert gendocs.same("demo", " 10.5 s  taken over: 9 tasks\n  0.2 s  two workers start\nevents    998\n", old)
    assert not gendocs.same("demo", old + "  1.0 s  something new\n", old)
    assert not gendocs.same("demo", old.replace("taken over", "lost"), old)


def test_other_output_is_compared_to_the_letter() -> None:
    assert not gendocs.same("config", "a 1\n", "a 2\n")


def test_a_block_that_only_varies_keeps_its_run(root: Path) -> None:
    page = "<!-- generated: demo -->\n```text\nevents 7\n```\n<!-- /generated -->\n"
    (root / "README.md").write_text(page)
    (root / "docs" / "adr" / "one.md").unlink()
    assert gendocs.main([], root=root, run=lambda command: "events 8") == 0
    assert (root / "README.md").read_text() == page


def test_a_file_that_is_generated_as_a_whole_is_rewritten(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gendocs.main([], root=root, run=run)
    path = root / "docs" / "all.sql"
    path.write_text("-- generated: tools/all.py x\nold\n")
    assert gendocs.main(["--check"], root=root, run=run) == 1
    assert "docs/all.sql: block 'tools/all.py x' is out of date" in capsys.readouterr().out
    assert gendocs.main([], root=root, run=run) == 0
    assert path.read_text() == "-- generated: tools/all.py x\ngraph of tools/all.py x\n"
    assert gendocs.main(["--check"], root=root, run=run) == 0


def test_a_file_that_does_not_say_how_it_is_generated_is_refused(root: Path) -> None:
    (root / "docs" / "all.sql").write_text("SELECT 1;\n")
    assert gendocs.main([], root=root, run=run) == 1


def test_every_statement_is_shown_as_each_database_gets_it() -> None:
    for dialect in (SQLITE, POSTGRES):
        shown = set(
            re.findall(r"^-- name: (\w+)$", (gendocs.ROOT / f"docs/sql/{dialect}.sql").read_text(), re.MULTILINE)
        )
        assert shown >= set(statements_for(dialect).by_name)
