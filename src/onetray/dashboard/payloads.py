"""How JSON and text of users is shown: pretty-printed, its beginning only if it is large; log lines without colours."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson
from markupsafe import Markup, escape

from onetray.domain.task import RawJson

FOLD_CHARS, PRETTY_BYTES = 4_096, 65_536
"""How much of a large value is shown, and the largest value that is parsed to do so."""
LINE_CHARS = 2_000
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # OSC and other strings: titles, links
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"  # Control characters, and those that turn text around
)


class Shown(NamedTuple):
    """A value as text."""

    text: str
    size: int
    """Of the whole, in bytes."""
    is_cut: bool


def pretty(value: Any, *, whole: bool = False) -> Shown | None:
    """A JSON value, pretty-printed; None for none. Of a large one only its beginning, unless the whole is wanted."""
    if value is None:
        return None
    encoded = bytes(value) if isinstance(value, RawJson) else orjson.dumps(value)
    if not whole and len(encoded) > PRETTY_BYTES:
        # Not parsed: a page is rendered often.
        return Shown(encoded[:FOLD_CHARS].decode(errors="ignore"), len(encoded), True)
    text = orjson.dumps(orjson.loads(encoded), option=orjson.OPT_INDENT_2).decode()
    if whole or len(text) <= FOLD_CHARS:
        return Shown(text, len(encoded), False)
    return Shown(text[:FOLD_CHARS], len(encoded), True)


def compact(value: Any, chars: int = 300) -> str:
    """A JSON value in a line, cut if it is long."""
    text = (bytes(value) if isinstance(value, RawJson) else orjson.dumps(value)).decode()
    return text if len(text) <= chars else f"{text[:chars]}…"


def clean_line(line: str) -> str:
    """A log line without escape sequences and control characters."""
    return _ESCAPES.sub("", line)


def size_text(size: int) -> str:
    """A number of bytes, roughly."""
    for unit, name in ((1_000_000, "MB"), (1_000, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"


def prose(message: str) -> Markup:
    """A message of the engine as a sentence, with its commands, which stand in backticks, as code."""
    message = message[:1].upper() + message[1:]
    parts = [escape(part) for part in message.split("`")]
    if len(parts) % 2 == 0:
        return escape(message)
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else p for i, p in enumerate(parts))
