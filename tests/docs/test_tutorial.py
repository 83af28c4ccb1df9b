"""The pages that are followed from their first block to the last: the tutorial, and the README's way to use it.

One test for each, because a block builds on those before it. They take seconds: they start what a reader starts.
"""

from pathlib import Path

from tests.docs.reader import BLOCK, reading

ROOT = Path(__file__).resolve().parents[2]


def test_the_tutorial_works_as_it_is_written(tmp_path: Path, pg_url: str) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    assert {language for language, _ in BLOCK.findall(page)} == {"python", "sh", "text"}
    with reading(tmp_path, pg_url) as reader:
        reader.follow(page)


def test_the_readmes_task_runs_as_it_says(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text().split("\n## Use it\n")[1].split("\n## ")[0]
    assert [language for language, _ in BLOCK.findall(section)] == ["python", "sh", "sh", "text"]
    with reading(tmp_path) as reader:
        reader.follow(section)
