"""`onetray verify`: the rules, on a database of either kind."""

import json
import re
from pathlib import Path

import apsw
import psycopg
import pytest
from click.testing import CliRunner

from onetray.cli import main
from tests.cli.run import one_line, onetray
from tests.support.engines import engine_on


@pytest.fixture
def used(database_url: str) -> str:
    """A database in which two tasks have lived."""
    with engine_on(database_url) as engine:
        engine.submit("mail")
        engine.submit("mail")
        (job,) = engine.claim(worker="w")
        engine.succeed(job)
    return database_url


def spoil(url: str, sql: str) -> None:
    """Write past the engine, as no program should."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.execute(sql.replace("onetray.", ""))
        connection.close()
    else:
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(sql.encode())


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["verify", *arguments])
    return done.exit_code, done.stdout


def test_a_sound_database_is_clean_and_the_answer_says_what_was_checked(used: str) -> None:
    code, text = run("--database", used)
    assert code == 0
    assert re.fullmatch(r"clean: \d+ checks \(tasks 2, events 5, .*\)\n", text)


def test_a_broken_rule_is_shown_with_its_rows(used: str) -> None:
    spoil(used, "DELETE FROM onetray.event_batch WHERE version = 2")
    code, text = run("--database", used)
    assert code == 1
    first, row, *_, verdict = text.splitlines()
    assert first.startswith("rule 3, contiguous: ")
    assert "task=" in row
    assert verdict.startswith("broken: ")


def test_json_carries_the_findings(used: str) -> None:
    code, text = run("--database", used, "--json")
    assert (code, json.loads(text)["violations"]) == (0, [])
    spoil(used, "DELETE FROM onetray.event_batch WHERE version = 2")
    code, text = run("--database", used, "--json")
    assert code == 1
    for violation in json.loads(text)["violations"]:
        assert {"rule", "name", "message", "rows"} <= set(violation)
        assert violation["rows"]


def test_the_rules_are_listed_without_a_database(tmp_path: Path) -> None:
    done = onetray("verify", "--rules", cwd=tmp_path)
    assert done.returncode == 0
    assert "| 3 | contiguous | " in done.stdout
    told = json.loads(onetray("verify", "--rules", "--json", cwd=tmp_path).stdout)
    assert {str(check["rule"]) for check in told["checks"]} == set(told["rules"])
    assert list(tmp_path.iterdir()) == []


def test_an_empty_server_has_to_be_migrated_first(pg_url: str) -> None:
    done = onetray("verify", "--database", pg_url)
    assert done.returncode == 3
    assert one_line(done.stderr)
    assert "onetray migrate" in done.stderr


def test_a_file_that_does_not_exist_is_not_created(tmp_path: Path) -> None:
    done = onetray("verify", cwd=tmp_path)
    assert done.returncode == 3
    assert one_line(done.stderr)
    assert str(tmp_path / "onetray.db") in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_somebody_elses_file_is_not_migrated(tmp_path: Path) -> None:
    other = apsw.Connection(str(tmp_path / "other.db"))
    other.execute("CREATE TABLE mine (x)")
    other.close()
    done = onetray("verify", "--database", "sqlite:///other.db", cwd=tmp_path)
    assert done.returncode == 3
    assert "onetray migrate" in done.stderr
    other = apsw.Connection(str(tmp_path / "other.db"))
    assert other.execute("SELECT name FROM sqlite_schema").fetchall() == [("mine",)]
    other.close()
