"""The ASGI app: routes, middleware and the engine behind them.

Owns the order in which a request passes through them:

    request ─▶ request log (id, metrics) ─▶ authentication ─▶ limits ─▶ index ─▶ allow (scope) ─▶ route ─▶ engine
                   └─▶ problems: every error, as RFC 9457

Most submits, claims and reports take a shorter way through the same steps: see short_requests.py.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from onetray import __version__
from onetray.engine import Engine
from onetray.http import problems
from onetray.http.auth.middleware import AuthMiddleware
from onetray.http.dialects import mount, mount_dashboard, mount_mcp
from onetray.http.json_answers import Json
from onetray.http.limits.requests import LimitMiddleware
from onetray.http.native_route import also_head
from onetray.http.observe.request_log import RequestLog
from onetray.http.route_index import RouteIndex, add_routes
from onetray.http.routes import (
    aliases,
    bulk,
    commands,
    dead_letters,
    docs,
    flow_definitions,
    health,
    job_actions,
    job_reads,
    jobs,
    limits,
    metrics,
    overview,
    queues,
    rpc,
    rpc_wait,
    schedules,
    stages,
    streams,
    tasks,
)
from onetray.http.services import SERVICES, HttpConfig, Services
from onetray.http.short_requests import ShortRequests

OWN_SPANS: Any = {"tracing": False, "metrics": False, "logs": False}
"""Disables FastAPI's own telemetry: its spans would contain queries and messages."""

# The busiest first: the router tries them in order.
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
    aliases.router,
    dead_letters.router,
    bulk.router,
    queues.router,
    limits.router,
    overview.router,
    flow_definitions.router,
    schedules.router,
    streams.router,
    docs.router,
    rpc.router,
)
DESCRIBED = APIRouter(default_response_class=Json, generate_unique_id_function=lambda route: route.name)
"""What the description of the native API is built from."""
for _router in ROUTERS:
    DESCRIBED.include_router(_router)


class App(FastAPI):
    """The app, whose requests reach their routes without the layers of FastAPI and Starlette."""

    short_requests: ShortRequests | None = None
    """For onetray's own server, which asks it first."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        scope["app"], scope[SERVICES] = self, self.state.services
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        await self.middleware_stack(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        services: Services = self.state.services
        routes = RouteIndex(self.state.guarded, super().build_middleware_stack())
        limits = LimitMiddleware(routes, services)
        auth = AuthMiddleware(limits, services)
        log = RequestLog(auth, services.metrics)
        self.short_requests = ShortRequests(self, services, log, auth, limits, self.state.guarded)
        return log


def build(engine: Engine, config: HttpConfig | None = None) -> FastAPI:
    """Build the app of a server. The caller keeps the engine, and closes it."""
    app = App(
        title="onetray", version=__version__, docs_url=None, redoc_url=None, openapi_url=None,
        redirect_slashes=False, telemetry=OWN_SPANS,
    )  # fmt: skip
    config = config or HttpConfig()
    app.state.services, app.state.shapes, app.state.guarded = Services(engine, config), {}, []
    app.state.described = DESCRIBED.routes
    for router in ROUTERS:
        also_head(router.routes)
        add_routes(app, router.routes)
    mount(app, config.dialects)
    if config.mcp_tools != "none":
        mount_mcp(app)
    mount_dashboard(app)
    problems.install(app)
    return app
