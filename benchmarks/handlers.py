"""Handlers that wait: how many jobs per second a worker drains when each of them sleeps for a moment.

Owns the rounds. Sides that can await have as many jobs at once as are asked for; the others have threads, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from benchmarks.catalogue import BESIDE, OURS_BESIDE_PEERS
from benchmarks.checks import must_have_ended
from benchmarks.core import open_engine
from benchmarks.host import Host, settle
from benchmarks.sides import AT_ONCE, BULK, HANDLER_MS
from benchmarks.stage import Stage
from benchmarks.turns import drain, in_turns


def handlers(
    host: Host, names: Sequence[str], jobs: int, ms: float, at_once: int, rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """The medians of each side, ours as multiples of each peer's, and who is missing and why."""
    mode = {HANDLER_MS: str(ms), AT_ONCE: str(at_once)}
    measured, missing = in_turns(names, rounds, lambda name, _: _round(host, name, jobs, mode), say)
    found = {name: {"drain": round(median(rates), 1)} for name, rates in measured.items()}
    peers = [name for name in found if name not in OURS_BESIDE_PEERS]
    for ours in [name for name in found if name in OURS_BESIDE_PEERS]:
        for peer in peers:
            found[ours][f"to_{peer}"] = round(found[ours]["drain"] / found[peer]["drain"], 3)
    return {"handlers": found, "missing": missing}


def _round(host: Host, name: str, jobs: int, mode: dict[str, str]) -> float:
    side = BESIDE[name]
    many = max(10, int(jobs * side.share))
    with host.database(side.store) as url:
        with Stage(side, url, roles=("submit",), mode=mode) as stage:
            stage.ask(f"{BULK} {many}")
            settle(side.store, url)
            figures = drain(host, side.store, stage, many)
        if name in OURS_BESIDE_PEERS:
            with open_engine(url) as engine:
                must_have_ended(engine, many)
    assert figures["drain"] is not None
    return figures["drain"]
