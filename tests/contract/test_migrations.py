"""A database that older migrations have made works as one that is made today, and migrations never change."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from onetray.domain.errors import MigrationNeeded
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.lifecycle import FLOW, HELD, STAGE, TASK
from onetray.engine import Engine
from onetray.store import open_store
from onetray.store.schema import MIGRATION_LOCK, migration, migrations
from onetray.store.sql_template import POSTGRES, SQLITE, sections_of
from tests.support.engines import must_verify

OLD = Path(__file__).parents[1] / "support" / "old_schema"
RELEASED = {
    (6, SQLITE): "865bd2e90218b00ff81b6d09462850840737fe1cc6b547179c9c0d5baacce9fb",
    (6, POSTGRES): "e54bb2ab0317dc904edca241cc62a16af6ed9d915b903c08a287e8a6ad1f2f0b",
    (7, SQLITE): "95b9a811e78536b9273616e2b09efbb497f0cc64488053d38bd02f0d7f504085",
    (7, POSTGRES): "c7658d79a9a9a580435473b42f5eeabf041aed1055a9fc5cfd8d1ad1f45d0259",
    (8, SQLITE): "c98e9750c5a4a98d1c866e77253f73cc7324212d79b90e5175044120dcafee30",
    (8, POSTGRES): "c91062acda453f7a279413b615db189fb144a529412112501b64f260cf854f80",
    (9, SQLITE): "e0e5907b5b91021d6d134e08a8032c616cd359e24d8e3703e82673d4f51c36fb",
    (9, POSTGRES): "33f6440dad9f47ed8ee27210de98b09a70db2e4dc818d06b14af6b7091f3f8b3",
    (10, SQLITE): "7df9f33dbffc9a0a1c08a12f7582f28451b1c10aaae654549a533e9eac8737d6",
    (10, POSTGRES): "a239b0d6675242ce7e3a3fcb6f6bf466312008feb0ce6500189394f2b0042a67",
    (11, SQLITE): "c3b9ab7375a1e9e1a42bffb685dbbfec1fc836faa7d5806cb463d9acf5f964c7",
    (11, POSTGRES): "76532d6af9aa279312e51af4d24beba0daa50c9cdde689b8f10d0cdc11521e4e",
    (12, SQLITE): "0d17f1d3a0d9c26ab34eef630ffe17ce897641b9895b6f48c8a18b69c76c2b9b",
    (12, POSTGRES): "080c33dc7404923ae9cba6887b1a7be77626b12136e0c3a9b3a571a62db1be1c",
    (13, SQLITE): "7d0661af8b4bef66a3a812e270203f720cf4bbf3d9761ee98522bf0467721965",
    (13, POSTGRES): "070c8e1a71f7572d7f786d07fc7ab047dbc9c3d7975be3c212abbcb7e8ff100e",
    (14, SQLITE): "fc76e95ba2396aa4af2fa0c348ea29a6042371270b945678eddcce6071f29dd2",
    (14, POSTGRES): "c8984fd7f62f9b045d501b86214dc8b765f7af79b4b1f1fd6c56b9f77bbc8334",
    (15, SQLITE): "83b4ad29156462a602438cc61725efde5e63fc9f657593be90bfb91c4f33e902",
    (15, POSTGRES): "633e2f4dd9983bce03b0fb98f447ccd5ca24638a51c5d2f3b9a33aa0b64440a8",
    (16, SQLITE): "6403d7d5d9b28e9216192248aa84426d6ed49b2f7f3f2637b511118e41d264bd",
    (16, POSTGRES): "24236edf60e0ea4b14294cf286dacac8df4b5160e14fb65a1277a752ed2c96d4",
    (17, SQLITE): "ef0cbb09bebc3f48442c99077b7108522acd0e11e9a6be63727c2de126e1f5a6",
    (17, POSTGRES): "96459df862b8004962e318573cb10073b899bd20517c51dc4c2e01a109f99f9c",
    (18, SQLITE): "9a9bc43b24cfdd696493f134bc13cab1bace2d97d09499ecb05c3f6741a66f3f",
    (18, POSTGRES): "5aeb6eae735a903c2399d9e1e3259b56025836e249a2e0fcaaf352347e735fc9",
    (19, SQLITE): "476963d6099ecb3f71864637c5614efa2cf88b25240580a2911f00791c488ab1",
    (19, POSTGRES): "5dd6b79757f31c71c22b06a6406361fe0b49cf0d44fa6370983a85429afc5d1f",
    (20, SQLITE): "62c9a51f81f30b333c58723529e24373cf682ce670f6160bb90da3dad7d6c9ec",
    (20, POSTGRES): "b29a10690dd3fd6e8f302fe4400b20148821870b8e3574dd4a9dca9c5c35ea41",
    (21, SQLITE): "acc451b2d927c01b2bfa840df70b09577774969a5b33f616662cd04413fa0e77",
    (21, POSTGRES): "1ce24eaf32b92c77e7c4aaac58018948b9935e21a928495fbda416f6ccdfc60e",
}
"""What each migration sends. A line comes with a migration, and never changes: databases out there were made by it."""


@pytest.fixture(params=[SQLITE, POSTGRES])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that has no tables yet."""
    if request.param == SQLITE:
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    url: str = request.getfixturevalue("pg_url")
    return url


def make_old(url: str, version: int = 6) -> None:
    """Give an empty database the schema that six migrations once made, and say that it is at a version."""
    if url.startswith("sqlite"):
        with_file = apsw.Connection(url.removeprefix("sqlite:///"))
        with_file.execute((OLD / "sqlite.sql").read_text())
        with_file.execute(f"PRAGMA user_version = {version}")
        with_file.close()
        return
    with psycopg.connect(url) as connection:
        connection.execute("CREATE SCHEMA onetray")
        connection.execute(
            "CREATE TABLE onetray.migration (number integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        connection.execute((OLD / "postgres.sql").read_text().encode())
        connection.execute("INSERT INTO onetray.migration SELECT generate_series(1, %s)", (version,))


def test_a_database_that_older_migrations_have_made_works_unchanged(empty_url: str) -> None:
    make_old(empty_url)
    store = open_store(empty_url, migrate=False)
    assert store.version() == 6
    assert store.migrate() == list(migrations())[1:]
    with Engine(store) as engine:
        single = engine.submit("mail", 1).id or ""
        flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("mail", 2)])])
        for task in engine.claim(worker="w", limit=10):
            engine.succeed(task, task.payload)
        assert engine.task(single).result == 1
        assert engine.flow(flow.id).state == "succeeded"
        assert [e.version for e in engine.events(single)] == [1, 2, 3, 4]
        must_verify(engine)


@pytest.mark.parametrize("version", [1, 5])
def test_a_schema_from_before_the_first_release_is_refused(empty_url: str, version: int) -> None:
    make_old(empty_url, version)
    store = open_store(empty_url, migrate=False)
    for refused in (store.migrate, store.check_version):
        with pytest.raises(MigrationNeeded, match=f"at version {version}, .* use a new database"):
            refused()
    store.close()


def test_an_empty_database_asks_to_be_migrated(empty_url: str) -> None:
    store = open_store(empty_url, migrate=False)
    with pytest.raises(MigrationNeeded, match="run `onetray migrate --database "):
        store.check_version()
    store.close()


def test_todays_schema_on_sqlite_is_the_one_that_older_migrations_made(tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    make_old(f"sqlite:///{old}")
    for path in (old, new):
        store = open_store(f"sqlite:///{path}")
        store.migrate()
        store.close()
    assert sqlite_catalogue(new) == sqlite_catalogue(old)


def test_todays_schema_on_postgres_is_the_one_that_older_migrations_made(pg_url: str, migrated_url: str) -> None:
    make_old(pg_url)
    store = open_store(pg_url)
    store.migrate()
    store.close()
    assert postgres_catalogue(migrated_url) == postgres_catalogue(pg_url)


def sqlite_catalogue(path: Path) -> dict[str, Any]:
    """Tables with their columns and constraints, indexes, triggers and views; rows that a migration has inserted."""
    connection = apsw.Connection(str(path))
    found: dict[str, Any] = {}
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name"):
        if kind != "table":
            found[f"{kind} {name}"] = None if sql is None else plain(str(sql))
            continue
        body, _, ending = plain(str(sql)).rpartition(")")
        # A column that was added stands after the constraints.
        found[f"table {name}"] = sorted(items(body.partition("(")[2])), ending.strip()
        found[f"columns of {name}"] = list(connection.execute(f"PRAGMA table_xinfo({name})"))
        found[f"indexes of {name}"] = sorted(
            (row[1:], list(connection.execute(f"PRAGMA index_xinfo({row[1]})")))
            for row in connection.execute(f"PRAGMA index_list({name})")
        )
    found["counter"] = list(connection.execute("SELECT * FROM counter ORDER BY name"))
    connection.close()
    return found


def plain(sql: str) -> str:
    """The text without comments and line breaks."""
    text = re.sub(r"\s+", " ", re.sub(r"--[^\n]*", " ", sql))
    return re.sub(r"\s*([(),])\s*", r"\1", text).strip()


def items(body: str) -> Iterable[str]:
    """The parts of a list that are separated by commas outside of parentheses."""
    depth, part = 0, ""
    for char in body:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            yield part
            part = ""
        else:
            part += char
    yield part


POSTGRES_CATALOGUE = {
    "tables": "SELECT c.relname, c.relkind::text, c.reloptions, c.relpersistence::text FROM pg_class AS c "
    "WHERE c.relnamespace = 'onetray'::regnamespace",
    "columns": "SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, "
    "a.attidentity::text, pg_get_expr(d.adbin, d.adrelid) "
    "FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid "
    "LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum "
    "WHERE c.relnamespace = 'onetray'::regnamespace AND a.attnum > 0",
    "constraints": "SELECT conrelid::regclass::text, conname, contype::text, pg_get_constraintdef(oid) "
    "FROM pg_constraint WHERE connamespace = 'onetray'::regnamespace",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'onetray'",
    "sequences": "SELECT sequencename, data_type::text, start_value, increment_by, cache_size, cycle FROM pg_sequences "
    "WHERE schemaname = 'onetray'",
    "triggers": "SELECT tgname, pg_get_triggerdef(t.oid) FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid "
    "WHERE c.relnamespace = 'onetray'::regnamespace AND NOT tgisinternal",
    "functions": "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'onetray'::regnamespace",
}


def postgres_catalogue(url: str) -> dict[str, list[Any]]:
    with psycopg.connect(url) as connection:
        return {
            name: sorted(connection.execute(sql.encode()).fetchall(), key=repr)
            for name, sql in POSTGRES_CATALOGUE.items()
        }


def test_a_released_migration_never_changes() -> None:
    sent = {(number, dialect): migration(dialect, number) for number in migrations() for dialect in (SQLITE, POSTGRES)}
    assert {which: hashlib.sha256(text.encode()).hexdigest() for which, text in sent.items()} == RELEASED


def test_no_word_of_a_migration_is_left_unfilled() -> None:
    for number in migrations():
        for dialect in (SQLITE, POSTGRES):
            assert re.findall(r"\{.*?\}", migration(dialect, number)) == []


def states_of_constraints(text: str) -> dict[str, set[str]]:
    """The states that each constraint of a migration names."""
    constraints = re.findall(r"CONSTRAINT (\w+) CHECK \(\n(.+?)\n *\)", text, re.DOTALL)
    return {name: set(re.findall(r"'(\w+)'", body)) for name, body in constraints}


def test_the_states_of_the_schema_are_those_of_the_lifecycle() -> None:
    """A lifecycle that knows other states needs a migration that says so; then this test reads that one too."""
    text = migration(POSTGRES, 6)
    lists = states_of_constraints(text)
    for machine in (TASK, STAGE, FLOW):
        for states in (lists, states_of_constraints(migration(SQLITE, 15))):
            assert states[f"{machine.entity}_state_known"] == set(machine.states)
            assert states[f"{machine.entity}_finished_is_terminal"] == set(machine.terminal)
    assert lists["task_held_has_owner"] == set(HELD)
    (first,) = re.findall(r"task_queued_has_attempt CHECK \(state <> '(\w+)'", text)
    assert first == TASK.submit.target


def test_the_columns_that_a_submit_writes_are_columns_of_the_table() -> None:
    text = "".join(migration(POSTGRES, number) for number in migrations())
    for word, table in (("task_columns", "task"), ("member_columns", "task"), ("batch_row", "event_batch")):
        (body,) = re.findall(rf"CREATE TABLE onetray\.{table} \((.+?)\n\)", text, re.DOTALL)
        there = set(re.findall(r"^    (\w+) ", body, re.MULTILINE)) | set(
            re.findall(rf"ALTER TABLE onetray\.{table} ADD COLUMN (\w+)", text)
        )
        assert set(re.split(r",\s*", sections_of("word")[word].text)) <= there


@pytest.fixture
def is_locked(database_url: str) -> Iterator[None]:
    """Another process writes to the SQLite file, or migrates the PostgreSQL database."""
    if database_url.startswith("sqlite"):
        writer = apsw.Connection(database_url.removeprefix("sqlite:///"))
        writer.execute("BEGIN IMMEDIATE")
        yield
        writer.close()
        return
    with psycopg.connect(database_url) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        yield


@pytest.mark.usefixtures("is_locked")
def test_who_finds_a_database_up_to_date_waits_for_nobody(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onetray.store.sqlite_connection.BUSY_S", 0.0)
    store = open_store(database_url)
    with ThreadPoolExecutor() as pool:
        assert pool.submit(store.migrate).result(20) == []
    store.close()
