"""State diagrams as SVG, drawn from the declared machines.

Owns the layout, on a grid. The states of the usual way stand in the first row, states beside it below, the other ends
in rows of their own at the right. An arrow leaves its state, runs along the row of its target, and ends there: so all
arrows to one state share a line. Arrows back to an earlier state of the first row run above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

from markupsafe import Markup

from onetray.domain import lifecycle as states
from onetray.domain.diagram import who_may
from onetray.domain.machine import Machine, Transition

USUAL = {
    "task": (states.QUEUED, states.ASSIGNED, states.RUNNING, states.SUCCEEDED),
    "stage": (states.CREATED, states.PENDING, states.RUNNING, states.SUCCEEDED),
    "flow": (states.CREATED, states.PENDING, states.RUNNING, states.SUCCEEDED),
}
"""The usual way through each lifecycle, without a detour."""
BOX_W, BOX_H = 124, 32
COLUMN_W, ROW_H, LANE_H = 196, 52, 20
MARGIN, PORT, SIDE, CORNER, HEAD = 12, 14, 8, 8, 7

Point = tuple[float, float]
Pair = tuple[str, str]


@dataclass(frozen=True)
class Layout:
    """Where everything of a machine is."""

    machine: Machine

    @cached_property
    def usual(self) -> tuple[str, ...]:
        return USUAL[self.machine.entity]

    @cached_property
    def pairs(self) -> dict[Pair, list[Transition]]:
        """The transitions between each two states."""
        found: dict[Pair, list[Transition]] = {}
        for transition in self.machine.transitions:
            for source in transition.sources:
                found.setdefault((source, transition.target), []).append(transition)
        return found

    @cached_property
    def cells(self) -> dict[str, tuple[int, int]]:
        """The column and row of each state."""
        rank = self.machine.ranks
        beside = [s for s in self.machine.open_states if s not in self.usual]
        ranks = sorted({rank[s] for s in self.machine.states})
        cells = {s: (ranks.index(rank[s]), 0) for s in self.usual}
        for row, state in enumerate(beside, 1):
            cells[state] = (ranks.index(rank[state]), row)
        for row, state in enumerate((s for s in terminal_order(self.machine) if s not in self.usual), len(beside) + 1):
            cells[state] = (ranks.index(rank[state]), row)
        return cells

    @cached_property
    def lanes(self) -> dict[str, int]:
        """The lanes above the first row, by the state that they lead to."""
        return {target: i for i, target in enumerate(dict.fromkeys(t for s, t in self.pairs if self.is_above(s, t)))}

    def is_above(self, source: str, target: str) -> bool:
        """Whether an arrow runs above the first row: between two states of it that are not neighbours."""
        row = self.cells[source][1], self.cells[target][1]
        return row == (0, 0) and not self.is_usual(source, target)

    def is_usual(self, source: str, target: str) -> bool:
        return (source, target) in pairwise(self.usual)

    @property
    def top(self) -> float:
        return MARGIN + LANE_H * (len(self.lanes) + 1)

    @property
    def size(self) -> Point:
        columns = max(column for column, _ in self.cells.values()) + 1
        rows = max(row for _, row in self.cells.values()) + 1
        return 2 * MARGIN + 24 + (columns - 1) * COLUMN_W + BOX_W, self.top + (rows - 1) * ROW_H + BOX_H + MARGIN

    def left(self, state: str) -> float:
        return MARGIN + 24 + self.cells[state][0] * COLUMN_W

    def middle(self, state: str) -> float:
        return self.top + self.cells[state][1] * ROW_H + BOX_H / 2

    def port(self, state: str, target: str) -> float:
        """Where on the bottom of a state the arrow to a target begins."""
        below = [t for t in self.cells if self.cells[t][1] > 0 and (state, t) in self.pairs]
        at = below.index(target) - (len(below) - 1) / 2
        return self.left(state) + BOX_W / 2 + at * PORT + PORT / 2

    def route(self, source: str, target: str) -> list[Point]:
        """The corners of an arrow."""
        (column, row), (to_column, to_row) = self.cells[source], self.cells[target]
        x, y, to_x, to_y = self.left(source), self.middle(source), self.left(target), self.middle(target)
        if self.is_usual(source, target):
            return [(x + BOX_W, y), (to_x, to_y)]
        if self.is_above(source, target):
            lane = self.top - LANE_H * (self.lanes[target] + 1) + 4
            leaves, arrives = x + BOX_W / 2 + (PORT if to_column < column else -PORT), to_x + BOX_W / 2
            return [(leaves, y - BOX_H / 2), (leaves, lane), (arrives, lane), (arrives, to_y - BOX_H / 2)]
        if row == 0:
            down, ends = self.port(source, target), to_x if to_column > column else to_x + BOX_W
            arrives = to_y if to_column > column else to_y + SIDE
            return [(down, y + BOX_H / 2), (down, arrives), (ends, arrives)]
        if to_row == 0:
            return self._up(x, y, to_x, to_y, is_forward=to_column > column)
        gutter = x + BOX_W + 16 + PORT * row
        return [(x + BOX_W, y - SIDE), (gutter, y - SIDE), (gutter, to_y), (to_x, to_y)]

    def _up(self, x: float, y: float, to_x: float, to_y: float, *, is_forward: bool) -> list[Point]:
        """From a state beside the usual way up to one on it."""
        leaves = (x + BOX_W, y - SIDE) if is_forward else (x, y + SIDE)
        arrives = to_x + BOX_W / 2 - 3 * PORT
        return [leaves, (arrives, leaves[1]), (arrives, to_y + BOX_H / 2)]


def terminal_order(machine: Machine) -> list[str]:
    return [state for state in machine.states if state in machine.terminal]


def lifecycle_svg(machine: Machine, path: Sequence[str] = ()) -> Markup:
    """The diagram of a lifecycle. With the states that an entity has passed, in order, these are highlighted.

    Actors and transitions are the titles of arrows.
    """
    return _drawn(machine.entity, tuple(path))


@lru_cache(maxsize=128)  # Most jobs have passed the same states as many others.
def _drawn(entity: str, path: tuple[str, ...]) -> Markup:
    machine = states.MACHINES[entity]
    layout = Layout(machine)
    taken = set(pairwise(path))
    # What is highlighted is drawn last, above the others.
    pairs = sorted(layout.pairs, key=lambda pair: pair in taken)
    body = [_entry(layout, bool(path))]
    body += [_arrow(layout, pair, is_taken=pair in taken) for pair in pairs]
    body += [_box(layout, state, path) for state in machine.states]
    width, height = layout.size
    return Markup(
        '<svg class="lifecycle{}" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>'
    ).format(
        " on-path" if path else "", f"{width:g}", f"{height:g}", f"{width:g}", f"{height:g}",
        f"The lifecycle of a {machine.entity}", Markup("").join(body),
    )  # fmt: skip


def _entry(layout: Layout, is_taken: bool) -> Markup:
    """Where the lifecycle begins."""
    (creates,) = (t for t in layout.machine.transitions if t.creates)
    x, y = layout.left(creates.target), layout.middle(creates.target)
    dot = Markup('<circle class="head" cx="{}" cy="{}" r="4"/>').format(MARGIN, f"{y:g}")
    return _edge("edge taken" if is_taken else "edge", describe(creates), ((MARGIN + 4, y), (x, y)), dot)


def _arrow(layout: Layout, pair: Pair, *, is_taken: bool) -> Markup:
    transitions, points = layout.pairs[pair], layout.route(*pair)
    title = f"{pair[0]} → {pair[1]}\n" + "\n".join(describe(t) for t in transitions)
    label = Markup("")
    if layout.is_usual(*pair):
        (x, y), (end, _) = points
        label = Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
            f"{(x + end) / 2:g}", f"{y - 6:g}", ", ".join(t.name for t in transitions)
        )
    usual = " usual" if layout.is_usual(*pair) else ""
    return _edge(f"edge{usual}{' taken' if is_taken else ''}", title, tuple(points), label)


def describe(transition: Transition) -> str:
    """A transition in a line: who makes it, and what it does to the fence."""
    fence = ", checks the fence" if transition.fenced else ""
    return f"{transition.name}: by {' or '.join(who_may(transition))}{fence}"


@lru_cache(maxsize=256)  # Twice as many as all machines have: each arrow is drawn as taken, and as not taken.
def _edge(cls: str, title: str, points: tuple[Point, ...], more: Markup) -> Markup:
    line = _rounded(points)
    return Markup(
        '<g class="{}"><title>{}</title><path class="hit" d="{}"/><path class="line" d="{}"/>{}{}</g>'
    ).format(cls, title, line, line, _head(points[-2], points[-1]), more)


def _rounded(points: Sequence[Point]) -> str:
    """A path through points, with rounded corners."""
    parts = [f"M{points[0][0]:g},{points[0][1]:g}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        (x1, y1), (x2, y2) = _towards(corner, before), _towards(corner, after)
        parts.append(f"L{x1:g},{y1:g}Q{corner[0]:g},{corner[1]:g} {x2:g},{y2:g}")
    return "".join([*parts, f"L{points[-1][0]:g},{points[-1][1]:g}"])


def _towards(start: Point, end: Point) -> Point:
    """A point near the start of a horizontal or vertical line."""
    length = abs(end[0] - start[0]) + abs(end[1] - start[1])
    share = min(CORNER, length / 2) / length if length else 0
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def _head(before: Point, tip: Point) -> Markup:
    """The head of an arrow that comes from a point."""
    dx, dy = (tip[0] > before[0]) - (tip[0] < before[0]), (tip[1] > before[1]) - (tip[1] < before[1])
    back = tip[0] - HEAD * dx, tip[1] - HEAD * dy
    side = HEAD / 2
    corners = ((back[0] - side * dy, back[1] - side * dx), (back[0] + side * dy, back[1] + side * dx))
    points = " ".join(f"{x:g},{y:g}" for x, y in (tip, *corners))
    return Markup('<polygon class="head" points="{}"/>').format(points)


def _box(layout: Layout, state: str, path: Sequence[str]) -> Markup:
    x, y = layout.left(state), layout.middle(state)
    way_out = layout.machine.ways_out.get(state)
    title = f"{state}: ends it" if way_out is None else f"{state}. Way out: {way_out.means}, {way_out.note}"
    passed = path.count(state)
    name = state.replace("_", " ") + (f" ({passed})" if passed > 1 else "")
    marks = " passed" if passed else ""
    marks += " current" if path and path[-1] == state else ""
    return Markup(
        '<g class="state s-{}{}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="6"/>'
        '<text x="{}" y="{}" text-anchor="middle" dominant-baseline="central">{}</text></g>'
    ).format(
        state, marks, title, f"{x:g}", f"{y - BOX_H / 2:g}", BOX_W, BOX_H, f"{x + BOX_W / 2:g}", f"{y:g}", name
    )  # fmt: skip
