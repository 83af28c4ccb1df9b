"""What a process that was forked for pytest-xdist is to it: a worker that has just collected: see one_collection.py."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import xdist.remote
from _pytest.tmpdir import TempPathFactory

from tests.support.cpu_report import Meter

FIRST = "gw0"


class Worker(xdist.remote.WorkerInteractor):
    """Says nothing of a setup or a teardown that went well, unless somebody has asked for a report about them.

    Two of three reports are about these. To send them and to take them in cost as much as a small test.
    """

    def __init__(self, config: pytest.Config, channel: Any) -> None:
        asked = config.option
        self._tells_all = asked.xmlpath or asked.durations is not None or {*asked.reportchars} & {*"AP"}
        super().__init__(config, channel)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed or self._tells_all:
            super().pytest_runtest_logreport(report)


def become_worker(session: pytest.Session, channel: Any, spent: tuple[float, float]) -> Worker:
    """Do what the program of pytest-xdist does before it collects."""
    config: Any = session.config
    config.workerinput, _, options, _ = channel.receive()
    os.environ["PYTEST_XDIST_TESTRUNUID"] = config.workerinput["testrunuid"]
    os.environ["PYTEST_XDIST_WORKER"] = config.workerinput["workerid"]
    os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(config.workerinput["workercount"])
    config.option.basetemp = options.get("basetemp")
    config._tmp_path_factory = TempPathFactory.from_config(config, _ispytest=True)
    random.seed()
    for plugin in config.pluginmanager.get_plugins():
        if isinstance(plugin, Meter):
            plugin.begin_again(spent if config.workerinput["workerid"] == FIRST else None)
    worker = Worker(config, channel)
    # It is looked for there when something goes wrong.
    xdist.remote.interactor = worker  # type: ignore[attr-defined]
    worker.pytest_sessionstart(session)
    return worker
