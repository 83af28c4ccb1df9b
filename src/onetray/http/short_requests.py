"""Requests that only run commands in a shared transaction, without a task and the layers of the app.

Owns the order of the same steps as app.py: authentication, limits, scope, route. Each step is the one of its layer, and
is taken only if it needs no wait. Whatever is unusual, and each error before the commands are sent, is left to the
usual way, which begins anew: `begin` returns False and has done nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import BaseRoute

from onetray import otel
from onetray.domain.errors import OutcomeUnknown
from onetray.domain.task import Verdict
from onetray.http import problems
from onetray.http.auth.scopes import EXEMPT, Principal
from onetray.http.native_route import Plan, Prepare
from onetray.http.observe.request_log import CUT_OFF, RequestEntry
from onetray.http.observe.tracing import carry, current_trace
from onetray.http.request import BODY, BufferedRequest
from onetray.http.services import SERVICES, Services

if TYPE_CHECKING:
    from starlette.types import Scope

    from onetray.http.auth.middleware import AuthMiddleware
    from onetray.http.limits.body_budget import Body
    from onetray.http.limits.exchange import Exchange
    from onetray.http.limits.requests import LimitMiddleware
    from onetray.http.observe.request_log import RequestLog

logger = logging.getLogger("onetray.http")


class ShortRoute(NamedTuple):
    """A route that plans its commands, and the scopes one of which its callers need."""

    route: APIRoute
    scopes: frozenset[str]
    prepare: Prepare


class ShortRequests:
    """Begins the requests of an app that can be short."""

    def __init__(
        self, app: Any, services: Services, log: RequestLog, auth: AuthMiddleware, limits: LimitMiddleware,
        routes: Iterable[BaseRoute],
    ) -> None:  # fmt: skip
        self.app, self.services, self.log, self.auth, self.limits = app, services, log, auth, limits
        self._routes = dict(_short_routes(routes, services))

    def takes(self, scope: Scope) -> bool:
        """Whether a request, of which only the head is known, may be a short one."""
        return (scope["method"], scope["path"]) in self._routes

    def begin(self, exchange: Exchange) -> bool:
        """Begin a request whose body is complete. Returns False, and has done nothing, if it is not a short one."""
        scope, began = exchange.scope, time.perf_counter()
        short = self._routes[scope["method"], scope["path"]]
        if scope["query_string"] or otel.tracer() is not None or self.services.stopping:
            return False
        principal = self.auth.principal_at_once(scope)
        if principal is None or short.scopes.isdisjoint(principal.scopes):
            return False
        body = exchange.peek_body()
        if not body or not self.limits.is_plain(scope, body):
            return False
        scope["app"], scope[SERVICES] = self.app, self.services
        request = BufferedRequest(scope, exchange.receive, exchange.send)
        try:
            plan = short.prepare(request, body, principal)
            upload = None if plan is None else self.limits.admit(principal, body)
        except Exception:
            # It fails there again, and is told why.
            return False
        if plan is None or upload is None:
            return False
        exchange.take_body()
        scope["onetray.principal"], scope[BODY] = principal, body
        scope["endpoint"], scope["route"], scope["path_params"] = short.route.endpoint, short.route, {}
        ShortRequest(self, exchange, request, principal, plan, upload, began).send_commands()
        return True


def _short_routes(routes: Iterable[BaseRoute], services: Services) -> Iterable[tuple[tuple[str, str], ShortRoute]]:
    for route in routes:
        assert isinstance(route, APIRoute)
        prepare = getattr(route.endpoint, "prepare", None)
        if prepare is not None:
            ((_, guard),) = route.guards  # type: ignore[attr-defined]
            for method in route.methods or ():
                assert (method, route.path) not in EXEMPT
                assert services.browser is None or not services.browser.owns(route.path)
                yield (method, route.path), ShortRoute(route, guard.enough, prepare)


class ShortRequest:
    """One of them, from its commands to its response. The committer's batch calls it like a future."""

    __slots__ = ("_entry", "_exchange", "_is_over", "_of", "_plan", "_request", "_upload", "_watched")

    def __init__(
        self, of: ShortRequests, exchange: Exchange, request: BufferedRequest, principal: Principal, plan: Plan,
        upload: Body, began: float,
    ) -> None:  # fmt: skip
        self._of, self._exchange, self._request, self._plan, self._upload = of, exchange, request, plan, upload
        self._entry = RequestEntry(request.scope, exchange.send, began)
        self._watched = of.auth.watched(request.scope, exchange.receive, self._entry.send, principal)
        self._is_over = False

    def send_commands(self) -> None:
        self._of.log.begun()
        # Until its end: a server that stops waits for all of these, and cancels them in the end.
        self._exchange.tasks.add(self)
        token = current_trace.set(self._entry.trace)
        try:
            carry(self._plan.commands)
            self._of.services.commands().put_for(self, self._plan.commands)
        finally:
            current_trace.reset(token)

    # What a batch does with the future of its answers.

    def done(self) -> bool:
        return self._is_over

    def set_result(self, verdicts: Sequence[Verdict]) -> None:
        self._respond(verdicts, None)

    def set_exception(self, error: BaseException) -> None:
        self._respond((), error)

    def cancel(self, msg: object = None) -> None:
        """The server stops, and the time for open requests is over."""
        if not self._is_over:
            answer = problems.answer(problems.of_error(OutcomeUnknown(CUT_OFF)))
            self._go_on(answer(self._request.scope, self._exchange.receive, self._entry.send))

    def _respond(self, verdicts: Sequence[Verdict], error: BaseException | None) -> None:
        token = current_trace.set(self._entry.trace)
        try:
            response = self._response(verdicts, error)
            if isinstance(response, Response) and self._watched.send_at_once(response):
                self._end()
                self._of.log.ended(self._entry)
            else:
                self._go_on(self._send(response))
        except Exception:
            # The other requests of the batch wait for their answers.
            logger.exception("request %s failed", self._entry.trace.request_id)
            self._end()
            self._exchange.abort()
            self._of.log.ended(self._entry)
        finally:
            current_trace.reset(token)

    def _response(
        self, verdicts: Sequence[Verdict], error: BaseException | None
    ) -> Response | Coroutine[Any, Any, Response]:
        try:
            if error is not None:
                raise error
            return self._plan.respond(verdicts)
        except Exception as e:
            return problems.response_to(e, self._request)

    async def _send(self, response: Response | Coroutine[Any, Any, Response]) -> None:
        """Wait for the rest of a response, or for its client."""
        if not isinstance(response, Response):
            try:
                response = await response
            except Exception as e:
                response = problems.response_to(e, self._request)
        if not self._watched.send_at_once(response):
            await response(self._request.scope, self._exchange.receive, self._watched)

    def _go_on(self, rest: Coroutine[Any, Any, None]) -> None:
        """Do the rest in a task."""
        self._is_over = True
        self._exchange.tasks.discard(self)
        self._exchange.spawn(self._rest(rest))

    async def _rest(self, rest: Coroutine[Any, Any, None]) -> None:
        try:
            await self._of.log.watch(self._entry, self._request.scope, self._exchange.receive, rest)
        finally:
            self._upload.release()

    def _end(self) -> None:
        self._is_over = True
        self._exchange.tasks.discard(self)
        self._upload.release()
