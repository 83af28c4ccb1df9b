"""Live streams: one job as it goes, and the feed of all events."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from pydantic import Field
from starlette.responses import Response

from onetray.domain.checks import task_id
from onetray.domain.errors import InvalidInput, TooManyStreams, Unavailable
from onetray.feed import Page
from onetray.http.auth.scopes import Principal, Reader
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import gives
from onetray.http.openapi import answers
from onetray.http.params import Id
from onetray.http.services import Services, services_of
from onetray.http.streams.feed import FeedFilter, ReadTo, feed_frames, page_of
from onetray.http.streams.job import StreamPosition, job_frames, read_changes, view_of
from onetray.http.streams.sse import EventStream, Frames

router = APIRouter(prefix="/api/v1", tags=["streams"])

ENDED: dict[int | str, dict[str, Any]] = {204: {"description": "The client knows the end of the job already"}}
MAX_TYPES = 100
NAME_CHARS = 200

CURSOR_CHARS = 80
Cursor = Annotated[str | None, Query(max_length=CURSOR_CHARS, description="Go on after this one.")]
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", max_length=CURSOR_CHARS, description="As `cursor`, and before it."),
]
Types = Annotated[
    list[Annotated[str, Field(max_length=MAX_TYPES * (NAME_CHARS + 1))]] | None,
    Query(max_length=MAX_TYPES, description="Only events of these types, by their names."),
]
Name = Annotated[str | None, Query(min_length=1, max_length=NAME_CHARS)]


async def streaming(services: Services, principal: Principal, frames: Frames, **options: Any) -> EventStream:
    """An answer that goes on for as long as its token does, with a place of its own among the open streams."""
    if services.hub.closing:
        raise Unavailable("the server is stopping: connect again in a moment")
    if services.waits.full:
        raise TooManyStreams("too many streams are open here, and requests wait: come back later", retry_after_s=5.0)
    held = AsyncExitStack()
    await held.enter_async_context(services.streams.place(principal))
    return EventStream(
        frames,
        leave=held.aclose,
        ended=held.enter_context(services.tokens.watching(principal)),
        heartbeat_s=services.config.heartbeat_s,
        **options,
    )


@router.get(
    "/jobs/{id}/stream",
    summary="One job as it goes, as server-sent events",
    response_class=EventStream,
    **{**gives(answers.STREAM), "responses": {**gives(answers.STREAM)["responses"], **ENDED}},
)
async def job_stream(
    request: Request, id: Id, cursor: Cursor = None, last: LastEventId = None, principal: Principal = Reader
) -> Response:
    """`status`, `log`, `progress`, `stage` and `note`, each with the cursor of what was told so far as its id.

    After the terminal status the stream ends. A client that has been told of it, and asks again, gets 204: browsers
    then connect no more.
    """
    services = services_of(request)
    place = StreamPosition.of(last or cursor or str(StreamPosition()))
    view = await services.read(view_of, services.engine, id, principal.namespace)
    if place != StreamPosition():
        found = await services.read(read_changes, view, place)
        if found.ended and not found.parts:
            return Response(status_code=204)
    return await streaming(services, principal, job_frames(services, view, place))


@router.get("/feed", summary="Events, in order, from a cursor on", **gives(answers.FEED))
async def feed(
    request: Request,
    cursor: Cursor = None,
    types: Types = None,
    kind: Name = None,
    job: Name = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    wait_s: Annotated[float, Query(ge=0, le=30, description="Wait so long for the next event.")] = 0,
    principal: Principal = Reader,
) -> Json:
    """A page may be short, or empty, and still move the cursor on: what was looked at did not fit."""
    services = services_of(request)
    wanted = _wanted(principal, types, kind, job)
    page = await page_of(request, principal, wanted, feed_cursor(cursor) or 0, limit, wait_s)
    return await services.answer(_page, page)


def _page(page: Page) -> dict[str, Any]:
    return {"events": to_json(page.events), "cursor": page.next_cursor}


@router.get(
    "/feed/stream",
    summary="Events as they are committed, as server-sent events",
    response_class=EventStream,
    **gives(answers.STREAM),
)
async def feed_stream(
    request: Request,
    cursor: Cursor = None,
    last: LastEventId = None,
    types: Types = None,
    kind: Name = None,
    job: Name = None,
    principal: Principal = Reader,
) -> Response:
    """Each event under its type's name, with the feed's cursor as its id; without a cursor from now on."""
    services = services_of(request)
    wanted, place = _wanted(principal, types, kind, job), feed_cursor(last or cursor)
    read_to = ReadTo(place)
    return await streaming(services, principal, feed_frames(services, wanted, read_to), heartbeat=read_to.heartbeat)


def feed_cursor(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < 2**62):
        raise InvalidInput("cursor must be 0, or a number that the feed has given", field="cursor")
    return int(text)


def _wanted(principal: Principal, types: Sequence[str] | None, kind: str | None, job: str | None) -> FeedFilter:
    names = [name for part in types or () for name in part.split(",") if name]
    if len(names) > MAX_TYPES or any(len(name) > NAME_CHARS for name in names):
        raise InvalidInput(f"types must be at most {MAX_TYPES} names of at most {NAME_CHARS} characters", field="types")
    job = None if job is None else task_id(job, "job")
    return FeedFilter(principal.namespace, tuple(names) or None, kind, job)
