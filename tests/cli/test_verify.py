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


@pytest.fixture
def damaged(tmp_path: Path) -> str:
    """A SQLite file in which the pages of an index were overwritten."""
    url = f"sqlite:///{tmp_path / 'damaged.db'}"
    with engine_on(url) as engine:
        for n in range(200):
            engine.submit("mail", n, correlation_id=f"order-{n}")
    connection = apsw.Connection(str(tmp_path / "damaged.db"))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ((page,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'task_correlation'")
    ((size,),) = connection.execute("PRAGMA page_size")
    connection.close()
    with open(tmp_path / "damaged.db", "r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\x55" * size)
    return url


def test_a_damaged_file_is_found_by_verify_and_doctor(damaged: str) -> None:
    code, text = run("--database", damaged)
    assert code == 1
    assert text.startswith("rule 17, file_integrity: SQLite finds the file damaged: stop all processes")
    code, text = run("--database", damaged, "--json")
    assert [v["name"] for v in json.loads(text)["violations"]] == ["file_integrity"]
    done = CliRunner().invoke(main, ["doctor", "--database", damaged])
    assert done.exit_code == 1
    assert re.search(r"fail +integrity +SQLite finds the file damaged: .* restore a backup", done.stdout)


def test_a_file_that_takes_too_long_is_not_checked_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'large.db'}"
    with engine_on(url) as engine:
        engine.submit("mail")
    monkeypatch.setattr("onetray.verify.FILE_CHECK_S", -1.0)
    monkeypatch.setattr("onetray.store.sqlite.INTEGRITY_STEPS", 1)
    code, text = run("--database", url)
    assert code == 0
    assert "not checked: the check of the file was stopped after" in text
    monkeypatch.setattr("onetray.cli.doctor.MAX_FILE_BYTES", 10)
    doctor = CliRunner().invoke(main, ["doctor", "--database", url]).stdout
    assert "not checked: the file is large; run `onetray verify`" in doctor


def test_a_sound_file_is_checked(used: str) -> None:
    doctor = CliRunner().invoke(main, ["doctor", "--database", used]).stdout
    assert ("SQLite finds the file intact" in doctor) == used.startswith("sqlite")
    _, text = run("--database", used, "--json")
    assert ("17 file_integrity" in json.loads(text)["rules"]) == used.startswith("sqlite")
