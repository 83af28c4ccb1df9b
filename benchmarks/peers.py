"""onetray beside its peers: submits, a drain, pickups, and what they cost.

Owns the rounds. All sides take turns in each round, each on a fresh database, so that what else the machine does hits
all of them. Needs /proc, so Linux.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from benchmarks.catalogue import BESIDE, OURS_BESIDE_PEERS, Side
from benchmarks.checks import must_be_done
from benchmarks.core import open_engine
from benchmarks.figures import percentile
from benchmarks.host import Host, settle, size_of
from benchmarks.sides import BULK, SINGLE
from benchmarks.stage import Stage
from benchmarks.turns import Figures, drain, in_turns

GAP_S = (0.05, 0.15)
"""Between a handler's begin and the next submit: long enough for everything to be idle again."""
WARM_UP = 3
FIRST_PICKUP = 1_000_000_000
"""Above all numbers of the jobs that were submitted before."""
PICKUPS = ("pickup_p50_ms", "pickup_p95_ms", "pickup_p99_ms")
MEASURES = (
    "drain", "bulk", "single", *PICKUPS, "cpu_s_per_10k", "db_cpu_s_per_10k", "rss_mib", "bytes_per_job",
)  # fmt: skip


def peers(
    host: Host, names: Sequence[str], jobs: int, submits: int, rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """The medians of each side, ours as multiples of each peer's, and who is missing and why."""

    def measure(name: str, n: int) -> tuple[Figures, list[float]]:
        return _round(host, BESIDE[name], jobs, -(-submits // rounds), random.Random(n))

    measured, missing = in_turns(names, rounds, measure, say)
    found = {name: _medians(some) for name, some in measured.items()}
    return {"peers": found, "ratios": _ratios(found), "missing": missing}


def _round(host: Host, side: Side, jobs: int, submits: int, chance: random.Random) -> tuple[Figures, list[float]]:
    many = max(10, int(jobs * side.share))
    singles = max(5, many // 40)
    total = WARM_UP + singles + many
    with host.database(side.store) as url:
        with Stage(side, url, roles=("submit",)) as stage:
            size = size_of(side.store, url)
            stage.ask(f"{SINGLE} {WARM_UP}")
            figures: Figures = {
                "single": _per_s(stage.ask(f"{SINGLE} {singles}")),
                "bulk": _per_s(stage.ask(f"{BULK} {many}")),
            }
            settle(side.store, url)
            figures |= drain(host, side.store, stage, total)
            waited = _pickups(stage, submits, chance)
            total += WARM_UP + submits
        # Now that all have closed it: SQLite's log is part of the file.
        figures["bytes_per_job"] = _growth(size, size_of(side.store, url), total)
        if side in OURS_BESIDE_PEERS.values():
            with open_engine(url) as engine:
                must_be_done(engine, total)
    return figures, waited


def _pickups(stage: Stage, submits: int, chance: random.Random) -> list[float]:
    """Milliseconds from just before the submit call to the first line of the handler, of a worker that was idle."""
    waited = []
    for number in range(FIRST_PICKUP, FIRST_PICKUP + WARM_UP + submits):
        time.sleep(chance.uniform(*GAP_S))
        waited.append(stage.pickup_s(number) * 1000)
    return waited[WARM_UP:]


def _per_s(answer: tuple[int, int]) -> float:
    count, ns = answer
    return count / ns * 1e9


def _growth(before: int | None, after: int | None, jobs: int) -> float | None:
    return None if before is None or after is None else (after - before) / jobs


def _medians(rounds: list[tuple[Figures, list[float]]]) -> Figures:
    found: Figures = {}
    waited = [wait for _, waits in rounds for wait in waits]
    for measure in MEASURES:
        values = [value for figures, _ in rounds if (value := figures.get(measure)) is not None]
        found[measure] = round(median(values), 2) if values else None
    return found | {name: round(percentile(waited, p), 2) for name, p in zip(PICKUPS, (50, 95, 99), strict=True)}


def _ratios(found: dict[str, Figures]) -> dict[str, dict[str, Figures]]:
    """Each figure of ours as a multiple of the peer's: of rates more is better, of the others less."""
    return {
        ours: {
            peer: {
                measure: round(mine / theirs, 3)
                if (mine := found[ours][measure]) and (theirs := figures[measure])
                else None
                for measure in MEASURES
            }
            for peer, figures in found.items()
            if peer not in OURS_BESIDE_PEERS
        }
        for ours in OURS_BESIDE_PEERS
        if ours in found
    }


def table(result: dict[str, Any]) -> str:
    """The figures as a table in Markdown, the fastest drain first, and below it who is missing."""
    rows = sorted(result["peers"].items(), key=lambda row: -(row[1]["drain"] or 0))
    lines = ["| | " + " | ".join(MEASURES) + " |", "|---" + "|---:" * len(MEASURES) + "|"]
    lines += [f"| {name} | " + " | ".join(_cell(figures[m]) for m in MEASURES) + " |" for name, figures in rows]
    lines += [f"\n{name} is missing: {why.splitlines()[0]}" for name, why in result["missing"].items()]
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
