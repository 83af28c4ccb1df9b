"""Find what has an alias: an id that a caller has chosen."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from onetray.engine.api import EngineApi
from onetray.http.auth.scopes import Principal, Reader
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import NativeRoute, returns
from onetray.http.openapi import answers
from onetray.http.schemas.base import ALIAS
from onetray.http.schemas.sizes import LIMIT
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1/aliases", tags=["jobs"], route_class=NativeRoute)

AliasParameter = Annotated[
    str, Query(min_length=1, pattern=ALIAS, description="The alias.", json_schema_extra={LIMIT: "name_chars"})
]


@router.get("", summary="Find a task, a flow or a context by its alias", **returns(answers.ALIAS))
async def get_by_alias(request: Request, alias: AliasParameter, principal: Principal = Reader) -> Json:
    """A query parameter, because an alias may be any text: clients and proxies change paths with slashes and dots."""
    services = services_of(request)
    return await services.answer(_by_alias, services.engine, alias, principal.namespace)


def _by_alias(engine: EngineApi, alias: str, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = to_json(engine.by_alias(alias, namespace=namespace))
    return found
