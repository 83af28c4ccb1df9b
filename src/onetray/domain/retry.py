"""Decide whether a failed attempt is retried, and when.

Owns backoff and the classification of errors. Changes no state.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import TYPE_CHECKING

from onetray.domain.clock import SECOND

if TYPE_CHECKING:
    from onetray.domain.policy import Policy

NEVER = frozenset({"ValidationError", "PermanentError"})
"""Error classes that are not retried unless a policy's `retry_on` names them."""


def backoff_us(policy: Policy, attempt: int, chance: random.Random) -> int:
    """The delay after this attempt: exponential, with jitter of ±50 %, then capped."""
    # The cap is reached long before 64 doublings; the bound keeps the power a finite float.
    delay = policy.backoff_base_s * policy.backoff_factor ** min(attempt - 1, 64)
    jittered = delay * (chance.uniform(0.5, 1.5) if policy.jitter else 1.0)
    return int(min(policy.backoff_max_s, jittered) * SECOND)


def retryable(policy: Policy, error_class: str, reported: bool | None) -> bool:
    """Whether to retry: as the report says, else by the policy's lists, else by the defaults."""
    if reported is not None:
        return reported
    if _named(error_class, policy.no_retry_on):
        return False
    if policy.retry_on:
        return _named(error_class, policy.retry_on)
    status = _http_status(error_class)
    if status is not None:
        return status == 429 or status >= 500
    return not _named(error_class, NEVER)


def _named(error_class: str, names: Collection[str]) -> bool:
    """Whether the names contain the class name, or the last part of a dotted one."""
    return error_class in names or error_class.rpartition(".")[2] in names


def _http_status(error_class: str) -> int | None:
    """The status in `HTTP 503` or `http_503`; None for other names."""
    digits = error_class[-3:]
    if error_class.lower().startswith("http") and digits.isdigit() and len(error_class) <= 8:
        return int(digits)
    return None
