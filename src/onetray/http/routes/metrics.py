"""Metrics, for Prometheus to scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from onetray.http import answers
from onetray.http.access import Principal, Reader
from onetray.http.desk import desk_of
from onetray.http.metrics import DEFAULT, Metrics
from onetray.http.native import gives
from onetray.tokens import ADMIN

router = APIRouter(tags=["server"])


class _Page:
    """What the exposition takes for a registry: ours keeps no numbers of other programs."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        return iter(self._families)


@router.get("/metrics", summary="Metrics in Prometheus's text format", **gives(answers.METRICS))
async def metrics(request: Request, who: Principal = Reader) -> Response:
    """Those of the token's namespace. An admin of the namespace `default` sees those of the whole process, too."""
    desk = desk_of(request)
    return Response(await desk.read(_text, desk.metrics, who), media_type=CONTENT_TYPE_LATEST)


def _text(counted: Metrics, who: Principal) -> bytes:
    # Whoever runs the server: `local` is one of them. Tenants have namespaces of their own.
    of_process = who.namespace == DEFAULT and who.has(ADMIN)
    return generate_latest(_Page(list(counted.families(who.namespace, of_process))))
