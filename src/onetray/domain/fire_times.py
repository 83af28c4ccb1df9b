"""When a schedule fires: by a cron expression in a time zone, or every so many seconds.

Owns the calendar. Expressions follow cronsim: at a change of the clock a fixed time of day that does not exist comes
when the gap ends, and one that exists twice comes the first time; intervals such as `*/15` go by real time. `cronsim`
and `zoneinfo` are imported by the first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from onetray.domain.clock import SECOND
from onetray.domain.errors import InvalidInput

if TYPE_CHECKING:
    from cronsim import CronSim

LEAST_EVERY_S = 1.0
ALIASES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip
LAST_US = 253_402_300_799 * SECOND
"""The last second that Python can print: a schedule does not fire later."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LOOK_BACK_S = (60, 3_600, 86_400, 31 * 86_400, 366 * 86_400)
MOVED, TWICE = "moved", "twice"
"""Notes about a fire time: its local time did not exist, or exists twice."""


@dataclass(frozen=True, slots=True)
class FireTime:
    """A time at which a schedule fires."""

    fire_at: int
    local: str
    """The same in the schedule's time zone, with the offset from UTC."""
    note: str | None
    """`moved`: the local time of the expression does not exist on this day, and this is when the gap ends. `twice`: the
    local time exists twice, and this is one of the two."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """The fire times of a schedule."""

    cron: str | None = None
    every_s: float | None = None
    timezone: str = "UTC"
    starts_at: int | None = None
    """The first possible fire time. Intervals count from it; without it, from 1970-01-01 00:00 UTC."""
    ends_at: int | None = None
    """There is none after this."""

    def check(self) -> None:
        """Raises InvalidInput for an expression, an interval or a time zone that does not exist."""
        if (self.cron is None) == (self.every_s is None):
            raise InvalidInput("set either cron or every_s", field="cron")
        zone_of(self.timezone)
        if self.every_s is not None and self.every_s < LEAST_EVERY_S:
            raise InvalidInput(f"every_s must be {LEAST_EVERY_S:g} or more", field="every_s")
        if self.cron is not None:
            _parse(self.cron, datetime(2000, 1, 1))
        if self.starts_at is not None and self.ends_at is not None and self.ends_at < self.starts_at:
            raise InvalidInput("ends_at is before starts_at: the schedule would never fire", field="ends_at")

    def after(self, at: int) -> Iterator[int]:
        """The fire times later than this, in order."""
        if self.starts_at is not None:
            at = max(at, self.starts_at - 1)
        for fire_at in self._by_interval(at) if self.every_s is not None else self._by_cron(at):
            if self.ends_at is not None and fire_at > self.ends_at:
                return
            yield fire_at

    def next_after(self, at: int) -> int | None:
        return next(self.after(at), None)

    def newest_upto(self, at: int) -> int | None:
        """The last fire time up to this one, as far as a year before it."""
        for back_s in _LOOK_BACK_S:
            newest = None
            for fire_at in self.after(at - back_s * SECOND):
                if fire_at > at:
                    break
                newest = fire_at
            if newest is not None:
                return newest
        return None

    def preview(self, at: int, count: int) -> list[FireTime]:
        """The next fire times after this one, with what a change of the clock does to them."""
        return [self.describe(fire_at) for fire_at in islice(self.after(at), count)]

    def describe(self, fire_at: int) -> FireTime:
        local = _local(fire_at, zone_of(self.timezone))
        return FireTime(fire_at, local.isoformat(timespec="auto"), self._note(local))

    def _note(self, local: datetime) -> str | None:
        if self.cron is not None and not _matches(_parse(self.cron, local), local):
            return MOVED
        return TWICE if local.replace(fold=0).utcoffset() > local.replace(fold=1).utcoffset() else None  # type: ignore[operator]

    def _by_interval(self, at: int) -> Iterator[int]:
        step, anchor = int((self.every_s or 0) * SECOND), self.starts_at or 0
        fire_at = anchor + ((at - anchor) // step + 1) * step
        while fire_at <= LAST_US:
            yield fire_at
            fire_at += step

    def _by_cron(self, at: int) -> Iterator[int]:
        try:
            for local in _parse(self.cron or "", _local(at, zone_of(self.timezone))):
                fire_at = (local - _EPOCH) // _MICROSECOND
                # Started in an hour that exists twice, cronsim begins with the first one.
                if fire_at > at:
                    yield fire_at
                    at = fire_at
        except OverflowError:
            # The last years that Python knows have been searched.
            return


def _local(at: int, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(microseconds=at)).astimezone(zone)


def _matches(cron: CronSim, local: datetime) -> bool:
    return local.minute in cron.minutes and local.hour in cron.hours and local.second in cron.seconds


def _parse(cron: str, begin: datetime) -> CronSim:
    from cronsim import CronSim, CronSimError

    try:
        return CronSim(ALIASES.get(cron.strip().lower(), cron), begin)
    except (CronSimError, AssertionError, ValueError) as e:
        raise InvalidInput(
            f"cron {cron[:100]!r} is not an expression: {str(e) or 'wrong step'}. Write minute, hour, day of month, "
            "month and day of the week, as in 0 7 * * mon-fri",
            field="cron",
        ) from None


@lru_cache(128)
def zone_of(name: str) -> tzinfo:
    """The time zone of this name. Raises InvalidInput."""
    if name == "UTC":
        # cronsim has a faster way for this one.
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidInput(f"there is no time zone {name[:100]!r}{_hint(name)}", field="timezone") from None


def _hint(name: str) -> str:
    from difflib import get_close_matches
    from zoneinfo import available_timezones

    by_lower = {known.lower(): known for known in available_timezones()}
    near = get_close_matches(name.lower()[:100], by_lower, 1)
    return f": do you mean {by_lower[near[0]]!r}?" if near else ": use a name of the IANA database, as Europe/Berlin"
