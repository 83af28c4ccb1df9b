"""Sides that take turns, so that what else the machine does hits all of them; and the drain that several ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from benchmarks.environments import NotInstalled
from benchmarks.host import Host, cpu_s, rss_mib
from benchmarks.stage import SideFailed, Stage

T = TypeVar("T")
Figures = dict[str, float | None]


def in_turns(
    names: Sequence[str], rounds: int, measure: Callable[[str, int], T], say: Callable[[str], None]
) -> tuple[dict[str, list[T]], dict[str, str]]:
    """What each side's rounds gave, another side first in each; and who cannot take part, with the reason."""
    measured: dict[str, list[T]] = {name: [] for name in names}
    missing: dict[str, str] = {}
    for n in range(rounds):
        turn = n % len(names)
        for name in [*names[turn:], *names[:turn]]:
            if name in missing:
                continue
            say(f"round {n + 1} of {rounds}: {name}")
            try:
                measured[name].append(measure(name, n))
            except (NotInstalled, SideFailed) as e:
                missing[name] = str(e)
                say(f"{name} is left out: {e}")
    return {name: some for name, some in measured.items() if name not in missing}, missing


def drain(host: Host, store: str, stage: Stage, total: int) -> Figures:
    """Start a worker; the time runs from the begin of its first job until the database has none left."""
    stage.start("work")
    stage.until_begun(1)
    worker, server = cpu_s(stage.worker), host.server_cpu_s(store)
    stage.until_begun(total)
    end = stage.until_none_left()
    worker, server = cpu_s(stage.worker) - worker, host.server_cpu_s(store) - server
    return {
        "drain": total / (end - min(stage.begun)) * 1e9,
        "cpu_s_per_10k": worker / total * 10_000,
        "db_cpu_s_per_10k": None if store == "sqlite" else server / total * 10_000,
        "rss_mib": rss_mib(stage.worker),
    }
