"""From many measurements to one figure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import quantiles


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many percent of all do not exceed. Of one value it is that value."""
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else values[0]
