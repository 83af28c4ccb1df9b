"""The verifier: nothing to say about a sound database, and the right thing about each damaged one."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from onetray.domain.clock import VirtualClock
from onetray.engine import Engine
from onetray.store import open_store
from onetray.store.base import Store
from onetray.store.postgres import PostgresSnapshot
from onetray.store.sql_template import POSTGRES, SQLITE
from onetray.verify import FILE_RULE_NUMBER, RULES, Findings, look, verify
from onetray.verify.checks import passes
from onetray.verify.folded import FOLDED
from tests.contract.damages import DAMAGES, Damage
from tests.support.cases import each_case
from tests.support.cluster import Server
from tests.support.engines import engine_on
from tests.support.flow_samples import fill_flows
from tests.support.single_rows import split_batches
from tests.support.task_samples import fill

TASKS = 24 + 2 + 25
"""Single ones, and members of flows."""
_CHECKS = """
SELECT conrelid::regclass::text, conname FROM pg_constraint
WHERE contype = 'c' AND connamespace = 'onetray'::regnamespace
"""


def _made(url: str) -> str:
    clock = VirtualClock()
    with engine_on(url, clock) as engine:
        fill(engine, clock)
        fill_flows(engine)
        engine.put_schedule("nightly", kind="mail", every_s=86_400)
    split_batches(url)
    return url


@pytest.fixture(scope="module")
def made_in_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "made.db"
    _made(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="module")
def made_in_postgres(postgres: Server) -> Iterator[str]:
    with postgres.database() as url:
        yield _made(url)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A copy of the mixed database on each store, to damage."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("made_in_sqlite"), tmp_path / "copy.db")
        yield f"sqlite:///{tmp_path / 'copy.db'}"
    else:
        server: Server = request.getfixturevalue("postgres")
        with server.database(template=request.getfixturevalue("made_in_postgres")) as copy:
            yield copy


@pytest.fixture
def unchecked(made_in_postgres: str) -> Iterator[psycopg.Connection[Any]]:
    """The mixed database in a transaction that has dropped its constraints and is rolled back."""
    with psycopg.connect(made_in_postgres, prepare_threshold=0) as database:
        _drop_checks(database)
        database.execute("SAVEPOINT sound")
        yield database
        database.rollback()


@pytest.fixture(params=["sqlite", "postgres"])
def spoiled(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Findings]:
    """Damage the mixed database and look at it: a copy of the file, or a transaction that is rolled back."""

    def on_sqlite(sql: str) -> Findings:
        shutil.copy(request.getfixturevalue("made_in_sqlite"), tmp_path / "copy.db")
        spoil(f"sqlite:///{tmp_path / 'copy.db'}", sql)
        return verified(f"sqlite:///{tmp_path / 'copy.db'}")

    def on_postgres(sql: str) -> Findings:
        database: psycopg.Connection[Any] = request.getfixturevalue("unchecked")
        try:
            database.execute(_with_keys(sql).encode(), prepare=False)
            return look(PostgresSnapshot(database), POSTGRES)
        finally:
            # Past psycopg, which would forget what it has prepared: to plan all checks again takes most of the time.
            database.pgconn.exec_(b"ROLLBACK TO SAVEPOINT sound")

    return on_sqlite if request.param == "sqlite" else on_postgres


@contextmanager
def opened(url: str) -> Iterator[Store]:
    store = open_store(url, VirtualClock())
    try:
        yield store
    finally:
        store.close()


def spoil(url: str, sql: str) -> None:
    """Change a database behind the engine's back, past its constraints."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(_with_keys(sql).replace("onetray.", ""))
        connection.close()
        return
    with psycopg.connect(url) as database:
        _drop_checks(database)
        database.execute(_with_keys(sql).encode())


def _drop_checks(database: psycopg.Connection[Any]) -> None:
    for table, name in database.execute(_CHECKS).fetchall():
        database.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}".encode())


def _with_keys(sql: str) -> str:
    """Put in the keys of the tasks, stages and flows that are called by name."""
    flow = r"SELECT min(key) FROM onetray.flow WHERE correlation_id = '\1'"
    sql = re.sub(r"\$(\w+)\.(\d+)", rf"(SELECT key FROM onetray.stage WHERE ord = \2 AND job = ({flow}))", sql)
    sql = re.sub(r"\$(\w+)", rf"({flow})", sql)
    return re.sub(r"@(\w+)", r"(SELECT min(key) FROM onetray.task WHERE correlation_id = '\1')", sql)


def verified(url: str) -> Findings:
    with opened(url) as store:
        return verify(store)


def broken(found: Findings) -> set[str]:
    return {f"{v.rule} {v.name}" for v in found.violations}


def test_a_sound_database_has_no_violations(url: str) -> None:
    found = verified(url)
    assert found.violations == []
    assert found.ok
    assert found.checked["tasks"] == TASKS
    assert found.checked["events"] > 60
    assert (found.checked["flows"], found.checked["stages"]) == (12, 17)
    assert found.as_dict()["violations"] == []


def test_an_empty_database_has_no_violations(engine: Engine) -> None:
    assert verify(engine.store).checked["tasks"] == 0


@each_case("damage", DAMAGES, ids=lambda d: d.what)
def test_damage_breaks_exactly_its_checks(spoiled: Callable[[str], Findings], damage: Damage) -> None:
    found = spoiled(damage.sql)
    assert broken(found) == damage.breaks
    assert all(v.rows and v.total == len(v.rows) for v in found.violations)


def test_every_check_is_broken_by_some_damage() -> None:
    made = {f"{c.rule} {c.name}" for c in (FOLDED, *(c for one in passes(SQLITE) for c in one.checks))}
    tried = {name for damage in DAMAGES for name in damage.breaks}
    assert made - tried == {"11 one_letter", "12 key_known"}, "these two have tests of their own"
    assert tried <= made


def test_every_check_belongs_to_a_rule_and_has_its_own_name() -> None:
    checks = [c for one in passes(SQLITE) for c in one.checks]
    assert {c.rule for c in checks} == set(RULES) - {FILE_RULE_NUMBER}
    assert len({c.name for c in checks}) == len(checks)


def test_the_offending_row_is_shown(url: str) -> None:
    spoil(url, "UPDATE onetray.task SET owner = NULL, lease = NULL WHERE key = @assigned")
    (violation,) = verified(url).violations
    (row,) = violation.rows
    with opened(url) as store:
        key = store.read_sql("SELECT key FROM onetray.task WHERE correlation_id = 'assigned'")[0][0]
    assert (violation.rule, row["task"], row["state"], row["owner"]) == (1, key, "assigned", None)
    assert "held" not in row


def test_a_version_that_was_written_twice_is_found(url: str) -> None:
    columns = "size, entity, job, ts, ns, version, fence, attempts, type, was, state, actor"
    spoil(
        url,
        f"INSERT INTO onetray.event_batch (id, {columns}) SELECT id + 1000000, {columns} FROM onetray.event_batch "
        "WHERE entity = @done AND version = 2",
    )
    assert {"3 version_of_row", "3 one_version", "13 event_listed"} <= broken(verified(url))


def test_a_second_letter_of_a_task_is_found(postgres: Server, made_in_postgres: str) -> None:
    """On SQLite the letter's key is the row's own number: there cannot be two."""
    with postgres.database(template=made_in_postgres) as url:
        spoil(
            url,
            "ALTER TABLE onetray.dead_letter DROP CONSTRAINT dead_letter_pkey; "
            "INSERT INTO onetray.dead_letter SELECT * FROM onetray.dead_letter WHERE task = @dead",
        )
        found = verified(url)
    assert broken(found) == {"11 one_letter"}
    assert found.violations[0].total == 2


def test_keys_that_were_never_handed_out_are_found(url: str) -> None:
    if url.startswith("sqlite"):
        spoil(url, "UPDATE onetray.counter SET value = 1 WHERE name = 'entity_key'")
    else:
        spoil(url, "SELECT setval('onetray.entity_key', 1)")
    assert broken(verified(url)) == {"12 key_known", "12 due_known", "12 lease_known"}


def test_a_sample_of_the_rows_is_given_with_their_number(url: str) -> None:
    spoil(url, "UPDATE onetray.task SET updated_at = updated_at + 1")
    with opened(url) as store:
        found = verify(store, sample=3)
    assert broken(found) == {"16 updated_at"}
    assert [len(v.rows) for v in found.violations] == [3]
    assert [v.total for v in found.violations] == [TASKS]
    keys = [row["task"] for row in found.violations[0].rows]
    assert keys == sorted(keys)


def test_nothing_can_be_written_through_a_snapshot(url: str) -> None:
    with opened(url) as store:
        with pytest.raises((apsw.ReadOnlyError, psycopg.errors.ReadOnlySqlTransaction)), store.snapshot() as snapshot:
            snapshot.select("DELETE FROM onetray.ready RETURNING task")
        assert verify(store).ok


def test_a_snapshot_does_not_see_what_is_written_after_it_began(url: str) -> None:
    count = "SELECT count(*) AS n FROM onetray.task"
    with opened(url) as store:
        engine = Engine(store)
        with store.snapshot() as snapshot:
            before = snapshot.select(count)
            engine.submit("mail")
            assert snapshot.select(count) == before
        with store.snapshot() as snapshot:
            assert snapshot.select(count)[0]["n"] == before[0]["n"] + 1
        engine._committer.close()


def test_a_database_verifies_while_workers_work(database_url: str) -> None:
    with engine_on(database_url, clock=None) as engine:
        done = threading.Event()
        failures: list[BaseException] = []
        work = _worker_loops(engine, done, failures)
        for thread in work:
            thread.start()
        try:
            found = _verify_while_it_grows(engine.store, 5)
        finally:
            done.set()
            for thread in work:
                thread.join()
        assert failures == []
        assert [f.violations for f in found] == [[]] * len(found)


def _verify_while_it_grows(store: Store, times: int) -> list[Findings]:
    """Verify again and again, until so often there was more to look at than before."""
    found, grown, until = [verify(store)], 0, time.monotonic() + 60
    while grown < times:
        assert time.monotonic() < until, "the workers do not work"
        found.append(verify(store))
        grown += found[-1].checked["events"] > found[-2].checked["events"]
    return found


def _worker_loops(engine: Engine, done: threading.Event, failures: list[BaseException]) -> list[threading.Thread]:
    def until_done(step: Callable[[int], None]) -> None:
        i = 0
        try:
            while not done.is_set():
                i += 1
                step(i)
        except BaseException as e:
            failures.append(e)

    def submit(i: int) -> None:
        engine.submit("mail", {"i": i}, priority=i % 3, delay_s=0.01 if i % 4 == 0 else None)

    def run(i: int) -> None:
        for n, claimed in enumerate(engine.claim(worker=f"w{i % 2}", limit=3)):
            if n == 0:
                engine.succeed(claimed)
            elif n == 1:
                engine.fail(claimed, "again", retry_after_s=0.0)
            else:
                engine.release(claimed)

    def sweep(_: int) -> None:
        engine.sweep()

    return [threading.Thread(target=until_done, args=(step,)) for step in (submit, run, run, sweep)]
