"""A lifecycle as JSON and as a Mermaid diagram.

Owns these two formats. The transition tables are in domain/lifecycle.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onetray.domain.machine import ACTORS, Machine, Transition


def who_may(t: Transition) -> list[str]:
    """The actors that may make a transition, in a fixed order."""
    return [actor for actor in ACTORS if actor in t.by]


def as_dict(machine: Machine) -> dict[str, Any]:
    return {
        "entity": machine.entity,
        "states": [
            {
                "name": state,
                "rank": rank,
                "terminal": state in machine.terminal,
                "way_out": None
                if state in machine.terminal
                else {"means": machine.ways_out[state].means, "note": machine.ways_out[state].note},
            }
            for state, rank in machine.ranks.items()
        ],
        "transitions": [
            {
                "name": t.name,
                "from": list(t.sources),
                "to": t.target,
                "by": who_may(t),
                "fenced": t.fenced,
                "reopens": t.reopens,
                "implies": t.implies,
                "event": t.event,
            }
            for t in machine.transitions
        ],
    }


def diagram(machine: Machine) -> Iterator[str]:
    """Mermaid lines, with one arrow for each pair of states, labelled with all its transitions."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for t in machine.transitions:
        for source in t.sources or ("[*]",):
            arrows.setdefault((source, t.target), []).append(t.name)
    yield "stateDiagram-v2"
    for (source, target), verbs in arrows.items():
        yield f"    {source} --> {target}: {', '.join(verbs)}"
    for state in machine.states:
        if state in machine.terminal:
            yield f"    {state} --> [*]"
