"""The picture of a terminal: what is on the screen is in it, in its place and its colour."""

import xml.etree.ElementTree as ET

from rich.segment import Segment
from rich.style import Style

from tools.demo_picture import MARGIN, WIDE, svg

RED = Style(color="red", bold=True)


def test_text_is_drawn_in_its_column_and_colour() -> None:
    drawn = ET.fromstring(svg("a <title>", [[Segment("  1.0 s  "), Segment("killed & gone", RED)], [Segment("   ")]]))
    title, time, killed = [element for element in drawn if element.tag.endswith("text")]
    assert title.text == "a <title>"
    assert (time.text, time.get("x"), time.get("class")) == ("1.0 s", f"{MARGIN + 2 * WIDE:.1f}", None)
    assert (killed.text, killed.get("x"), killed.get("class")) == ("killed & gone", f"{MARGIN + 9 * WIDE:.1f}", "r b")


def test_every_line_has_its_height() -> None:
    def ys(lines: list[list[Segment]]) -> list[float]:
        return [float(element.get("y", 0)) for element in ET.fromstring(svg("", lines)) if element.tag.endswith("text")]

    title, first, third = ys([[Segment("a")], [], [Segment("b")]])
    assert title < first < third
    assert third - first == 2 * (ys([[Segment("a")], [Segment("b")]])[2] - first)
