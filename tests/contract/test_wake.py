"""Wake-ups: quick when they work, and not needed."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from onetray.commands import Beat, Log
from onetray.engine import Engine
from onetray.store import open_store
from onetray.store.base import Store
from onetray.wake import Wake
from tests.support.engines import engine_on

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever returns within a test's patience was woken."""
    monkeypatch.setattr("onetray.wake.POLL_S", 3600.0)
    monkeypatch.setattr("onetray.wake.DEAF_POLL_S", 3600.0)


@contextmanager
def store_on(url: str) -> Iterator[Store]:
    store = open_store(url)
    store.migrate()
    try:
        yield store
    finally:
        store.close()


@contextmanager
def another_process(url: str) -> Iterator[subprocess.Popen[str]]:
    """A process with an engine on the same database: it submits a job for each line it is sent."""
    program = (
        "import sys\nfrom onetray.engine import Engine\n"
        "engine = Engine.open(sys.argv[1])\nengine.submit('first')\nprint('ready', flush=True)\n"
        "for line in sys.stdin:\n    print(engine.submit('mail').id, flush=True)\n"
        "engine.close()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, url], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.stdin.close()
        process.wait(PATIENCE_S)
        process.stdout.close()


def submit_there(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_a_wait_returns_when_something_was_written_since_the_look(engine: Engine) -> None:
    seen = engine.wake.generation
    engine.submit("mail")
    assert engine.wake.wait(seen, PATIENCE_S) != seen


def test_a_wait_is_over_when_its_time_is_up(engine: Engine) -> None:
    seen = settled(engine)
    assert engine.wake.wait(seen, 0.01) == seen


def settled(engine: Engine) -> int:
    """The generation once the listener has said hello."""
    seen = engine.wake.generation
    while (now := engine.wake.wait(seen, 0.3)) != seen:
        seen = now
    return seen


def test_commits_that_nobody_waits_for_ring_no_bell(engine: Engine) -> None:
    engine.submit("mail")
    [task] = engine.claim(worker="w")
    rung = []
    engine.store.on_commit.append(lambda work, told: rung.append(1))
    engine.run([Beat(task=task.key, fence=task.fence)])
    assert not rung
    # Somebody may follow the log.
    engine.run([Log(task=task.key, fence=task.fence, lines=("line",))])
    assert len(rung) == 1
    engine.start(task)
    assert len(rung) == 2


def test_a_queue_that_goes_on_rings(engine: Engine) -> None:
    engine.pause_queue("default")
    seen = engine.wake.generation
    engine.resume_queue("default")
    assert engine.wake.generation != seen


def test_a_promoted_task_rings(engine: Engine, clock: object) -> None:
    engine.submit("mail", delay_s=10)
    clock.advance(11)  # type: ignore[attr-defined]
    seen = engine.wake.generation
    assert engine.do_due() == 1
    assert engine.wake.generation != seen


def test_everybody_who_waits_is_woken(engine: Engine) -> None:
    seen = settled(engine)
    woken = threading.Barrier(9)

    def wait() -> None:
        assert engine.wake.wait(seen, PATIENCE_S) != seen
        woken.wait(PATIENCE_S)

    for _ in range(8):
        threading.Thread(target=wait, daemon=True).start()
    engine.submit("mail")
    woken.wait(PATIENCE_S)


@pytest.mark.usefixtures("no_polling")
def test_a_follower_wakes_on_a_commit_in_this_process(engine: Engine) -> None:
    arrived = follow_in_thread(engine)
    settled(engine)
    engine.submit("mail")
    assert arrived.wait(PATIENCE_S)


@pytest.mark.usefixtures("no_polling")
def test_a_follower_wakes_on_a_commit_of_another_process(database_url: str) -> None:
    with engine_on(database_url) as engine, another_process(database_url) as process:
        arrived = follow_in_thread(engine)
        settled(engine)
        submit_there(process)
        assert arrived.wait(PATIENCE_S)


def follow_in_thread(engine: Engine) -> threading.Event:
    arrived = threading.Event()
    stream = engine.feed.follow()

    def follow() -> None:
        next(stream)
        arrived.set()

    threading.Thread(target=follow, daemon=True).start()
    return arrived


def test_a_wait_ends_on_a_commit_of_another_process(database_url: str) -> None:
    with engine_on(database_url) as engine, another_process(database_url) as process:
        seen = settled(engine)
        submit_there(process)
        assert engine.wake.wait(seen, PATIENCE_S) != seen


def test_a_follower_gets_what_another_process_wrote(database_url: str) -> None:
    with engine_on(database_url) as engine, another_process(database_url) as process:
        stream = engine.feed.follow()
        ids = [submit_there(process) for _ in range(20)]
        assert [next(stream).entity_id for _ in ids] == ids


def test_what_was_written_before_the_first_wait_is_heard(database_url: str) -> None:
    """Between the look and the first wait there is no listener yet: it must not sleep through that."""
    with engine_on(database_url) as engine, another_process(database_url) as process:
        seen = engine.wake.generation
        submit_there(process)
        assert engine.wake.wait(seen, PATIENCE_S) != seen


def test_a_follower_needs_no_wake_ups(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wake, "heard", lambda self, work=True: None)
    with engine_on(database_url) as engine, another_process(database_url) as process:
        stream = engine.feed.follow()
        ids = [submit_there(process) for _ in range(2)]
        assert [next(stream).entity_id for _ in ids] == ids


def test_no_thread_is_started_before_it_is_needed_and_none_is_left(database_url: str) -> None:
    # An engine that other tests share may be open in this process.
    others = set(threading.enumerate())

    def threads() -> set[str]:
        new = set(threading.enumerate()) - others
        return {t.name for t in new if t.name in ("onetray-notifier", "onetray-listener")}

    with store_on(database_url) as store:
        wake = Wake(store)
        assert threads() == set()
        wake.wait(wake.generation, 0.01)
        assert threads() == {"onetray-listener"}
        store.announce(True)
        assert ("onetray-notifier" in threads()) == store.tells
        wake.close()
        assert threads() == set()
        assert store.on_commit == []


def test_a_closed_wake_lets_everybody_go(engine: Engine) -> None:
    seen = settled(engine)
    gone = threading.Event()

    def wait() -> None:
        engine.wake.wait(seen, PATIENCE_S)
        gone.set()

    threading.Thread(target=wait, daemon=True).start()
    engine.wake.close()
    assert gone.wait(PATIENCE_S)


def test_many_commits_send_few_notifications(pg_url: str) -> None:
    told = []
    with engine_on(pg_url) as engine:
        tell = engine.store.tell
        engine.store.tell = lambda work: (told.append(work), tell(work))  # type: ignore[assignment, method-assign]
        began = time.monotonic()
        for _ in range(200):
            engine.submit("mail")
        took = time.monotonic() - began
    assert 1 <= len(told) <= 2 + took / 0.01


def test_the_first_commit_after_a_quiet_time_is_told_at_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onetray.wake.TELL_EVERY_S", 3600.0)
    with engine_on(database_url) as engine, engine_on(database_url) as other:
        seen = settled(other)
        engine.submit("mail")
        assert other.wake.wait(seen, PATIENCE_S) != seen


def test_only_what_can_be_claimed_wakes_those_who_wait_for_work(engine: Engine) -> None:
    engine.submit("mail", delay_s=60)
    seen = engine.wake.work
    engine.submit("mail")
    assert engine.wake.work == seen + 1
    task = engine.claim(worker="w")[0]
    engine.start(task)
    engine.succeed(task)
    assert engine.wake.work == seen + 1
    engine.pause_queue("default")
    engine.resume_queue("default")
    assert engine.wake.work > seen + 1


def test_another_process_hears_whether_it_is_work(pg_url: str) -> None:
    # A file is also looked at in between, and what has changed then may be anything.
    with engine_on(pg_url) as engine, engine_on(pg_url) as other:
        engine.submit("mail")
        task = engine.claim(worker="w")[0]
        settled(other)
        work, seen = other.wake.work, other.wake.generation
        engine.succeed(task)
        assert other.wake.wait(seen, PATIENCE_S) != seen
        assert other.wake.work == work
        engine.submit("mail")
        other.wake.wait_for_work(work, PATIENCE_S)
        assert other.wake.work > work


def test_the_listener_comes_back_when_its_connection_is_lost(pg_url: str) -> None:
    with engine_on(pg_url) as engine:
        seen = settled(engine)
        with psycopg.connect(pg_url, autocommit=True) as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'onetray listens' AND datname = current_database()"
            ).fetchall()
            assert ended == [(True,)]
            # It says hello when it is back.
            assert engine.wake.wait(seen, PATIENCE_S) != seen
            seen = settled(engine)
            connection.execute("NOTIFY onetray")
            assert engine.wake.wait(seen, PATIENCE_S) != seen


def test_a_store_in_memory_wakes_and_polls_without_an_ear() -> None:
    with engine_on("sqlite://:memory:") as engine:
        assert engine.store.ear() is None
        assert engine.wake.poll_s == 1.0
        stream = engine.feed.follow()
        id = engine.submit("mail").id
        assert next(stream).entity_id == id
