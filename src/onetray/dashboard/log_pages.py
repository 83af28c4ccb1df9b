"""Pages of a job's log: its last lines, older ones, and those that contain a text.

The search reads redacted lines: whoever may not see a secret cannot find it either. So it is done here, not in SQL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from onetray.dashboard.payloads import LINE_CHARS, clean_line, compact
from onetray.domain.flow import MemberReport
from onetray.domain.task import LogLine

LINES = 200
SCANNED, PAGE = 10_000, 1_000
"""How many lines one search looks at, and how many it reads at once."""
MAX_SEARCH = 200
LAST = 2**62


class Line(NamedTuple):
    """A line to show."""

    cursor: int
    ts: int
    level: str
    text: str
    data: str
    task: str | None
    """Of a flow: the id of the task that logged it."""
    name: str
    attempt: int

    @classmethod
    def of(cls, line: LogLine | MemberReport) -> Line:
        if isinstance(line, LogLine):
            return cls(line.cursor, line.ts, line.level, _text(line.line), _data(line.data), None, "", line.attempt)
        level, text = line.level or "progress", line.line if line.line is not None else _progress(line)
        name = line.name or line.task[-8:]
        return cls(line.cursor, line.ts, level, _text(text), _data(line.data), line.task, name, line.attempt)

    def has(self, text: str) -> bool:
        return any(text in part.lower() for part in (self.text, self.data, self.level, self.name))


class LogPage(NamedTuple):
    """Lines in order, the cursor of older ones (None: there are none), and how many were searched."""

    lines: list[Line]
    older: int | None
    searched: int | None = None


def page_of_log(read: Callable[..., list[Any]], before: int | None, search: str) -> LogPage:
    """The last lines before a cursor. `read` takes `before` and `limit`."""
    if search:
        return _search(read, before or LAST, search.lower())
    found = read(before=before or LAST, limit=LINES + 1)
    older = found[1].cursor if len(found) > LINES else None
    return LogPage([Line.of(line) for line in found[-LINES:]], older)


def _search(read: Callable[..., list[Any]], before: int, search: str) -> LogPage:
    matches: list[Line] = []
    searched = 0
    while searched < SCANNED:
        page = read(before=before, limit=PAGE)
        for line in reversed(page):
            searched, before = searched + 1, line.cursor
            shown = Line.of(line)
            if shown.has(search):
                matches.append(shown)
                if len(matches) == LINES:
                    return LogPage(matches[::-1], before, searched)
        if len(page) < PAGE:
            return LogPage(matches[::-1], None, searched)
    return LogPage(matches[::-1], before, searched)


def _text(line: str) -> str:
    text = clean_line(line)
    return text if len(text) <= LINE_CHARS else f"{text[:LINE_CHARS]}… ({len(text):,} characters)"


def _data(data: Any) -> str:
    return "" if data is None else compact(data)


def _progress(report: MemberReport) -> str:
    total = "" if report.total is None else f" of {report.total:g}"
    return f"{report.done or 0:g}{total}" + (f": {report.message}" if report.message else "")
