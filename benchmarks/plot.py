"""Which charts the figures make. Owns what is drawn from the JSON of which command; how it looks is in svg.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.svg import Row, bars, lines

OURS = "onetray"
Charts = Iterator[tuple[str, str]]


def charts(results: Mapping[str, Any]) -> dict[str, str]:
    """SVG texts by their names, for as much as these results hold. `results` are the objects that commands print."""
    return {
        name: text for command, draw in DRAWN.items() if results.get(command) for name, text in draw(results[command])
    }


def _peers(found: dict[str, dict[str, float | None]]) -> Charts:
    yield "drain", _ranked("Drain: jobs per second, more is better", found, ("drain",))
    yield "bulk", _ranked("Bulk submit: jobs per second, more is better", found, ("bulk",))
    yield "pickup", _ranked(
        "Pickup: milliseconds from submit to the begin of the handler, less is better",
        found, ("pickup_p50_ms", "pickup_p99_ms"), ("p50", "p99"), least_first=True,
    )  # fmt: skip
    yield "cpu", _ranked(
        "CPU seconds for 10,000 jobs, less is better",
        found, ("cpu_s_per_10k", "db_cpu_s_per_10k"), ("worker", "database"), least_first=True, stacked=True,
    )  # fmt: skip


def _ranked(
    title: str, found: dict[str, dict[str, float | None]], measures: tuple[str, ...], series: tuple[str, ...] = (),
    *, least_first: bool = False, stacked: bool = False,
) -> str:  # fmt: skip
    """A row for each side that has the first of these figures, the best first."""

    def rank(name: str) -> float:
        values = [found[name].get(measure) or 0.0 for measure in measures]
        worth = sum(values) if stacked else values[0]
        return worth if least_first else -worth

    names = sorted((name for name in found if found[name].get(measures[0]) is not None), key=rank)
    rows = [Row(name, tuple(found[name].get(m) for m in measures), name.startswith(OURS)) for name in names]
    return bars(title, rows, series, stacked=stacked)


def _growth(found: dict[str, dict[str, dict[str, float]]]) -> Charts:
    stores = list(dict.fromkeys(store for figures in found.values() for store in figures))
    rows = [
        Row(case, tuple(figures[store]["share"] if store in figures else None for store in stores))
        for case, figures in found.items()
    ]
    yield "growth", bars("Claims in a grown database, as a share of a fresh one's", rows, stores, mark=1.0)


def _workers(found: dict[str, dict[str, dict[str, dict[str, float]]]]) -> Charts:
    series = {}
    for store, by_queues in found.items():
        for queues, by_count in by_queues.items():
            label = f"{store}, 1 queue" if queues == "1" else f"{store}, {queues} queues"
            series[label] = {int(count): figures["drain"] for count, figures in by_count.items()}
    counts = sorted(set.intersection(*(set(rates) for rates in series.values())))
    drawn = {label: [rates[count] for count in counts] for label, rates in series.items()}
    yield "workers", lines("Drain by several workers: jobs per second", counts, drawn, "worker processes")


DRAWN: dict[str, Callable[[Any], Charts]] = {"peers": _peers, "growth": _growth, "workers": _workers}
"""The commands whose figures are drawn."""
