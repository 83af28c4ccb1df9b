"""Somebody else's words as a database takes them: without what it cannot keep, and of a bearable length.

Owns what becomes of a text or a value that a handler says on the side. Refuses nothing: one odd
line must not cost the others.
"""

from __future__ import annotations

from typing import Any

import orjson

TEXT_CHARS = 16_000
DATA_BYTES = 100_000
NUL = b"\\u0000"


def clean(text: str) -> str:
    """A text without NUL and lone surrogates, cut where it becomes too long."""
    return text[:TEXT_CHARS].replace("\0", "\\0").encode("utf-8", "replace").decode()


def plain(data: dict[str, Any] | None) -> Any:
    """The data of a line as JSON values. What JSON does not know is told as Python prints it."""
    if data is None:
        return None
    try:
        written = orjson.dumps(data, default=_printed, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, RecursionError):
        written = NUL
    if NUL in written:
        return {clean(str(name)): clean(_printed(value)) for name, value in data.items()}
    return orjson.loads(written) if len(written) <= DATA_BYTES else {"cut": clean(written.decode())}


def _printed(value: Any) -> str:
    try:
        return repr(value)
    except Exception:
        return f"({type(value).__name__} cannot be printed)"
