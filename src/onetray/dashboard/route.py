"""The routes of the dashboard: its pages and actions, the login, the live stream, the static files.

    GET  ─▶ authentication (session.py), limits, scope ─▶ thread: page function, template ─▶ HTML
    POST ─▶ authentication, limits, scope, CSRF token ─▶ thread: action ─▶ 303 to a page, with a message

Owns the headers of HTML, and how errors look to a browser.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import cache, partial
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson
from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import compile_path
from starlette.types import Scope

from onetray.dashboard.live import LiveHub, Watched
from onetray.dashboard.pages import ACTIONS, HOME, PAGES, PREFIX, Action, Flash, Page, Redraw, load_views, with_query
from onetray.dashboard.render import finish, render_alone, render_page, static_files
from onetray.dashboard.session import (
    COOKIE,
    CSRF,
    LOGIN,
    LOGOUT,
    BrowserSessions,
    check_form,
    cookie_of,
    safe_path,
    set_cookie,
    wants_html,
)
from onetray.dashboard.view import Form, Values, View
from onetray.domain.errors import InvalidInput, NotFound, OnetrayError, SlowBody, Unauthorized
from onetray.domain.token import READ, SCOPES
from onetray.http import problems
from onetray.http.auth.scopes import NOBODY, Principal, allow, principal_of
from onetray.http.json_answers import Json
from onetray.http.native_route import GuardedRoute, Handler, also_head
from onetray.http.request import last_value
from onetray.http.routes.streams import streaming
from onetray.http.services import Services, services_of
from onetray.http.streams.sse import EventStream

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
}
FOREVER = "public, max-age=31536000, immutable"
FLASH = "onetray_flash"
FLASH_S, FLASH_CHARS = 60, 600
LOGIN_BYTES, LOGIN_S = 4_096, 10.0
ENDED = "ended"
"""The parameter of the login that says that there was a session."""
FORM_TYPE = b"application/x-www-form-urlencoded"


class Dashboard:
    """What the requests of one app share."""

    def __init__(self, services: Services) -> None:
        self.services, self.sessions, self.live = services, BrowserSessions(services), LiveHub(services)


class DashboardRoute(GuardedRoute):
    """A route that takes any parameters: a page reads those that it knows."""

    def get_route_handler(self) -> Handler:
        handler = self.handler()

        async def handle(request: Request) -> Response:
            return await handler(request, {name: await guard(request) for name, guard in self.guards})

        return handle


def dashboard_of(request: Request) -> Dashboard:
    dashboard: Dashboard = request.app.state.dashboard
    return dashboard


@cache
def router() -> APIRouter:
    """The routes of all pages and actions."""
    load_views()
    found = APIRouter(route_class=DashboardRoute)
    found.get(LOGIN, name="login_form")(login_form)
    found.post(LOGIN, name="login")(login)
    found.get(f"{PREFIX}/static/{{name}}", name="static_file")(static_file)
    found.get(f"{PREFIX}/live", name="live", response_class=EventStream)(live)
    for page in PAGES.values():
        found.get(page.path, name=f"page_{page.name}", response_class=HTMLResponse)(_page_endpoint(page))
    found.post(LOGOUT, name="logout")(logout)
    for action in ACTIONS.values():
        found.post(action.path, name=f"action_{action.name}")(_action_endpoint(action))
    also_head(found.routes)
    return found


def install_dashboard(app: FastAPI) -> None:
    """Let an app authenticate browsers, and show them errors as pages."""
    services: Services = app.state.services
    dashboard = app.state.dashboard = Dashboard(services)
    services.browser = dashboard.sessions
    services.closing.append(dashboard.live.close)
    app.state.shapes |= {HOME: error_page, PREFIX: error_page}


def _page_endpoint(page: Page) -> Callable[..., Coroutine[Any, Any, Response]]:
    if page.path == HOME:

        async def home(request: Request) -> Response:
            if principal_of(request) is NOBODY:
                return HTMLResponse(render_alone("start.html"), headers=HEADERS)
            return await _show(page, request, await allow(page.scope)(request))

        return home

    async def show(request: Request, principal: Principal = Depends(allow(page.scope))) -> Response:  # noqa: B008
        return await _show(page, request, principal)

    return show


async def _show(page: Page, request: Request, principal: Principal, redraw: Redraw | None = None) -> Response:
    services, flash = services_of(request), flash_of(request.scope)
    view = View(
        services, principal, request.scope["path"], path=request.path_params, query=request.url.query, flash=flash,
        carried=None if redraw is None else redraw.carried,
    )  # fmt: skip
    html = await services.read(lambda: finish(render_page(page, view).html, request.scope[CSRF], view.now))
    # What answers a form may be a secret.
    once = {} if redraw is None else {"cache-control": "no-store"}
    response = HTMLResponse(html, 200 if redraw is None else redraw.status, headers={**HEADERS, **once})
    if flash is not None:
        response.raw_headers.append(set_cookie(request.scope, FLASH, "", 0))
    return response


def _action_endpoint(action: Action) -> Callable[..., Coroutine[Any, Any, Response]]:
    async def act(request: Request, principal: Principal = Depends(allow(action.scope))) -> Response:  # noqa: B008
        form = await form_of(request)
        came_from = safe_path(form.text("came_from"))
        try:
            view = View(
                services_of(request), principal, request.scope["path"], path=request.path_params,
                query=request.url.query,
            )  # fmt: skip
            done = await view.services.read(action.function, view, form)
        except OnetrayError as error:
            done = Flash(problems.of_error(error)["detail"], is_error=True)
        if isinstance(done, str):
            return see_other(done)
        if isinstance(done, Redraw):
            page = PAGES[done.page]
            return await _show(page, request, await allow(page.scope)(request), done)
        return see_other(done.to or came_from, flash_cookie(request.scope, done))

    return act


async def form_of(request: Request) -> Form:
    """The form of a request. Raises Forbidden if it has not the CSRF token of its session."""
    _must_be_form(request)
    try:
        form = Values((await request.body()).decode())
    except UnicodeDecodeError:
        raise InvalidInput("the form is not UTF-8: use the page's own buttons", field="body") from None
    check_form(request.scope, form.text("csrf"))
    return form


def _must_be_form(request: Request) -> None:
    if last_value(request.scope, b"content-type").lower().partition(b";")[0].strip() != FORM_TYPE:
        raise InvalidInput("this takes a form: use the page's own buttons", field="body")


async def login_form(request: Request) -> Response:
    """The login. On a server without tokens there is nothing to log in to."""
    query = Values(request.url.query)
    next_path = safe_path(query.text("next"))
    if principal_of(request) is not NOBODY:
        return see_other(next_path)
    return _login_page(next_path, is_over=query.flag(ENDED))


def _login_page(next_path: str, error: str = "", status: int = 200, *, is_over: bool = False) -> Response:
    html = render_alone("login.html", next_path=next_path, error=error, action=LOGIN, is_over=is_over)
    return HTMLResponse(html, status, headers=HEADERS)


async def login(request: Request) -> Response:
    """Begin a session with a token. The origin was checked; there is no session yet whose token a form could have."""
    _must_be_form(request)
    form = Values((await _small_body(request)).decode("utf-8", "replace"))
    next_path, dashboard = safe_path(form.text("next")), dashboard_of(request)
    if principal_of(request) is not NOBODY:
        return see_other(next_path)
    try:
        value, lifetime_s = await dashboard.sessions.begin(form.text("token"), services_of(request).tokens.cache)
    except Unauthorized as error:
        return _login_page(next_path, str(error), 401)
    return see_other(next_path, set_cookie(request.scope, COOKIE, value, lifetime_s))


async def _small_body(request: Request) -> bytes:
    """The body of somebody without a token: only a little is read, and only for a few seconds."""
    body = b""
    try:
        async with asyncio.timeout(LOGIN_S):
            async for part in request.stream():
                body += part
                if len(body) > LOGIN_BYTES:
                    raise InvalidInput(f"a login has at most {LOGIN_BYTES:,} bytes", field="body")
    except TimeoutError:
        raise SlowBody(f"the form did not arrive within {LOGIN_S:g} s: try again") from None
    return body


async def logout(request: Request, principal: Principal = Depends(allow(*SCOPES))) -> Response:  # noqa: B008
    """End the session of this browser."""
    await form_of(request)
    return see_other(LOGIN, set_cookie(request.scope, COOKIE, "", 0))


async def static_file(request: Request) -> Response:
    name = request.path_params["name"]
    file = static_files()[1].get(name)
    if file is None:
        raise NotFound(f"there is no file {name[:100]!r}: reload the page")
    return Response(file.content, media_type=file.media_type, headers={"cache-control": FOREVER})


async def live(request: Request, principal: Principal = Depends(allow(READ))) -> Response:  # noqa: B008
    """The stream of a page: its live fragments, whenever they change."""
    services, query = services_of(request), Values(request.url.query)
    watched = urlsplit(safe_path(query.text("page", HOME)))
    page, parameters = page_at(watched.path)
    await allow(page.scope)(request)

    def view() -> View:
        return View(services, principal, watched.path, path=parameters, query=watched.query)

    key = Watched(watched.geturl(), replace(view().principal, token=None))
    have = dict(part.partition(":")[::2] for part in query.text("have").split(",") if part)
    hub = dashboard_of(request).live
    frames = hub.frames(key, lambda: render_page(page, view()), have, partial(_fill, request.scope[CSRF]))
    return await streaming(services, principal, frames)


def _fill(csrf: str, html: str) -> str:
    return finish(html, csrf, time.time_ns() // 1_000)


@cache
def _patterns() -> list[tuple[re.Pattern[str], Page]]:
    return [(compile_path(page.path)[0], page) for page in PAGES.values()]


def page_at(path: str) -> tuple[Page, dict[str, str]]:
    """The page of a path, and the parameters in it."""
    for pattern, page in _patterns():
        if (match := pattern.match(path)) is not None:
            return page, {name: unquote(value) for name, value in match.groupdict().items()}
    raise NotFound(f"there is no page {path[:100]!r}")


def see_other(path: str, *headers: tuple[bytes, bytes]) -> Response:
    """Send the browser to another page."""
    response = Response(status_code=303, headers={**HEADERS, "location": path})
    response.raw_headers += headers
    return response


def flash_cookie(scope: Scope, flash: Flash) -> tuple[bytes, bytes]:
    content = orjson.dumps([flash.is_error, flash.message[:FLASH_CHARS]])
    return set_cookie(scope, FLASH, base64.urlsafe_b64encode(content).decode(), FLASH_S)


def flash_of(scope: Scope) -> Flash | None:
    """The message of the last action, if there is one."""
    value = cookie_of(scope, FLASH)
    if not value:
        return None
    try:
        is_error, message = orjson.loads(base64.urlsafe_b64decode(value))
    except (binascii.Error, ValueError, TypeError):
        return None
    return Flash(str(message), is_error=bool(is_error)) if message else None


def error_page(problem: dict[str, Any], scope: Scope, headers: dict[str, str] | None = None) -> Response:
    """A problem for a browser: the login if it has to log in, else a page. Other clients get it as JSON."""
    if not wants_html(scope):
        return Json(problem, status_code=problem["status"], media_type=problems.MEDIA_TYPE, headers=headers)
    if problem["status"] == 401:
        query = scope["query_string"].decode("latin-1")
        here = scope["path"] + (f"?{query}" if query else "") if scope["method"] in ("GET", "HEAD") else HOME
        ended = {} if cookie_of(scope, COOKIE) is None else {ENDED: "1"}
        return see_other(with_query(LOGIN, {"next": safe_path(here), **ended}))
    html = render_alone("error.html", problem=problem, home=HOME, login=LOGIN)
    return HTMLResponse(html, problem["status"], headers={**HEADERS, **(headers or {})})
