"""Streams over real sockets: one job as it goes, and the feed; cut off and gone on with, slow clients, the end."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from onetray.domain.commands import Progress, Submit, ticket
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.task import Event
from onetray.engine import Engine
from onetray.feed import Page
from onetray.http.services import HttpConfig, Services
from onetray.http.streams import feed
from onetray.http.streams.hub import Follower, Hub
from onetray.http.streams.job import PAGE, StreamPosition, read_changes, view_of
from onetray.http.streams.reader import Batch, Reading
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.fleet import wait_until
from tests.support.live import WAIT_S, Frame, Live, parsed, serving, stream, told
from tests.support.streams import run_streams
from tests.support.tasks import UNKNOWN_ID, running, submit, take
from tests.support.waits import until


@pytest.fixture
def live(engine: Engine) -> Iterator[Live]:
    with serving(engine) as running_:
        yield running_


def names(frames: list[Frame]) -> list[str]:
    return [f"{f.event}:{f.data['type'].partition('.')[2]}" if "type" in f.data else str(f.event) for f in frames]


def ended_job(engine: Engine, *lines: str) -> str:
    id_ = submit(engine)
    claimed = running(engine)
    if lines:
        engine.log(claimed, *lines)
    engine.succeed(claimed, {"sent": 1})
    return id_


def blocks(text: str) -> list[Frame]:
    return [f for f in map(parsed, text.split("\n\n")) if f.event]


# One job.


def test_a_jobs_stream_tells_its_states_and_its_lines_and_ends_with_its_end(api: TestClient, engine: Engine) -> None:
    id_ = submit(engine)
    claimed = running(engine)
    engine.log(claimed, "one", "two")
    engine.say_progress(claimed, 1, 2)
    engine.succeed(claimed, {"sent": 1})
    answer = api.get(f"/api/v1/jobs/{id_}/stream")
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = blocks(answer.text)
    assert names(found) == [
        "status:submitted", "status:claimed", "status:started", "log", "log", "progress", "status:succeeded",
    ]  # fmt: skip
    assert [f.data["line"] for f in found if f.event == "log"] == ["one", "two"]
    assert found[-2].data["done"] == 1
    assert (found[-1].data["state"], found[-1].data["result"]) == ("succeeded", {"sent": 1})


def test_a_failure_is_told_with_its_error(api: TestClient, engine: Engine) -> None:
    id_ = submit(engine)
    engine.fail(running(engine), "no such address", retryable=False)
    last = blocks(api.get(f"/api/v1/jobs/{id_}/stream").text)[-1]
    assert (last.data["state"], last.data["error"]["message"]) == ("failed", "no such address")


def test_an_end_that_comes_during_a_look_is_told_with_its_result(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = view_of(engine, submit(engine), "default")
    claimed, ask = running(engine), engine.job_status

    def before_the_end(*args: Any, **kwargs: Any) -> Any:
        status = ask(*args, **kwargs)
        monkeypatch.setattr(engine, "job_status", ask)
        engine.succeed(claimed, {"sent": 1})
        return status

    monkeypatch.setattr(engine, "job_status", before_the_end)
    found = read_changes(view, StreamPosition())
    assert found.ended
    assert blocks(found.parts.decode())[-1].data["result"] == {"sent": 1}


def test_a_stream_goes_on_after_any_of_its_ids(api: TestClient, engine: Engine) -> None:
    id_ = ended_job(engine, "one", "two")
    whole = blocks(api.get(f"/api/v1/jobs/{id_}/stream").text)
    for i, frame in enumerate(whole[:-1]):
        by_header = api.get(f"/api/v1/jobs/{id_}/stream", headers={"Last-Event-ID": str(frame.id)})
        by_query = api.get(f"/api/v1/jobs/{id_}/stream", params={"cursor": str(frame.id)})
        assert blocks(by_header.text) == blocks(by_query.text) == whole[i + 1 :]


def test_whoever_knows_the_end_is_told_to_stay_away(api: TestClient, engine: Engine) -> None:
    id_ = ended_job(engine)
    last = blocks(api.get(f"/api/v1/jobs/{id_}/stream").text)[-1].id
    assert api.get(f"/api/v1/jobs/{id_}/stream", headers={"Last-Event-ID": str(last)}).status_code == 204


def test_the_header_is_newer_than_the_address(api: TestClient, engine: Engine) -> None:
    id_ = ended_job(engine)
    whole = blocks(api.get(f"/api/v1/jobs/{id_}/stream").text)
    found = api.get(
        f"/api/v1/jobs/{id_}/stream", params={"cursor": str(whole[0].id)}, headers={"Last-Event-ID": str(whole[2].id)}
    )
    assert blocks(found.text) == whole[3:]


def test_more_lines_than_a_page_come_before_the_end(api: TestClient, engine: Engine) -> None:
    id_ = ended_job(engine, *(f"line {i}" for i in range(2 * PAGE + 1)))
    found = blocks(api.get(f"/api/v1/jobs/{id_}/stream").text)
    assert [f.data["cursor"] for f in found if f.event == "log"] == list(range(1, 2 * PAGE + 2))
    assert found[-1].data["state"] == "succeeded"


def test_a_flows_stream_tells_its_stages(api: TestClient, engine: Engine) -> None:
    flow = engine.submit_flow(
        "report", [StageSpec("fetch", tasks=[TaskSpec("get")]), StageSpec("send", tasks=[TaskSpec("put")])]
    )
    for _ in range(2):
        engine.succeed(running(engine))
    found = blocks(api.get(f"/api/v1/jobs/{flow.id}/stream").text)
    stages = [
        (f.data["stage"], f.data["state"]) for f in found if f.event == "stage" and f.data["state"] == "succeeded"
    ]
    assert stages == [("fetch", "succeeded"), ("send", "succeeded")]
    assert [f.data["percentage"] for f in found if f.event == "progress"] == [100]
    assert found[-1].data["type"] == "flow.succeeded"
    assert not [f for f in found if f.data.get("type", "").startswith("task.")]


def test_a_flows_stream_has_what_its_tasks_log_and_report_whatever_it_is_cut_after(
    api: TestClient, engine: Engine
) -> None:
    members = [TaskSpec("get", name=name) for name in ("one", "two")]
    flow = engine.submit_flow("report", [StageSpec("fetch", members), StageSpec("send", [TaskSpec("put")])])
    path = f"/api/v1/jobs/{flow.id}/stream"
    first, second = running(engine), running(engine)
    engine.log(first, "looking", ("warning", "slow", {"n": 1}))
    engine.say_progress(second, 1, 2, "half")
    view = view_of(engine, flow.id, "default")
    before = read_changes(view, StreamPosition())
    reported = [f for f in blocks(before.parts.decode()) if f.event in ("log", "task_progress")]
    said = [(f.event, f.data["stage"], f.data["name"], f.data.get("line"), f.data.get("done")) for f in reported]
    assert said == [
        ("log", "fetch", "one", "looking", None), ("log", "fetch", "one", "slow", None),
        ("task_progress", "fetch", "two", None, 1.0),
    ]  # fmt: skip
    assert (reported[0].data["task"], reported[1].data["data"], reported[2].data["message"]) == (
        first.id,
        {"n": 1},
        "half",
    )
    (progress,) = [f.data for f in blocks(before.parts.decode()) if f.event == "progress"]
    assert (progress["percentage"], progress["stages"]) == (12, [{"stage": "fetch", "percentage": 25}])
    # Half of the stage is a quarter of the flow: more progress within a stage changes the frame, too.
    engine.say_progress(second, 52, 100)
    after = blocks(read_changes(view, before.position).parts.decode())
    assert [(f.event, f.data.get("done"), f.data.get("stages")) for f in after] == [
        ("task_progress", 52.0, None), ("progress", None, [{"stage": "fetch", "percentage": 26}]),
    ]  # fmt: skip
    for claimed in (first, second, None):
        engine.succeed(claimed or running(engine))
    whole = blocks(api.get(path).text)
    assert [f.data["cursor"] for f in whole if f.event in ("log", "task_progress")] == [1, 2, 4]
    for i, frame in enumerate(whole[:-1]):
        assert blocks(api.get(path, headers={"Last-Event-ID": str(frame.id)}).text) == whole[i + 1 :]


def test_a_line_of_a_task_wakes_the_stream_of_its_flow(live: Live, engine: Engine) -> None:
    flow = engine.submit_flow("report", [StageSpec("fetch", [TaskSpec("get")] * 2)])
    claimed = running(engine)

    async def follow() -> list[Any]:
        async with stream(live.port, f"/api/v1/jobs/{flow.id}/stream") as one:
            found, acts = [], [lambda: engine.say_progress(claimed, 1, 2), lambda: engine.log(claimed, "now")]
            async for frame in one.frames():
                if frame.event in ("log", "task_progress"):
                    found.append((frame.event, frame.data.get("line"), frame.data.get("done")))
                if found or frame.data.get("type") == "flow.started":
                    if not acts:
                        break
                    await asyncio.to_thread(acts.pop())
            return found

    assert asyncio.run(asyncio.wait_for(follow(), WAIT_S)) == [("log", "now", None), ("task_progress", None, 1.0)]


@each_case(
    ("path", "status"),
    [
        (f"/api/v1/jobs/{UNKNOWN_ID}/stream", 404),
        ("/api/v1/jobs/nonsense/stream", 400),
        (f"/api/v1/jobs/{UNKNOWN_ID}/stream?cursor=12", 400),
        (f"/api/v1/jobs/{UNKNOWN_ID}/stream?cursor=e{'9' * 19}.l0.p0", 400),
        ("/api/v1/feed?cursor=-1", 400),
        ("/api/v1/feed?cursor=%C2%B2", 400),
        ("/api/v1/feed?job=x", 400),
        ("/api/v1/feed?limit=0", 400),
        ("/api/v1/feed?wait_s=31", 400),
        ("/api/v1/feed?wait_s=nan", 400),
        ("/api/v1/feed?types=" + ",".join("abc" for _ in range(101)), 400),
        ("/api/v1/feed/stream?cursor=e1.l2.p3", 400),
    ],
)
def test_what_is_no_cursor_or_filter_is_refused(quick_api: TestClient, path: str, status: int) -> None:
    answer = quick_api.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


def test_a_job_of_another_namespace_has_no_stream(api: TestClient, engine: Engine) -> None:
    id_ = submit(engine, namespace="theirs")
    assert api.get(f"/api/v1/jobs/{id_}/stream").status_code == 404


def test_lines_are_told_as_they_are_logged(live: Live, engine: Engine) -> None:
    id_ = submit(engine)
    claimed = running(engine)

    async def watch() -> list[Frame]:
        async with stream(live.port, f"/api/v1/jobs/{id_}/stream") as one:
            found = await one.events(3)
            for text in ("one", "two"):
                await asyncio.to_thread(engine.log, claimed, text)
                found += await one.events(1)
            await asyncio.to_thread(engine.say_progress, claimed, 1)
            found += await one.events(1)
            await asyncio.to_thread(engine.succeed, claimed)
            return found + await one.events()

    assert names(asyncio.run(watch()))[3:] == ["log", "log", "progress", "status:succeeded"]


# The feed.


def test_pages_of_the_feed_go_on_from_their_cursors(api: TestClient, engine: Engine) -> None:
    ids = [submit(engine) for _ in range(3)]
    first = api.get("/api/v1/feed", params={"limit": 2}).json()
    second = api.get("/api/v1/feed", params={"limit": 2, "cursor": first["cursor"]}).json()
    assert [e["entity_id"] for e in first["events"] + second["events"]] == ids
    assert api.get("/api/v1/feed", params={"cursor": second["cursor"]}).json() == {
        "events": [], "cursor": second["cursor"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"types": "task.claimed,task.started"}, ["task.claimed"]),
        ({"kind": "mail"}, ["task.submitted", "task.claimed"]),
        ({"kind": "report"}, ["flow.submitted", "flow.opened", "stage.added", "stage.opened"]),
        ({"kind": "nothing"}, []),
        ({"job": "mail"}, ["task.submitted", "task.claimed"]),
    ],
)
def test_the_feed_gives_what_was_asked_for(
    api: TestClient, engine: Engine, wanted: dict[str, str], expected: list[str]
) -> None:
    ids = {"mail": submit(engine, "mail"), "other": submit(engine, "other", queue="q")}
    submit(engine, "mail", namespace="theirs")
    take(engine)
    engine.submit_flow("report", [StageSpec("fetch", tasks=[TaskSpec("get")])])
    wanted = {**wanted, **({"job": ids[wanted["job"]]} if "job" in wanted else {})}
    found = api.get("/api/v1/feed", params=wanted).json()["events"]
    assert sorted(e["type"] for e in found) == sorted(expected)


def test_a_long_poll_is_answered_when_something_happens(live: Live, engine: Engine) -> None:
    cursor = httpx2.get(f"{live.url}/api/v1/feed").json()["cursor"]
    answers: list[dict[str, object]] = []
    asked = threading.Thread(
        target=lambda: answers.append(
            httpx2.get(f"{live.url}/api/v1/feed", params={"cursor": cursor, "wait_s": 20}, timeout=WAIT_S).json()
        )
    )
    asked.start()
    id_ = submit(engine)
    asked.join(WAIT_S)
    (event,) = answers[0]["events"]  # type: ignore[misc]
    assert event["entity_id"] == id_


def test_a_long_poll_for_few_of_the_events_that_come_at_once_leaves_the_rest_to_the_next(
    live: Live, engine: Engine
) -> None:
    def read(cursor: int, **options: int) -> dict[str, Any]:
        found = httpx2.get(f"{live.url}/api/v1/feed", params={"cursor": cursor, **options}, timeout=WAIT_S)
        return dict(found.json())

    before = read(0)["cursor"]
    with ThreadPoolExecutor(1) as calls:
        poll = calls.submit(read, before, limit=2, wait_s=20)
        wait_until(lambda: live.services.hub._stream_count == 1)
        ids = [verdict.unwrap().id for verdict in engine.run([Submit(kind="mail") for _ in range(5)])]
        first = poll.result(WAIT_S)
    assert [event["entity_id"] for event in first["events"]] == ids[:2]
    assert [event["entity_id"] for event in read(first["cursor"])["events"]] == ids[2:]


def long_polls(live: Live, held: ExitStack, many: int, token: str, path: str = "/api/v1/feed?wait_s=30") -> list[Any]:
    """Requests that wait for an event, each on a socket of its own."""
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    plugs = [held.enter_context(socket.create_connection(("127.0.0.1", live.port), WAIT_S)) for _ in range(many)]
    for plug in plugs:
        plug.sendall(head.encode())
    return plugs


@pytest.mark.parametrize(
    "path", ["/api/v1/feed?wait_s=30", "/api/v1/news?wait_s=30&boot={boot}&generation={generation}"]
)
def test_a_long_poll_ends_when_its_client_has_left(engine_here: Engine, path: str) -> None:
    engine = engine_here
    new = engine.tokens.create("ann", ["read"], namespace="empty")
    with serving(engine) as live, ExitStack() as held:
        path = path.format(boot=engine.wake.boot, generation=engine.wake.generation)
        plugs = long_polls(live, held, 3, new.text, path)
        wait_until(lambda: live.services.metrics.open == 3)
        for plug in plugs:
            plug.close()
        # Long before their time is over.
        wait_until(lambda: live.services.metrics.open == 0, timeout_s=20)


def test_what_others_commit_costs_a_long_poll_no_query(engine_here: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, reads, read = engine_here, list[str](), engine_here.feed.read
    new = engine.tokens.create("ann", ["read"], namespace="own")
    monkeypatch.setattr(
        engine.feed, "read", lambda *args, **by: (reads.append("") if by["namespace"] else None, read(*args, **by))[1]
    )
    with serving(engine) as live, ExitStack() as held:
        plugs = long_polls(live, held, 5, new.text)
        wait_until(lambda: live.services.hub._stream_count == 5)
        for _ in range(50):
            submit(engine)
            wait_until(lambda: (live.services.hub._reading or pytest.fail("it waits")).at == engine.feed.tail())
        id_ = engine.submit("mail", namespace="own").id
        answers = [b"".join(iter(lambda plug=plug: plug.recv(65_536), b"")) for plug in plugs]  # type: ignore[misc]
    assert all(str(id_).encode() in answer for answer in answers)
    assert len(reads) <= 4 * 5


def test_a_long_poll_is_refused_when_its_token_expires(engine_here: Engine) -> None:
    engine = engine_here
    new = engine.tokens.create("ann", ["read"], expires_s=1.0)
    with serving(engine, HttpConfig(token_cache_s=3600.0)) as live, ExitStack() as held:
        (plug,) = long_polls(live, held, 1, new.text)
        assert plug.recv(65_536).startswith(b"HTTP/1.1 401")


def test_the_feeds_stream_goes_on_from_the_past_to_what_comes(live: Live, engine: Engine) -> None:
    before = [submit(engine) for _ in range(3)]

    async def follow() -> list[Frame]:
        async with stream(live.port, "/api/v1/feed/stream?cursor=0") as one:
            found = await one.events(3)
            for _ in range(3):
                await asyncio.to_thread(submit, engine)
                found += await one.events(1)
            return found

    found = asyncio.run(follow())
    assert [f.data["entity_id"] for f in found][:3] == before
    assert [int(f.id or 0) for f in found] == [e.id for e in engine.feed.read(0).events]


def test_what_is_committed_while_a_stream_reads_the_past_comes_once(
    live: Live, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the page that the stream reads, and the hub gives it to the stream, too."""
    read, committed = engine.feed.read, []

    def commit_and_read(*place: int, **filters: Any) -> Page:
        if filters.get("namespace") and not committed:  # The hub reads all namespaces.
            committed.append(submit(engine))
        return read(*place, **filters)

    before = submit(engine)
    monkeypatch.setattr(engine.feed, "read", commit_and_read)

    async def follow() -> list[Frame]:
        async with stream(live.port, "/api/v1/feed/stream?cursor=0") as one:
            found = await one.events(2)
            await asyncio.to_thread(submit, engine)
            return found + await one.events(1)

    found = asyncio.run(follow())
    assert [int(f.id or 0) for f in found] == [e.id for e in read(0).events]
    assert [f.data["entity_id"] for f in found][:2] == [before, *committed]


def test_a_stream_without_a_cursor_says_where_it_begins(live: Live, engine: Engine) -> None:
    submit(engine)
    at = engine.feed.tail()

    async def first() -> Frame:
        async with stream(live.port, "/api/v1/feed/stream") as one:
            return await anext(one.frames())

    assert asyncio.run(first()) == Frame(id=str(at))


def test_what_a_follower_was_not_sent_while_it_was_away_comes_first(live: Live, engine: Engine) -> None:
    submit(engine)
    (first,) = told(live.port, "/api/v1/feed/stream?cursor=0", most=1)
    missed = [submit(engine) for _ in range(2)]
    found = told(live.port, "/api/v1/feed/stream?cursor=0", last=first.id, most=2)
    assert [f.data["entity_id"] for f in found] == missed


def test_filters_hold_for_what_comes_live(live: Live, engine: Engine) -> None:
    async def follow() -> list[Frame]:
        async with stream(live.port, "/api/v1/feed/stream?kind=mail&types=task.submitted") as one:
            await anext(one.frames())
            for kind in ("other", "mail", "other", "mail"):
                await asyncio.to_thread(submit, engine, kind)
            return await one.events(2)

    assert [f.event for f in asyncio.run(follow())] == ["task.submitted"] * 2


def test_a_kind_that_is_forgotten_while_others_are_asked_for_hides_no_event(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MAX_KINDS", 1)
    for _ in range(3):
        submit(engine)
    events, services, kinds = engine.feed.read(0).events, Services(engine, HttpConfig()), feed.Kinds()

    async def at_once() -> list[list[Event]]:
        await kinds.of_kind(services, "mail", events[:1])
        return await asyncio.gather(*(kinds.of_kind(services, "mail", events) for _ in range(2)))

    assert asyncio.run(at_once()) == [events, events]


# What keeps a server well.


def test_a_heartbeat_is_a_comment_without_a_cursor(engine: Engine) -> None:
    id_ = submit(engine)

    async def beat(port: int) -> Frame:
        async with stream(port, f"/api/v1/jobs/{id_}/stream") as one:
            async for frame in one.frames():
                if frame.event is None:
                    return frame
        raise AssertionError("the stream ended")

    with serving(engine, HttpConfig(heartbeat_s=0.05)) as live:
        assert asyncio.run(beat(live.port)) == Frame(comment="still here")


def test_one_stream_too_many_is_refused_and_a_closed_one_makes_room(engine: Engine) -> None:
    async def fill(port: int) -> list[int]:
        found = []
        async with stream(port, "/api/v1/feed/stream") as one:
            await anext(one.frames())
            async with stream(port, "/api/v1/feed/stream") as other:
                found.append(other.status)
        while found[-1] == 429:
            async with stream(port, "/api/v1/feed/stream") as other:
                found.append(other.status)
        return found

    with serving(engine, HttpConfig(streams=1)) as live:
        found = asyncio.run(asyncio.wait_for(fill(live.port), WAIT_S))
    assert (found[0], found[-1]) == (429, 200)


def test_a_client_that_leaves_gives_its_place_back(live: Live, engine: Engine) -> None:
    async def come_and_go() -> None:
        async with stream(live.port, "/api/v1/feed/stream") as one:
            await anext(one.frames())
            assert live.services.streams.open == 1
        await until(lambda: not live.services.streams.open)

    asyncio.run(come_and_go())


def test_a_queue_that_is_full_holds_nothing_and_says_so(engine: Engine) -> None:
    for _ in range(4):
        submit(engine)
    events = engine.feed.read(0).events
    follower = Follower(max_events=3)
    follower.put(Batch(events[:3], 3))
    assert not follower.lagging
    follower.put(Batch(events[3:], 4))
    assert follower.lagging
    assert follower.take() == []


def test_a_client_that_is_too_slow_is_told_where_to_go_on(engine: Engine) -> None:
    """Its queue fills while its socket takes nothing; then it reads on, finds the cursor, and misses nothing."""

    async def crawl(live: Live) -> None:
        async with stream(live.port, "/api/v1/feed/stream", narrow=True) as one:
            reader = one.frames()
            await anext(reader)
            await asyncio.to_thread(flood, engine, live.services.hub)
            found = [f async for f in reader if f.event]
        assert found[-1].event == "resync"
        cursor = found[-1].data["cursor"]
        ids = [e.id for e in engine.feed.read(0, 10_000).events]
        assert [int(f.id or 0) for f in found[:-1]] == [i for i in ids if i <= cursor]
        async with stream(live.port, f"/api/v1/feed/stream?cursor={cursor}") as two:
            rest = [i for i in ids if i > cursor]
            assert [int(f.id or 0) for f in await two.events(len(rest))] == rest

    with serving(engine, HttpConfig(stream_queue=600)) as live:
        asyncio.run(asyncio.wait_for(crawl(live), WAIT_S))


def flood(engine: Engine, hub: Hub) -> None:
    """Write events, more than fit between the server and its client, until the queue is full."""
    while not all(follower.lagging for follower in list(hub._followers)):
        engine.run([Submit(kind="mail", cause="€" * 2_000) for _ in range(100)])


def test_a_client_that_takes_no_bytes_is_cut_off(engine: Engine) -> None:
    async def sit(live: Live) -> None:
        async with stream(live.port, "/api/v1/feed/stream", narrow=True) as one:
            await anext(one.frames())
            while live.services.streams.open:
                await asyncio.to_thread(engine.run, [Submit(kind="mail", cause="€" * 2_000) for _ in range(100)])

    with serving(engine, HttpConfig(stall_s=0.2, stream_queue=100_000)) as live:
        asyncio.run(asyncio.wait_for(sit(live), WAIT_S))
        assert live.services.streams.open == 0


def test_one_thread_reads_for_all_streams_and_ends_with_the_last(live: Live, engine: Engine) -> None:
    id_ = submit(engine)

    def readers() -> int:
        return sum(thread.name == "onetray-hub" for thread in threading.enumerate())

    async def several() -> None:
        feed, job = "/api/v1/feed/stream", f"/api/v1/jobs/{id_}/stream"
        async with stream(live.port, feed) as one, stream(live.port, feed) as two, stream(live.port, job) as three:
            for each in (one, two, three):
                await anext(each.frames())
            assert readers() == 1
        await until(lambda: not readers())

    asyncio.run(several())


def test_a_server_that_stops_says_goodbye_with_the_cursor(engine: Engine) -> None:
    id_ = submit(engine)

    async def wait_for_the_end(live: Live) -> list[list[Frame]]:
        async with (
            stream(live.port, "/api/v1/feed/stream") as one,
            stream(live.port, f"/api/v1/jobs/{id_}/stream") as two,
        ):
            await anext(one.frames())
            found = await two.events(1)
            live.services.hub.close()
            return [await one.events(), found + await two.events()]

    with serving(engine) as live:
        feed, job = asyncio.run(asyncio.wait_for(wait_for_the_end(live), WAIT_S))
        refused = httpx2.get(f"{live.url}/api/v1/feed/stream")
    assert [f.event for f in feed] == ["bye"]
    assert feed[0].data == {"cursor": engine.feed.tail()}
    assert [f.event for f in job] == ["status", "bye"]
    assert job[1].data == {"cursor": job[0].id}
    assert refused.status_code == 503


def test_a_hub_is_closed_while_its_last_stream_leaves(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def close() -> None:
        hub = Hub(engine)
        with ExitStack() as streams:
            follower = streams.enter_context(hub.following(1))

            def leave(reading: Reading) -> None:
                monkeypatch.undo()
                streams.close()

            monkeypatch.setattr(Reading, "end", leave)
            hub.close()
        assert hub.closing
        assert not follower.signal.is_set()

    asyncio.run(close())


def test_clients_that_are_cut_off_and_come_back_miss_nothing_and_get_nothing_twice(engine: Engine) -> None:
    with serving(engine, HttpConfig(heartbeat_s=0.1)) as live:
        outcome = run_streams(engine, live.port, clients=8, jobs=100, seed=1)
    assert outcome.faults == []
    assert outcome.cuts > 8


# Quiet streams: their token ends, and nothing fits.

QUIET = "/api/v1/feed/stream?types=no.such.type", "/api/v1/jobs/{id}/stream", "/api/jobs/{id}/events"


@pytest.fixture
def engine_here() -> Iterator[Engine]:
    with engine_on("sqlite://:memory:") as engine:
        yield engine


async def until_the_end(port: int, path: str, token: str, began: Callable[[], object]) -> None:
    assert await has_begun_and_ended(port, path, token, began)


async def has_begun_and_ended(port: int, path: str, token: str, began: Callable[[], object]) -> bool:
    """Read a stream to its end. False if it was over before its first frame."""
    async with stream(port, path, token=token) as one:
        frames = one.frames()
        if one.status != 200 or await anext(frames, None) is None:
            return False
        began()
        async for _ in frames:
            pass
    return True


@pytest.mark.parametrize("path", QUIET)
def test_a_quiet_stream_ends_once_its_token_is_revoked(engine_here: Engine, path: str) -> None:
    engine = engine_here
    new, id_ = engine.tokens.create("ann", ["read"]), engine.submit("mail").id
    config = HttpConfig(token_cache_s=0.2, heartbeat_s=3600.0)
    with serving(engine, config) as live:
        asyncio.run(until_the_end(live.port, path.format(id=id_), new.text, lambda: engine.tokens.revoke(new.token.id)))
        wait_until(lambda: live.services.streams.open == 0)


@pytest.mark.parametrize("path", QUIET)
def test_a_quiet_stream_ends_when_its_token_expires(engine_here: Engine, path: str) -> None:
    """By the clock: nobody asks the database again before."""
    engine = engine_here
    id_ = engine.submit("mail").id
    with serving(engine, HttpConfig(token_cache_s=3600.0, heartbeat_s=3600.0)) as live:
        # On a busy machine a token may expire before its stream begins: the next one lives longer.
        for expires_s in (1.0, 5.0, 25.0):
            new = engine.tokens.create("ann", ["read"], expires_s=expires_s)
            if asyncio.run(has_begun_and_ended(live.port, path.format(id=id_), new.text, lambda: None)):
                return
    raise AssertionError("no stream has begun")


@pytest.mark.parametrize("path", [QUIET[0], QUIET[2]])
def test_a_stream_beats_though_what_happens_is_not_for_it(engine_here: Engine, path: str) -> None:
    """Something happens more often than a heartbeat is due, and nothing of it is told."""
    engine, stop = engine_here, threading.Event()
    id_ = str(engine.submit("mail").id)
    [task] = engine.claim(worker="w")
    engine.start(task)

    def go_on() -> None:
        done = 0
        while not stop.wait(0.02):
            done += 1
            engine.call(Progress(**ticket(task), done=done))
            engine.submit("other")

    async def read(port: int) -> None:
        async with stream(port, path.format(id=id_)) as one:
            async for frame in one.frames():
                if frame.comment is not None:
                    return
        raise AssertionError("it ended without a heartbeat")

    with serving(engine, HttpConfig(heartbeat_s=0.5)) as live:
        writer = threading.Thread(target=go_on)
        writer.start()
        try:
            asyncio.run(read(live.port))
        finally:
            stop.set()
            writer.join()


def test_a_stream_beats_while_it_catches_up_with_what_is_not_for_it(
    engine_here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, gate = engine_here, threading.Event()
    engine.submit("mail")
    read = engine.feed.read
    with serving(engine, HttpConfig(heartbeat_s=0.05)) as live:

        def held_up(*args: Any, **more: Any) -> Any:
            # The stream's own: the hub reads for all namespaces.
            assert "namespace" not in more or gate.wait(WAIT_S)
            return read(*args, **more)

        monkeypatch.setattr(engine.feed, "read", held_up)

        async def beats() -> None:
            async with stream(live.port, "/api/v1/feed/stream?cursor=0&types=no.such.type") as one:
                async for frame in one.frames():
                    if frame.comment is not None:
                        gate.set()
                        return

        asyncio.run(beats())
        assert gate.is_set()


@pytest.mark.parametrize("when", ["before it connects", "while it is connected"])
def test_a_stream_of_large_events_holds_a_small_part_of_them_at_a_time(engine: Engine, when: str) -> None:
    """What a stream has read and not sent is memory, once for each client that does not read."""
    count, parts = 300, list[bytes]()

    def submit_all() -> None:
        engine.run([Submit(kind="mail", cause="x" * 1_900) for _ in range(count)])

    async def read() -> None:
        services = Services(engine, HttpConfig())
        frames = feed.feed_frames(services, feed.FeedFilter("default"), feed.FeedPosition(0))
        if when == "while it is connected":
            await anext(frames)
            await services.read(submit_all)
        while b"".join(parts).count(b"event: ") < count:
            parts.append(await anext(frames))
        await frames.aclose()

    if when == "before it connects":
        submit_all()
    asyncio.run(asyncio.wait_for(read(), WAIT_S))
    sent = [parsed(text) for text in b"".join(parts).decode().split("\n\n")]
    ids = [int(f.id or 0) for f in sent if f.event]
    assert ids == sorted(set(ids))
    assert len(ids) == count
    assert max(map(len, parts)) < 2 * feed.PART_BYTES
    assert len(parts) < count / 5, "few events at a time are slow"
