"""Renders pages: Jinja templates with autoescape, live fragments, static files by the hash of their content.

A rendered page has marks where it depends on the moment or on the session: ages and CSRF tokens. `finish` fills them
in. So one render serves all who watch a page, and a fragment counts as changed only if something else in it has.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

from onetray import __version__
from onetray.dashboard import charts
from onetray.dashboard.pages import HOME, PREFIX, Page, menu
from onetray.dashboard.view import View
from onetray.domain.clock import SECOND

# Random, so that nothing that a user has submitted can look like a mark.
_NONCE = secrets.token_hex(8)
_CSRF = f"@csrf-{_NONCE}@"
_AGE = re.compile(rf"@age-{_NONCE}-(-?\d+)@")
NEVER = Markup('<span class="none">&ndash;</span>')
MINUTE, HOUR, DAY = 60, 3_600, 86_400
_LAST = 253_370_764_800 * SECOND
"""The year 9999, which `datetime` can still show."""
TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


class StaticFile(NamedTuple):
    """A file for browsers, which may keep it: its name changes with its content."""

    content: bytes
    media_type: str


class Rendered(NamedTuple):
    """A page with its marks, and its live fragments."""

    html: str
    fragments: dict[str, Markup]


@cache
def static_files() -> tuple[dict[str, str], dict[str, StaticFile]]:
    """The names with hashes by plain names, and the files by names with hashes."""
    names, found = {}, {}
    for file in files("onetray.dashboard").joinpath("static").iterdir():
        stem, _, suffix = file.name.rpartition(".")
        if suffix in TYPES:
            content = file.read_bytes()
            names[file.name] = f"{stem}-{hashlib.sha256(content).hexdigest()[:12]}.{suffix}"
            found[names[file.name]] = StaticFile(content, TYPES[suffix])
    return names, found


def static(name: str) -> str:
    """The URL of a static file."""
    return f"{PREFIX}/static/{static_files()[0][name]}"


def has_static(name: str) -> bool:
    return name in static_files()[0]


@cache
def environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("onetray.dashboard"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    found.globals.update(
        static=static, has_static=has_static, version=__version__, ago=time_ago, clock=time_of_day,
        duration=length_of_time, number=number, charts=charts, home=HOME, short=short,
    )  # fmt: skip
    return found


def render_page(page: Page, view: View) -> Rendered:
    """Call a page's function and render its template. Blocks: run it in a thread."""
    context = page.function(view)
    html = environment().get_template(page.template).render(
        view=view, page_info=page, menu=menu(), link=view.link, link_if=view.link_if, live=_live_in(view),
        form_token=_form_token_in(view), **context,
    )  # fmt: skip
    return Rendered(html, view.fragments)


def render_alone(template: str, **context: Any) -> str:
    """A page without a menu: the login, an error."""
    return environment().get_template(template).render(**context)


def finish(html: str, csrf: str, now: int) -> str:
    """Fill in what depends on the session and on the moment."""
    return _AGE.sub(lambda match: relative(int(match[1]) - now), html).replace(_CSRF, csrf)


def digest(html: str) -> str:
    """What changes with a fragment."""
    # Without the nonce: a server that was restarted renders the same.
    return hashlib.sha256(html.replace(_NONCE, "").encode()).hexdigest()[:16]


def _live_in(view: View) -> Callable[..., Markup]:
    def live(name: str, caller: Callable[[], Markup], cls: str = "") -> Markup:
        html = view.fragments[name] = caller()
        return Markup('<div data-live="{}" data-hash="{}" class="{}">{}</div>').format(name, digest(html), cls, html)

    return live


def _form_token_in(view: View) -> Callable[[], Markup]:
    def form_token() -> Markup:
        hidden = Markup('<input type="hidden" name="{}" value="{}">')
        return hidden.format("csrf", _CSRF) + hidden.format("came_from", view.url())

    return form_token


def time_ago(at: int | None) -> Markup:
    """How long ago a time is, or how soon. The browser keeps it up to date."""
    if at is None:
        return NEVER
    when = datetime.fromtimestamp(min(at, _LAST) / SECOND, UTC)
    return Markup('<time datetime="{}" title="{}" data-ago="{}">{}</time>').format(
        when.isoformat(timespec="milliseconds"), f"{when:%Y-%m-%d %H:%M:%S} UTC", at // 1_000, f"@age-{_NONCE}-{at}@"
    )


def time_of_day(at: int | None) -> Markup:
    """A time of day in UTC, with its date as the title."""
    if at is None:
        return NEVER
    when = datetime.fromtimestamp(min(at, _LAST) / SECOND, UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        when.isoformat(timespec="milliseconds"), f"{when:%Y-%m-%d %H:%M:%S.%f} UTC", f"{when:%H:%M:%S}"
    )


def relative(us: int) -> str:
    """The words for a time that is this far in the future, or in the past if it is negative."""
    words = rough(abs(us) / SECOND)
    if words == "0 s":
        return "now"
    return f"in {words}" if us > 0 else f"{words} ago"


def rough(seconds: float) -> str:
    """A length of time in its largest unit. dashboard.js has the same."""
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= unit:
            return f"{int(seconds // unit)} {name}"
    return f"{int(seconds)} s"


def length_of_time(us: float | None) -> Markup:
    """A measured length of time."""
    if us is None:
        return NEVER
    seconds = us / SECOND
    if seconds < 1:
        return escape(f"{seconds * 1_000:.3g} ms" if seconds < 0.1 else f"{seconds * 1_000:.0f} ms")
    if seconds < MINUTE:
        return escape(f"{seconds:.1f} s")
    minutes, rest = divmod(int(seconds), MINUTE)
    hours, minutes = divmod(minutes, MINUTE)
    return escape(f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s")


def number(value: float | None) -> Markup:
    if value is None:
        return NEVER
    return escape(f"{value:,}" if isinstance(value, int) else f"{value:,.1f}")


def short(id_: str) -> str:
    """The end of an id: ids that were made together begin alike."""
    return id_[-8:]
