"""The policy of a kind: attempts, backoff, leases, deadlines, breaker, redaction, limits.

Owns the defaults and the allowed range of each setting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import orjson

from onetray.domain.clock import SECOND
from onetray.domain.errors import InvalidInput, short_repr
from onetray.domain.limits import MAX_KEYS, Concurrency, Rate, concurrencies, rates, same_key_twice
from onetray.domain.redactor import MAX_PATHS, why_not_a_path

ON_EXHAUSTION = ("dead_letter", "fail")


@dataclass(frozen=True)
class Policy:
    """How tasks of a kind run. A task keeps the policy that its kind had when it was submitted."""

    max_attempts: int = 3
    backoff_base_s: float = 0.5
    backoff_factor: float = 2.0
    backoff_max_s: float = 60.0
    jitter: bool = True
    retry_on: tuple[str, ...] = ()
    no_retry_on: tuple[str, ...] = ()
    lease_s: float = 60.0
    heartbeat_s: float | None = None
    timeout_s: float | None = None
    queue_ttl_s: float | None = None
    deadline_s: float | None = None
    cancel_grace_s: float = 30.0
    on_exhaustion: str = "dead_letter"
    record_heartbeats: bool = False
    durable_start: bool = False
    idempotency_ttl_s: float = 86_400.0
    breaker_failures: int | None = None
    """This many failed attempts of the kind within the window open its breaker; None: the kind has no breaker."""
    breaker_window_s: float = 60.0
    breaker_open_s: float = 30.0
    redact: tuple[str, ...] = ()
    """Fields of payload, input and result that only the handler sees: dotted paths, `*` for every item."""
    concurrency: tuple[Concurrency, ...] = ()
    """How many tasks of the kind run at once, over all workers; with a key, of each value of it in the payload."""
    rate: tuple[Rate, ...] = ()
    """How many tasks of the kind start within a period, over all workers."""
    fair_by: str | None = None
    """The path of a value in the payload, such as a tenant: tasks with different values take turns."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "concurrency", concurrencies(self.concurrency))
        object.__setattr__(self, "rate", rates(self.rate))
        for name in ("retry_on", "no_retry_on", "redact"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.heartbeat_s is None and _is_number(self.lease_s) and self.lease_s <= _TEN_YEARS_S:
            object.__setattr__(self, "heartbeat_s", max(self.lease_s / 2, _SHORTEST_S))
        _check_policy(self)

    @cached_property
    def lease_us(self) -> int:
        return int(self.lease_s * SECOND)

    @cached_property
    def lane_paths(self) -> tuple[str, ...]:
        """The paths of the values in a payload by which tasks of the kind wait in lanes."""
        keys = {self.fair_by, *(c.key for c in self.concurrency), *(r.key for r in self.rate)}
        return tuple(sorted(key for key in keys if key is not None))

    @cached_property
    def body(self) -> str:
        """The policy as JSON; equal policies have equal texts. Without limits it is that of earlier versions."""
        fields = asdict(self)
        for name in ("concurrency", "rate", "fair_by"):
            if not fields[name]:
                del fields[name]
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode()

    @staticmethod
    @lru_cache(maxsize=1024)
    def from_body(body: str) -> Policy:
        """Read a policy that any version has written; ignores fields that this version does not know."""
        known = {f.name for f in fields(Policy)}
        stored = {k: v for k, v in orjson.loads(body).items() if k in known}
        if "backoff_base_s" in stored and "backoff_max_s" in stored:
            # An earlier version stored a base above the maximum, and cut the delay to it.
            stored["backoff_base_s"] = min(stored["backoff_base_s"], stored["backoff_max_s"])
        return Policy(**stored)

    def with_(self, **changes: Any) -> Policy:
        if "lease_s" in changes and "heartbeat_s" not in changes:
            changes["heartbeat_s"] = None
        return replace(self, **changes)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_class_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= CLASS_CHARS and value.isprintable()


_TEN_YEARS_S = 10 * 366 * 86_400.0


_SHORTEST_S = 0.001


CLASS_CHARS = 200


POLICY_BOUNDS: dict[str, tuple[float, float]] = {
    "max_attempts": (1, 1_000_000),
    "backoff_factor": (1, 1000),
    "breaker_failures": (1, 1000),
    **dict.fromkeys(("backoff_base_s", "backoff_max_s", "cancel_grace_s"), (0, _TEN_YEARS_S)),
    **dict.fromkeys(
        ("lease_s", "heartbeat_s", "idempotency_ttl_s", "breaker_window_s", "breaker_open_s", "timeout_s",
         "queue_ttl_s", "deadline_s"), (_SHORTEST_S, _TEN_YEARS_S)),
}  # fmt: skip
"""The allowed ranges of a policy's numbers; the OpenAPI document has the same."""


def _within(p: Policy, name: str) -> bool:
    minimum, maximum = POLICY_BOUNDS[name]
    value = getattr(p, name)
    return _is_number(value) and minimum <= value <= maximum


def _check_policy(p: Policy) -> None:
    def refuse(name: str, must: str) -> None:
        raise InvalidInput(f"policy.{name} must be {must}, not {short_repr(getattr(p, name))}", field=f"policy.{name}")

    if type(p.max_attempts) is not int or not _within(p, "max_attempts"):
        refuse("max_attempts", "a whole number from 1 to 1,000,000")
    for name in ("backoff_base_s", "backoff_max_s", "cancel_grace_s"):
        if not _within(p, name):
            refuse(name, "seconds, 0 or more, at most ten years")
    if p.backoff_max_s < p.backoff_base_s != Policy.backoff_base_s:
        refuse("backoff_base_s", f"at most backoff_max_s ({p.backoff_max_s:g})")
    if not _within(p, "backoff_factor"):
        refuse("backoff_factor", "a number from 1 to 1,000")
    failures = p.breaker_failures
    if failures is not None and (type(failures) is not int or not _within(p, "breaker_failures")):
        refuse("breaker_failures", "None, or a whole number from 1 to 1,000")
    for name in ("lease_s", "heartbeat_s", "idempotency_ttl_s", "breaker_window_s", "breaker_open_s"):
        if not _within(p, name):
            refuse(name, "seconds, 0.001 or more, at most ten years")
    for name in ("timeout_s", "queue_ttl_s", "deadline_s"):
        if getattr(p, name) is not None and not _within(p, name):
            refuse(name, "None, or seconds, 0.001 or more, at most ten years")
    if p.heartbeat_s is not None and p.lease_s > 2 * p.heartbeat_s * 1.000001:
        refuse("lease_s", f"at most twice heartbeat_s ({p.heartbeat_s})")
    if p.on_exhaustion not in ON_EXHAUSTION:
        refuse("on_exhaustion", " or ".join(ON_EXHAUSTION))
    for name in ("jitter", "record_heartbeats", "durable_start"):
        if type(getattr(p, name)) is not bool:
            refuse(name, "true or false")
    for name in ("retry_on", "no_retry_on"):
        names = getattr(p, name)
        if not isinstance(names, tuple) or not all(_is_class_name(n) for n in names):
            refuse(name, "a list of class names")
    paths: object = p.redact
    if not isinstance(paths, tuple) or len(paths) > MAX_PATHS:
        refuse("redact", f"a list of at most {MAX_PATHS} paths")
    for path in p.redact:
        if why := why_not_a_path(path):
            refuse("redact", f"a list of paths, each {why}")
    _check_limits(p, refuse)


def _check_limits(p: Policy, refuse: Callable[[str, str], None]) -> None:
    if p.fair_by is not None and (why := why_not_a_path(p.fair_by)):
        refuse("fair_by", f"the path of a value in the payload: {why}")
    for name in ("concurrency", "rate"):
        if same_key_twice(getattr(p, name)):
            refuse(name, "limits with different keys")
    if len(p.lane_paths) > MAX_KEYS:
        refuse("fair_by", f"one of at most {MAX_KEYS} different keys of the kind")
    if hidden := [path for path in p.lane_paths for secret in p.redact if f"{path}.".startswith(f"{secret}.")]:
        refuse("redact", f"without {hidden[0]!r}: it is a key of a limit, or what the kind is fair by, and so is shown")
