"""The feed for clients: pages, and a stream from a cursor or from now.

Owns filters, and the switch from reading pages to following the hub, without gaps or duplicates. hub.py reads for all
streams.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request

from onetray.domain.task import Event
from onetray.feed import PAGE, Page
from onetray.http.auth.scopes import Principal
from onetray.http.claim_waiters import watch_disconnect
from onetray.http.services import Services, services_of
from onetray.http.streams.hub import Follower
from onetray.http.streams.reader import Batch, encode
from onetray.http.streams.sse import HEARTBEAT, Frames, frame, mark

T = TypeVar("T")
MAX_KINDS = 10_000
BARRIER_POLL_S = 0.05
FIRST_PAGE = 50
PART_BYTES = 65_536
"""About what a stream sends at a time, and holds in memory while its client does not read."""


@dataclass(frozen=True, slots=True)
class FeedFilter:
    """The events that a client wants."""

    namespace: str
    types: tuple[str, ...] | None = None
    kind: str | None = None
    job: str | None = None
    hidden: tuple[str, ...] = ()
    """Types that the client may not read."""

    def matching(self, events: Iterable[Event]) -> Iterator[Event]:
        """Applies all filters except `kind`, which events do not contain."""
        for e in events:
            if (
                e.namespace == self.namespace
                and (self.types is None or e.type in self.types)
                and e.type not in self.hidden
                and (self.job is None or self.job in (e.job_id, e.entity_id))
            ):
                yield e


class Kinds:
    """Cached kinds of tasks, and names of flows: they never change."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, str] = OrderedDict()

    async def of_kind(self, services: Services, kind: str, events: list[Event]) -> list[Event]:
        """Events of tasks of a kind, and of flows and stages of a flow with that name."""
        names = {_kind_source(e) for e in events}
        # A copy: the cache may drop these names while the query runs.
        known = {name: self._known[name] for name in names if name in self._known}
        if missing := sorted(names - known.keys()):
            queried = await services.read(services.engine.feed.kinds_of, missing)
            known |= queried
            self._known.update(queried)
            while len(self._known) > MAX_KINDS:
                self._known.popitem(last=False)
        return [e for e in events if known.get(_kind_source(e)) == kind]


KINDS = Kinds()
"""Shared by all engines of the process: ids are unique across databases."""


def _kind_source(event: Event) -> str:
    return event.entity_id if event.type.startswith("task.") else event.job_id


async def matching_events(services: Services, wanted: FeedFilter, events: Iterable[Event]) -> list[Event]:
    matches = list(wanted.matching(events))
    return matches if wanted.kind is None else await KINDS.of_kind(services, wanted.kind, matches)


async def page_of(
    request: Request, principal: Principal, wanted: FeedFilter, cursor: int, limit: int, wait_s: float
) -> Page:
    """The matching events after a cursor. If there are none, waits for the next ones for up to `wait_s`."""
    services, deadline = services_of(request), time.monotonic() + wait_s
    page = await _read(services, wanted, cursor, limit)
    events = await matching_events(services, wanted, page.events)
    position = FeedPosition(page.next_cursor)
    if events or not wait_s or services.hub.closing:
        return Page(events, position.cursor)
    with (
        services.waits.slot(principal) as may_wait,
        watch_disconnect(request) as disconnected,
        services.tokens.watching(principal) as ended,
    ):
        if not may_wait:
            return Page(events, position.cursor)
        next_events = asyncio.create_task(_next_events(services, wanted, position, limit))
        try:
            left_s = max(0.0, deadline - time.monotonic())
            await asyncio.wait((next_events, disconnected, ended), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise ended.result()
            return Page(next_events.result() if next_events.done() else [], position.cursor)
        finally:
            next_events.cancel()


async def _next_events(services: Services, wanted: FeedFilter, position: FeedPosition, limit: int) -> list[Event]:
    """The next matching events. Events of others cost no query: the hub reads them once for all."""
    with services.hub.following(services.config.stream_queue) as follower:
        while True:
            async for cursor, events in _catch_up(services, follower, wanted, position.cursor, _matching):
                if events:
                    return _up_to(limit, events, cursor, position)
                position.cursor = cursor
            while not follower.lagging and not services.hub.closing:
                for batch in follower.take():
                    if events := await _matching(services, wanted, batch, position.cursor):
                        return _up_to(limit, events, batch.cursor, position)
                    position.cursor = max(position.cursor, batch.cursor)
                await follower.signal.wait()
            if services.hub.closing:
                return []


def _up_to(limit: int, events: list[Event], cursor: int, position: FeedPosition) -> list[Event]:
    position.cursor = events[limit - 1].id if len(events) > limit else cursor
    return events[:limit]


async def _read(services: Services, wanted: FeedFilter, cursor: int, limit: int) -> Page:
    return await services.read(services.engine.feed.read, cursor, limit, namespace=wanted.namespace, types=wanted.types)


class FeedPosition:
    """How far a feed stream has read, and the last cursor that it sent."""

    def __init__(self, cursor: int | None) -> None:
        self.start = cursor
        """Where it starts; None for now."""
        self.cursor = self.sent = cursor or 0

    def heartbeat(self) -> bytes:
        # A cursor past events that did not match: a client that reconnects need not read them again.
        part = mark(self.cursor) if self.cursor > self.sent else b""
        self.sent = self.cursor
        return part + HEARTBEAT


async def feed_frames(services: Services, wanted: FeedFilter, position: FeedPosition) -> Frames:
    """Every matching event, from a cursor or from now, until the client disconnects or is too slow."""
    hub, config = services.hub, services.config
    with hub.following(config.stream_queue) as follower:
        if position.start is None:
            position.cursor = position.sent = await hub.at()
        yield mark(position.cursor)
        if position.start is not None:
            async for cursor, frames in _catch_up(services, follower, wanted, position.start, _frames_of):
                position.cursor = cursor
                if frames:
                    position.sent = cursor
                    yield b"".join(frames)
        while True:
            for batch in follower.take():
                for part in _parts_of(await _frames_of(services, wanted, batch, position.cursor)):
                    position.sent = batch.cursor
                    yield part
                position.cursor = max(position.cursor, batch.cursor)
            if hub.closing or follower.lagging:
                yield frame("bye" if hub.closing else "resync", {"cursor": position.cursor}, position.cursor)
                return
            await follower.signal.wait()


async def _catch_up(
    services: Services,
    follower: Follower,
    wanted: FeedFilter,
    cursor: int,
    convert: Callable[[Services, FeedFilter, Batch, int], Awaitable[list[T]]],
) -> AsyncIterator[tuple[int, list[T]]]:
    """Read pages up to the hub's cursor. The follower queues later events; if its queue overflows, start again."""
    page_size = FIRST_PAGE
    while not services.hub.closing:
        target = await services.hub.at()
        # Everything up to the hub's cursor is read here.
        follower.reset()
        while cursor < target and not services.hub.closing:
            async with services.catching_up:
                page = await _read(services, wanted, cursor, page_size)
                if page.next_cursor == cursor:
                    if services.engine.feed.held_up:
                        await asyncio.sleep(BARRIER_POLL_S)
                        continue
                    # Old jobs were pruned, and their events with them.
                    cursor = target
                else:
                    cursor = min(page.next_cursor, target)
                events = [e for e in page.events if e.id <= target]
                converted = await convert(services, wanted, Batch(events, cursor), 0)
            page_size = _next_page_size(page_size, converted)
            # Not held in memory while the client reads.
            del page, events
            yield cursor, converted
        if not follower.lagging:
            return


async def _matching(services: Services, wanted: FeedFilter, batch: Batch, after: int) -> list[Event]:
    return [e for e in await matching_events(services, wanted, batch.events) if e.id > after]


async def _frames_of(services: Services, wanted: FeedFilter, batch: Batch, after: int) -> list[bytes]:
    """The matching events as frames. Usually the hub has already encoded them, once for all streams."""
    events = await _matching(services, wanted, batch, after)
    if missing := [e for e in events if e.id not in batch.frames]:
        batch.frames.update(await services.read(encode, missing))
    return [batch.frames[e.id] for e in events]


def _parts_of(frames: list[bytes]) -> Iterator[bytes]:
    """Joins frames into parts: the frames are shared by all streams, and each copies one part of them at a time."""
    part, size = [], 0
    for each in frames:
        part.append(each)
        size += len(each)
        if size >= PART_BYTES:
            yield b"".join(part)
            part, size = [], 0
    if part:
        yield b"".join(part)


def _next_page_size(page_size: int, converted: Sequence[object]) -> int:
    """As many events as fit into a part if they are as large as the last ones, and at most twice as many as now."""
    size = sum(len(each) for each in converted if isinstance(each, bytes))
    return max(1, min(PAGE, 2 * page_size, page_size * PART_BYTES // max(1, size)))


async def wait_for_signal(signal: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await signal.wait()
