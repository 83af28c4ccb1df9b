"""The registry of pages and actions: their paths, their titles, the scopes that they need.

Owns the names by which templates link to them. A page answers GET, an action POST. render.py and route.py serve them.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from onetray.domain.token import OPERATE, READ

if TYPE_CHECKING:
    from onetray.dashboard.view import Form, View

PREFIX = "/ui"
HOME = "/"

PageFunction = Callable[["View"], dict[str, Any]]
ActionFunction = Callable[["View", "Form"], "Flash | Redraw | str"]


@dataclass(frozen=True, slots=True)
class Flash:
    """A message for the page that the browser shows next."""

    message: str
    to: str | None = None
    """The path to show it on. None: the page that the form was on."""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Redraw:
    """A page as the answer to a form: the form again with what is wrong, or something that is shown only once.

    Give the action the path of the page, so that the browser stays where it is.
    """

    page: str
    carried: dict[str, Any]
    """What the page's function finds in `view.carried`."""
    status: int = 200


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the dashboard."""

    name: str
    path: str
    title: str
    scope: str
    nav: int | None
    """Its place in the menu. None: it is not in it."""
    nav_scope: str
    """Who sees it in the menu."""
    function: PageFunction

    @property
    def template(self) -> str:
        return f"{self.name}.html"


@dataclass(frozen=True, slots=True)
class Action:
    """Something that a form does."""

    name: str
    path: str
    scope: str
    function: ActionFunction


PAGES: dict[str, Page] = {}
ACTIONS: dict[str, Action] = {}


def page(
    path: str, *, title: str, nav: int | None = None, scope: str = READ, nav_scope: str | None = None
) -> Callable[[PageFunction], PageFunction]:
    """Declare a page: `/jobs` is served at /ui/jobs, and `/` is the start page."""

    def declare(function: PageFunction) -> PageFunction:
        name = _new_name(function)
        PAGES[name] = Page(
            name, HOME if path == HOME else PREFIX + path, title, scope, nav, nav_scope or scope, function
        )
        return function

    return declare


def action(path: str, *, scope: str = OPERATE) -> Callable[[ActionFunction], ActionFunction]:
    """Declare an action, below /ui as pages are."""

    def declare(function: ActionFunction) -> ActionFunction:
        name = _new_name(function)
        ACTIONS[name] = Action(name, PREFIX + path, scope, function)
        return function

    return declare


def _new_name(function: Callable[..., Any]) -> str:
    name = function.__name__
    if name in PAGES or name in ACTIONS:
        raise ValueError(f"there are two pages or actions called {name}: rename one")
    return name


@cache
def load_views() -> None:
    """Import all modules of views/, which declare the pages and actions."""
    views = import_module("onetray.dashboard.views")
    for module in pkgutil.iter_modules(views.__path__):
        import_module(f"{views.__name__}.{module.name}")


def path_of(name: str, parameters: dict[str, Any]) -> str:
    """The URL of a page or an action. Parameters that are not in its path go into the query; None is left out."""
    target: Page | Action | None = PAGES.get(name) or ACTIONS.get(name)
    if target is None:
        raise LookupError(f"there is no page or action {name!r}")
    path, rest = target.path, dict(parameters)
    for key in parameters:
        for form in (f"{{{key}}}", f"{{{key}:path}}"):
            if form in path:
                path = path.replace(form, quote(str(rest.pop(key)), safe="/" if ":" in form else ""))
    return with_query(path, rest)


def has_page(name: str) -> bool:
    return name in PAGES or name in ACTIONS


def with_query(path: str, parameters: dict[str, Any]) -> str:
    """A path with parameters: lists are repeated, None and empty lists are left out."""
    pairs = [
        (key, str(item))
        for key, value in parameters.items()
        for item in (value if isinstance(value, list | tuple) else (value,))
        if item is not None
    ]
    return f"{path}?{urlencode(pairs)}" if pairs else path


def menu() -> list[Page]:
    """The pages of the menu, in order."""
    return sorted((p for p in PAGES.values() if p.nav is not None), key=lambda p: p.nav or 0)
