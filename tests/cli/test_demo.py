"""`onetray demo`: what it shows really happened, and the verifier agrees."""

import os
from pathlib import Path

import pytest

from tests.cli.run import onetray
from tests.support.engines import engine_on


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp("demo") / "kept.db"
    done = onetray("demo", "--keep", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout, path


def test_every_way_to_end_is_shown(played: tuple[str, Path]) -> None:
    text, _ = played
    for words in ("succeeded", "cancelled", "dead_lettered", "refused", "the same job", "clean:"):
        assert words in text
    assert "ANOTHER" not in text
    assert "\x1b" not in text


def test_the_kept_database_holds_what_was_shown(played: tuple[str, Path]) -> None:
    text, path = played
    with engine_on(f"sqlite:///{path}") as engine:
        ended = {t.kind: t for t in reversed(engine.tasks())}
        states = [t.state for t in engine.tasks()]
    assert sorted(states) == ["cancelled", "dead_lettered", *["succeeded"] * 9]
    assert ended["sync"].retry_of is not None
    assert ended["import"].attempts == 2
    assert f"{ended['import'].version}  task.succeeded" in text


def test_the_output_is_the_same_every_time(played: tuple[str, Path], tmp_path: Path) -> None:
    text, _ = played
    assert onetray("demo", cwd=tmp_path).stdout == text
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    path.write_text("mine")
    done = onetray("demo", "--keep", str(path))
    assert done.returncode == 2
    assert path.read_text() == "mine"


def test_the_temporary_directory_is_removed(tmp_path: Path) -> None:
    assert onetray("demo", TMPDIR=str(tmp_path)).returncode == 0
    assert os.listdir(tmp_path) == []
