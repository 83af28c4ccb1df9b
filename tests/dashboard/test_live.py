"""The live hub over real sockets: who watches, what is rendered, what is sent, and how a stream ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from onetray.dashboard import live as hub_module
from onetray.dashboard.live import LiveHub, Watch, Watched
from onetray.dashboard.pages import PAGES
from onetray.dashboard.render import Rendered
from onetray.dashboard.view import View
from onetray.domain.errors import InvalidInput
from onetray.engine import Engine
from onetray.http.auth.token_cache import LOCAL
from onetray.http.services import HttpConfig
from tests.support.fleet import wait_until
from tests.support.live import WAIT_S, Frame, Live, Stream, serving, stream
from tests.support.tasks import submit

QUEUES = "/ui/live?page=/ui/queues"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is rendered but after a commit, and then at once."""
    monkeypatch.setattr(hub_module, "EVERY_S", 0.0)
    monkeypatch.setattr(hub_module, "CLOCK_S", 3_600.0)
    monkeypatch.setattr(hub_module, "GATHER_S", 0.0)
    monkeypatch.setattr(hub_module, "SHARE", 1.0)


@pytest.fixture
def live(engine: Engine, quick: None) -> Iterator[Live]:
    with serving(engine) as running:
        yield running


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[View]:
    """The views that the page of queues was rendered for."""
    views: list[View] = []
    page = PAGES["queues"]

    def counted(view: View) -> dict[str, Any]:
        views.append(view)
        return page.function(view)

    monkeypatch.setitem(PAGES, "queues", page_with(page, counted))
    hub_patterns_cleared(monkeypatch)
    return views


def page_with(page: Any, function: Any) -> Any:
    return replace(page, function=function)


def hub_patterns_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    from onetray.dashboard import route

    monkeypatch.setattr(route, "_patterns", route._patterns.__wrapped__)


def hub_of(live: Live) -> LiveHub:
    config: Any = live.server.config
    hub: LiveHub = config.app.state.dashboard.live
    return hub


async def next_fragments(one: Stream) -> dict[str, Any]:
    [event] = await one.events(1)
    assert event.event == "fragments"
    found: dict[str, Any] = event.data
    return found


def have(fragments: dict[str, Any]) -> str:
    return "&have=" + ",".join(f"{name}:{fragment['hash']}" for name, fragment in fragments.items())


def test_a_commit_reaches_those_who_watch(live: Live, engine: Engine) -> None:
    async def watch() -> None:
        async with stream(live.port, QUEUES) as one:
            assert "No queue yet" in (await next_fragments(one))["queues"]["html"]
            submit(engine, queue="letters")
            assert "letters" in (await next_fragments(one))["queues"]["html"]

    asyncio.run(watch())


def test_two_who_watch_one_page_cost_one_render(live: Live, engine: Engine, seen: list[View]) -> None:
    async def watch() -> None:
        async with stream(live.port, QUEUES) as one, stream(live.port, QUEUES) as other:
            await next_fragments(one)
            await next_fragments(other)
            [watch] = hub_of(live)._watches.values()
            assert watch.watchers == 2
            submit(engine, queue="letters")
            first, second = await next_fragments(one), await next_fragments(other)
            assert first == second
            assert "letters" in first["queues"]["html"]
            # The first look, and one for the commit. A listener may report a commit once more.
            assert 2 <= len(seen) <= 3

    asyncio.run(watch())


def test_a_fragment_that_has_not_changed_is_not_sent(live: Live, engine: Engine, seen: list[View]) -> None:
    """A commit elsewhere renders the page again, and says nothing."""

    async def watch() -> None:
        async with stream(live.port, QUEUES) as one:
            await next_fragments(one)
            before = len(seen)
            submit(engine, namespace="theirs", queue="elsewhere")
            await asyncio.to_thread(wait_until, lambda: len(seen) > before)
            submit(engine, queue="letters")
            html = (await next_fragments(one))["queues"]["html"]
            assert "letters" in html
            assert "elsewhere" not in html

    asyncio.run(watch())


def test_who_connects_again_gets_only_what_differs(live: Live, engine: Engine, seen: list[View]) -> None:
    async def fragments(path: str) -> dict[str, Any]:
        async with stream(live.port, path) as one:
            return await next_fragments(one)

    known = have(asyncio.run(fragments(QUEUES)))

    async def watch() -> None:
        before = len(seen)
        async with stream(live.port, QUEUES + known) as one:
            await asyncio.to_thread(wait_until, lambda: len(seen) > before)
            submit(engine, queue="letters")
            assert "letters" in (await next_fragments(one))["queues"]["html"]

    asyncio.run(watch())
    # While nobody watched, something has changed.
    submit(engine, queue="parcels")
    assert "parcels" in asyncio.run(fragments(QUEUES + known))["queues"]["html"]


def test_a_server_that_was_restarted_renders_the_same(engine: Engine, quick: None) -> None:
    """What a browser has from the old server is not sent again by the new one."""
    submit(engine, queue="letters")
    hashes = []
    for _ in range(2):
        with serving(engine) as live:

            async def look(port: int = live.port) -> dict[str, Any]:
                async with stream(port, QUEUES) as one:
                    return await next_fragments(one)

            hashes.append(have(asyncio.run(look())))
    assert hashes[0] == hashes[1]


def test_without_a_watcher_nothing_is_rendered(live: Live, engine: Engine, seen: list[View]) -> None:
    hub = hub_of(live)
    submit(engine)
    assert (hub.renders, hub._task) == (0, None)

    async def watch() -> None:
        async with stream(live.port, QUEUES) as one:
            await next_fragments(one)

    asyncio.run(watch())
    wait_until(lambda: hub._task is None)
    before = hub.renders
    submit(engine)
    assert live.on_loop(lambda: hub.renders) == before
    assert hub._watches == {}


def test_rendering_takes_no_more_than_its_share(live: Live, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a render of 0.3 s, nothing is rendered for another 1.7 s, whatever is committed and whoever comes."""
    monkeypatch.setattr(hub_module, "SHARE", 0.15)
    hub = LiveHub(live.services, iter([10.0, 10.3]).__next__)
    slow, new = (Watch(Watched(url, LOCAL), lambda: Rendered("", {})) for url in ("/slow", "/new"))
    asyncio.run_coroutine_threadsafe(hub._render(slow), live.loop).result(WAIT_S)
    submit(engine)
    assert hub._due_at(slow) == hub._due_at(new) == pytest.approx(12.0)


def test_a_token_that_is_revoked_ends_its_stream(engine: Engine, quick: None) -> None:
    token = engine.tokens.create("ann", ["read"])
    with serving(engine, HttpConfig(token_cache_s=0.1)) as live:

        async def watch() -> list[Frame]:
            async with stream(live.port, QUEUES, token=token.text) as one:
                await next_fragments(one)
                engine.tokens.revoke(token.token.id)
                return await one.events()

        assert asyncio.run(watch()) == []


def test_a_server_that_stops_ends_its_streams(engine: Engine, quick: None) -> None:
    ended: list[list[Frame]] = []
    with serving(engine) as live:

        async def watch() -> None:
            async with stream(live.port, QUEUES) as one:
                await next_fragments(one)
                live.server.should_exit = True
                ended.append(await one.events())

        asyncio.run(watch())
    assert ended == [[]]


def test_a_page_that_fails_ends_its_streams_and_is_tried_again(
    live: Live, engine: Engine, seen: list[View], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGES["queues"]

    def failing(view: View) -> dict[str, Any]:
        shown = page.function(view)
        if engine.queues():
            raise InvalidInput("no")
        return shown

    monkeypatch.setitem(PAGES, "queues", page_with(page, failing))

    async def watch() -> list[Frame]:
        async with stream(live.port, QUEUES) as one:
            await next_fragments(one)
            submit(engine, queue="letters")
            return await one.events()

    assert asyncio.run(watch()) == []
    monkeypatch.setitem(PAGES, "queues", page)

    async def again() -> None:
        async with stream(live.port, QUEUES) as one:
            assert "letters" in (await next_fragments(one))["queues"]["html"]

    asyncio.run(again())


def test_streams_of_pages_count_as_streams(engine: Engine, quick: None) -> None:
    with serving(engine, HttpConfig(streams_each=1)) as live:

        async def watch() -> int:
            async with stream(live.port, QUEUES) as one:
                await next_fragments(one)
                async with stream(live.port, QUEUES) as other:
                    return other.status

        assert asyncio.run(watch()) == 429


@pytest.mark.parametrize(
    ("page", "status"),
    [("/ui/nowhere", 404), ("/api/v1/jobs", 200), ("//evil.example", 200), ("/ui/queues/a/pause", 404)],
)
def test_only_pages_can_be_watched(live: Live, page: str, status: int) -> None:
    """What is no page of the dashboard is the start page."""

    async def look() -> int:
        async with stream(live.port, f"/ui/live?page={page}") as one:
            return one.status

    assert asyncio.run(look()) == status


def test_those_who_may_see_different_things_do_not_share(engine: Engine, quick: None, seen: list[View]) -> None:
    ours = engine.tokens.create("ann", ["read"])
    theirs = engine.tokens.create("bob", ["read", "operate"], namespace="theirs")
    submit(engine, queue="letters")
    with serving(engine) as live:

        async def watch() -> None:
            async with (
                stream(live.port, QUEUES, token=ours.text) as one,
                stream(live.port, QUEUES, token=theirs.text) as other,
            ):
                mine, others = await next_fragments(one), await next_fragments(other)
                assert "letters" in mine["queues"]["html"]
                assert "letters" not in others["queues"]["html"]

        asyncio.run(watch())
    assert {view.namespace for view in seen} == {"default", "theirs"}
