"""The format of log lines, JSON or text, in every process of onetray.

Text from outside is escaped: it cannot end a line or imitate another one.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_EXTRA_FIELDS = ("task", "trace_id", "data")
"""Attributes of records that handlers log with `ctx.log`."""


class JsonLines(logging.Formatter):
    """Formats a record, with its extra fields, as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        entry |= {name: value for name in _EXTRA_FIELDS if (value := getattr(record, name, None))}
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        # ASCII only: some readers take U+2028 and the like for the end of a line.
        return json.dumps(entry, default=str)


class TextLines(logging.Formatter):
    """Formats a record as one line of text. Control characters are escaped; tracebacks follow, indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(f"    {printable(line)}" for line in super().formatException(ei).splitlines())


def printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def set_up(level: str, format_: str) -> None:
    """Log to stderr, from this level on. The format `auto` means text on a terminal, JSON elsewhere."""
    handler = logging.StreamHandler(sys.stderr)
    as_text = format_ == "text" or (format_ == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextLines() if as_text else JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
