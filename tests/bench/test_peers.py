"""`./go bench peers` runs, and says who is missing. How fast anything is, is no test's business."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from benchmarks import catalogue
from benchmarks.__main__ import bench
from benchmarks.environments import NotInstalled
from benchmarks.peers import MEASURES, table

SMALL = ["peers", "--jobs", "10", "--submits", "1", "--rounds", "1", "--json"]


def test_a_side_has_all_its_figures() -> None:
    done = CliRunner().invoke(bench, [*SMALL, "--peer", "onetray-sqlite"], catch_exceptions=False)
    result = json.loads(done.stdout)
    assert (done.exit_code, result["missing"]) == (0, {})
    figures = result["peers"]["onetray-sqlite"]
    assert tuple(figures) == MEASURES
    assert {measure for measure, value in figures.items() if value is None} == {"db_cpu_s_per_10k"}


def test_a_peer_that_cannot_be_installed_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(program: str) -> list[str]:
        raise NotInstalled(f"no package index for {program}")

    monkeypatch.setitem(catalogue.BESIDE, "huey-sqlite", replace(catalogue.BESIDE["huey-sqlite"], command=refuse))
    done = CliRunner().invoke(bench, [*SMALL, "--peer", "huey-sqlite"], catch_exceptions=False)
    result = json.loads(done.stdout)
    assert (result["peers"], result["missing"]) == ({}, {"huey-sqlite": "no package index for huey"})
    assert "huey-sqlite is missing: no package index for huey" in table(result)


@pytest.mark.parametrize("wrong", [["--peer", "nobody"], ["--jobs", "0"], ["--rounds", "0"], ["--submits", "0"]])
def test_arguments_out_of_range_are_refused(wrong: list[str]) -> None:
    done = CliRunner().invoke(bench, ["peers", *wrong])
    assert done.exit_code == 2
    assert wrong[0] in done.stderr
