"""Limits: how many tasks run at once (concurrency), or start within a period (rate), over all workers.

    @app.task(concurrency=Concurrency(3, key="tenant"), rate="100/m", fair_by="tenant")

Owns what a limit may be, the arithmetic of rates, and the values of keys. Pure: engine/limited_claim.py applies them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import orjson

from onetray.domain.clock import SECOND
from onetray.domain.errors import InvalidInput, short_repr
from onetray.domain.redactor import why_not_a_path

CONCURRENCY, RATE = WHATS = "concurrency", "rate"
MOST = 1_000_000
SHORTEST_PERIOD_S, LONGEST_PERIOD_S = 1.0, 30 * 86_400.0
VALUE_BYTES = 500
"""How long the value of a key may be, as JSON."""
LANE_BYTES = 2_500
"""How long the values of all keys of a task may be together, with their paths: PostgreSQL indexes up to 2,704 bytes."""
MAX_KEYS = 4
"""How many different keys the limits of a kind may have, with what it is fair by."""
LEAST_WEIGHT, MOST_WEIGHT = 0.01, 1_000.0
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_RATE = re.compile(r"\s*(\d+)\s*/\s*(\d+)?\s*([smhd])\s*")


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `most` tasks run at once; with a `key`, of each value that this path has in the payload."""

    most: int
    key: str | None = None

    def __post_init__(self) -> None:
        _check_number(self.most, "concurrency", 1, MOST)
        check_key(self.key)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` tasks start within any `per_s` seconds; with a `key`, of each value of it.

    They may start all at once, unless `smooth`: then they are spread over the period.
    """

    count: int
    per_s: float = 1.0
    key: str | None = None
    smooth: bool = False

    def __post_init__(self) -> None:
        _check_number(self.count, "rate", 1, MOST)
        _check_period(self.per_s)
        check_key(self.key)
        _check_smooth(self.smooth)

    @classmethod
    def of(cls, rate: Rate | str) -> Rate:
        return rate if isinstance(rate, Rate) else cls(*parse_rate(rate))


def parse_rate(rate: object) -> tuple[int, float]:
    """Read `100/m`: a number of starts per second, minute, hour or day (s, m, h, d), or per several (`100/5m`).

    Returns the number and the period in seconds.
    """
    match = _RATE.fullmatch(rate) if isinstance(rate, str) and len(rate) <= 50 else None
    if match is None:
        raise InvalidInput(
            f"a rate is a number and a period, as 10/s, 100/m, 1000/h or 50/5m, not {short_repr(rate)}", field="rate"
        )
    count, periods, unit = match.groups()
    return int(count), float(int(periods or 1) * _UNITS[unit])


def rate_text(count: int, per_s: float) -> str:
    """A rate as `parse_rate` reads it: `100/m`, `50/5m`."""
    unit, seconds = next(((u, s) for u, s in reversed(_UNITS.items()) if per_s % s == 0), ("s", 1))
    periods = per_s / seconds
    return f"{count}/{'' if periods == 1 else f'{periods:g}'}{unit}"


Concurrencies: TypeAlias = int | Concurrency | Sequence[int | Concurrency]
Rates: TypeAlias = str | Rate | Sequence[str | Rate]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of a queue or a kind, as code declares it."""

    most: int
    queue: str | None = None
    kind: str | None = None
    key: str | None = None
    per_s: float | None = None
    """The period of a rate; None: `most` tasks run at once."""
    smooth: bool = False

    def __post_init__(self) -> None:
        if (self.queue is None) == (self.kind is None):
            raise InvalidInput("a limit is for a queue or for a kind: set one of them", field="queue")
        if self.key is not None and self.kind is None:
            raise InvalidInput("a limit with a key is for a kind: set kind", field="key")
        check_key(self.key)
        _check_number(self.most, self.what, 0, MOST)
        _check_smooth(self.smooth)
        if self.per_s is not None:
            _check_period(self.per_s)
        elif self.smooth:
            raise InvalidInput("smooth is for rates: a concurrency has none", field="smooth")

    @property
    def what(self) -> str:
        return CONCURRENCY if self.per_s is None else RATE

    @property
    def period_us(self) -> int | None:
        return None if self.per_s is None else int(self.per_s * SECOND)

    def as_arguments(self) -> dict[str, Any]:
        """The numbers, as `engine.set_limit` takes them."""
        if self.per_s is None:
            return {"concurrency": self.most}
        return {"rate": f"{self.most}/{int(self.per_s)}s", "smooth": self.smooth}


def concurrencies(given: Any) -> tuple[Concurrency, ...]:
    """Read `5`, `Concurrency(3, key="tenant")`, the same as JSON, or a list of these."""
    return tuple(
        each if isinstance(each, Concurrency) else _of_fields(Concurrency, each, "concurrency", "most")
        for each in _several(given)
    )


def rates(given: Any) -> tuple[Rate, ...]:
    """Read `"100/m"`, `Rate(100, per_s=60, key="tenant")`, the same as JSON, or a list of these."""
    return tuple(
        Rate.of(each) if isinstance(each, Rate | str) else _of_fields(Rate, each, "rate", "count")
        for each in _several(given)
    )


def _several(given: Any) -> Sequence[Any]:
    return () if given is None else given if isinstance(given, list | tuple) else (given,)


def _of_fields(kind: Any, given: Any, field: str, number: str) -> Any:
    if not isinstance(given, Mapping):
        return kind(given) if kind is Concurrency else Rate.of(given)
    unknown = [name for name in given if name not in {f.name for f in fields(kind)}]
    if unknown or number not in given:
        others = ", ".join(f.name for f in fields(kind)[1:])
        raise InvalidInput(f"a {field} has {number}, and may have {others}, not {short_repr(given)}", field=field)
    return kind(**given)


def same_key_twice(limits: Sequence[Concurrency] | Sequence[Rate]) -> bool:
    return len({limit.key for limit in limits}) < len(limits)


def limits_of_queue(queue: str, concurrency: int | None, rate: str | None, smooth: bool) -> list[Limit]:
    """The limits that code declares for a queue."""
    limits = [] if concurrency is None else [Limit(concurrency, queue)]
    if rate is not None:
        count, per_s = parse_rate(rate)
        limits.append(Limit(count, queue, per_s=per_s, smooth=smooth))
    if not limits:
        raise InvalidInput("a limit needs a concurrency or a rate", field="concurrency")
    return limits


def limits_of_kind(kind: str, concurrency: Iterable[Concurrency], rate: Iterable[Rate]) -> list[Limit]:
    """The limits that the policy of a kind declares."""
    return [Limit(c.most, kind=kind, key=c.key) for c in concurrency] + [
        Limit(r.count, kind=kind, key=r.key, per_s=r.per_s, smooth=r.smooth) for r in rate
    ]


def numbers_text(most: int, per_s: float | None, smooth: bool = False) -> str:
    """How much a limit allows: `10 at once`, `100/m`, `100/m smooth`."""
    return f"{most:,} at once" if per_s is None else rate_text(most, per_s) + (" smooth" if smooth else "")


@dataclass(frozen=True, slots=True)
class LimitDetails:
    """A limit, and how much of it is used."""

    id: int
    what: str
    """`concurrency` or `rate`."""
    queue: str | None
    kind: str | None
    key: str | None
    most: int
    """How many tasks may run at once or, of a rate, start within `per_s`."""
    per_s: float | None
    smooth: bool
    declared: Limit | None
    """The numbers that the code declares; None if it declares none."""
    set_by: str | None
    """Who has set the numbers in force; None: the code has."""
    set_at: int | None
    counting: bool
    """Whether it is new, and the tasks that run already are still being counted. Until then no task of it starts."""
    running: int
    """How many tasks hold a slot. With a key: of all values together. 0 of a rate."""
    blocked: int
    """How many lanes (see docs/limits.md) wait for it now; counted up to 1,000."""
    waiting: int
    """How many ready tasks it holds back now; counted up to 1,000."""
    next_start_at: int | None
    """Of a rate without a key that is used up: when the next task may start."""

    @property
    def name(self) -> str:
        """What it limits, in words: `concurrency of kind send by tenant`."""
        scope = f"queue {self.queue}" if self.kind is None else f"kind {self.kind}"
        return f"{self.what} of {scope}" + (f" by {self.key}" if self.key else "")

    @property
    def numbers(self) -> str:
        """How much it allows: `10 at once`, `100/m`, `100/m smooth`."""
        return numbers_text(self.most, self.per_s, self.smooth)

    @property
    def declared_numbers(self) -> str:
        """The same of the code, if an operator has set other numbers; else empty."""
        code = self.declared
        numbers = "" if code is None else numbers_text(code.most, code.per_s, code.smooth)
        return "" if numbers == self.numbers else numbers


@dataclass(frozen=True, slots=True)
class Weight:
    """The share of one value of what a kind is fair by, if an operator has set it. The default is 1."""

    kind: str
    value: Any
    weight: float


@dataclass(frozen=True, slots=True)
class LimitValue:
    """One value of the key of a limit, and how much of the limit it uses."""

    cursor: int
    """For the next page: `after`."""
    value: Any
    running: int
    """How many of its tasks hold a slot; of a rate: how many have started within the last period."""
    blocked: int
    """How many of its lanes wait; counted up to 1,000."""
    blocked_since: int | None
    next_start_at: int | None
    """Of a rate that is used up: when the next task may start."""


@dataclass(frozen=True, slots=True)
class LimitHolder:
    """A task that holds a slot of a limit."""

    task: str
    job: str
    kind: str
    queue: str
    worker: str
    state: str
    claimed_at: int
    """When it was claimed, or last changed its state."""
    lease_expires_at: int
    """When the slot comes back if the worker is lost."""


def check_key(key: object) -> None:
    why = None if key is None else why_not_a_path(key)
    if why:
        raise InvalidInput(f"a key is the path of a value in the payload: {why}, not {short_repr(key)}", field="key")


def _is_number(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _check_number(value: object, field: str, least: int, most: int) -> None:
    if not isinstance(value, int) or not _is_number(value, least, most):
        raise InvalidInput(
            f"{field} must be a whole number from {least} to {most:,}, not {short_repr(value)}", field=field
        )


def _check_period(per_s: object) -> None:
    if not _is_number(per_s, SHORTEST_PERIOD_S, LONGEST_PERIOD_S):
        raise InvalidInput(f"per_s must be from 1 second to 30 days, not {short_repr(per_s)}", field="per_s")


def _check_smooth(smooth: object) -> None:
    if not isinstance(smooth, bool):
        raise InvalidInput("smooth must be true or false", field="smooth")


def check_weight(weight: float) -> float:
    if not _is_number(weight, LEAST_WEIGHT, MOST_WEIGHT):
        raise InvalidInput(
            f"weight must be a number from {LEAST_WEIGHT} to {MOST_WEIGHT:g}, not {short_repr(weight)}", field="weight"
        )
    return float(weight)


def value_json(value: Any) -> str:
    """A value of a key as text: equal values have equal texts."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def value_at(payload: Any, path: str) -> Any:
    """The value at a dotted path of a payload; None if there is none. A step may be the index of a list."""
    for step in path.split("."):
        if isinstance(payload, Mapping):
            payload = payload.get(step)
        elif isinstance(payload, list) and step.isdecimal() and int(step) < len(payload):
            payload = payload[int(step)]
        else:
            return None
    return payload


def lane_value(paths: Iterable[str], payload_json: str) -> str:
    """The values of these paths in a payload, as the JSON object that identifies a lane."""
    payload = orjson.loads(payload_json)
    values = {path: value_at(payload, path) for path in paths}
    for path, value in values.items():
        if len(value_json(value).encode()) > VALUE_BYTES:
            raise InvalidInput(
                f"the value of the key {path!r} has more than {VALUE_BYTES} bytes as JSON: limits and fairness need a "
                "short one, such as an id",
                field="payload",
            )
    lane = value_json(values)
    if len(lane.encode()) > LANE_BYTES:
        raise InvalidInput(
            f"the values of the keys {', '.join(map(repr, values))} have, with their paths, together more than "
            f"{LANE_BYTES:,} bytes as JSON: limits and fairness need short ones, such as ids",
            field="payload",
        )
    return lane


# Rates.

COARSE = 100
"""Starts are kept in steps of this part of the period."""
TOLERANCE = 20
"""A smooth rate may be ahead of its pace by this part of the period."""
Starts = list[list[int]]
"""Recent starts: times and numbers, oldest first."""


class RateState:
    """The starts of one counter of a rate, at a time: how many more are allowed, and when the next one is."""

    def __init__(self, most: int, period: int, smooth: bool, starts: Starts, next_at: int, now: int) -> None:
        self.most, self.period, self.smooth = most, period, smooth
        self.now = max([now, *(at - self._step for at, _ in starts[-1:])])
        self.starts = [start for start in starts if start[0] > self.now - period]
        self.next_at = next_at
        """By the pace of a smooth rate: when the next start would be on time."""

    @property
    def _step(self) -> int:
        return max(1, self.period // COARSE)

    def allowed(self) -> int:
        free = max(0, self.most - sum(count for _, count in self.starts))
        if not self.smooth or not self.most:
            return free
        ahead = max(self.next_at, self.now) - self.now
        return min(free, max(0, 1 + (self.period // TOLERANCE - ahead) * self.most // self.period))

    def start(self, count: int) -> None:
        """Count starts now. They are kept as of the end of their step: so no window has more than the limit."""
        if not count:
            return
        at = -(-self.now // self._step) * self._step
        if self.starts and self.starts[-1][0] >= at:
            self.starts[-1][1] += count
        else:
            self.starts.append([at, count])
        self.next_at = max(self.next_at, self.now) + -(-count * self.period // max(1, self.most))

    def next_start_at(self) -> int | None:
        """When another start is allowed; None: now, or never."""
        if self.allowed() or not self.most:
            return None
        at, used = self.now, sum(count for _, count in self.starts)
        for time, count in self.starts:
            if used < self.most:
                break
            at, used = time + self.period, used - count
        if self.smooth:
            at = max(at, self.next_at - self.period // TOLERANCE)
        return at
