"""The overview of a namespace: statistics for charts, queues and workers at a glance, and what people have done."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from onetray.domain.token import ADMIN
from onetray.engine.api import EngineApi
from onetray.engine.audit_api import ACTIONS
from onetray.engine.statistics_api import MAX_BUCKETS
from onetray.http.auth.scopes import Principal, Reader
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import NativeRoute, returns
from onetray.http.openapi import answers
from onetray.http.params import Cursor, Limit, cursor_at, cursor_position
from onetray.http.schemas.base import Moment
from onetray.http.schemas.sizes import LIMIT
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1", tags=["overview"], route_class=NativeRoute)

Types = Annotated[
    list[str],
    Query(max_length=len(ACTIONS), description="Only actions of one of these types.",
          json_schema_extra={"items": {"type": "string", "enum": list(ACTIONS)}}),
]  # fmt: skip
Person = Annotated[
    str | None,
    Query(min_length=1, description="Only what this person has done.", json_schema_extra={LIMIT: "name_chars"}),
]


@router.get("/statistics", summary="Get statistics by time", **returns(answers.STATISTICS))
async def get_statistics(
    request: Request,
    since: Annotated[Moment | None, Query(description="The start. Default: an hour before the end.")] = None,
    until: Annotated[Moment | None, Query(description="The end. Default: now.")] = None,
    buckets: Annotated[int, Query(ge=1, le=MAX_BUCKETS, description="How many spans of time at most.")] = 60,
    principal: Principal = Reader,
) -> Json:
    """A series for charts. A span has whole minutes, or whole hours; the range is extended to whole spans. Counts are
    exact up to the last commit; times come from a sample of the tasks that ended."""
    services = services_of(request)
    span: dict[str, Any] = {"since": since, "until": until, "buckets": buckets}
    return Json(to_json(await services.read(services.engine.statistics, **span, namespace=principal.namespace)))


@router.get("/overview", summary="Get the overview", **returns(answers.OVERVIEW))
async def get_overview(request: Request, principal: Principal = Reader) -> Json:
    """The queues with their numbers of tasks, the workers with what they run, and what waits for a person.

    Counting ends at some thousand: `at_least` and `is_more` say where.
    """
    services = services_of(request)
    return Json(to_json(await services.read(services.engine.overview, namespace=principal.namespace)))


@router.get("/audit", summary="List what people have done, newest first", **returns(answers.AUDIT))
async def list_audit(
    request: Request,
    person: Person = None,
    type: Types = [],  # noqa: B006
    cursor: Cursor = None,
    limit: Limit = 100,
    principal: Principal = Reader,
) -> Json:
    """A page may be short or empty although more follow: continue until `next` is null. Only admins see actions about
    tokens."""
    services = services_of(request)
    filters = {
        "person": person, "types": type, "limit": limit, "namespace": principal.namespace,
        "before": None if cursor is None else cursor_position("audit", cursor),
        "tokens": True if principal.has(ADMIN) else None,
    }  # fmt: skip
    return await services.answer(_audit, services.engine, filters)


def _audit(engine: EngineApi, filters: dict[str, Any]) -> dict[str, Any]:
    page = engine.audit(**filters)
    actions = [{"count": count, **to_json(event)} for event, count in zip(page.events, page.counts, strict=True)]
    return {"actions": actions, "next": None if page.before is None else cursor_at("audit", page.before)}
