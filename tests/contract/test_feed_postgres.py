"""The feed on PostgreSQL, where ids become visible in the order of the commits, not of the ids."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from onetray.config import EngineConfig
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.task import Event
from onetray.engine import Engine
from onetray.feed import Feed, Page
from onetray.store.base import Store
from onetray.store.postgres import PostgresStore
from tests.support.cluster import Cluster
from tests.support.engines import engine_on, must_verify
from tests.support.writers import writing

PATIENCE_S = 60


@pytest.fixture
def engine(own_url: str) -> Iterator[Engine]:
    with engine_on(own_url) as running:
        running.submit("mail")  # The namespace, the queue and the kind are there.
        yield running


def naive_read(store: Store, after: int) -> list[int]:
    return [id for (id,) in store.read_sql("SELECT id FROM onetray.event WHERE id > :after ORDER BY id", after=after)]


def ids(events: list[Event]) -> list[int]:
    return [e.id for e in events]


def drain(feed: Feed, after: int) -> tuple[list[int], int]:
    found: list[int] = []
    while True:
        page = feed.read(after)
        found += ids(page.events)
        if page.next_cursor == after:
            return found, after
        after = page.next_cursor


def test_a_slow_writers_events_are_missed_by_a_naive_reader_and_not_by_the_feed(engine: Engine) -> None:
    start = engine.feed.tail()
    with writing(engine) as slow:
        early = slow.submit(3)
        with writing(engine) as quick:
            late = quick.submit(3)
        assert max(early) < min(late)
        # What any reader by `id > cursor` does: it takes what is there and remembers the last id.
        assert naive_read(engine.store, start) == late
        naive_cursor = late[-1]
        first, cursor = drain(engine.feed, start)
    assert naive_read(engine.store, naive_cursor) == []
    assert first == []
    assert drain(engine.feed, cursor)[0] == early + late


def test_the_events_of_one_flow_wait_for_a_slow_writer_too(engine: Engine) -> None:
    flow = engine.submit_flow("run", [StageSpec("all", sealed=False)], sealed=False)
    cursor = engine.events_since(flow=flow.id).next_cursor
    with writing(engine) as slow:
        slow.submit(1)
        engine.add_tasks(flow.stages[0], [TaskSpec("k")])
        assert engine.flow_events(flow.id)[-1].id > cursor
        assert engine.events_since(flow=flow.id, after=cursor) == Page([], cursor)
    page = engine.events_since(flow=flow.id, after=cursor)
    assert [event.type for event in page.events] == ["task.submitted"]


def test_a_writer_that_rolls_back_leaves_a_hole_and_nothing_else(engine: Engine) -> None:
    start = engine.feed.tail()
    with writing(engine) as slow:
        slow.submit(3)
        with writing(engine) as quick:
            late = quick.submit(3)
        assert drain(engine.feed, start) == ([], start)
        slow.roll_back()
    assert drain(engine.feed, start)[0] == late


def test_a_hanging_writer_delays_and_no_more(engine: Engine) -> None:
    start = engine.feed.tail()
    before = engine.submit("mail").id
    assert [e.entity_id for e in engine.feed.read(start).events] == [before]
    with writing(engine) as hanging:
        held = hanging.submit(1)
        late: list[int] = []
        for _ in range(5):
            with writing(engine) as quick:
                late += quick.submit(2)
            first, cursor = drain(engine.feed, start)
            assert len(first) == 1
            assert cursor == first[-1] < held[0]
        assert engine.store.held_up
    assert drain(engine.feed, cursor)[0] == held + late
    assert not engine.store.held_up


def test_the_feed_goes_on_when_a_hanging_writer_is_killed(engine: Engine, own_url: str) -> None:
    stream = engine.feed.follow()
    with writing(engine) as hanging:
        hanging.submit(1)
        new = engine.submit("mail").id
        with psycopg.connect(own_url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (hanging.pid,))
        assert next(stream).entity_id == new
        hanging.gone = True


def test_a_long_transaction_without_event_ids_does_not_hold_the_feed_up(engine: Engine, own_url: str) -> None:
    """Transaction numbers are shared by all databases of a server: others' long transactions are not our business."""
    stream = engine.feed.follow()
    with psycopg.connect(own_url) as elsewhere:
        elsewhere.execute("CREATE TABLE mine AS SELECT pg_current_xact_id()")
        id = engine.submit("mail").id
        assert next(stream).entity_id == id
        with writing(engine) as slow:
            early = slow.submit(1)
            late = engine.submit("mail").id
            assert drain(engine.feed, early[0] - 1)[0] == []
        assert [next(stream).id, next(stream).entity_id] == [early[0], late]


def test_readers_share_the_barrier_and_take_it_only_for_new_events(engine: Engine, monkeypatch: Any) -> None:
    asked: list[str] = []
    barrier = engine.store._barrier  # type: ignore[attr-defined]
    fetch = barrier._fetch
    monkeypatch.setattr(barrier, "_fetch", lambda sql, params: (asked.append(sql), fetch(sql, params))[1])
    feeds = [Feed(engine.store, engine.wake) for _ in range(5)]
    for feed in feeds:
        drain(feed, 0)
    assert sum("xact_id" in sql for sql in asked) == 1
    asked.clear()
    for feed in feeds:
        feed.read(feed.tail())
    assert not any("xact_id" in sql for sql in asked)


def test_a_cursor_never_passes_an_id_that_is_not_durable() -> None:
    """After a crash the sequence may hand out numbers again that were only ever used by a transaction rolled back."""
    with Cluster.start() as cluster:
        url = cluster.create_database()
        with engine_on(url) as engine:
            engine.submit("mail")
            with writing(engine) as doomed:
                doomed.submit(400)
                doomed.roll_back()
            [event], cursor = engine.feed.read(0)
            assert cursor == event.id
            stream = engine.feed.follow(cursor)
            cluster.restart("immediate")
            new = engine.submit("mail").id
            assert next(stream).entity_id == new


def test_followers_and_listeners_outlast_a_database_that_is_away() -> None:
    with Cluster.start() as cluster, engine_on(cluster.create_database()) as engine:
        arrived = threading.Event()
        engine.on_event(lambda event: arrived.set())
        stream = engine.feed.follow()
        cluster.restart("immediate")
        id = engine.submit("mail").id
        assert next(stream).entity_id == id
        assert arrived.wait(PATIENCE_S)


def test_starting_now_behind_a_hanging_writer_does_not_replay_the_log(engine: Engine, own_url: str) -> None:
    with writing(engine) as hanging:
        hanging.submit(1)
        old = engine.submit("mail").id
        store = PostgresStore(own_url)
        fresh = Engine(store)
        stream = fresh.feed.follow()
        new = engine.submit("mail").id
    assert old != new
    assert next(stream).entity_id == new
    fresh.close()


@contextmanager
def stateless_engine(url: str) -> Iterator[Engine]:
    """Every transaction finds a session that remembers nothing: as behind pgbouncer in transaction mode."""

    def forget(connection: psycopg.Connection[Any]) -> None:
        connection.execute("DISCARD ALL")

    store = PostgresStore(url, pooler=True, reset=forget)
    store.migrate()
    engine = Engine(store, config=EngineConfig(pooler=True))
    try:
        yield engine
        must_verify(engine)
    finally:
        engine.close()


def test_no_session_state_is_needed(own_url: str) -> None:
    with stateless_engine(own_url) as engine:
        stream = engine.feed.follow()
        for i in range(30):
            engine.submit("mail", {"i": i}, idempotency_key=f"key-{i}")
        engine.submit("late", delay_s=1000)
        tasks = engine.claim(worker="w", limit=30)
        assert len(tasks) == 30
        engine.start(tasks[0])
        engine.beat(tasks[0])
        engine.log(tasks[0], "hello")
        engine.succeed(tasks[0], result=1)
        engine.fail(tasks[1], "no", retryable=False)
        engine.release(tasks[2])
        engine.pause(tasks[3], owner="me", reason="ask")
        engine.resume(tasks[3].id)
        engine.cancel(tasks[4].id, hard=True)
        engine.fail(tasks[5], "bad", reason_code="parse_error")
        engine.redrive(tasks[5].id)
        engine.set_priority(tasks[2].id, 5)
        engine.reschedule(tasks[2].id, delay_s=5)
        engine.sweep()
        engine.pause_queue("default")
        engine.resume_queue("default")
        whole, _ = drain(engine.feed, 0)
        followed: list[int] = []
        while not followed or followed[-1] != whole[-1]:
            followed.append(next(stream).id)
        assert followed == whole
        engine.prune(0)


def test_behind_a_pooler_the_feed_polls(own_url: str) -> None:
    with stateless_engine(own_url) as engine, engine_on(own_url) as other:
        assert engine.store.listener() is None
        stream = engine.feed.follow()
        id = other.submit("mail").id
        assert next(stream).entity_id == id
        with psycopg.connect(own_url) as connection:
            listening = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onetray listens' "
                "AND datname = current_database()"
            ).fetchone()
        assert listening == (0,)
