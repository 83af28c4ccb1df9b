"""Processes that submit into the same windows: debounced and throttled jobs."""

from __future__ import annotations

from itertools import count

from onetray.domain.task import Receipt
from tests.support.engines import engine_on
from tests.support.fleet import Ledger

ROUNDS = 15


def submit_windows(url: str, process: int) -> list[tuple[str | None, bool]]:
    """Submit throttled and debounced jobs of two keys each. Returns the ids, and whether each job existed."""
    receipts: list[Receipt] = []
    with engine_on(url) as engine:
        for n in range(ROUNDS):
            key = str(n % 2)
            receipts.append(engine.submit("throttled", [process, n], throttle_s=3600, throttle_key=key))
            receipts.append(engine.submit("debounced", [process, n], debounce_s=3600, debounce_key=key))
    return [(receipt.id, receipt.repeated) for receipt in receipts]


def submit_until_killed(url: str, ledger: str) -> None:
    """Submit into a debounced and a throttled window, and write down what was acknowledged."""
    acknowledged = Ledger(ledger)
    with engine_on(url) as engine:
        for n in count(1):
            waiting = engine.submit("debounced", n, debounce_s=3600)
            acknowledged.write(n, waiting.id, engine.submit("throttled", n, throttle_s=3600).id)
