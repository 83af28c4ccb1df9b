"""Draw what `onetray demo` shows on a terminal just after one of its workers was killed, as SVG.

    python tools/demo_picture.py > docs/images/demo.svg

A true run: it takes as long as the demo, and prints nothing but an error if the demo does not succeed. Owns how a
terminal is drawn; what is on it comes from the demo's own screen.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.text import Text

from onetray.cli.demo.scenario import Scenario
from onetray.cli.demo.screen import Screen, picture
from onetray.cli.demo.workers import DemoWorkers
from onetray.examples.parcels import app

if TYPE_CHECKING:
    from rich.segment import Segment
    from rich.style import Style

COLUMNS = 92
TERMINAL: dict[str, Any] = {"force_terminal": True, "color_system": "standard"}
WIDE, HIGH, MARGIN, BAR = 7.8, 17, 18, 34
"""The size of a character, the space around the text, and the height of the window's bar."""
TITLE = "onetray demo"
MOMENT = "stage classify succeeded"
"""The picture is taken when a line with these words is on the screen."""
CLASSES = {1: "r", 2: "g", 3: "y", 6: "c", 237: "f"}
"""By the numbers of a terminal's colours; the last one is that of an empty bar."""
BARS = {"rgb(249,38,114)": "c", "rgb(114,156,31)": "g"}
"""The colours of a bar that has begun, and of a full one."""
STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328 }
.page { fill: #f6f8fa; stroke: #d1d9e0 } .title { fill: #59636e } .dot { fill: #d1d9e0 } .b { font-weight: 600 }
.d { fill: #59636e } .f { fill: #d1d9e0 }
.g { fill: #1a7f37 } .c { fill: #0969da } .y { fill: #9a6700 } .r { fill: #cf222e }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .page { fill: #151b23; stroke: #3d444d } .title { fill: #9198a1 } .dot { fill: #3d444d }
  .d { fill: #9198a1 } .f { fill: #3d444d }
  .g { fill: #3fb950 } .c { fill: #4493f8 } .y { fill: #d29922 } .r { fill: #f85149 }
}
"""


class Camera(Screen):
    """The demo's screen. It keeps what a terminal shows when the moment has come."""

    def __init__(self) -> None:
        self.printed = StringIO()
        super().__init__(Console(file=self.printed, width=COLUMNS, **TERMINAL), live=False)
        self.taken: list[list[Segment]] = []

    def show(self, scenario: Scenario) -> None:
        lines = self.printed.getvalue()
        if MOMENT in lines and not self.taken:
            self.taken = self.out.render_lines(Group(Text.from_ansi(lines), picture(scenario)), pad=False)


def main() -> int:
    camera = Camera()
    with tempfile.TemporaryDirectory(prefix="onetray-demo-") as name:
        folder = Path(name)
        app.database = f"sqlite:///{folder / 'demo.db'}"
        with app, DemoWorkers(folder, app.database) as workers:
            succeeded = Scenario(app, workers, camera, folder, ask=False).run()
    if not succeeded or not camera.taken:
        print(f"the demo did not succeed:\n{camera.printed.getvalue()}", file=sys.stderr)
        return 1
    print(svg(TITLE, camera.taken), end="")
    return 0


def svg(title: str, lines: Iterable[list[Segment]]) -> str:
    """A window with these lines in it, readable on a light page and on a dark one."""
    rows = [list(pieces(line)) for line in lines]
    wide, high = COLUMNS * WIDE + 2 * MARGIN, len(rows) * HIGH + 2 * MARGIN + BAR - HIGH / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide:.0f}" role="img"',
        ' xml:space="preserve">',
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{wide - 1:.0f}" height="{high - 1:.0f}" rx="8"/>',
        *(f'<circle class="dot" cx="{20 + 18 * n}" cy="18" r="6"/>' for n in range(3)),
        f'<text class="title" x="{wide / 2:.0f}" y="22" text-anchor="middle">{escape(title)}</text>',
    ]
    for number, row in enumerate(rows):
        y = BAR + MARGIN + number * HIGH
        parts += [_text(MARGIN + column * WIDE, y, words, kind) for column, words, kind in row]
    return "\n".join([*parts, "</svg>\n"])


def pieces(line: list[Segment]) -> Iterator[tuple[int, str, str]]:
    """The column, the text and the classes of each piece that is not blank."""
    column = 0
    for segment in line:
        words = segment.text.strip()
        if words:
            yield column + len(segment.text) - len(segment.text.lstrip()), words, classes(segment.style)
        column += segment.cell_length


def classes(style: Style | None) -> str:
    if style is None:
        return ""
    colour = style.color
    named = "" if colour is None else BARS.get(colour.name) or CLASSES.get(colour.number or 0, "")
    return " ".join(filter(None, [named or ("d" if style.dim else ""), "b" if style.bold else ""]))


def _text(x: float, y: float, words: str, kind: str) -> str:
    # The length keeps columns in line, whatever font the reader has.
    length = f' textLength="{len(words) * WIDE:.1f}" lengthAdjust="spacingAndGlyphs"'
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}"{length}>{escape(words)}</text>'


if __name__ == "__main__":
    sys.exit(main())
