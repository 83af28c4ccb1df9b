"""Charts as SVG: bars and lines, readable on a light page and on a dark one.

Owns how a chart looks. What is in it is in plot.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 760, 170, 90, 64, 14, 10
PLOT = WIDTH - LEFT - RIGHT
TALL = 260
"""Of the space that lines are drawn in."""
COLOURS = 4
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 } .title { font-size: 15px; font-weight: 600 }
.ours { font-weight: 600 } .faint { fill: #59636e } .axis { stroke: #d1d9e0 }
.mark { stroke: #59636e; stroke-dasharray: 4 3 }
.f0 { fill: #0969da } .f1 { fill: #bf8700 } .f2 { fill: #8250df } .f3 { fill: #1a7f37 } .peer { fill: #818b98 }
.l0 { stroke: #0969da } .l1 { stroke: #bf8700 } .l2 { stroke: #8250df } .l3 { stroke: #1a7f37 }
polyline { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .faint { fill: #9198a1 } .axis { stroke: #3d444d } .mark { stroke: #9198a1 }
  .f0 { fill: #4493f8 } .f1 { fill: #d29922 } .f2 { fill: #ab7df8 } .f3 { fill: #3fb950 } .peer { fill: #656c76 }
  .l0 { stroke: #4493f8 } .l1 { stroke: #d29922 } .l2 { stroke: #ab7df8 } .l3 { stroke: #3fb950 }
}
"""


@dataclass(frozen=True)
class Row:
    """A name, and a value for each series; None where there is none."""

    label: str
    values: tuple[float | None, ...]
    ours: bool = False


def bars(
    title: str, rows: Sequence[Row], series: Sequence[str] = (), *, stacked: bool = False, mark: float | None = None
) -> str:
    """Horizontal bars, a group for each row, or one bar of several parts. `mark` is a line to compare with."""
    most = max([_extent(row, stacked) for row in rows] + [mark or 0.0]) or 1.0
    lanes = 1 if stacked else max(len(row.values) for row in rows)
    height = lanes * BAR + GAP
    parts = [_legend(series)]
    for n, row in enumerate(rows):
        # Beside a line to compare with, the numbers stand in a column: they would stand on it.
        parts.append(_bars_of(row, TOP + n * height, most, stacked, in_column=mark is not None))
    bottom = TOP + len(rows) * height
    parts.append(_line(LEFT, TOP - 4, LEFT, bottom, "axis"))
    if mark is not None:
        x = LEFT + mark / most * PLOT
        parts.append(_line(x, TOP - 4, x, bottom, "mark") + _text(x, bottom + 14, number(mark), "faint", "middle"))
    return _document(title, bottom + 24, parts)


def lines(title: str, xs: Sequence[float], series: Mapping[str, Sequence[float]], below: str) -> str:
    """A line for each series over the same places, which are as far apart as they are in the list."""
    most = max(value for values in series.values() for value in values) or 1.0
    at = [LEFT + PLOT * n / max(1, len(xs) - 1) for n in range(len(xs))]
    bottom = TOP + TALL
    parts = [_legend(list(series)), _line(LEFT, bottom, LEFT + PLOT, bottom, "axis")]
    parts += [_text(x, bottom + 16, number(value), "faint", "middle") for x, value in zip(at, xs, strict=True)]
    parts.append(_text(LEFT + PLOT / 2, bottom + 34, below, "faint", "middle"))
    for n, values in enumerate(series.values()):
        points = [(x, bottom - value / most * TALL) for x, value in zip(at, values, strict=True)]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="l{n % COLOURS}" points="{drawn}"/>')
        for i, ((x, y), value) in enumerate(zip(points, values, strict=True)):
            parts.append(f'<circle class="f{n % COLOURS}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
            parts.append(_beside(x, y, value, [others[i] for others in series.values()]))
    return _document(title, bottom + 46, parts)


def _beside(x: float, y: float, value: float, all_here: Sequence[float]) -> str:
    """The number of a point: above the highest one, below the lowest, beside those between."""
    if value == max(all_here):
        return _text(x, y - 8, number(value), "", "middle")
    if value == min(all_here):
        return _text(x, y + 18, number(value), "", "middle")
    return _text(x + 8, y + 4, number(value))


def number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"


def _extent(row: Row, stacked: bool) -> float:
    values = [value or 0.0 for value in row.values]
    return sum(values) if stacked else max(values)


def _bars_of(row: Row, y: float, most: float, stacked: bool, in_column: bool) -> str:
    high = BAR if stacked else BAR * len(row.values)
    parts = [_text(LEFT - 8, y + high / 2 + 4, row.label, "ours" if row.ours else "", "end")]
    x = float(LEFT)
    for n, value in enumerate(row.values):
        if value is None:
            continue
        # One series has one colour for ours and another for the peers; several have one each.
        colour = f"f{n % COLOURS}" if row.ours or len(row.values) > 1 else "peer"
        wide, lane = value / most * PLOT, y if stacked else y + n * BAR
        parts.append(f'<rect class="{colour}" x="{x:.1f}" y="{lane:.1f}" width="{wide:.1f}" height="{BAR - 2}"/>')
        if stacked:
            x += wide
        else:
            parts.append(_text(x + (PLOT if in_column else wide) + 6, lane + BAR - 4, number(value)))
    if stacked:
        parts.append(_text(x + 6, y + BAR - 4, number(_extent(row, stacked))))
    return "".join(parts)


def _legend(series: Sequence[str]) -> str:
    parts, x = [], float(LEFT)
    for n, name in enumerate(series):
        parts.append(f'<rect class="f{n % COLOURS} legend" x="{x:.1f}" y="36" width="10" height="10"/>')
        parts.append(_text(x + 15, 45, name))
        x += 34 + 7 * len(name)
    return "".join(parts)


def _document(title: str, height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img">'
    named = f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n{_text(16, 22, title, 'title')}"
    return "\n".join([head, named, *filter(None, parts), "</svg>\n"])


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
