"""Charts as SVG, drawn in Python: no script draws anything.

Owns shapes and scales. Colours are classes of dashboard.css, named after states; texts are escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

Values = Sequence[float | None]
GAP = 1.0


def bars(
    series: Mapping[str, Values], labels: Sequence[str], *, title: str, width: int = 320, height: int = 64
) -> Markup:
    """Stacked bars: the values of each class by bucket. The label of a bucket is shown on hover."""
    count = max(len(labels), 1)
    totals = [sum(values[i] or 0 for values in series.values()) for i in range(len(labels))]
    top, step = max([*totals, 1]), width / count
    parts = []
    for i, label in enumerate(labels):
        rects, bottom = [], float(height)
        for name, values in series.items():
            size = (values[i] or 0) / top * height
            bottom -= size
            if size:
                rects.append(_rect(name, i * step, bottom, max(step - GAP, 0.5), size))
        words = ", ".join(f"{values[i] or 0:,.0f} {name}" for name, values in series.items())
        hover = _rect("hover", i * step, 0, step, height)
        parts.append(Markup("<g><title>{}: {}</title>{}{}</g>").format(label, words, hover, Markup("").join(rects)))
    return svg(Markup("").join(parts), width, height, title=title, cls="chart bars")


def _rect(name: str, x: float, y: float, width: float, height: float) -> Markup:
    return Markup('<rect class="s-{}" x="{}" y="{}" width="{}" height="{}"/>').format(
        name, f"{x:.2f}", f"{y:.2f}", f"{width:.2f}", f"{height:.2f}"
    )


def lines(
    series: Mapping[str, Values], labels: Sequence[str], text: Callable[[float | None], str], *, title: str,
    width: int = 320, height: int = 64,
) -> Markup:  # fmt: skip
    """A line for each class. A bucket without a value is a gap. The values of a bucket are shown on hover, as texts."""
    known = [value for values in series.values() for value in values if value is not None]
    top, step = max([*known, 1e-9]), width / max(len(labels), 1)
    parts = []
    for i, label in enumerate(labels):
        words = ", ".join(f"{name} {text(values[i])}" for name, values in series.items())
        hover = _rect("hover", i * step, 0, step, height)
        parts.append(Markup("<g><title>{}: {}</title>{}</g>").format(label, words, hover))
    for name, values in series.items():
        for run in _runs(values):
            spots = [((i + 0.5) * step, height - 2 - value / top * (height - 4)) for i, value in run]
            if len(spots) == 1:
                # A point would be invisible.
                spots = [(spots[0][0] + side * step / 2, spots[0][1]) for side in (-1, 1)]
            points = " ".join(f"{x:.2f},{y:.2f}" for x, y in spots)
            parts.append(Markup('<polyline class="l-{}" points="{}"/>').format(name, points))
    return svg(Markup("").join(parts), width, height, title=title, cls="chart lines")


def _runs(values: Values) -> list[list[tuple[int, float]]]:
    """The stretches of values without a gap, with their positions."""
    runs: list[list[tuple[int, float]]] = [[]]
    for i, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((i, value))
    return [run for run in runs if run]


def meter(done: float, total: float, *, title: str, width: int = 96, height: int = 6, cls: str = "running") -> Markup:
    """How much of a whole is done."""
    share = min(max(done / total, 0.0), 1.0) if total else 0.0
    body = Markup('<rect class="track" width="{0}" height="{1}" rx="3"/>').format(width, height)
    if share:
        body += Markup('<rect class="s-{}" width="{}" height="{}" rx="3"/>').format(cls, f"{share * width:.2f}", height)
    return svg(body, width, height, title=title, cls="meter")


def share(parts: Mapping[str, float], total: float, *, title: str, width: int = 240, height: int = 6) -> Markup:
    """One bar: how much of a whole is in which class. What is in none stays empty."""
    body, left = Markup('<rect class="track" width="{}" height="{}"/>').format(width, height), 0.0
    for name, value in parts.items():
        if value:
            size = value / total * width
            body += _rect(name, left, 0, size, height)
            left += size
    return svg(body, width, height, title=title, cls="chart share")


def svg(body: Markup, width: float, height: float, *, title: str, cls: str) -> Markup:
    """A drawing that scales with its box. The title is what a screen reader says."""
    return Markup(
        '<svg class="{}" viewBox="0 0 {} {}" width="{}" height="{}" preserveAspectRatio="none" role="img"'
        ' aria-label="{}">{}</svg>'
    ).format(cls, f"{width:g}", f"{height:g}", f"{width:g}", f"{height:g}", title, body)
