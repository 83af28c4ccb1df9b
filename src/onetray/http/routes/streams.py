"""Server-sent events: one job, or the feed of all events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from pydantic import Field
from starlette.responses import Response

from onetray.domain.checks import task_id
from onetray.domain.errors import InvalidInput, TooManyStreams, Unavailable
from onetray.domain.lifecycle import ABOUT_TOKENS
from onetray.domain.token import ADMIN
from onetray.feed import Page
from onetray.http.auth.scopes import Principal, Reader
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import returns
from onetray.http.openapi import answers
from onetray.http.params import Id
from onetray.http.services import Services, services_of
from onetray.http.streams.feed import FeedFilter, FeedPosition, feed_frames, page_of
from onetray.http.streams.job import JobView, StreamPosition, job_frames, read_changes, view_of
from onetray.http.streams.sse import EventStream, Frames

router = APIRouter(prefix="/api/v1", tags=["streams"])

_STREAM = returns(answers.STREAM)
JOB_STREAM = _STREAM | {
    "response_class": EventStream,
    "responses": _STREAM["responses"] | {204: {"description": "The client has received the job's end"}},
}
"""Declares the responses of a job's stream, for the decorator of its route."""
MAX_TYPES = 100
NAME_CHARS = 200

CURSOR_CHARS = 80
Cursor = Annotated[str | None, Query(max_length=CURSOR_CHARS, description="Continue after this position.")]
LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID", max_length=CURSOR_CHARS, description="Same as `cursor`, and takes precedence over it."
    ),
]
Types = Annotated[
    list[Annotated[str, Field(max_length=MAX_TYPES * (NAME_CHARS + 1))]] | None,
    Query(max_length=MAX_TYPES, description="Only events of these types, comma-separated or repeated."),
]
Name = Annotated[str | None, Query(min_length=1, max_length=NAME_CHARS)]


async def streaming(services: Services, principal: Principal, frames: Frames, **options: Any) -> EventStream:
    """A stream that takes a slot, and that ends when its token does."""
    if services.hub.closing:
        raise Unavailable("the server is stopping: connect again in a moment")
    if services.waits.full:
        raise TooManyStreams("too many streams and waiting requests are open: try again later", retry_after_s=5.0)
    contexts = AsyncExitStack()
    await contexts.enter_async_context(services.streams.slot(principal))
    return EventStream(
        frames,
        leave=contexts.aclose,
        ended=contexts.enter_context(services.tokens.watching(principal)),
        heartbeat_s=services.config.heartbeat_s,
        **options,
    )


async def stream_view(
    request: Request, principal: Principal, open_view: Callable[..., JobView], cursor: str | None
) -> Response:
    """The stream of one job from a cursor, or 204 if the client has received its end."""
    services, position = services_of(request), StreamPosition.of(cursor) if cursor else StreamPosition()
    view = await services.read(open_view, services.engine, namespace=principal.namespace)
    if position != StreamPosition():
        changes = await services.read(read_changes, view, position)
        if changes.ended and not changes.parts:
            return Response(status_code=204)
    return await streaming(services, principal, job_frames(services, view, position))


@router.get("/jobs/{id}/stream", summary="Follow a job by server-sent events", **JOB_STREAM)
async def job_stream(
    request: Request, id: Id, cursor: Cursor = None, last: LastEventId = None, principal: Principal = Reader
) -> Response:
    """Sends `status`, `log`, `progress`, `stage`, `task_progress` and `note` events. The id of each is a cursor to
    continue from. For a flow, `log` and `task_progress` are those of its tasks.

    The stream ends after the terminal status. A client that reconnects after it gets 204, so that browsers stop
    reconnecting.
    """
    return await stream_view(request, principal, partial(view_of, id_=id), last or cursor)


@router.get("/feed", summary="Read the feed of all events from a cursor", **returns(answers.FEED))
async def feed(
    request: Request,
    cursor: Cursor = None,
    types: Types = None,
    kind: Name = None,
    job: Name = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    wait_s: Annotated[float, Query(ge=0, le=30, description="If there are no events, wait this long for one.")] = 0,
    principal: Principal = Reader,
) -> Json:
    """Continue from `cursor` even if a page is short or empty: the filters may have excluded all events on it."""
    services = services_of(request)
    wanted = _filter(principal, types, kind, job)
    page = await page_of(request, principal, wanted, feed_cursor(cursor) or 0, limit, wait_s)
    return await services.answer(_page, page)


def _page(page: Page) -> dict[str, Any]:
    return {"events": to_json(page.events), "cursor": page.next_cursor}


@router.get(
    "/feed/stream",
    summary="Follow the feed by server-sent events",
    response_class=EventStream,
    **returns(answers.STREAM),
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
    """Sends each event under the name of its type. Its id is a cursor of the feed. Without a cursor, starts now."""
    services = services_of(request)
    wanted, position = _filter(principal, types, kind, job), FeedPosition(feed_cursor(last or cursor))
    return await streaming(services, principal, feed_frames(services, wanted, position), heartbeat=position.heartbeat)


def feed_cursor(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < 2**62):
        raise InvalidInput("cursor must be 0, or a cursor of the feed", field="cursor")
    return int(text)


def _filter(principal: Principal, types: Sequence[str] | None, kind: str | None, job: str | None) -> FeedFilter:
    names = [name for part in types or () for name in part.split(",") if name]
    if len(names) > MAX_TYPES or any(len(name) > NAME_CHARS for name in names):
        raise InvalidInput(f"types must be at most {MAX_TYPES} names of at most {NAME_CHARS} characters", field="types")
    job = None if job is None else task_id(job, "job")
    return FeedFilter(
        principal.namespace, tuple(names) or None, kind, job, () if principal.has(ADMIN) else ABOUT_TOKENS
    )
