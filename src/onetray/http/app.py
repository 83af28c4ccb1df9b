"""The app: its routes, its guards, and the engine behind them.

Owns how the parts stand together:

    request ─▶ journal (id, log, metrics) ─▶ gate (who) ─▶ limits ─▶ router ─▶ allow (scope) ─▶ route ─▶ engine
                   └─▶ problems: every error, as RFC 9457
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from onetray import __version__
from onetray.engine import Engine
from onetray.http import problems
from onetray.http.access import must_be_guarded
from onetray.http.desk import Desk, HttpConfig
from onetray.http.gate import Gate
from onetray.http.limits import Limited
from onetray.http.logs import Journal
from onetray.http.mounting import mount
from onetray.http.native import also_head
from onetray.http.routes import (
    commands,
    controls,
    described,
    fleet,
    jobs,
    letters,
    looks,
    meta,
    metrics,
    news,
    stages,
    streams,
    work,
)
from onetray.http.wire import Json

OWN_SPANS: Any = {"tracing": False, "metrics": False, "logs": False}
"""The framework would trace too, with queries and messages in its spans."""

# The busiest first: they are tried one after another.
ROUTERS: tuple[APIRouter, ...] = (
    jobs.router,
    work.router,
    commands.router,
    news.router,
    meta.router,
    metrics.router,
    looks.router,
    controls.router,
    stages.router,
    letters.router,
    fleet.router,
    streams.router,
    described.router,
)


class App(FastAPI):
    """The app, with its journal around everything: also around what answers for a route that broke."""

    def build_middleware_stack(self) -> ASGIApp:
        return Journal(super().build_middleware_stack(), self.state.desk.metrics)


def build(engine: Engine, config: HttpConfig | None = None) -> FastAPI:
    """The app of a server. The engine stays the caller's: it is not closed here."""
    app = App(
        title="onetray", version=__version__, docs_url=None, redoc_url=None, openapi_url=None,
        default_response_class=Json, generate_unique_id_function=lambda route: route.name, redirect_slashes=False,
        telemetry=OWN_SPANS,
    )  # fmt: skip
    config = config or HttpConfig()
    app.state.desk, app.state.shapes, app.state.guarded = (desk := Desk(engine, config)), {}, []
    for router in ROUTERS:
        also_head(router.routes)
        must_be_guarded(router.routes)
        app.state.guarded += router.routes
        app.include_router(router)
    mount(app, config.dialects)
    problems.install(app)
    # The last one added is the first one met.
    app.add_middleware(Limited, desk=desk)
    app.add_middleware(Gate, desk=desk)
    return app
