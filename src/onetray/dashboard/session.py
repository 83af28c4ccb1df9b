"""Sessions of browsers: who a request for a page comes from, and whether a form is the dashboard's own.

A session is a cookie: the id of a token, when it ends, and an HMAC keyed with the token's stored hash. So the server
stores no session and needs no secret of its own, every server of the database accepts it, and a token that is revoked
ends its sessions. The API does not accept the cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from starlette.types import Scope

from onetray.dashboard.pages import HOME, PREFIX
from onetray.domain.errors import Forbidden, Unauthorized, WrongOrigin, short_repr
from onetray.domain.token import Token, hash_of, parts_of
from onetray.http.auth.hosts import AuthHeaders, auth_headers, check_host, check_local
from onetray.http.auth.middleware import bearer_of
from onetray.http.auth.scopes import NOBODY, Principal
from onetray.http.auth.token_cache import LOCAL, TokenCache
from onetray.http.request import TAKES_FORMS, header_values, last_value
from onetray.http.services import Services

COOKIE = "onetray_session"
LIFETIME_S = 12 * 3_600
LOGIN, LOGOUT, STATIC = f"{PREFIX}/login", f"{PREFIX}/logout", f"{PREFIX}/static/"
CSRF = "onetray.csrf"
"""Key in a request's scope: the CSRF token that its forms must have. Empty: none is needed."""
_VALUE = re.compile(r"([0-9a-f]{16})\.(\d{1,12})\.([0-9a-f]{64})", re.ASCII)
MAX_COOKIE_BYTES, MAX_PATH_CHARS = 16_384, 2_000
OLD_FORM = "the form was too old, or not of this page: nothing was changed. Try it again from here"


class BrowserSessions:
    """Authenticates requests for pages: by a session, by a bearer token, or without tokens by the machine."""

    def __init__(self, services: Services, clock: Callable[[], float] = time.time) -> None:
        self._services, self._clock = services, clock
        self._local_key = secrets.token_bytes(32)
        """Of forms on a server without tokens, which has nothing else to key them with."""

    def owns(self, path: str) -> bool:
        return path in (HOME, PREFIX) or path.startswith(f"{PREFIX}/")

    async def principal(self, scope: Scope, tokens: TokenCache) -> Principal:
        """The caller. NOBODY for what anybody may see. Raises Unauthorized, or Forbidden for other origins."""
        headers = auth_headers(scope)
        scope[TAKES_FORMS], scope[CSRF] = True, ""
        if not await tokens.needed():
            check_local(scope, headers)
            _check_origin(scope, headers, ())
            scope[CSRF] = _sign(self._local_key, "csrf", LOCAL.name)
            return LOCAL
        check_host(headers, self._services.config.allowed_hosts)
        _check_origin(scope, headers, self._services.config.allowed_origins)
        if scope["path"] == LOGIN or scope["path"].startswith(STATIC):
            return NOBODY
        return await self._with_token(scope, headers, tokens)

    async def _with_token(self, scope: Scope, headers: AuthHeaders, tokens: TokenCache) -> Principal:
        bearer = bearer_of(headers)
        if bearer is not None:
            # No page of another origin can send this header: such a form needs no CSRF token.
            return await tokens.principal(bearer)
        cookie = cookie_of(scope, COOKIE)
        if cookie is None:
            if scope["path"] == HOME and not wants_html(scope):
                return NOBODY
            raise Unauthorized("log in with a token first: `onetray token create` creates one")
        match = _VALUE.fullmatch(cookie)
        if match is None or int(match[2]) <= self._clock():
            raise Unauthorized("the session has ended: log in again", given=True)
        return await tokens.proven(match[1], partial(self._is_of, cookie, scope))

    def _is_of(self, cookie: str, scope: Scope, token: Token) -> bool:
        """Whether a cookie was signed for a token."""
        signed, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(_sign(token.hash.encode(), "session", signed), signature):
            return False
        scope[CSRF] = _sign(token.hash.encode(), "csrf", cookie)
        return True

    async def begin(self, text: str, tokens: TokenCache) -> tuple[str, int]:
        """A session for the text of a token: the cookie's value, and its seconds. Raises Unauthorized."""
        principal, parts = await tokens.principal(text), parts_of(text)
        assert parts is not None
        lifetime_s = int(min(LIFETIME_S, tokens.expires_in_s(principal)))
        signed = f"{principal.token}.{int(self._clock()) + lifetime_s}"
        return f"{signed}.{_sign(hash_of(parts.secret).encode(), 'session', signed)}", lifetime_s


def _sign(key: bytes, purpose: str, text: str) -> str:
    return hmac.new(key, f"onetray {purpose}: {text}".encode(), hashlib.sha256).hexdigest()


def check_form(scope: Scope, given: str) -> None:
    """Raises Forbidden for a form without the CSRF token of its session."""
    expected: str = scope[CSRF]
    if expected and not hmac.compare_digest(expected.encode(), given.encode()):
        raise Forbidden(OLD_FORM)


def _check_origin(scope: Scope, headers: AuthHeaders, allowed: tuple[str, ...]) -> None:
    """Pages of other origins may neither post forms nor read pages, unless they are listed."""
    host = last_value(scope, b"host").decode("latin-1").lower()
    for origin in headers[b"origin"]:
        own = _netloc(origin)
        if own != host and origin.lower() not in {o.lower().rstrip("/") for o in allowed}:
            raise WrongOrigin(
                f"a page from {short_repr(origin)} has sent this: use the dashboard's own pages. Behind a proxy that "
                "changes the Host header, add the dashboard's origin to allowed_origins"
            )


def _netloc(origin: str) -> str | None:
    """The host and port of an origin."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def cookie_of(scope: Scope, name: str) -> str | None:
    """The value of a cookie; None if there is none, or if it is repeated."""
    values = header_values(scope).get(b"cookie", [])
    whole = b"; ".join(values)
    if len(whole) > MAX_COOKIE_BYTES:
        return None
    found = [
        part.strip().partition("=")[2].strip('"')
        for part in whole.decode("latin-1").split(";")
        if part.strip().partition("=")[0] == name
    ]
    return found[0] if len(found) == 1 else None


def set_cookie(scope: Scope, name: str, value: str, max_age_s: int) -> tuple[bytes, bytes]:
    """A header that sets a cookie which scripts cannot read and other sites cannot send."""
    secure = "; Secure" if is_https(scope) else ""
    text = f"{name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}"
    return b"set-cookie", text.encode("latin-1")


def is_https(scope: Scope) -> bool:
    # A client that lies about it only keeps its own cookie from being sent without encryption.
    return scope.get("scheme") == "https" or last_value(scope, b"x-forwarded-proto").strip().lower() == b"https"


def wants_html(scope: Scope) -> bool:
    """Whether the client is a browser that shows what it gets."""
    return b"text/html" in last_value(scope, b"accept").lower()


def safe_path(text: str) -> str:
    """A path of the dashboard, or the start page if the text is anything else."""
    is_own = text == HOME or text.startswith((f"{HOME}?", f"{PREFIX}/"))
    is_plain = text.isascii() and text.isprintable() and "\\" not in text and len(text) <= MAX_PATH_CHARS
    return text if is_own and is_plain else HOME
