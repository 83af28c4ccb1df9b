"""Log lines, as JSON or as text, of every process that onetray runs.

Owns the shape of a line. Nothing that somebody sends can end one, or look like another.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_FACTS = ("task", "trace_id", "data")
"""What a handler's line has beside its words."""


class JsonLines(logging.Formatter):
    """One entry as one line of JSON, with the facts that stand beside its words."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        said |= {name: value for name in _FACTS if (value := getattr(record, name, None))}
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        # ASCII only: no sign that some reader takes for the end of a line.
        return json.dumps(said, default=str)


class TextLines(logging.Formatter):
    """One entry as a line to read. What would end it or colour it is shown as an escape; tracebacks are set in."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(f"    {printable(line)}" for line in super().formatException(ei).splitlines())


def printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def set_up(level: str, form: str) -> None:
    """Have everything that is logged in this process written to stderr. On a terminal as text, unless it is said."""
    handler = logging.StreamHandler(sys.stderr)
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextLines() if as_text else JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
