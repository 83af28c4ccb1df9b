"""The format of log lines, JSON or text, in every process of onetray.

Text from outside is escaped: it cannot end a line or imitate another one. Owns the short way of a line that has only
facts, which a server writes for each request.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson

_EXTRA_FIELDS = ("task", "trace_id", "data")
"""Attributes of records that handlers log with `ctx.log`."""


class JsonLines(logging.Formatter):
    """Formats a record, with its extra fields, as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": _utc(record.created),
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


class JsonHandler(logging.StreamHandler[Any]):
    """Writes lines of JSON."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.setFormatter(JsonLines())

    def write(self, level: int, logger: str, message: str, facts: dict[str, Any]) -> bool:
        """Write a line with the facts of a record that was never made. Returns False if it needs the formatter."""
        seconds, ms = divmod(int(time.time() * 1000), 1000)
        name = logging.getLevelName(level).lower()
        line = orjson.dumps({
            "time": f"{_second(seconds)}.{ms:03}+00:00", "level": name, "logger": logger, "message": message, **facts,
        })  # fmt: skip
        if not line.isascii():
            return False
        with self.lock or nullcontext():
            self.stream.write(line.decode() + self.terminator)
            self.flush()
        return True


@lru_cache(2)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def log_facts(logger: logging.Logger, level: int, message: str, facts: dict[str, Any]) -> None:
    """Log a line with facts. If only a JsonHandler would get it, without a LogRecord, which costs most of it."""
    if not logger.isEnabledFor(level):
        return
    handler = _only_handler(logger, level)
    try:
        if handler is not None and handler.write(level, logger.name, message, facts):
            return
    except (OSError, ValueError, TypeError):
        pass  # Logging reports a stream that is closed or full, and writes values that orjson does not know.
    logger.log(level, "%s", message, extra={"facts": facts})


def _only_handler(logger: logging.Logger, level: int) -> JsonHandler | None:
    """The handler of a line, if it is the only one and nothing else looks at the line: no filter, no other factory."""
    above: logging.Logger | None = logger
    found: logging.Handler | None = None
    if logger.filters or logging.getLogRecordFactory() is not logging.LogRecord:
        return None
    while above is not None:
        if len(above.handlers) > 1 or (above.handlers and found is not None):
            return None
        found = above.handlers[0] if above.handlers else found
        above = above.parent if above.propagate else None
    if type(found) is not JsonHandler or found.filters or level < found.level:
        return None
    return found


class TextLines(logging.Formatter):
    """Formats a record as one line of text. Control characters are escaped; tracebacks follow, indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _utc(record.created)

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = printable(super().formatMessage(record))
        trace = getattr(record, "facts", {}).get("traceback")
        return f"{line}\n{_indented(trace)}" if trace else line

    def formatException(self, ei: Any) -> str:
        return _indented(super().formatException(ei))


def _utc(seconds: float) -> str:
    """A time as every line has it: ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _indented(text: str) -> str:
    return "\n".join(f"    {printable(line)}" for line in text.splitlines())


def printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def set_up(level: str, format_: str) -> None:
    """Log to stderr, from this level on. The format `auto` means text on a terminal, JSON elsewhere."""
    handler: logging.Handler
    if format_ == "text" or (format_ == "auto" and sys.stderr.isatty()):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(TextLines())
    else:
        handler = JsonHandler(sys.stderr)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if logging.getLogger().level > logging.DEBUG:
        # Its pool warns of every connection that a restart of the server breaks. onetray logs the outage once.
        logging.getLogger("psycopg").setLevel(logging.ERROR)
