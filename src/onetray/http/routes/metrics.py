"""Metrics, for Prometheus to scrape."""

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
from onetray.http.native_route import gives
from onetray.http.observe.metrics import DEFAULT, DatabaseNumbers, Metrics
from onetray.http.openapi import answers
from onetray.http.services import Probe, services_of

router = APIRouter(tags=["server"])

LIMIT_S = 5.0
"""How long a scrape waits for the database: less than Prometheus waits for a scrape."""


class _Page:
    """What the exposition takes for a registry: ours keeps no numbers of other programs."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        return iter(self._families)


@router.get("/metrics", summary="Metrics in Prometheus's text format", **gives(answers.METRICS))
async def metrics(request: Request, principal: Principal = Reader) -> Response:
    """Those of the token's namespace. An admin of the namespace `default` sees those of the whole process, too."""
    services = services_of(request)
    # Whoever runs the server: `local` is one of them. Tenants have namespaces of their own.
    of_process = principal.namespace == DEFAULT and principal.has(ADMIN)
    view = principal.namespace, of_process
    scrape = services.scrapes.get(view)
    if scrape is None:
        scrape = services.scrapes[view] = Probe(partial(_text, services.metrics, *view), limit_s=LIMIT_S)
    try:
        text = await scrape.answer()
    except Unavailable:
        # Said by onetray_up; what this process has counted is told all the same.
        text = _text(services.metrics, *view, DatabaseNumbers())
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def _text(counted: Metrics, namespace: str, of_process: bool, look: DatabaseNumbers | None = None) -> bytes:
    return generate_latest(_Page(list(counted.families(namespace, of_process, look))))
