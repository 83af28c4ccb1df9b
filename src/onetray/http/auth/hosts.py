"""Which hosts a server may be called by, which pages of browsers it answers, and where it may listen.

Owns the defence of a server without tokens: it is for its own machine, and a browser on that machine opens pages of
strangers. One of them can have its name resolve to 127.0.0.1 (DNS rebinding); its requests then name its own host.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import Scope

from onetray.domain.errors import InvalidInput, NotLocal, WrongHost, WrongOrigin, short_repr

CREATE = "`onetray token create --name NAME --scope read,submit`"

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(?::\d{1,5})?", re.ASCII)


def may_bind(host: str, has_tokens: bool) -> None:
    """Refuse to listen where others could call, as long as there is no token to know them by."""
    if not has_tokens and not is_loopback(host):
        raise InvalidInput(
            f"without tokens the server listens on the loopback interface alone, not on {short_repr(host)}: create a "
            f"token first with {CREATE}, or give --host 127.0.0.1",
            field="host",
        )


@lru_cache(maxsize=1000)
def is_loopback(host: str) -> bool:
    """Whether a host, as it stands in a URL or a setting, is this machine and no other."""
    name = host.lower().removesuffix(".").strip("[]")
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


Sent = dict[bytes, list[str]]
"""The headers that say who asks: each value of each."""


def sent_with(scope: Scope) -> Sent:
    """What a request says about who asks."""
    found: Sent = {b"host": [], b"origin": [], b"authorization": []}
    for name, value in scope["headers"]:
        if name in found:
            found[name].append(value.decode("latin-1"))
    return found


def must_be_local(scope: Scope, headers: Sent) -> None:
    """Refuse what does not come from this machine, or says that it was meant for another."""
    if _is_remote(scope.get("client")):
        raise NotLocal
    host = host_of(headers)
    if host is None or not is_loopback(host):
        raise WrongHost(
            f"this server has no tokens and is called by a loopback name alone, not by {short_repr(host)}: use "
            f"http://127.0.0.1 and its port, or create a token with {CREATE}"
        )
    for origin in headers[b"origin"]:
        if not is_loopback(urlsplit_host(origin)):
            raise WrongOrigin(
                f"this server has no tokens and answers no page of {short_repr(origin)}: create a token with {CREATE}, "
                "and list the page's origin under allowed_origins"
            )


def must_be_allowed(headers: Sent, hosts: tuple[str, ...], origins: tuple[str, ...]) -> None:
    """With tokens: any host unless some are listed; no page of a browser unless it is listed."""
    if hosts:
        host = host_of(headers)
        if host is None or host not in {h.lower() for h in hosts}:
            raise WrongHost(f"this server is not {short_repr(host)}: list the name under allowed_hosts if it should be")
    for origin in headers[b"origin"]:
        if origin.lower() not in {o.lower().rstrip("/") for o in origins}:
            raise WrongOrigin(f"pages of {short_repr(origin)} may not call this server: list it under allowed_origins")


def host_of(headers: Sent) -> str | None:
    """The host that a request names, without the port; None when it names none, or several."""
    named = headers[b"host"]
    found = _HOST.fullmatch(named[0].lower()) if len(named) == 1 else None
    return None if found is None else found[1].strip("[]")


def urlsplit_host(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""


def _is_remote(client: tuple[str, int] | None) -> bool:
    """Whether the caller's address is another machine's. One that is no address is a socket of this one."""
    return client is not None and _is_elsewhere(client[0])


@lru_cache(maxsize=1000)
def _is_elsewhere(address: str) -> bool:
    try:
        return not ip_address(address).is_loopback
    except ValueError:
        return False
