"""The first call of a handler does not block the event loop with imports: the worker has made them before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from onetray import Onetray

WAIT_S = 60.0

# Submitted through the engine: plan.submit() would import here what the worker has to import by itself.
PROGRAM = """
import sys, threading
from datetime import datetime
from onetray import Onetray

imported = []

def watch(event, args):
    if event == "import" and threading.current_thread().name == "onetray-loop":
        imported.append(args[0])

app = Onetray(sys.argv[1])

@app.task
async def plan(at: datetime, places: list[str]) -> dict[str, datetime]:
    return dict.fromkeys(places, at)

with app:
    app.engine.store.migrate()
    sent = app.engine.submit("plan", {"at": "2030-01-01T00:00:00", "places": ["here"]})
    sys.addaudithook(watch)
    with app.worker():
        state = app.job(sent.id).wait(60)
    print(state, imported)
"""


def test_the_first_call_of_a_handler_imports_nothing_on_the_event_loop(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path / 'jobs.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("succeeded []\n", "")


def test_a_type_that_cannot_be_checked_fails_its_own_tasks_and_no_other(
    app: Onetray, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(retries=0)
    async def unclear(what: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    @app.task
    async def clear(n: int) -> int:
        return n

    sent = app.engine.submit("unclear", {"what": 1})
    with app.worker():
        assert clear.submit(1).result(WAIT_S) == 1
        assert app.job(sent.id).wait(WAIT_S) == "dead_lettered"
    assert "tasks of unclear will fail" in caplog.text
    assert "Nowhere" in caplog.text
