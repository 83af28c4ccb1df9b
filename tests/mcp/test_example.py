"""The example of two agents does what its page says."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from mcp.client import stdio

from onetray.examples import agents
from tests.mcp.agents import process
from tests.support.engines import engine_on, migrated_sqlite


@pytest.fixture
def forked_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers that the example starts are forked: to import what they need takes longer than all that they do."""

    def forked(command: str, args: list[str]) -> stdio.StdioServerParameters:
        assert [command, *args[:3]] == [sys.executable, "-m", "onetray", "mcp"]
        return process(*args[3:])

    monkeypatch.setattr(stdio, "StdioServerParameters", forked)


@pytest.mark.usefixtures("forked_servers")
def test_two_agents_share_the_work_and_one_asks_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = migrated_sqlite(tmp_path)
    monkeypatch.setattr(sys, "argv", ["agents", "--database", url])
    runpy.run_path(agents.__file__, run_name="__main__")
    told = capsys.readouterr().out
    said = told.splitlines()
    assert said[0] == "desk: submitted 6 articles"
    for words in (
        "in the middle of bridges",
        "goes on with bridges: read",
        "goes on with salaries",
        "asks a person about salaries",
        "desk: is asked: May we publish salaries?",
    ):
        assert sum(words in line for line in said) == 1, told
    outcomes = {name: "keep back" if name == "salaries" else "publish" for name in agents.ARTICLES}
    assert said[-6:] == [f"{name}: succeeded, {verdict}" for name, verdict in outcomes.items()]
    # The database is verified.
    with engine_on(url) as engine:
        assert {job.state for job in engine.jobs(queue="reviews").jobs} == {"succeeded"}
