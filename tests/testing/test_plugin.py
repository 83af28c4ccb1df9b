"""The pytest plugin: its fixtures, and what it costs to load."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parents[2]

CONFTEST = """
import pytest
from onetray import Onetray

app = Onetray("sqlite:////nowhere/at/all.db")

@app.task
def double(n: int) -> int:
    return 2 * n

@pytest.fixture
def onetray_app():
    return app
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    # The plugin is named here: whether this environment knows its entry point must not matter.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return lambda: pytester.runpytest_inprocess("-p", "onetray.testing.plugin")


def test_the_fixtures_give_a_harness_and_its_clock(pytester: pytest.Pytester, run) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        """
        def test_it(onetray_app, onetray_harness, onetray_clock):
            job = onetray_app.submit("double", {"n": 2}, delay_s=5)
            before = onetray_clock.now()
            onetray_harness.advance(5)
            onetray_harness.drain()
            assert (job.result(0), onetray_clock.now() - before) == (4, 5_000_000)
        """
    )
    run().assert_outcomes(passed=1)


def test_a_missing_app_is_explained(pytester: pytest.Pytester, run) -> None:
    pytester.makepyfile("def test_it(onetray_harness): ...")
    done = run()
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*fixture onetray_app is not defined. Put this into*", "*def onetray_app():*"])


BREAK = """
def test_it(onetray_app, onetray_harness):
    onetray_app.submit("double", {"n": 2})
    with onetray_harness.engine.store.transaction() as tx:
        tx.query("delete_batches", keys=[1])
"""


def test_a_test_that_breaks_a_rule_is_told_at_its_end(pytester: pytest.Pytester, run) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(BREAK)
    done = run()
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(["*breaks rules of onetray*"])


def test_a_test_that_failed_is_not_told_of_broken_rules(pytester: pytest.Pytester, run) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(BREAK + "    raise ZeroDivisionError\n")
    run().assert_outcomes(failed=1)


def test_loading_the_plugin_loads_no_engine() -> None:
    program = (
        "import sys, onetray.testing.plugin\n"
        "print([m for m in sys.modules if m.startswith(('onetray.engine', 'onetray.app', 'pydantic', 'apsw'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_package_names_the_plugin_to_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [module] = project["entry-points"]["pytest11"].values()
    assert import_module(module).onetray_harness
