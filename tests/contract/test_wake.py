"""Wake-ups: quick when they work, and not needed."""

import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Beat, Log, Submit
from onetray.domain.errors import Unavailable
from onetray.domain.flow_specs import StageSpec, TaskSpec
from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.notify.base import WantedWork, WorkListener
from onetray.notify.new_work import NewWork, everywhere, format_new_work, parse_new_work
from onetray.notify.waiters import Waiter
from onetray.notify.wake import MAX_WANTED_QUEUES, Wake
from onetray.remote.notify import RemoteSource
from onetray.store import open_store
from onetray.store.base import Store
from onetray.store.sqlite import SqliteStore
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.fleet import wait_until
from tests.support.relayed import relayed_command

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60


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
        relayed_command("-c", program, url), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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


def listens(wake: Wake) -> bool:
    return all(listener.is_connected for listener in (wake._listener, wake._work_listener) if listener is not None)


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
    monkeypatch.setattr(Wake, "notify", lambda self, work=None: None)
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
        store.run_commit_hooks(NewWork())
        assert ("onetray-notifier" in threads()) == store.notifies_others
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
        tell = engine.store.notify_others
        engine.store.notify_others = lambda work: (told.append(work), tell(work))  # type: ignore[assignment, method-assign]
        began = time.monotonic()
        for _ in range(200):
            engine.submit("mail")
        took = time.monotonic() - began
    assert 1 <= len(told) <= 2 + took / 0.01


def test_the_first_commit_after_a_quiet_time_is_told_at_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onetray.notify.wake.NOTIFY_EVERY_S", 3600.0)
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
        waiter = other.wake.waiter([("default", "default")])
        work, told, seen = other.wake.work, waiter.seen(), other.wake.generation
        engine.succeed(task)
        assert other.wake.wait(seen, PATIENCE_S) != seen
        assert other.wake.work == work
        engine.submit("mail")
        waiter.wait(told, PATIENCE_S)
        assert other.wake.work > work


def test_a_process_that_waits_only_for_work_is_not_woken_by_other_commits(pg_url: str) -> None:
    with engine_on(pg_url) as engine, engine_on(pg_url) as other:
        engine.submit("mail")
        task = engine.claim(worker="w")[0]
        waiter = other.wake.waiter([("default", "default")])
        assert waiter.enter(waiter.seen())
        wait_until(lambda: other.wake.work > 0)  # The listener is connected.
        seen, work = other.wake.generation, waiter.seen()
        engine.store.notify_others(NewWork())
        engine.succeed(task)
        engine.submit("mail")
        wait_until(lambda: waiter.seen() != work)
        assert other.wake.generation == seen + 1  # By the submit alone.
        # From its first wait for any commit on, it hears of all.
        seen = settled(other)
        engine.store.notify_others(NewWork())
        assert other.wake.wait(seen, PATIENCE_S) != seen


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
        assert engine.store.listener() is None
        assert engine.wake.poll_s == 1.0
        stream = engine.feed.follow()
        id = engine.submit("mail").id
        assert next(stream).entity_id == id


# Who is woken for work.

MAIL, X = ("default", "mail"), ("default", "x")


class InLine(Waiter):
    """Somebody in line for work, who notes that he was woken."""

    def __init__(self, engine: Engine, *queues: tuple[str, str], kinds: tuple[str, ...] | None = None) -> None:
        self.woken = threading.Event()
        super().__init__(engine.wake, queues or (MAIL,), kinds, self.woken.set, polls=False)
        assert self.stand()

    def stand(self) -> bool:
        """Wait again, as after a look."""
        self.polled()
        self.woken.clear()
        return self.enter(self.seen())


def woken(waiters: list[InLine]) -> list[bool]:
    return [waiter.woken.is_set() for waiter in waiters]


def test_a_task_wakes_one_of_those_who_wait_in_its_queue_and_nobody_else(
    engine: Engine, no_polling: None, only_rings: None
) -> None:
    settled(engine)
    mail, others = [InLine(engine) for _ in range(3)], [InLine(engine, ("default", "x")), InLine(engine, ("y", "mail"))]
    engine.submit("letter", queue="mail")
    assert woken(mail) == [True, False, False]
    engine.run([Submit(kind="letter", queue="mail"), Submit(kind="letter", queue="mail")])
    assert woken(mail) == [True, True, True]
    assert not any(woken(others))
    engine.submit("letter", queue="mail", namespace="y")
    assert woken(others) == [False, True]


def test_those_who_know_other_kinds_are_woken_beside(engine: Engine, no_polling: None, only_rings: None) -> None:
    """Nobody knows here which of them can take it."""
    settled(engine)
    mail = [InLine(engine, kinds=kinds) for kinds in (("a",), ("a",), ("b",), None)]
    engine.submit("b", queue="mail")
    assert woken(mail) == [True, False, True, True]


def test_a_wake_up_that_was_not_used_goes_to_the_next(engine: Engine, no_polling: None, only_rings: None) -> None:
    settled(engine)
    first, second, third = (InLine(engine) for _ in range(3))
    engine.submit("letter", queue="mail")
    first.leave_and_wake_next()
    assert woken([second, third]) == [True, False]
    second.polled()
    second.leave_and_wake_next()
    assert not third.woken.is_set()


def test_a_look_that_finds_more_than_was_told_of_wakes_two_more(
    engine: Engine, no_polling: None, only_rings: None
) -> None:
    engine.pause_queue("mail")
    settled(engine)
    mail = [InLine(engine) for _ in range(4)]
    engine.resume_queue("mail")
    assert woken(mail) == [True, False, False, False]
    mail[0].polled(reached_limit=True)
    assert woken(mail) == [True, True, True, False]
    mail[1].polled()
    assert woken(mail) == [True, True, True, False]


def test_work_between_a_look_and_the_wait_is_not_missed(engine: Engine) -> None:
    waiter = engine.wake.waiter([MAIL])
    seen = waiter.seen()
    engine.submit("letter", queue="mail")
    assert not waiter.enter(seen)
    assert waiter.enter(waiter.seen())
    waiter.leave()


def test_one_that_polls_for_all_is_not_one_that_polls_by_itself(engine: Engine) -> None:
    own, first, second = engine.wake.waiter([MAIL]), InLine(engine), InLine(engine)
    assert own.enter(own.seen())
    engine.wake.poll()
    assert own.queue is None
    assert woken([first, second]) == [True, False]
    own.leave()


@pytest.mark.parametrize("look", [Wake.poll, lambda wake: wake.notify(everywhere())], ids=["poll", "news"])
def test_of_those_who_wait_in_many_queues_only_those_with_work_look(
    engine: Engine, look: Callable[[Wake], object]
) -> None:
    """A look in each of 500 queues, every second, left little of a server for others."""
    for queue in ("q3", "q5"):
        engine.submit("letter", queue=queue)
    engine.submit("letter", queue="q8", delay_s=60)
    engine.submit("letter", queue="q9", namespace="y")
    engine.pause_queue("q5")
    settled(engine)
    waiting = [InLine(engine, ("default", f"q{n}")) for n in range(10)]
    look(engine.wake)
    assert [n for n, one in enumerate(waiting) if one.woken.is_set()] == [3]


def test_queues_that_nobody_waits_in_any_more_are_forgotten(engine: Engine) -> None:
    """A token that waits in one random queue after another must not make the server grow."""
    for number in range(1_000):
        waiter = Waiter(engine.wake, [("default", f"random-{number}")], None, lambda: None, polls=False)
        waiter.enter(waiter.seen())
        waiter.leave()
    assert engine.wake.wanted().queues == frozenset()


def test_a_remote_client_listens_for_few_queues_that_nobody_waits_in(no_polling: None) -> None:
    class Source(RemoteSource):
        def work_listener(self, wanted: Callable[[], WantedWork]) -> WorkListener:
            return SilentListener()

    wake = Wake(Source(None))  # type: ignore[arg-type]
    try:
        kept = Waiter(wake, [MAIL], None, lambda: None, polls=False)
        assert kept.enter(kept.seen())
        for number in range(1_000):
            waiter = Waiter(wake, [("default", f"random-{number}")], None, lambda: None, polls=False)
            assert waiter.enter(waiter.seen())
            waiter.leave()
        assert MAIL in wake.wanted().queues
        assert len(wake.wanted().queues) <= MAX_WANTED_QUEUES
    finally:
        wake.close()


class SilentListener:
    is_connected = True

    def run(self, on_commit: object, has_waiters: threading.Event) -> None:
        return

    def refresh(self) -> None:
        return

    stop = refresh


def test_all_look_when_nobody_knows_where_there_is_work(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> set[tuple[str, str]]:
        raise Unavailable("the database is away")

    monkeypatch.setattr(engine.store, "with_work", away)
    settled(engine)
    waiting = [InLine(engine, ("default", f"q{n}")) for n in range(3)]
    engine.wake.poll()
    assert woken(waiting) == [True, True, True]


def released(engine: Engine, clock: VirtualClock) -> None:
    engine.release(engine.claim("mail", worker="w")[0])


def expired(engine: Engine, clock: VirtualClock) -> None:
    [task] = engine.claim("mail", worker="w")
    clock.advance(task.lease_s + 1)
    assert engine.expire_leases()


def retried(engine: Engine, clock: VirtualClock) -> None:
    engine.fail(engine.claim("mail", worker="w")[0], "no", retry_after_s=5.0)
    clock.advance(10)
    assert engine.do_due()


def promoted(engine: Engine, clock: VirtualClock) -> None:
    engine.submit("letter", queue="mail", delay_s=5)
    clock.advance(6)
    assert engine.do_due()


def resumed(engine: Engine, clock: VirtualClock) -> None:
    [task] = engine.claim("mail", worker="w")
    engine.pause(task, owner="ann", reason="which?")
    engine.resume(task.id)


def queue_resumed(engine: Engine, clock: VirtualClock) -> None:
    engine.pause_queue("mail")
    engine.resume_queue("mail")


def breaker_closed(engine: Engine, clock: VirtualClock) -> None:
    engine.open_breaker("letter", for_s=60)
    engine.close_breaker("letter")


def next_stage(engine: Engine, clock: VirtualClock) -> None:
    first, second = TaskSpec("letter", queue="x"), TaskSpec("letter", queue="mail")
    engine.submit_flow("f", [StageSpec("one", [first]), StageSpec("two", [second])])
    engine.succeed(engine.claim("x", worker="w")[0])


def flow_resumed(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("one", [TaskSpec("letter", queue="mail")])])
    engine.pause_flow(flow.id)
    engine.resume_flow(flow.id)


WAYS = (released, expired, retried, promoted, resumed, queue_resumed, breaker_closed, next_stage, flow_resumed)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_back_into_a_queue_wakes_one_who_waits_there(
    engine: Engine, clock: VirtualClock, way: Callable[[Engine, VirtualClock], None]
) -> None:
    engine.configure("letter", Policy(max_attempts=5))
    engine.submit("letter", queue="mail")
    settled(engine)
    mail = [InLine(engine) for _ in range(9)]
    way(engine, clock)
    assert any(woken(mail))


def must_wake(engine: Engine, act: Callable[[], object]) -> None:
    settled(engine)
    mail = [InLine(engine) for _ in range(9)]
    act()
    assert any(woken(mail))


def slot_freed(engine: Engine, **limit: str) -> None:
    engine.set_limit(concurrency=1, **limit)
    [task] = engine.claim("mail", worker="w", limit=9)
    assert engine.claim("mail", worker="w") == []
    must_wake(engine, lambda: engine.succeed(task))


def slot_of_kind_freed(engine: Engine, clock: VirtualClock) -> None:
    engine.submit("letter", queue="mail")
    slot_freed(engine, kind="letter")


def slot_of_queue_freed(engine: Engine, clock: VirtualClock) -> None:
    engine.submit("letter", queue="mail")
    slot_freed(engine, queue="mail")


def slot_of_value_freed(engine: Engine, clock: VirtualClock) -> None:
    engine.succeed(engine.claim("mail", worker="w")[0])
    engine.configure("letter", Policy(concurrency=(Concurrency(1, key="to"),)))
    engine.run([Submit(kind="letter", payload={"to": "ann"}, queue="mail")] * 2)
    slot_freed(engine, kind="letter", key="to")


def limit_raised(engine: Engine, clock: VirtualClock) -> None:
    engine.set_limit(kind="letter", concurrency=0)
    assert engine.claim("mail", worker="w") == []
    must_wake(engine, lambda: engine.set_limit(kind="letter", concurrency=1))


def rate_allows(engine: Engine, clock: VirtualClock) -> None:
    engine.set_limit(kind="letter", rate="1/m")
    engine.submit("letter", queue="mail")
    assert len(engine.claim("mail", worker="w", limit=9)) == 1
    assert engine.claim("mail", worker="w") == []
    clock.advance(61)
    must_wake(engine, engine.do_due)


WAYS_PAST_LIMITS = (slot_of_kind_freed, slot_of_queue_freed, slot_of_value_freed, limit_raised, rate_allows)


@pytest.mark.parametrize("way", WAYS_PAST_LIMITS, ids=lambda way: way.__name__)
def test_a_limit_that_has_room_again_wakes_one_who_waits(
    engine: Engine, clock: VirtualClock, way: Callable[[Engine, VirtualClock], None]
) -> None:
    engine.submit("letter", queue="mail")
    way(engine, clock)


def test_a_failure_that_a_breaker_counts_wakes_nobody(engine: Engine, no_polling: None, only_rings: None) -> None:
    engine.configure("letter", Policy(max_attempts=5, backoff_base_s=60, breaker_failures=5))
    engine.submit("letter", queue="mail")
    task = engine.claim("mail", worker="w")[0]
    settled(engine)
    others = [InLine(engine), InLine(engine, ("y", "mail"))]
    engine.fail(task, "no")
    assert not any(woken(others))


def test_what_could_not_be_told_to_other_processes_is_told_the_next_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[NewWork[int]] = []
    with engine_on(database_url) as engine:

        def notify(work: NewWork[int]) -> None:
            told.append(work)
            if len(told) == 1:
                raise OSError("no buffer")

        monkeypatch.setattr(engine.store, "notify_others", notify)
        engine.wake.committed(NewWork({3: 1}))
        wait_until(lambda: told, PATIENCE_S)
        engine.wake.committed(NewWork({5: 1}))
        wait_until(lambda: {3, 5} <= {queue for work in told[1:] for queue in work.queues}, PATIENCE_S)


def test_a_listener_hears_past_a_thousand_open_files(pg_url: str, no_polling: None) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    with ExitStack() as files:
        for _ in range(1100):
            files.enter_context(open("/dev/null"))
        with engine_on(pg_url) as engine, engine_on(pg_url) as another:
            seen = settled(engine)
            another.submit("mail")
            assert engine.wake.wait(seen, PATIENCE_S) != seen
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_another_process_wakes_one_in_the_queue_that_it_wrote_to(
    database_url: str, no_polling: None, only_rings: None
) -> None:
    with engine_on(database_url) as engine, engine_on(database_url) as other:
        settled(engine), settled(other)
        # On a busy machine it may not be connected yet: it would hear of the queues only that there is work anywhere.
        wait_until(lambda: other.wake.wait(other.wake.generation, 0.05) and listens(other.wake))
        engine.submit("letter", queue="mail")
        engine.submit("letter", queue="x")
        # The other one listens while somebody waits.
        wait_until(lambda: other.wake.wait(other.wake.generation, 0.05) and {MAIL, X} <= other.wake._work_of.keys())
        here, there = [InLine(engine) for _ in range(2)], [InLine(other) for _ in range(2)]
        elsewhere = InLine(other, ("default", "x"))
        engine.submit("letter", queue="mail")
        assert there[0].woken.wait(PATIENCE_S)
        # What this process has told the others comes back to it as well, and wakes nobody a second time.
        engine.submit("letter", queue="x")
        assert elsewhere.woken.wait(PATIENCE_S)
        assert woken(here) == [True, False]
        assert woken(there) == [True, False]


def test_what_this_process_writes_wakes_nobody_in_another_queue_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has changed: it is known that nobody else has done it."""
    looks, changes = list[int](), SqliteStore.changes
    monkeypatch.setattr(SqliteStore, "changes", lambda store: (looks.append(1), changes(store))[1])
    with engine_on(f"sqlite:///{tmp_path / 'jobs.db'}") as engine:
        engine.submit("letter", queue="x")
        settled(engine)
        mail, elsewhere = InLine(engine), InLine(engine, ("default", "x"))
        engine.submit("letter", queue="mail")
        assert mail.woken.is_set()
        before = len(looks)
        wait_until(lambda: len(looks) >= before + 5)
        assert not elsewhere.woken.is_set()


@each_case(
    ("text", "counted", "uncounted", "anywhere"),
    [("a 3=2,8=?", {3: 2}, {8}, False), ("a ", {}, set(), False), ("", {}, set(), False), ("a *", {}, set(), True),
     ("work", {}, set(), True), ("a 3=x", {}, set(), True), ("\0", {}, set(), True)],
)  # fmt: skip
def test_news_of_other_processes_are_read_whatever_they_say(
    text: str, counted: dict[int, int], uncounted: set[int], anywhere: bool
) -> None:
    found = parse_new_work(text, "me")
    assert found is not None
    assert (found.counted, found.uncounted, found.anywhere) == (counted, uncounted, anywhere)


def test_news_name_few_queues_and_are_not_told_to_oneself() -> None:
    work = NewWork({3: 2, 5: 1}, [8])
    assert format_new_work(work, "me") == "me 3=2,5=1,8=?"
    assert parse_new_work(format_new_work(work, "me"), "me") is None
    assert format_new_work(NewWork(dict.fromkeys(range(1000), 1)), "me") == "me *"
