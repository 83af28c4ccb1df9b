"""The event feed: every committed event, in order, from any cursor, once."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from onetray import failpoints
from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Submit
from onetray.domain.errors import InvalidInput
from onetray.domain.lifecycle import TASK
from onetray.domain.task import Event
from onetray.engine import Engine
from onetray.feed import Feed, Page
from tests.support.cases import each_case
from tests.support.engines import engine_on

PATIENCE_S = 60


class Seen:
    """Collects events, and waits until there are as many as a test expects."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._more = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._more:
            self.events.append(event)
            self._more.notify_all()

    def wait_for(self, count: int) -> list[Event]:
        with self._more:
            assert self._more.wait_for(lambda: len(self.events) >= count, PATIENCE_S), self.events
            return list(self.events)


def read_all(feed: Feed, after: int = 0, **options: Any) -> list[Event]:
    found: list[Event] = []
    while True:
        page = feed.read(after, **options)
        found += page.events
        if page.next_cursor == after:
            return found
        after = page.next_cursor


def run_one(engine: Engine, kind: str = "mail", **fields: Any) -> str:
    id = engine.submit(kind, **fields).id
    assert id is not None
    [task] = engine.claim(worker="w", namespace=fields.get("namespace", "default"))
    engine.succeed(task)
    return id


TYPES = ["task.submitted", "task.claimed", "task.started", "task.succeeded"]


def test_events_come_in_order_and_say_what_happened(engine: Engine) -> None:
    id = run_one(engine)
    events = read_all(engine.feed)
    assert [e.type for e in events] == TYPES
    assert [e.version for e in events] == [1, 2, 3, 4]
    assert {e.entity_id for e in events} == {id}
    assert sorted({e.id for e in events}) == [e.id for e in events]
    assert events == engine.events(id)


def test_an_empty_log_gives_the_cursor_back(engine: Engine) -> None:
    assert engine.feed.read(0) == Page([], 0)
    assert engine.feed.read(7) == Page([], 7)


def test_a_read_after_a_commit_sees_it(engine: Engine) -> None:
    for count in range(1, 20):
        engine.submit("mail")
        assert len(engine.feed.read(0).events) == count


def test_any_cursor_is_a_place_to_start(engine: Engine) -> None:
    for _ in range(5):
        run_one(engine)
    events = read_all(engine.feed)
    for i, event in enumerate(events):
        assert read_all(engine.feed, event.id) == events[i + 1 :]


def test_pages_join_without_a_seam(engine: Engine) -> None:
    engine.run([Submit(kind="mail") for _ in range(25)])
    whole = read_all(engine.feed)
    for limit in (1, 2, 7, 24, 25, 26):
        assert read_all(engine.feed, limit=limit) == whole
    assert len(engine.feed.read(0, 7).events) == 7


def test_a_namespace_sees_its_own_events_only(engine: Engine) -> None:
    ours = [run_one(engine, namespace="ours") for _ in range(2)]
    theirs = run_one(engine, namespace="theirs")
    assert {e.entity_id for e in read_all(engine.feed, namespace="ours")} == set(ours)
    assert {e.entity_id for e in read_all(engine.feed, namespace="theirs")} == {theirs}
    assert read_all(engine.feed, namespace="nobody's") == []


def test_types_choose_events(engine: Engine) -> None:
    for _ in range(3):
        run_one(engine)
    some = read_all(engine.feed, types=["task.submitted", "task.succeeded"], limit=2)
    assert [e.type for e in some] == ["task.submitted", "task.succeeded"] * 3
    assert read_all(engine.feed, types=[]) == []


def test_the_cursor_moves_on_when_nothing_matches(engine: Engine) -> None:
    run_one(engine)
    last = read_all(engine.feed)[-1].id
    assert engine.feed.read(0, types=["task.failed"]) == Page([], last)
    assert engine.feed.read(0, namespace="nobody's") == Page([], last)
    assert engine.feed.read(last, types=["task.failed"]) == Page([], last)


def test_a_filtered_read_looks_at_a_bounded_window(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onetray.feed.MAX_SCANNED", 10)
    for _ in range(30):
        engine.submit("mail")
    run_one(engine)
    page = engine.feed.read(0, 5, types=["task.succeeded"])
    assert page.events == []
    assert 0 < page.next_cursor < engine.feed.tail()
    assert [e.type for e in read_all(engine.feed, limit=5, types=["task.succeeded"])] == ["task.succeeded"]


def test_notes_are_in_the_feed(engine: Engine) -> None:
    engine.submit("mail")
    [task] = engine.claim(worker="w")
    engine.start(task)
    engine.cancel(task.id)
    notes = [e for e in read_all(engine.feed) if e.version is None]
    assert [n.state for n in notes] == [None]


def test_cursors_stay_good_when_jobs_are_pruned(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(3):
        run_one(engine)
    before = read_all(engine.feed)
    clock.advance(100_000)
    kept = engine.submit("mail").id
    assert len(engine.prune(50_000)) == 3
    for cursor in (0, before[0].id, before[5].id, before[-1].id):
        assert [e.entity_id for e in read_all(engine.feed, cursor)] == [kept]
    assert read_all(engine.feed, types=["task.succeeded"]) == []


def test_ids_are_not_given_again_after_everything_was_pruned(engine: Engine, clock: VirtualClock) -> None:
    run_one(engine)
    cursor = engine.feed.tail()
    clock.advance(100_000)
    engine.prune(50_000)
    new = engine.submit("mail").id
    assert [e.entity_id for e in read_all(engine.feed, cursor)] == [new]


@each_case("after", [-1, 2**63, "1", 1.0, None, True])
def test_what_is_no_cursor_is_refused(engine: Engine, after: Any) -> None:
    with pytest.raises(InvalidInput):
        engine.feed.read(after)


@each_case("options", [{"limit": 0}, {"limit": 10_001}, {"types": "task.failed"}, {"namespace": 7}])
def test_a_wrong_option_is_refused(engine: Engine, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        engine.feed.read(0, **options)


def test_what_was_rolled_back_is_never_seen(engine: Engine) -> None:
    class Broken(Exception):
        pass

    seen = Seen()
    engine.on_event(seen)
    first = engine.submit("mail").id

    def break_(point: str) -> None:
        if point == "moved":
            raise Broken

    failpoints.hook = break_
    try:
        with pytest.raises(Exception, match="Broken"):
            engine.claim(worker="w")
    finally:
        failpoints.hook = None
    run_one(engine)
    events = seen.wait_for(5)
    assert [e.id for e in events] == [e.id for e in read_all(engine.feed)]
    assert [e.type for e in engine.events(str(first))][:2] == TYPES[:2]


def test_following_yields_what_was_there_and_what_comes(engine: Engine) -> None:
    run_one(engine)
    stream = engine.feed.follow(0)
    assert [next(stream).type for _ in range(4)] == TYPES
    engine.submit("mail")
    assert next(stream).type == "task.submitted"


def test_following_starts_now_unless_told_otherwise(engine: Engine) -> None:
    run_one(engine)
    stream = engine.feed.follow()
    new = engine.submit("mail").id
    assert next(stream).entity_id == new


def test_following_passes_over_what_does_not_match(engine: Engine) -> None:
    stream = engine.feed.follow(0, namespace="ours", types=["task.succeeded"])
    for namespace in ("theirs", "ours", "theirs"):
        run_one(engine, namespace=namespace)
    event = next(stream)
    assert (event.namespace, event.type) == ("ours", "task.succeeded")


def test_following_ends_when_it_is_stopped(engine: Engine) -> None:
    stop = threading.Event()
    ended = in_thread(lambda: list(engine.feed.follow(0, stop=stop)))
    stop.set()
    assert ended.wait(PATIENCE_S)


def test_following_ends_when_the_engine_is_closed(database_url: str) -> None:
    with engine_on(database_url, VirtualClock()) as engine:
        ended = in_thread(lambda: list(engine.feed.follow(0)))
    assert ended.wait(PATIENCE_S)


def in_thread(work: Callable[[], object]) -> threading.Event:
    ended = threading.Event()

    def run() -> None:
        work()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    return ended


def test_a_listener_sees_committed_events_in_order(engine: Engine) -> None:
    run_one(engine)
    seen = Seen()
    engine.on_event(seen)
    id = run_one(engine)
    assert seen.wait_for(4) == engine.events(id)


def test_a_listener_may_start_at_a_cursor(engine: Engine) -> None:
    for _ in range(3):
        run_one(engine)
    events = read_all(engine.feed)
    seen = Seen()
    engine.on_event(seen, after=events[4].id)
    assert seen.wait_for(7) == events[5:]


def test_a_listener_may_see_one_namespace(engine: Engine) -> None:
    seen = Seen()
    engine.on_event(seen, namespace="ours")
    run_one(engine, namespace="theirs")
    run_one(engine, namespace="ours")
    assert {e.namespace for e in seen.wait_for(4)} == {"ours"}


def test_listeners_at_different_places_get_everything_once(engine: Engine) -> None:
    for _ in range(3):
        run_one(engine)
    events = read_all(engine.feed)
    cursors = [0, 0, events[3].id, events[-1].id]
    listeners = [Seen() for _ in cursors]
    for cursor, seen in zip(cursors, listeners, strict=True):
        engine.on_event(seen, after=cursor)
    run_one(engine)
    whole = read_all(engine.feed)
    for cursor, seen in zip(cursors, listeners, strict=True):
        wanted = [e for e in whole if e.id > cursor]
        assert seen.wait_for(len(wanted)) == wanted


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3), KeyboardInterrupt()])
def test_a_listener_that_raises_breaks_nothing(
    engine: Engine, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Seen()
    other = Seen()

    def fail(event: Event) -> None:
        calls(event)
        raise error

    engine.on_event(fail)
    engine.on_event(other)
    with caplog.at_level(logging.ERROR, "onetray.feed"):
        id = run_one(engine)
        assert calls.wait_for(4) == other.wait_for(4) == engine.events(id)
    assert engine.task(id).state in TASK.terminal
    text = caplog.text
    assert id in text
    assert str(calls.events[0].id) in text


def test_a_listener_may_use_the_engine(engine: Engine) -> None:
    seen = Seen()

    def follow_up(event: Event) -> None:
        if event.type == "task.submitted" and event.namespace == "default":
            engine.submit("follow-up", namespace="second")
        seen(event)

    engine.on_event(follow_up)
    engine.submit("mail")
    assert [e.namespace for e in seen.wait_for(2)] == ["default", "second"]


def test_a_closed_subscription_hears_nothing_more(engine: Engine) -> None:
    closed, other = Seen(), Seen()
    subscription = engine.on_event(closed)
    engine.submit("mail")
    closed.wait_for(1)
    subscription.close()
    engine.on_event(other)
    engine.submit("mail")
    other.wait_for(1)
    assert len(closed.events) == 1


def test_a_listener_may_close_its_own_subscription(engine: Engine) -> None:
    seen = Seen()
    engine.submit("mail")
    other = Seen()

    def once(event: Event) -> None:
        seen(event)
        subscription.close()

    ready = threading.Event()
    subscription = engine.on_event(lambda e: (ready.wait(PATIENCE_S), once(e)), after=0)
    ready.set()
    seen.wait_for(1)
    engine.on_event(other, after=0)
    engine.submit("mail")
    other.wait_for(2)
    assert len(seen.events) == 1


def test_one_thread_serves_all_listeners_and_ends_with_the_last(engine: Engine) -> None:
    def threads() -> int:
        return sum(t.name == "onetray-feed" for t in threading.enumerate())

    subscriptions = [engine.on_event(Seen()) for _ in range(5)]
    assert threads() == 1
    [thread] = [t for t in threading.enumerate() if t.name == "onetray-feed"]
    for subscription in subscriptions:
        subscription.close()
    thread.join(PATIENCE_S)
    assert threads() == 0
    seen = Seen()
    engine.on_event(seen)
    engine.submit("mail")
    seen.wait_for(1)
