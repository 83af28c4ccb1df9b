"""The app: its routes, its guards, and the engine behind them.

Owns how the parts stand together:

    request ─▶ journal (id, log, metrics) ─▶ gate (who) ─▶ limits ─▶ router ─▶ allow (scope) ─▶ route ─▶ engine
                   └─▶ problems: every error, as RFC 9457
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from onetray import __version__
from onetray.domain.errors import InvalidInput
from onetray.engine import Engine
from onetray.http import problems
from onetray.http.auth.middleware import AuthMiddleware
from onetray.http.auth.scopes import must_be_guarded
from onetray.http.json_answers import Json
from onetray.http.limits.requests import LimitMiddleware
from onetray.http.native_route import also_head
from onetray.http.observe.request_log import RequestLog
from onetray.http.routes import (
    commands,
    dead_letters,
    docs,
    health,
    job_actions,
    job_reads,
    jobs,
    metrics,
    queues,
    rpc,
    rpc_wait,
    stages,
    streams,
    tasks,
)
from onetray.http.services import HttpConfig, Services

OWN_SPANS: Any = {"tracing": False, "metrics": False, "logs": False}
"""The framework would trace too, with queries and messages in its spans."""

# The busiest first: they are tried one after another.
ROUTERS: tuple[APIRouter, ...] = (
    jobs.router,
    tasks.router,
    commands.router,
    rpc_wait.router,
    health.router,
    metrics.router,
    job_reads.router,
    job_actions.router,
    stages.router,
    dead_letters.router,
    queues.router,
    streams.router,
    docs.router,
    rpc.router,
)


class App(FastAPI):
    """The app, with its journal around everything: also around what answers for a route that broke."""

    def build_middleware_stack(self) -> ASGIApp:
        return RequestLog(super().build_middleware_stack(), self.state.desk.metrics)


def build(engine: Engine, config: HttpConfig | None = None) -> FastAPI:
    """The app of a server. The engine stays the caller's: it is not closed here."""
    app = App(
        title="onetray", version=__version__, docs_url=None, redoc_url=None, openapi_url=None,
        default_response_class=Json, generate_unique_id_function=lambda route: route.name, redirect_slashes=False,
        telemetry=OWN_SPANS,
    )  # fmt: skip
    config = config or HttpConfig()
    app.state.desk, app.state.shapes, app.state.guarded = (desk := Services(engine, config)), {}, []
    for router in ROUTERS:
        also_head(router.routes)
        must_be_guarded(router.routes)
        app.state.guarded += router.routes
        app.include_router(router)
    mount(app, config.dialects)
    problems.install(app)
    # The last one added is the first one met.
    app.add_middleware(LimitMiddleware, desk=desk)
    app.add_middleware(AuthMiddleware, desk=desk)
    return app


DIALECTS = ("so1",)
NONE = "none"


def check_dialects(names: tuple[str, ...]) -> tuple[str, ...]:
    """The dialects that are meant; `none` alone means none of them."""
    if names == (NONE,):
        return ()
    for name in names:
        if name not in DIALECTS:
            raise InvalidInput(
                f"there is no dialect {name!r}; there are: {', '.join(DIALECTS)}; or none", field="dialects"
            )
    return tuple(dict.fromkeys(names))


def mount(app: FastAPI, names: tuple[str, ...]) -> None:
    """Add these dialects to an app."""
    for name in check_dialects(names):
        dialect = import_module(f"onetray.dialects.{name}")
        also_head(dialect.router.routes)
        must_be_guarded(dialect.router.routes)
        app.state.guarded += dialect.router.routes
        # Their contracts are their own: the native description would say of them what is not so.
        app.include_router(dialect.router, include_in_schema=False)
        app.state.shapes[dialect.PREFIX] = dialect.shape
