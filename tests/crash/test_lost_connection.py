"""PostgreSQL goes away in the worst moments: each caller gets a true answer, and nothing is applied twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from onetray import failpoints
from onetray.config import EngineConfig
from onetray.domain.commands import Submit
from onetray.domain.errors import OnetrayError, Unavailable
from onetray.engine import Engine
from onetray.store import open_store
from tests.support.audit import audit
from tests.support.cluster import Cluster
from tests.support.engines import engine_on, must_verify
from tests.support.fleet import wait_until
from tests.support.proxy import LOSE_ANSWER, LOSE_REQUEST, Proxy
from tests.support.workers import is_alive


@contextmanager
def once_at(point: str, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Do something the first time a transaction comes to the point."""
    lock, left = threading.Lock(), [1]

    def hook(name: str) -> None:
        if name == point:
            with lock:
                first, left[0] = left[0], 0
            if first:
                act()

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hook", hook)
        yield
    assert not left[0], f"nothing came to {point!r}"


def end_backends(url: str) -> None:
    """End every backend that is inside a transaction, and wait until they are gone."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND state = 'idle in transaction'"
        )


def end_idle_backends(url: str) -> None:
    """End every backend but our own, those that lie idle in a pool too."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def count(url: str, what: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        return int(connection.execute(f"SELECT count(*) FROM onetray.{what}").fetchall()[0][0])


def migrated(url: str) -> str:
    store = open_store(url)
    store.migrate()
    store.close()
    return url


@pytest.mark.parametrize("point", ["begun", "committing"])
def test_a_backend_that_is_ended_inside_a_transaction_is_made_good(
    point: str, own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_on(own_url) as engine, ThreadPoolExecutor(8) as calls:
        engine.submit("mail", "known")
        with once_at(point, lambda: end_backends(own_url), monkeypatch):
            receipts = list(calls.map(lambda n: engine.submit("mail", n), range(8)))
        assert [engine.task(r.id or "").payload for r in receipts] == list(range(8))
        assert count(own_url, "task") == 9


def test_a_read_on_a_connection_that_was_ended_in_the_pool_is_made_again(own_url: str) -> None:
    with engine_on(own_url) as engine, ThreadPoolExecutor(4) as calls:
        receipts = list(calls.map(lambda n: engine.submit("mail", n), range(4)))
        end_idle_backends(own_url)
        assert [engine.task(r.id or "").payload for r in receipts] == list(range(4))


@pytest.mark.parametrize("lost", [LOSE_REQUEST, LOSE_ANSWER])
def test_a_commit_whose_fate_is_unknown_is_asked_about_and_applied_once(
    lost: str, own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(migrated(own_url)) as proxy, engine_on(proxy.url) as engine:
        engine.submit("mail", "first")
        with once_at("committing", lambda: proxy.arm(lost, commits_only=True), monkeypatch):
            receipt = engine.submit("mail", "second")
        assert proxy.cuts == 1
        assert engine.task(receipt.id or "").payload == "second"
        assert count(own_url, "task") == 2
        a, b = engine.claim(worker="w", limit=2)
        with once_at("committing", lambda: proxy.arm(lost, commits_only=True), monkeypatch):
            done = engine.succeed(a, "result")
        assert (done.state, done.version, done.repeated) == ("succeeded", 4, False)
        assert count(own_url, "event WHERE type = 'task.succeeded'") == 1
        with once_at("committing", lambda: proxy.arm(lost, commits_only=True), monkeypatch):
            assert engine.release(b).fence == 2
        with once_at("committing", lambda: proxy.arm(lost, commits_only=True), monkeypatch):
            (again,) = engine.claim(worker="w", limit=5)
        assert (again.key, again.fence) == (b.key, 2)
        assert proxy.cuts == 4


@pytest.mark.parametrize("lost", [LOSE_REQUEST, LOSE_ANSWER])
def test_callers_who_share_a_lost_commit_each_get_their_own_true_answer(
    lost: str, own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(migrated(own_url)) as proxy, engine_on(proxy.url) as engine, ThreadPoolExecutor(16) as calls:
        engine.submit("mail", "known")
        with once_at("committing", lambda: proxy.arm(lost, commits_only=True), monkeypatch):
            receipts = list(calls.map(lambda n: engine.submit("mail", n), range(16)))
        assert [engine.task(r.id or "").payload for r in receipts] == list(range(16))
        assert count(own_url, "task") == 17


# Fires at COMMIT, which then waits for whoever has the lock.
HELD_COMMIT = """
    CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER held_commit AFTER INSERT ON onetray.task DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION wait_for_the_test();
    SELECT pg_advisory_lock(1)
"""
OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
IS_HELD = f"SELECT 1 {OTHERS} AND wait_event = 'advisory'"
WAS_ASKED = f"SELECT 1 {OTHERS} AND query LIKE %(asked)s"
ABOUT_A_TRANSACTION, ABOUT_A_STATEMENT = "%pg_xact_status%", "%EXISTS (SELECT 1 FROM onetray.task WHERE id%"


@pytest.mark.parametrize(
    ("asked", "fields", "many"),
    [
        (ABOUT_A_TRANSACTION, {"labels": {"a": "b"}}, 2),
        (ABOUT_A_STATEMENT, {}, 1),
        (ABOUT_A_STATEMENT, {}, 2),
        (ABOUT_A_STATEMENT, {}, 80),
    ],
)
def test_a_commit_that_the_server_has_not_decided_yet_is_waited_for(
    asked: str, fields: dict[str, Any], many: int, own_url: str
) -> None:
    with (
        Proxy(migrated(own_url)) as proxy,
        engine_on(proxy.url) as engine,
        psycopg.connect(own_url, autocommit=True) as other,
        ThreadPoolExecutor(1) as calls,
    ):
        engine.submit("mail", "known")
        other.execute(HELD_COMMIT)
        call = calls.submit(engine.run, [Submit(kind="mail", payload=n, **fields) for n in range(many)])
        wait_until(lambda: other.execute(IS_HELD).fetchall())
        proxy.cut()
        wait_until(lambda: other.execute(WAS_ASKED, {"asked": asked}).fetchall())
        other.execute("SELECT pg_advisory_unlock(1)")
        assert [engine.task(verdict.unwrap().id).payload for verdict in call.result(60)] == list(range(many))
        assert count(own_url, "task") == many + 1


@pytest.mark.parametrize("many", [1, 2, 80])
@pytest.mark.parametrize("lost", [LOSE_REQUEST, LOSE_ANSWER])
def test_submits_whose_one_statement_was_lost_are_written_once(lost: str, many: int, own_url: str) -> None:
    with Proxy(migrated(own_url)) as proxy, engine_on(proxy.url) as engine:
        engine.submit("mail", "known")
        proxy.arm(lost)
        verdicts = engine.run([Submit(kind="mail", payload=n) for n in range(many)])
        assert proxy.cuts == 1
        assert [engine.task(verdict.unwrap().id).payload for verdict in verdicts] == list(range(many))
        assert count(own_url, "task") == many + 1


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start() as running:
        yield running


def burn_transactions(url: str, many: int = 50) -> None:
    """Commit transactions of somebody else's: after a crash they get the numbers of those that were lost."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(many):
            connection.execute("SELECT pg_current_xact_id()")


@pytest.mark.parametrize("verb", ["submit", "succeed", "log", "set_priority", "pause_queue"])
def test_a_number_that_the_server_gave_out_again_after_a_crash_is_not_taken_for_our_commit(
    verb: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash() -> None:
        cluster.restart("immediate")
        burn_transactions(url)

    with cluster.database() as url, engine_on(url) as engine:
        engine.submit("mail", "first")
        (a,) = engine.claim(worker="w")
        # Its COMMIT and flush lie behind us: what follows is lost in the crash unless it is flushed itself.
        with once_at("committing", crash, monkeypatch):
            if verb == "submit":
                id_ = engine.submit("mail", "second").id or ""
                assert engine.task(id_).payload == "second"
            elif verb == "succeed":
                assert engine.succeed(a).state == "succeeded"
                assert engine.task(a.id).state == "succeeded"
            elif verb == "log":
                assert engine.log(a, "a line") == 1
                assert [line.line for line in engine.logs(a.id)] == ["a line"]
            elif verb == "pause_queue":
                engine.pause_queue("default")
                assert engine.queues()[0].paused_at is not None
            else:
                engine.set_priority(a.id, 7)
                assert engine.task(a.id).priority == 7
        assert count(url, "event WHERE version IS NOT NULL") == {"submit": 3, "succeed": 4}.get(verb, 2)


class Load:
    """Threads that submit, claim and finish, and remember what they were told."""

    def __init__(self, engine: Engine, threads: int) -> None:
        self.engine, self.stop = engine, threading.Event()
        self.submitted: list[str] = []
        self.succeeded: list[str] = []
        self.refused: list[Exception] = []
        self.threads = [threading.Thread(target=self._work, args=(n,)) for n in range(threads)]
        for thread in self.threads:
            thread.start()

    def _work(self, n: int) -> None:
        while not self.stop.is_set():
            try:
                self.submitted.append(self.engine.submit("mail", n).id or "")
                for a in self.engine.claim(worker=f"w{n}", limit=2):
                    self.engine.succeed(a)
                    self.succeeded.append(a.id)
            except Exception as e:
                self.refused.append(e)

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self.threads)


@pytest.mark.parametrize("how", ["immediate", "fast", "kill"])
def test_a_server_that_restarts_under_load_loses_nothing_acknowledged_and_applies_nothing_twice(
    how: str, cluster: Cluster
) -> None:
    with cluster.database() as url, engine_on(url) as engine:
        engine.submit("mail", "known")
        load = Load(engine, 8)
        for _ in range(2):
            grown_past(load, len(load.succeeded) + 20)
            if how == "kill":
                cluster.kill()
                cluster.start_again()
            else:
                cluster.restart(how)
        grown_past(load, len(load.succeeded) + 20)
        load.end()
        assert all(isinstance(e, OnetrayError) for e in load.refused), load.refused[:5]
        found = audit(engine.store)
        assert not found.faults, found.faults
        known = {t.id: t.state for t in engine.tasks(limit=10_000)}
        assert [i for i in load.submitted if i not in known] == []
        assert [i for i in load.succeeded if known.get(i) != "succeeded"] == []
        # Whoever was refused because nobody could say, may have been served; nobody else.
        assert len(known) - 1 - len(load.submitted) <= len(load.refused)
        must_verify(engine)


def grown_past(load: Load, many: int) -> None:
    wait_until(lambda: len(load.succeeded) >= many, 60)


def test_a_server_that_stays_away_is_reported_as_unavailable_and_calls_work_when_it_is_back(cluster: Cluster) -> None:
    patience = EngineConfig(call_timeout_s=1.0)
    with cluster.database() as url, Engine.open(migrated(url), config=patience) as engine:
        engine.submit("mail", "first")
        backends = [pid for (pid,) in engine.store.read_sql("SELECT pid FROM pg_stat_activity")]
        cluster.kill()
        # One that has not noticed yet that its server is gone would still answer.
        wait_until(lambda: not any(is_alive(pid) for pid in backends))
        began = time.monotonic()
        with pytest.raises(Unavailable):
            engine.submit("mail", "lost")
        assert time.monotonic() - began < 5
        cluster.start_again()
        wait_until(lambda: answers(engine))
        engine.submit("mail", "second")
        assert sorted(t.payload for t in engine.tasks()) == ["first", "second"]
        must_verify(engine)


def answers(engine: Engine) -> bool:
    try:
        return engine.store.now() > 0
    except Unavailable:
        return False


def test_a_database_that_was_never_there_is_reported_as_unavailable_with_its_address_and_no_password() -> None:
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 \(database jobs, role ann\)") as caught:
        Engine.open("postgresql://ann:secret@127.0.0.1:1/jobs", config=EngineConfig(call_timeout_s=0.5))
    assert "secret" not in str(caught.value)
    assert time.monotonic() - began < 5
