"""Submits inside the caller's own transaction: the job exists exactly when that one commits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from onetray.domain import commands as c
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import InvalidInput, KeyReused, NameTaken, NotFound, StoreError, Unavailable
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.task import Verdict
from onetray.engine import Engine
from onetray.engine.flows import verbs
from onetray.engine.flows.create import FlowDraft
from onetray.store.postgres import PostgresStore
from tests.support import fleet
from tests.support.binaries import has_system_postgres
from tests.support.cases import each_case
from tests.support.dying_processes import submits_and_dies
from tests.support.engines import engine_on
from tests.support.fleet import Ledger
from tests.support.tasks import counts, submit, take, written

STAGES = [StageSpec("a", [TaskSpec("x"), TaskSpec("y")])]
Own = psycopg.Connection[Any]


@pytest.fixture(params=["migrated_url", *(["system_url"] if has_system_postgres() else [])])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def engine(url: str, clock: VirtualClock) -> Iterator[Engine]:
    with engine_on(url, clock) as running:
        yield running


@pytest.fixture
def own(engine: Engine, url: str) -> Iterator[Own]:
    """The caller's connection, with something of the caller's in its transaction."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TEMP TABLE mine (n integer)")
        connection.commit()
        connection.execute("INSERT INTO mine VALUES (1)")
        yield connection


def mine(own: Own) -> list[Any]:
    return [n for (n,) in own.execute("SELECT n FROM mine ORDER BY n").fetchall()]


def test_what_was_submitted_is_there_after_the_commit_and_not_before(engine: Engine, own: Own) -> None:
    receipt = engine.submit("mail", {"to": "ann"}, labels={"team": "a"}, connection=own)
    flow = engine.submit_flow("f", STAGES, labels={"team": "b"}, connection=own)
    assert (receipt.state, flow.state, receipt.repeated) == ("queued", "pending", False)
    assert counts(engine)["task"] == 0
    assert engine.claim(worker="w", limit=9) == []
    own.commit()
    assert receipt.id is not None
    assert engine.task(receipt.id).labels == {"team": "a"}
    assert engine.flow(flow.id).labels == {"team": "b"}
    assert [a.kind for a in engine.claim(worker="w", limit=9)] == ["mail", "x", "y"]
    assert mine(own) == [1]


def test_nothing_is_left_after_a_rollback_and_the_keys_are_free(engine: Engine, own: Own) -> None:
    engine.submit("mail", 1, idempotency_key="i", unique_key="u", labels={"a": "b"}, connection=own)
    engine.submit_flow("f", STAGES, idempotency_key="i", unique_key="u", connection=own)
    own.rollback()
    left = {name: n for name, n in counts(engine).items() if name not in ("namespace", "queue", "kind", "policy")}
    assert set(left.values()) == {0}
    assert not engine.submit("mail", 2, idempotency_key="i", unique_key="u").repeated
    assert not engine.submit_flow("f", idempotency_key="i", unique_key="u").repeated
    assert mine(own) == []


def test_a_rollback_to_a_savepoint_takes_back_what_came_after_it(engine: Engine, own: Own) -> None:
    kept = engine.submit("mail", 1, connection=own).id
    with own.transaction(force_rollback=True):
        gone = engine.submit("mail", 2, idempotency_key="i", connection=own).id
    later = engine.submit("mail", 3, idempotency_key="i", connection=own)
    assert not later.repeated
    own.commit()
    assert {t.id for t in engine.tasks()} == {kept, later.id}
    assert gone not in (kept, later.id)


def test_a_block_of_an_autocommit_connection_is_a_transaction(engine: Engine, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as own, own.transaction():
        id_ = engine.submit("mail", connection=own).id
        with pytest.raises(NotFound):
            engine.task(id_ or "")
    assert engine.task(id_ or "").state == "queued"


def test_a_process_that_is_killed_before_its_commit_has_submitted_nothing(
    engine: Engine, url: str, tmp_path: Any
) -> None:
    ledger = tmp_path / "ledger"
    victim = fleet.start(submits_and_dies, url, str(ledger))
    fleet.end_all([victim], 60, exitcode=-9)
    assert [verb for verb, _ in Ledger.read(ledger)] == ["submitted"]
    assert counts(engine)["task"] == counts(engine)["idempotency"] == 0
    assert not engine.submit("mail", idempotency_key="k").repeated


@pytest.mark.parametrize("key", ["idempotency_key", "unique_key"])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_second_submit_of_a_key_waits_for_the_end_of_the_first(
    engine: Engine, own: Own, url: str, key: str, ends: str
) -> None:
    first = engine.submit("mail", connection=own, **{key: "k"})
    said: list[Any] = []
    with psycopg.connect(url) as other:
        second = threading.Thread(target=lambda: said.append(engine.submit("mail", connection=other, **{key: "k"})))
        second.start()
        fleet.wait_until(lambda: _waits_for(engine, other, own))
        getattr(own, ends)()
        second.join(30)
    (receipt,) = said
    assert receipt.repeated == (receipt.id == first.id) == (ends == "commit")
    assert [t.id for t in engine.tasks()] == [receipt.id]


def test_many_transactions_with_one_key_make_one_job(engine: Engine, url: str) -> None:
    together = threading.Barrier(16)

    def one(_: int) -> tuple[str | None, bool]:
        with psycopg.connect(url) as own:
            together.wait(30)
            receipt = engine.submit("mail", unique_key="k", connection=own)
        return receipt.id, receipt.repeated

    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(one, range(16)))
    assert len({id_ for id_, _ in said}) == counts(engine)["task"] == 1
    assert sum(not repeated for _, repeated in said) == 1


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_second_submit_of_an_alias_waits_for_the_end_of_the_first(
    engine: Engine, own: Own, url: str, ends: str
) -> None:
    first = engine.submit("mail", connection=own, alias="a")
    said: list[Verdict] = []
    with psycopg.connect(url) as other:
        two = [c.Submit(kind="mail", alias="a"), c.Submit(kind="mail")]
        second = threading.Thread(target=lambda: said.extend(engine.run(two, connection=other)))
        second.start()
        fleet.wait_until(lambda: _waits_for(engine, other, own))
        getattr(own, ends)()
        second.join(30)
    assert [v.ok for v in said] == [ends == "rollback", True]
    assert engine.by_alias("a").id == (first.id if ends == "commit" else said[0].value.id)


def _waits_for(engine: Engine, who: Own, whom: Own) -> bool:
    sql = "SELECT :whom = ANY(pg_blocking_pids(CAST(:who AS integer)))"
    found = engine.store.read_sql(sql, who=who.info.backend_pid, whom=whom.info.backend_pid)
    return bool(found[0][0])


def test_a_repeated_submit_is_answered_within_one_transaction_too(engine: Engine, own: Own) -> None:
    first, again, other = (
        engine.submit("mail", n, connection=own, **{key: "k"})
        for n, key in ((1, "idempotency_key"), (1, "idempotency_key"), (2, "unique_key"))
    )
    assert (again.id, again.repeated, other.repeated) == (first.id, True, False)
    assert engine.submit("mail", 3, unique_key="k", connection=own).id == other.id
    own.commit()
    assert counts(engine)["task"] == 2


def test_a_large_batch_is_one_part_of_the_transaction(engine: Engine, own: Own) -> None:
    commands = [c.Submit(kind="mail", payload=n, delay_s=60 if n % 5 == 0 else None) for n in range(600)]
    verdicts = engine.run([*commands, SubmitFlow(name="f", stages=STAGES)], connection=own)
    own.commit()
    assert all(v.ok for v in verdicts)
    assert counts(engine)["task"] == 602
    assert [a.payload for a in engine.claim(worker="w", limit=3)] == [1, 2, 3]


def test_a_refusal_leaves_the_transaction_usable(engine: Engine, own: Own) -> None:
    first = submit(engine, payload=1, idempotency_key="k")
    with pytest.raises(KeyReused) as refused:
        engine.submit("mail", 2, idempotency_key="k", connection=own)
    assert refused.value.task == first
    with pytest.raises(InvalidInput):
        engine.submit("", connection=own)
    good = engine.submit("mail", 3, connection=own).id
    own.execute("INSERT INTO mine VALUES (2)")
    own.commit()
    assert engine.task(good or "").payload == 3
    assert mine(own) == [1, 2]


def test_one_that_cannot_be_written_does_not_harm_the_others(
    engine: Engine, own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_flow = verbs.write_flow

    def refuses(scope: Any, draft: FlowDraft) -> Any:
        written = write_flow(scope, draft)
        if draft.data == '"bad"':
            raise NameTaken("the name is taken")
        return written

    monkeypatch.setattr(verbs, "write_flow", refuses)
    flow, bad, task = engine.run(
        [SubmitFlow(name="f"), SubmitFlow(name="f", data="bad", idempotency_key="k"), c.Submit(kind="mail")],
        connection=own,
    )
    assert isinstance(bad.error, NameTaken)
    own.commit()
    assert [f.id for f in engine.flows()] == [flow.unwrap().id]
    assert [t.id for t in engine.tasks()] == [task.unwrap().id]
    assert counts(engine)["idempotency"] == 0


def test_an_error_of_the_database_is_the_callers_and_leaves_the_transaction_usable(
    engine: Engine, own: Own, url: str
) -> None:
    with psycopg.connect(url) as other:
        engine.submit("mail", idempotency_key="k", connection=other)
        own.execute("SET LOCAL lock_timeout = '10ms'")
        commands = [c.Submit(kind="mail"), c.Submit(kind="mail", idempotency_key="k")]
        with pytest.raises(psycopg.errors.LockNotAvailable):
            engine.run(commands, connection=own)
        other.rollback()
    kept = engine.submit("mail", connection=own).id
    own.commit()
    assert [t.id for t in engine.tasks()] == [kept]
    assert mine(own) == [1]


def test_a_key_that_was_taken_after_a_snapshot_is_a_serialization_failure(engine: Engine, own: Own) -> None:
    own.rollback()
    own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    own.execute("SELECT count(*) FROM onetray.task")
    engine.submit("mail", idempotency_key="i", unique_key="u")
    for key in ({"idempotency_key": "i"}, {"unique_key": "u"}):
        with pytest.raises(psycopg.errors.SerializationFailure):
            engine.submit("mail", connection=own, **key)
    own.rollback()
    assert engine.submit("mail", idempotency_key="i", connection=own).repeated


def test_nothing_that_is_set_on_the_connection_matters_or_is_changed(engine: Engine, url: str) -> None:
    with psycopg.connect(url, row_factory=dict_row, cursor_factory=psycopg.ClientCursor, prepare_threshold=0) as own:
        own.execute("SET search_path = pg_temp")
        own.execute("SET enable_indexscan = off")
        settings = "SELECT name, setting FROM pg_settings WHERE name <> 'transaction_isolation' ORDER BY name"
        before = own.execute(settings).fetchall()
        for n in range(3):
            engine.submit("mail", n, idempotency_key=str(n), unique_key=str(n), labels={"n": str(n)}, connection=own)
            engine.submit_flow("f", STAGES, connection=own)
        assert own.execute(settings).fetchall() == before
        named = own.execute("SELECT count(*) AS n FROM pg_prepared_statements WHERE statement LIKE '%onetray%'")
        assert named.fetchall() == [{"n": 0}]
        own.commit()
    assert counts(engine)["task"] == 9


def test_while_a_transaction_stays_open_the_feed_waits_and_nothing_else_does(
    engine: Engine, own: Own, url: str
) -> None:
    start = engine.feed.tail()
    early = engine.submit("mail", 1, connection=own).id
    other = submit(engine, payload=2)
    with psycopg.connect(url) as second:
        gone = engine.submit("mail", 3, connection=second).id
        engine.succeed(take(engine))
        late = engine.submit("mail", 4, connection=own).id
        assert engine.feed.read(start).events == []
        assert engine.store.held_up
        second.rollback()
    assert engine.feed.read(start).events == []
    own.commit()
    page = engine.feed.read(start)
    expected = [early, other, other, other, other, late]
    assert sorted(e.entity_id for e in page.events) == sorted(str(id_) for id_ in expected)
    assert gone not in {e.entity_id for e in page.events}
    assert [e.id for e in page.events] == sorted(e.id for e in page.events)
    assert engine.feed.read(page.next_cursor).events == []


def test_the_others_hear_of_it_at_the_commit(engine: Engine, own: Own, url: str) -> None:
    heard = _heard(url)
    engine.submit("mail", connection=own)
    with own.transaction(force_rollback=True):
        engine.submit("mail", connection=own)
    own.execute("SELECT pg_notify('onetray', 'last')")
    own.commit()
    assert next(heard).endswith("=1")
    assert next(heard) == "last"


def test_behind_a_pooler_nobody_is_told(engine: Engine, own: Own, url: str) -> None:
    heard = _heard(url)
    behind = Engine(PostgresStore(url, pooler=True))
    behind.submit("mail", connection=own)
    own.execute("SELECT pg_notify('onetray', 'last')")
    own.commit()
    assert next(heard) == "last"
    behind.close()


def _heard(url: str) -> Iterator[str]:
    """What is told from now on, as soon as it is."""
    connection = psycopg.connect(url, autocommit=True)
    connection.execute("LISTEN onetray")

    def told() -> Iterator[str]:
        with connection:
            yield from (n.payload for n in connection.notifies(timeout=20))

    return told()


def refused(engine: Engine, connection: object, match: str) -> None:
    before = written(engine)
    with pytest.raises(InvalidInput, match=match) as no:
        engine.submit("mail", connection=connection)
    assert no.value.field == "connection"
    assert written(engine) == before


def test_a_connection_that_is_in_no_transaction_is_refused(engine: Engine, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as own:
        refused(engine, own, "begin a transaction")


def test_a_transaction_that_has_failed_is_refused(engine: Engine, own: Own) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        own.execute("SELECT 1 / 0")
    refused(engine, own, "roll it back")


def test_a_transaction_that_may_only_read_is_refused_and_stays_usable(engine: Engine, own: Own) -> None:
    own.rollback()
    own.read_only = True
    refused(engine, own, "read-only")
    assert own.execute("SELECT 1").fetchall() == [(1,)]


def test_a_connection_to_another_database_is_refused(engine: Engine, own: Own, pg_url: str) -> None:
    with psycopg.connect(pg_url) as elsewhere:
        refused(engine, elsewhere, "another database")


def test_a_connection_in_a_pipeline_is_refused(engine: Engine, own: Own) -> None:
    own.rollback()
    with own.pipeline():
        refused(engine, own, "pipeline")
    engine.submit("mail", connection=own)


def test_an_engine_that_was_closed_submits_nothing(engine: Engine, own: Own, url: str) -> None:
    closed = Engine(PostgresStore(url))
    closed.submit("mail")
    closed.close()
    with pytest.raises(Unavailable, match="closed"):
        closed.submit("mail", connection=own)
    own.commit()
    assert counts(engine)["task"] == 1


def test_a_closed_connection_is_refused(engine: Engine, own: Own) -> None:
    own.close()
    refused(engine, own, "closed")


@each_case("thing", [5, "postgresql://", object()])
def test_what_is_no_connection_is_refused(engine: Engine, thing: object) -> None:
    refused(engine, thing, r"must be a psycopg\.Connection, not")


def test_a_connection_that_breaks_is_told_as_such(engine: Engine, own: Own) -> None:
    engine.store.read_sql("SELECT pg_terminate_backend(CAST(:pid AS integer), 5000)", pid=own.info.backend_pid)
    with pytest.raises(Unavailable):
        engine.submit("mail", connection=own)


def test_a_user_who_may_not_write_is_told_so(engine: Engine, own: Own) -> None:
    own.execute("SET LOCAL ROLE pg_read_all_data")
    with pytest.raises(StoreError, match="grant"):
        engine.submit("mail", connection=own)
    own.execute("RESET ROLE")
    engine.submit("mail", connection=own)
    own.commit()
    assert counts(engine)["task"] == 1


@pytest.mark.parametrize("command", [c.Claim(worker="w"), c.Cancel("x")])
def test_only_submits_can_be_part_of_a_transaction(engine: Engine, own: Own, command: c.Command) -> None:
    with pytest.raises(InvalidInput, match=command.verb):
        engine.run([c.Submit(kind="mail"), command], connection=own)
    own.commit()
    assert counts(engine)["task"] == 0


def test_a_bad_submit_among_good_ones_is_refused_alone(engine: Engine, own: Own) -> None:
    verdicts: list[Verdict] = engine.run([c.Submit(kind=""), c.Submit(kind="mail")], connection=own)
    own.commit()
    assert [v.ok for v in verdicts] == [False, True]
    assert counts(engine)["task"] == 1


def test_an_engine_on_sqlite_takes_no_connection(tmp_path: Any, own: Own) -> None:
    with engine_on(f"sqlite:///{tmp_path / 'jobs.db'}") as lite:
        refused(lite, own, "PostgreSQL")
