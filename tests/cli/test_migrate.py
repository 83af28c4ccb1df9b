"""`onetray migrate`: applies what is missing, once, and can only look."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from onetray.cli import main
from onetray.store import open_store
from onetray.store.schema import migrations
from tests.cli.run import called, one_line, onetray
from tests.support import version_12


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind in turn, without any table."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    url: str = request.getfixturevalue("pg_url")
    return url


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["migrate", *arguments])
    return done.exit_code, done.stdout


def test_a_new_database_is_set_up_once(empty_url: str) -> None:
    code, text = run("--database", empty_url)
    assert code == 0
    assert text.endswith(f": set up at version {migrations()[-1]}\n")
    code, text = run("--database", empty_url)
    assert code == 0
    assert "up to date" in text


def test_missing_migrations_are_named(empty_url: str) -> None:
    version_12.make(empty_url)
    numbers = ", ".join(f"{number:04d}" for number in migrations() if number > version_12.VERSION)
    code, text = run("--database", empty_url, "--check")
    assert (code, f"at version 12, missing {numbers}: run" in text) == (1, True)
    assert f"applied {numbers}, now at version {migrations()[-1]}" in run("--database", empty_url)[1]


@pytest.mark.parametrize("command", [["migrate"], ["jobs", "list"], ["serve"]])
def test_a_missing_directory_is_named_with_the_command_that_makes_it(tmp_path: Path, command: list[str]) -> None:
    folder = tmp_path / "my jobs"
    done = called(*command, "--database", f"sqlite:///{folder}/a/jobs.db")
    assert (done.exit_code, one_line(done.stderr)) == (3, True)
    assert f"the directory {folder}/a does not exist: create it with `mkdir -p '{folder}/a'`" in done.stderr
    assert not folder.exists()


def test_json_says_what_was_applied(empty_url: str) -> None:
    numbers = list(migrations())
    code, text = run("--database", empty_url, "--json")
    told = json.loads(text)
    assert (code, told["applied"], told["missing"], told["version"]) == (0, numbers, [], numbers[-1])
    code, text = run("--database", empty_url, "--json")
    assert (code, json.loads(text)["applied"]) == (0, [])


def test_check_tells_and_changes_nothing(empty_url: str) -> None:
    open_store(empty_url, migrate=False).close()
    for _ in range(2):
        code, text = run("--database", empty_url, "--check")
        assert code == 1
        assert "not set up yet: run `onetray migrate" in text
    run("--database", empty_url)
    assert run("--database", empty_url, "--check")[0] == 0


def test_check_does_not_create_a_file(tmp_path: Path) -> None:
    done = onetray("migrate", "--check", cwd=tmp_path)
    assert done.returncode == 3
    assert one_line(done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_the_database_comes_from_the_environment(tmp_path: Path) -> None:
    done = onetray("migrate", cwd=tmp_path, ONETRAY_DATABASE="sqlite:///from-env.db")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "from-env.db").exists()


def test_the_default_database_is_in_the_working_directory(tmp_path: Path) -> None:
    assert onetray("migrate", cwd=tmp_path).returncode == 0
    assert (tmp_path / "onetray.db").exists()


def test_a_schema_from_the_future_is_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    store = open_store(url)
    store.read_sql("PRAGMA user_version = 999")
    store.close()
    done = onetray("migrate", "--database", url)
    assert done.returncode == 3
    assert "install a newer onetray" in done.stderr


@pytest.mark.parametrize("command", ["migrate", "verify"])
def test_a_server_that_does_not_answer_is_told_in_one_line_without_the_password(command: str) -> None:
    done = onetray(command, "--database", "postgresql://ann:secret@127.0.0.1:1/jobs")
    assert done.returncode == 3
    assert one_line(done.stderr), done.stderr
    assert "127.0.0.1:1/jobs" in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize("command", ["migrate", "verify"])
def test_a_file_that_is_no_database_is_told_in_one_line(tmp_path: Path, command: str) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to be read as a header " * 20)
    done = onetray(command, "--database", "sqlite:///notes.txt", cwd=tmp_path)
    assert done.returncode == 3
    assert one_line(done.stderr), done.stderr
    assert "not a database" in done.stderr


def test_the_password_is_not_printed(pg_url: str) -> None:
    url = pg_url.replace("://", "://somebody:secret@").replace("@postgres@", "@").replace("somebody", "postgres")
    assert "secret" in url
    for words in (["--json"], []):
        _, text = run("--database", url, *words)
        assert "secret" not in text
        assert "postgres:***@" in text
