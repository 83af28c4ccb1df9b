"""Dialects beside the native API: which there are, and how one is added to an app.

Owns their names. They lie in a layer above this one and are loaded by name; each has a router, its prefix, and its own
shape for the errors under it.
"""

from __future__ import annotations

from importlib import import_module

from fastapi import FastAPI

from onetray.errors import InvalidInput
from onetray.http.access import must_be_guarded
from onetray.http.native import also_head

DIALECTS = ("so1",)
NONE = "none"


def chosen(names: tuple[str, ...]) -> tuple[str, ...]:
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
    for name in chosen(names):
        dialect = import_module(f"onetray.dialects.{name}")
        also_head(dialect.router.routes)
        must_be_guarded(dialect.router.routes)
        app.state.guarded += dialect.router.routes
        # Their contracts are their own: the native description would say of them what is not so.
        app.include_router(dialect.router, include_in_schema=False)
        app.state.shapes[dialect.PREFIX] = dialect.shape
