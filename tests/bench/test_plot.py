"""`./go bench plot`: charts from the JSON that other commands print."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import bench
from benchmarks.plot import charts
from benchmarks.svg import PLOT, Row, bars, lines, number

SVG = "{http://www.w3.org/2000/svg}"
SIDES = {
    "pgqueuer": {"drain": 10.0, "bulk": 5.0, "pickup_p50_ms": 2.0, "pickup_p99_ms": 4.0, "cpu_s_per_10k": 1.0,
                 "db_cpu_s_per_10k": 3.0},
    "onetray-sqlite": {"drain": 20.0, "bulk": 9.0, "pickup_p50_ms": 1.0, "pickup_p99_ms": 3.0, "cpu_s_per_10k": 2.0,
                       "db_cpu_s_per_10k": None},
}  # fmt: skip
RESULTS = {
    "peers": SIDES,
    "growth": {"idle": {"sqlite": {"share": 0.9}, "postgres": {"share": 1.1}}, "held": {"postgres": {"share": 0.5}}},
    "workers": {"postgres": {"1": {"1": {"drain": 5.0}, "8": {"drain": 10.0}}}},
}


def drawn(text: str) -> list[ElementTree.Element]:
    return [r for r in ElementTree.fromstring(text).iter(f"{SVG}rect") if "legend" not in r.attrib["class"]]


def words(text: str) -> list[str]:
    return [e.text or "" for e in ElementTree.fromstring(text).iter(f"{SVG}text")]


def test_each_command_has_its_charts(tmp_path: Path) -> None:
    for name, figures in RESULTS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({name: figures, "machine": {}}))
    files = [str(tmp_path / f"{name}.json") for name in RESULTS]
    done = CliRunner().invoke(bench, ["plot", *files, "--out", str(tmp_path / "new/images")], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    written = sorted(path.name for path in (tmp_path / "new/images").iterdir())
    assert written == ["bulk.svg", "cpu.svg", "drain.svg", "growth.svg", "pickup.svg", "workers.svg"]
    assert done.stdout.count(".svg") == len(written)


def test_the_best_comes_first_and_bars_are_as_long_as_their_values() -> None:
    text = charts(RESULTS)["drain"]
    assert words(text)[1:] == ["onetray-sqlite", "20", "pgqueuer", "10"]
    assert [float(bar.attrib["width"]) for bar in drawn(text)] == [PLOT, PLOT / 2]
    assert words(charts(RESULTS)["pickup"]).index("onetray-sqlite") < words(charts(RESULTS)["pickup"]).index("pgqueuer")


def test_parts_of_a_stacked_bar_stand_one_behind_the_other_with_their_sum() -> None:
    text = charts(RESULTS)["cpu"]
    # onetray on SQLite has no database server: one part.
    first, worker, database = drawn(text)
    assert float(first.attrib["width"]) == PLOT / 2
    end = float(worker.attrib["x"]) + float(worker.attrib["width"])
    assert float(database.attrib["x"]) == pytest.approx(end, abs=0.2)
    assert words(text)[-2:] == ["pgqueuer", "4"]


def test_a_case_that_was_not_measured_on_a_store_has_no_bar() -> None:
    assert len(drawn(charts(RESULTS)["growth"])) == 3


def test_a_line_has_a_point_for_each_number_of_workers() -> None:
    picture = ElementTree.fromstring(charts(RESULTS)["workers"])
    assert len(list(picture.iter(f"{SVG}circle"))) == 2
    assert "postgres, 1 queue" in words(charts(RESULTS)["workers"])


def test_charts_have_colours_for_light_and_dark_and_names_are_escaped() -> None:
    for text in (bars("a < b", [Row("<b>", (1.0,))]), lines("a < b", [1], {"<b>": [0.0]}, "x")):
        assert "prefers-color-scheme: dark" in text
        assert {"a < b", "<b>"} <= set(words(text))


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (0.5, "0.5"), (1.0, "1"), (99.994, "99.99"), (12345.6, "12,346")]
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("text", "why"), [("{", "is no JSON"), ("[]", "no JSON object"), ('{"idle": {}}', "nothing to draw")]
)
def test_files_without_figures_are_refused(text: str, why: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "figures.json").write_text(text)
    assert why in " ".join(refused("plot", tmp_path / "figures.json").split())
