"""Format times, durations and counts for people, and parse a duration from the command line.

Times are microseconds, printed in the local time zone.
"""

from __future__ import annotations

import click

from onetray.domain.clock import SECOND, duration, length_s


def moment(at: int | None, now: int) -> str:
    """A time, relative and absolute: "3 min ago, 2026-11-16 03:20:11"."""
    return "" if at is None else f"{ago(at, now)}, {clock(at)}"


def clock(at: int) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(at / SECOND).strftime("%Y-%m-%d %H:%M:%S")


def precise_clock(at: int) -> str:
    return f"{clock(at)}.{at % SECOND // 1000:03d}"


def ago(at: int | None, now: int) -> str:
    if at is None:
        return ""
    return f"{duration(now - at)} ago" if at <= now else f"in {duration(at - now)}"


def iso_utc(at: int) -> str:
    """A time as ISO 8601 in UTC, to the microsecond."""
    from datetime import UTC, datetime

    whole = datetime.fromtimestamp(at // SECOND, tz=UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{at % SECOND:06d}Z"


def counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def age(value: str | float) -> float:
    """The seconds of a duration (90s, 15m, 2h, 30d, 4w)."""
    if isinstance(value, float):
        return value
    seconds = length_s(value)
    if seconds is None:
        raise click.BadParameter(f"{value!r} is not a duration: write 90s, 15m, 2h, 30d or 4w")
    return seconds
