"""Checks of the Host and Origin headers, and of the address that the server listens on.

Owns the protection of a server without tokens. It serves its own machine only, but a browser there may open a hostile
page whose name resolves to 127.0.0.1 (DNS rebinding). The requests of such a page carry its own name as Host.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import Scope

from onetray.domain.errors import InvalidInput, NotLocal, WrongHost, WrongOrigin, short_repr
from onetray.http.request import header_values

CREATE_TOKEN = "`onetray token create --name NAME --scope read,submit`"

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(?::\d{1,5})?", re.ASCII)


def may_bind(host: str, has_tokens: bool) -> None:
    """Raises InvalidInput for an address that other machines can reach while there are no tokens."""
    if not has_tokens and not is_loopback(host):
        raise InvalidInput(
            f"without tokens the server listens only on the loopback interface, not on {short_repr(host)}: create a "
            f"token first with {CREATE_TOKEN}, or use --host 127.0.0.1",
            field="host",
        )


@lru_cache(maxsize=1000)
def is_loopback(host: str) -> bool:
    """Whether a host name or address, from a URL or a setting, is a loopback one."""
    name = host.lower().removesuffix(".").strip("[]")
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


AUTH_HEADERS = (b"host", b"origin", b"authorization")
AuthHeaders = dict[bytes, list[str]]
"""All values of each header that authentication reads."""


def auth_headers(scope: Scope) -> AuthHeaders:
    sent = header_values(scope)
    return {name: [value.decode("latin-1") for value in sent.get(name, ())] for name in AUTH_HEADERS}


def check_local(scope: Scope, headers: AuthHeaders) -> None:
    """Without tokens: reject requests from other machines, for other hosts, or from pages of other origins."""
    if _is_remote(scope.get("client")):
        raise NotLocal
    host = host_of(headers)
    if host is None or not is_loopback(host):
        raise WrongHost(
            f"this server has no tokens and accepts only loopback host names, not {short_repr(host)}: use "
            f"http://127.0.0.1 and its port, or create a token with {CREATE_TOKEN}"
        )
    for origin in headers[b"origin"]:
        if not is_loopback(origin_host(origin)):
            raise WrongOrigin(
                f"this server has no tokens and rejects pages from {short_repr(origin)}: create a token with "
                f"{CREATE_TOKEN}, and add the page's origin to allowed_origins"
            )


def check_allowed(headers: AuthHeaders, hosts: tuple[str, ...], origins: tuple[str, ...]) -> None:
    """With tokens: accept any host unless some are listed, and only pages from listed origins."""
    check_host(headers, hosts)
    for origin in headers[b"origin"]:
        if origin.lower() not in {o.lower().rstrip("/") for o in origins}:
            raise WrongOrigin(f"pages from {short_repr(origin)} may not call this server: add it to allowed_origins")


def check_host(headers: AuthHeaders, hosts: tuple[str, ...]) -> None:
    """With tokens: accept any host unless some are listed."""
    if hosts:
        host = host_of(headers)
        if host is None or host not in {h.lower() for h in hosts}:
            raise WrongHost(f"this server does not serve the host {short_repr(host)}: add it to allowed_hosts")


def host_of(headers: AuthHeaders) -> str | None:
    """The request's host without the port. None if it is missing, repeated or invalid."""
    values = headers[b"host"]
    return _host_name(values[0]) if len(values) == 1 else None


@lru_cache(maxsize=64)
def _host_name(text: str) -> str | None:
    match = _HOST.fullmatch(text.lower())
    return None if match is None else match[1].strip("[]")


def origin_host(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""


def _is_remote(client: tuple[str, int] | None) -> bool:
    """Whether the client is another machine. A client without an IP address uses a local socket."""
    return client is not None and _is_other_machine(client[0])


@lru_cache(maxsize=1000)
def _is_other_machine(address: str) -> bool:
    try:
        return not ip_address(address).is_loopback
    except ValueError:
        return False
