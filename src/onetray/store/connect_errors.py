"""Why a connection to PostgreSQL fails, and what to do about it.

Owns the messages. psycopg reports no SQLSTATE of a failed connection: its text is all there is to go by.
"""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from typing import NamedTuple

from psycopg import ProgrammingError, conninfo, pq
from psycopg.errors import ConnectionTimeout

from onetray.config import hide_password
from onetray.domain.errors import OnetrayError, StoreError, Unavailable

FIRST_CONNECT_S = 2
"""The time for the first connection, unless the URL has a connect_timeout. A server that is slow gets more."""
PROBE_S = 0.5
_PASSING = re.compile(
    r"starting up|not yet accepting|shutting down|too many (clients|connections)|remaining connection|"
    # It crashes at this moment.
    r"server closed the connection unexpectedly|"
    # pgbouncer, whose own server is away or was: it tries again only every 15 s.
    r"server login has been failing|cannot connect to server|query_wait_timeout|server conn crashed"
)
_NO_DATABASE = re.compile(r'database "[^"]*" does not exist')
_NO_ROLE = re.compile(r'role "[^"]*" does not exist')
_NO_HOST = re.compile(r"resolve|getaddrinfo|translate host name|Name or service|nodename nor servname")
_NO_PASSWORD = re.compile(r"no password supplied")
_WRONG_PASSWORD = re.compile(r"(password|SCRAM|SASL) authentication failed|authentication failed")
_NO_CONNECT = re.compile(r"permission denied for database")
_NO_ENTRY = re.compile(r"no pg_hba\.conf entry")
_REFUSED = re.compile(r"refused|No such file or directory")


class Place(NamedTuple):
    """What a URL, the environment and libpq's defaults say about a connection."""

    servers: tuple[tuple[str, str], ...]
    """Hosts and ports, in the order in which they are tried."""
    database: str
    role: str

    @property
    def options(self) -> str:
        """The options of psql, createdb and others for this server."""
        host, port = self.servers[0]
        return f"{f'-h {host} ' if host else ''}-p {port}"

    def __str__(self) -> str:
        return f"{', '.join(map(_server, self.servers))} (database {self.database}, role {self.role})"


def _server(server: tuple[str, str]) -> str:
    host, port = server
    return f"the socket in {host or 'the default directory'}, port {port}" if _is_socket(host) else f"{host}:{port}"


def _is_socket(host: str) -> bool:
    return not host or host.startswith(("/", "@"))


def url_parts(url: str) -> dict[str, str]:
    """The parameters of a URL. Raises StoreError for one that is not valid."""
    try:
        parts = {name: str(value) for name, value in conninfo.conninfo_to_dict(url).items()}
    except ProgrammingError as e:
        # libpq quotes what it does not understand, which may be a part of the password.
        why = str(e) if hide_password(url) == url else re.sub('"[^"]*"', '"…"', str(e))
        raise StoreError(f"invalid database URL {hide_password(url)}: {why}") from None
    if "@" in parts.get("dbname", ""):
        # What precedes the / would be taken for host and port, and stand in messages.
        raise StoreError(
            f"invalid database URL {hide_password(url)}: in a password, write / as %2F, ? as %3F, # as %23 and @ as %40"
        )
    return parts


def place_of(url: str) -> Place:
    defaults = {d.keyword.decode(): d.val.decode() for d in pq.Conninfo.get_defaults() if d.val}
    known = defaults | url_parts(url)
    hosts = (known.get("host") or known.get("hostaddr") or "").split(",")
    usual = defaults.get("port", "5432")
    ports = [port or usual for port in known.get("port", usual).split(",")]
    role = known.get("user", "")
    servers = tuple(zip(hosts, ports if len(ports) == len(hosts) else ports[:1] * len(hosts), strict=True))
    return Place(servers, known.get("dbname") or role, role)


def may_pass(error: Exception | None, url: str) -> bool:
    """Whether the server is there and may accept a connection soon: it starts, is full, is slow, or has crashed."""
    if isinstance(error, ConnectionTimeout):
        return _answers(place_of(url))
    return bool(_PASSING.search(str(error)))


def nobody_listens(error: Exception | None) -> bool:
    return bool(_REFUSED.search(str(error)))


def _answers(place: Place) -> bool:
    for host, port in place.servers:
        if _is_socket(host):
            return True
        with suppress(OSError, ValueError), socket.create_connection((host, int(port)), PROBE_S):
            return True
    return False


def connect_error(error: Exception, url: str) -> OnetrayError:
    """An error that names the server, the database and the role, and says what to do."""
    place, text = place_of(url), " ".join(str(error).split())
    shown = hide_password(url)
    if _NO_DATABASE.search(text):
        return StoreError(
            f"there is no database {place.database!r} at {place}: check the URL, or create the database with "
            f"`createdb {place.options} -U {place.role} {place.database}` and then run "
            f"`onetray migrate --database {shown}`",
        )
    if _NO_ROLE.search(text):
        return StoreError(
            f"there is no role {place.role!r} at {place}: check the user in the URL {shown}, or create the role with "
            f"`createuser {place.options} --pwprompt {place.role}`"
        )
    if _NO_PASSWORD.search(text):
        return StoreError(
            f"{place} needs a password, and the URL {shown} has none: write {place.role}:PASSWORD@ before the host, "
            "or set PGPASSWORD or ~/.pgpass"
        )
    if _NO_CONNECT.search(text):
        return StoreError(
            f"{place.role!r} may not connect at {place}: as the database's owner, run "
            f"`GRANT CONNECT ON DATABASE {place.database} TO {place.role}`"
        )
    if _NO_ENTRY.search(text):
        return StoreError(f"{place} does not allow this connection: add a line to the server's pg_hba.conf: {text}")
    if _WRONG_PASSWORD.search(text):
        return StoreError(f"{place} rejects the password or the role: check both in the URL {shown}: {text}")
    if _NO_HOST.search(text):
        return StoreError(f"the host of {place} is unknown: check the URL {shown}: {text}")
    return Unavailable(f"PostgreSQL does not answer at {place}: {_next_step(error, text, place)}: {text}")


def _next_step(error: Exception, text: str, place: Place) -> str:
    if isinstance(error, ConnectionTimeout):
        return "check the host, the port and the firewall, or add connect_timeout=30 to the URL of a slow server"
    if _REFUSED.search(text):
        return f"is the server running, and on this port? `pg_isready {place.options}` tells"
    return "check the URL and the server"
