"""What is logged of an outage of the database."""

from __future__ import annotations

import logging
import time

import pytest

from onetray.domain.errors import Unavailable
from onetray.engine.janitor import Janitor
from onetray.store.retry_transaction import Outage
from tests.support.fleet import wait_until

AWAY = Unavailable("connection refused")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="onetray.database")
    return caplog


def test_each_part_warns_once_and_the_return_is_logged_once_with_its_duration(lines: pytest.LogCaptureFixture) -> None:
    outage = Outage()
    for waiting in ("claims wait", "the janitor waits", "claims wait"):
        outage.failed(waiting, AWAY, tried_at=0.0)
    for _ in range(2):
        outage.answered()
    first, second, back = lines.messages
    assert first == "claims wait for the database: connection refused"
    assert second == "the janitor waits for the database: connection refused"
    assert back.startswith("the database is back after ")
    assert float(back.split()[-2]) > 0


def test_a_call_that_failed_late_begins_no_second_outage(lines: pytest.LogCaptureFixture) -> None:
    outage = Outage()
    outage.failed("claims wait", AWAY, tried_at=0.0)
    outage.answered()
    outage.failed("the janitor waits", AWAY, tried_at=0.0)
    outage.answered()
    assert len(lines.messages) == 2


def test_a_second_outage_is_logged_like_the_first(lines: pytest.LogCaptureFixture) -> None:
    outage = Outage()
    for _ in range(2):
        outage.failed("claims wait", AWAY, tried_at=float("inf"))
        outage.answered()
    assert [record.levelname for record in lines.records] == ["WARNING", "INFO"] * 2


def test_a_janitor_logs_that_the_database_is_back(lines: pytest.LogCaptureFixture) -> None:
    failures = [AWAY, AWAY]

    def sweep() -> int:
        if failures:
            raise failures.pop()
        return 0

    janitor = Janitor(sweep, lambda: 0.01, every_s=0.01)
    janitor.start()
    wait_until(lambda: "the database is back" in lines.text)
    janitor.stop()
    assert lines.text.count("the janitor waits for the database") == 1
    assert lines.text.count("the database is back") == 1


def test_an_outage_that_another_line_tells_of_ends_with_the_same_line(lines: pytest.LogCaptureFixture) -> None:
    outage = Outage()
    outage.began(0.0)
    outage.answered()
    outage.began(0.0)
    outage.answered()
    assert len(lines.messages) == 1
    assert "the database is back after" in lines.messages[0]


def test_a_connection_that_an_outage_has_broken_begins_no_other_outage(lines: pytest.LogCaptureFixture) -> None:
    outage = Outage()
    outage.failed("claims wait", AWAY, tried_at=0.0)
    outage.answered()
    outage.failed("claims wait", AWAY, tried_at=time.monotonic())
    outage.answered()
    assert [record.levelname for record in lines.records] == ["WARNING", "INFO"]
