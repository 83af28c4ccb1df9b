"""The example of two agents does what its page says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from onetray.examples.agents import ARTICLES
from tests.support.engines import engine_on, migrated_sqlite


def test_two_agents_share_the_work_and_one_asks_a_person(tmp_path: Path) -> None:
    url = migrated_sqlite(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-m", "onetray.examples.agents", "--database", url],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout.splitlines()
    assert said[0] == "desk: submitted 6 articles"
    for words in (
        "in the middle of bridges",
        "goes on with bridges: read",
        "goes on with salaries",
        "asks a person about salaries",
        "desk: is asked: May we publish salaries?",
    ):
        assert sum(words in line for line in said) == 1, ended.stdout
    outcomes = {name: "keep back" if name == "salaries" else "publish" for name in ARTICLES}
    assert said[-6:] == [f"{name}: succeeded, {verdict}" for name, verdict in outcomes.items()]
    # The database is verified.
    with engine_on(url) as engine:
        assert {job.state for job in engine.jobs(queue="reviews").jobs} == {"succeeded"}
