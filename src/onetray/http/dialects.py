"""Dialects of a server: finds them by name and adds their routes and their errors to the app.

A dialect is a value, `Dialect`. Those of onetray are `onetray.dialects.<name>.DIALECT`; other packages offer theirs as
entry points. Owns what is checked of one before a server uses it. How to write one: docs/dialects.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import Response
from starlette.types import Scope

from onetray.config import BUILT_IN_DIALECTS
from onetray.domain.errors import InvalidInput
from onetray.domain.state_table import StateTable
from onetray.http.native_route import GuardedRoute, also_head
from onetray.http.route_index import add_routes

GROUP = "onetray.dialects"
"""The group of entry points. The value of each is a Dialect, its name is the dialect's."""
NONE = "none"
NATIVE, DASHBOARD = "/api/v1", "/ui"
_PREFIX = re.compile(r"(/[\w.~-]+)+")

Shape = Callable[[dict[str, Any], Scope, dict[str, str] | None], Response]
"""Turns a problem document into the dialect's error. The last argument: headers of the response."""


@dataclass(frozen=True)
class Dialect:
    """The routes, errors and states of another system, mapped onto ours."""

    name: str
    prefix: str
    """Errors under this path have the dialect's format. Of several matching prefixes, the longest counts."""
    router: APIRouter
    """Its routes are below the prefix, and have `route_class=DialectRoute`."""
    shape: Shape
    title: str
    """Of its OpenAPI document, like `description`."""
    description: str
    states: tuple[StateTable, ...] = ()
    """For docs/dialects.md and its tests."""

    def __post_init__(self) -> None:
        own = (NATIVE, DASHBOARD)
        if not _PREFIX.fullmatch(self.prefix) or any(
            is_below(path, self.prefix) or is_below(self.prefix, path) for path in own
        ):
            raise ValueError(
                f"{self.name}: the prefix {self.prefix!r} must be a path outside of {' and '.join(own)}, such as /v1"
            )
        for route in self.router.routes:
            if not isinstance(route, GuardedRoute):
                raise TypeError(f"{self.name}: {route!r} is no DialectRoute: set route_class of its router")
            if not is_below(route.path, self.prefix):
                raise ValueError(f"{self.name}: {route.path} is not below the prefix {self.prefix}")


def is_below(path: str, prefix: str) -> bool:
    """Whether a path is a prefix, or below it."""
    return path == prefix or path.startswith(f"{prefix}/")


def check_dialects(names: tuple[str, ...]) -> tuple[str, ...]:
    """The dialects by name, without repetitions; `none` alone means no dialect. Raises InvalidInput."""
    names = () if names == (NONE,) else tuple(dict.fromkeys(names))
    _load_all(names)
    return names


def mount(app: FastAPI, names: tuple[str, ...]) -> None:
    """Add dialects to an app."""
    dialects = _load_all(check_dialects(names))
    app.state.dialects = {dialect.name: dialect for dialect in dialects}
    # Also in this order: a route of /v1/pipeline comes before one of /v1 that would match the same path.
    for dialect in sorted(dialects, key=lambda dialect: len(dialect.prefix), reverse=True):
        also_head(dialect.router.routes)
        add_routes(app, dialect.router.routes)
        app.state.shapes[dialect.prefix] = dialect.shape


def mount_mcp(app: FastAPI) -> None:
    """Add /mcp to an app. Its module is imported by its name: it knows this layer."""
    mcp = import_module("onetray.mcp.route")
    add_routes(app, mcp.router.routes)
    app.state.shapes[mcp.PREFIX] = mcp.rpc_error


def mount_dashboard(app: FastAPI) -> None:
    """Add the pages at / and below /ui to an app. Their module is imported by its name, as that of /mcp is."""
    dashboard = import_module("onetray.dashboard.route")
    add_routes(app, dashboard.router().routes)
    dashboard.install_dashboard(app)


def _load_all(names: tuple[str, ...]) -> list[Dialect]:
    dialects = [load_dialect(name) for name in names]
    by_prefix = {dialect.prefix: dialect for dialect in dialects}
    for dialect in dialects:
        other = by_prefix[dialect.prefix]
        if other is not dialect:
            raise _invalid(f"the dialects {dialect.name} and {other.name} both use {dialect.prefix}: choose one")
    return dialects


def load_dialect(name: str) -> Dialect:
    """A dialect by its name: one of onetray's, or one that another package offers."""
    if name in BUILT_IN_DIALECTS:
        built_in: Dialect = import_module(f"onetray.dialects.{name}").DIALECT
        return built_in
    offered = entry_points(group=GROUP)
    named = list({entry.value: entry for entry in offered if entry.name == name}.values())
    if not named:
        installed = dict.fromkeys((*BUILT_IN_DIALECTS, *sorted(entry.name for entry in offered)))
        raise _invalid(f"there is no dialect {name!r}: use {', '.join(installed)}, or none")
    if len(named) > 1:
        packages = " and ".join(_package(entry) for entry in named)
        raise _invalid(f"the packages {packages} both offer a dialect {name!r}: remove one")
    return _load(named[0])


def _load(entry: EntryPoint) -> Dialect:
    offer = f"the dialect {entry.name!r} of the package {_package(entry)}"
    try:
        dialect = entry.load()
    except Exception as e:
        raise _invalid(f"{offer} cannot be imported from {entry.value}: {type(e).__name__}: {e}") from e
    if not isinstance(dialect, Dialect):
        raise _invalid(f"{offer} is a {type(dialect).__name__}: {entry.value} must be a Dialect")
    if dialect.name != entry.name:
        raise _invalid(f"{offer} calls itself {dialect.name!r}: use one name")
    return dialect


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module


def _invalid(message: str) -> InvalidInput:
    return InvalidInput(message, field="dialects")
