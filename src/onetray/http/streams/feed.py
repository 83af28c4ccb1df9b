"""The feed to clients: pages, and a stream that begins in the past or now.

Owns filters, and the change from reading pages to following the hub: without a gap, without a repeat. Who reads for all
is in hub.py.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request

from onetray.domain.task import Event
from onetray.feed import PAGE, Page
from onetray.http.auth.scopes import Principal
from onetray.http.claim_waiters import gone
from onetray.http.services import Services, services_of
from onetray.http.streams.hub import Follower
from onetray.http.streams.reader import Batch, written
from onetray.http.streams.sse import HEARTBEAT, Frames, frame, mark

T = TypeVar("T")
MOST_KINDS = 10_000
HELD_UP_S = 0.05


@dataclass(frozen=True, slots=True)
class FeedFilter:
    """Which events a client asks for."""

    namespace: str
    types: tuple[str, ...] | None = None
    kind: str | None = None
    job: str | None = None

    def among(self, events: Iterable[Event]) -> Iterator[Event]:
        """Those that fit, but for their kind: an event does not say it."""
        for e in events:
            if (
                e.namespace == self.namespace
                and (self.types is None or e.type in self.types)
                and (self.job is None or self.job in (e.job_id, e.entity_id))
            ):
                yield e


class Kinds:
    """The kinds of jobs and tasks, as they were last asked for: they never change."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, str] = OrderedDict()

    async def those_of(self, services: Services, kind: str, events: list[Event]) -> list[Event]:
        """The events of tasks of a kind; of flows and stages, those of flows of that name."""
        names = {_named_by(e) for e in events}
        # A copy: while the others are asked for, what is known may be forgotten again.
        known = {name: self._known[name] for name in names if name in self._known}
        if missing := sorted(names - known.keys()):
            found = await services.read(services.engine.feed.kinds_of, missing)
            known |= found
            self._known.update(found)
            while len(self._known) > MOST_KINDS:
                self._known.popitem(last=False)
        return [e for e in events if known.get(_named_by(e)) == kind]


KINDS = Kinds()
"""By ids, which no two databases share."""


def _named_by(event: Event) -> str:
    return event.entity_id if event.type.startswith("task.") else event.job_id


async def choose_events(services: Services, wanted: FeedFilter, events: Iterable[Event]) -> list[Event]:
    found = list(wanted.among(events))
    return found if wanted.kind is None else await KINDS.those_of(services, wanted.kind, found)


async def page_of(request: Request, who: Principal, wanted: FeedFilter, cursor: int, limit: int, wait_s: float) -> Page:
    """The events past a cursor that fit. When there are none: what comes in time, while anybody waits for it."""
    services, until = services_of(request), time.monotonic() + wait_s
    page = await _read(services, wanted, cursor, limit)
    found = await choose_events(services, wanted, page.events)
    to = ReadTo(page.next_cursor)
    if found or not wait_s or services.hub.closing:
        return Page(found, to.place)
    with services.waits.place(who) as may_wait, gone(request) as left_us, services.tokens.watching(who) as ended:
        if not may_wait:
            return Page(found, to.place)
        coming = asyncio.create_task(_next_events(services, wanted, to, limit))
        try:
            left_s = max(0.0, until - time.monotonic())
            await asyncio.wait((coming, left_us, ended), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise ended.result()
            return Page(coming.result() if coming.done() else [], to.place)
        finally:
            coming.cancel()


async def _next_events(services: Services, wanted: FeedFilter, to: ReadTo, limit: int) -> list[Event]:
    """The next events that fit. What others commit costs no query: the hub reads it once for all."""
    with services.hub.following(services.config.stream_queue) as follower:
        while True:
            async for place, found in _catch_up(services, follower, wanted, to.place, _fitting):
                if found:
                    return _up_to(limit, found, place, to)
                to.place = place
            while not follower.lagging and not services.hub.closing:
                for batch in follower.take():
                    if found := await _fitting(services, wanted, batch, to.place):
                        return _up_to(limit, found, batch.cursor, to)
                    to.place = max(to.place, batch.cursor)
                await follower.signal.wait()
            if services.hub.closing:
                return []


def _up_to(limit: int, found: list[Event], place: int, to: ReadTo) -> list[Event]:
    to.place = found[limit - 1].id if len(found) > limit else place
    return found[:limit]


async def _read(services: Services, wanted: FeedFilter, cursor: int, limit: int) -> Page:
    return await services.read(services.engine.feed.read, cursor, limit, namespace=wanted.namespace, types=wanted.types)


class ReadTo:
    """How far a stream of the feed has read, and how much of that its client knows."""

    def __init__(self, cursor: int | None) -> None:
        self.cursor = cursor
        """Where it begins; None for now."""
        self.place = self.sent = cursor or 0

    def heartbeat(self) -> bytes:
        # What did not fit was looked at all the same: it need not be looked at again.
        part = mark(self.place) if self.place > self.sent else b""
        self.sent = self.place
        return part + HEARTBEAT


async def feed_frames(services: Services, wanted: FeedFilter, to: ReadTo) -> Frames:
    """Every event that fits, from a cursor or from now on, until the client has had enough or is too slow."""
    hub, config = services.hub, services.config
    with hub.following(config.stream_queue) as follower:
        if to.cursor is None:
            to.place = to.sent = await hub.at()
        yield mark(to.place)
        if to.cursor is not None:
            async for place, part in _catch_up(services, follower, wanted, to.cursor, _part):
                to.place = place
                if part:
                    to.sent = place
                    yield part
        while True:
            for batch in follower.take():
                if part := await _part(services, wanted, batch, to.place):
                    to.sent = batch.cursor
                    yield part
                to.place = max(to.place, batch.cursor)
            if hub.closing or follower.lagging:
                yield frame("bye" if hub.closing else "resync", {"cursor": to.place}, to.place)
                return
            await follower.signal.wait()


async def _catch_up(
    services: Services,
    follower: Follower,
    wanted: FeedFilter,
    place: int,
    make: Callable[[Services, FeedFilter, Batch, int], Awaitable[T]],
) -> AsyncIterator[tuple[int, T]]:
    """Read pages up to where the hub is. What it reads meanwhile waits with the follower; too much: once more."""
    while not services.hub.closing:
        goal = await services.hub.at()
        # Whatever the hub has given up to its place is read here.
        follower.reset()
        while place < goal and not services.hub.closing:
            async with services.catching_up:
                page = await _read(services, wanted, place, PAGE)
                if page.next_cursor == place:
                    if services.engine.feed.held_up:
                        await asyncio.sleep(HELD_UP_S)
                        continue
                    # Old jobs were removed, and their events with them.
                    place = goal
                else:
                    place = min(page.next_cursor, goal)
                made = await make(services, wanted, Batch([e for e in page.events if e.id <= goal], place), 0)
            # Not kept for as long as the client takes to read.
            del page
            yield place, made
        if not follower.lagging:
            return


async def _fitting(services: Services, wanted: FeedFilter, batch: Batch, after: int) -> list[Event]:
    return [e for e in await choose_events(services, wanted, batch.events) if e.id > after]


async def _part(services: Services, wanted: FeedFilter, batch: Batch, after: int) -> bytes:
    """The events of a batch that fit, for the wire. Mostly the hub has written them already, for all streams."""
    events = await _fitting(services, wanted, batch, after)
    if missing := [e for e in events if e.id not in batch.frames]:
        batch.frames.update(await services.read(written, missing))
    return b"".join([batch.frames[e.id] for e in events])


async def rung(signal: asyncio.Event, timeout_s: float) -> bool:
    """Whether it was set within the time."""
    try:
        async with asyncio.timeout(timeout_s):
            await signal.wait()
    except TimeoutError:
        return False
    return True
