"""Metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from onetray.domain.errors import Unavailable
from onetray.domain.token import ADMIN
from onetray.http.auth.scopes import Principal, Reader
from onetray.http.native_route import returns
from onetray.http.observe.metrics import DEFAULT, DatabaseNumbers, Metrics
from onetray.http.openapi import answers
from onetray.http.services import Probe, services_of

router = APIRouter(tags=["server"])

LIMIT_S = 5.0
"""How long a scrape waits for the database: less than Prometheus waits for a scrape."""


class _Registry:
    """A registry of one response: the global one would include metrics of the embedding program."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        return iter(self._families)


@router.get("/metrics", summary="Get metrics in Prometheus text format", **returns(answers.METRICS))
async def metrics(request: Request, principal: Principal = Reader) -> Response:
    """Returns metrics of the token's namespace; for an admin of the namespace `default`, also those of the process."""
    services = services_of(request)
    # Admins of `default` run the server. Tenants have other namespaces.
    of_process = principal.namespace == DEFAULT and principal.has(ADMIN)
    view = principal.namespace, of_process
    scrape = services.scrapes.get(view)
    if scrape is None:
        scrape = services.scrapes[view] = Probe(partial(_text, services.metrics, *view), limit_s=LIMIT_S)
    try:
        text = await scrape.answer()
    except Unavailable:
        # onetray_up is 0 then, and the counters of the process are still reported.
        text = _text(services.metrics, *view, DatabaseNumbers())
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def _text(metrics: Metrics, namespace: str, of_process: bool, numbers: DatabaseNumbers | None = None) -> bytes:
    return generate_latest(_Registry(list(metrics.families(namespace, of_process, numbers))))
