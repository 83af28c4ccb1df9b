"""Metrics, for Prometheus to scrape."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from onetray.errors import Unavailable
from onetray.http import answers
from onetray.http.access import Principal, Reader
from onetray.http.desk import desk_of
from onetray.http.metrics import Look, Metrics
from onetray.http.native import gives
from onetray.http.probes import Probe

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
async def metrics(request: Request, who: Principal = Reader) -> Response:
    desk = desk_of(request)
    scrape = desk.scrapes.get(who.namespace)
    if scrape is None:
        scrape = desk.scrapes[who.namespace] = Probe(partial(_text, desk.metrics, who.namespace), limit_s=LIMIT_S)
    try:
        text = await scrape.answer()
    except Unavailable:
        # Said by onetray_up; what this process has counted is told all the same.
        text = _text(desk.metrics, who.namespace, Look())
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def _text(counted: Metrics, namespace: str, look: Look | None = None) -> bytes:
    return generate_latest(_Page(list(counted.families(namespace, look))))
