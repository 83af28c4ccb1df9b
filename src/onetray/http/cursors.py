"""Cursors: where a list goes on, as a word that means nothing to whoever carries it.

Owns their form. Each names its list, so that a cursor of one is refused by another.
"""

from __future__ import annotations

import base64
import binascii
import re

from onetray.errors import InvalidInput
from onetray.fields import FAR_US

_FORM = re.compile(r"([a-z_]+):(\d{1,19})")
MOST_CHARS = 100


def cursor(of: str, place: int) -> str:
    return base64.urlsafe_b64encode(f"{of}:{place}".encode()).decode().rstrip("=")


def place(of: str, text: str | None, first: int = 0) -> int:
    """Where a cursor of this list stands; `first` without one."""
    if text is None:
        return first
    found = _FORM.fullmatch(_opened(text))
    if found is None or found[1] != of or int(found[2]) >= FAR_US or cursor(of, int(found[2])) != text:
        raise InvalidInput(
            f"cursor must be as the page before gave it: {text[:20]!r} is no cursor of {of}", field="cursor"
        )
    return int(found[2])


def _opened(text: str) -> str:
    if not text.isascii() or len(text) > MOST_CHARS:
        return ""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        return ""
