"""What a worker logs: its start, received tasks, outcomes, failures; and how much of it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from onetray import Onetray, TaskError, __version__, ctx
from onetray.log_format import JsonLines, TextLines
from onetray.worker.task_log import LINES_PER_S, LineBudget, TaskLog
from tests.support.waits import wait_until

WAIT_S = 60.0


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="onetray")
    return caplog


def facts(log: pytest.LogCaptureFixture, outcome: str) -> list[dict[str, Any]]:
    """The facts of the lines about one type of outcome."""
    found = [getattr(record, "facts", {}) for record in log.records]
    return [each for each in found if each.get("outcome") == outcome]


def line(log: pytest.LogCaptureFixture, outcome: str) -> logging.LogRecord:
    """The only line about this type of outcome."""
    (found,) = [record for record in log.records if getattr(record, "facts", {}).get("outcome") == outcome]
    return found


def test_a_worker_logs_what_it_is_before_it_claims(app: Onetray, log: pytest.LogCaptureFixture) -> None:
    @app.task
    def send() -> None: ...

    @app.task
    def fetch() -> None: ...

    with app.worker(name="w1", queues="default,mail:5", concurrency=7):
        pass
    banner = log.messages[0]
    assert banner.startswith(f"onetray {__version__}: worker w1 starts. Database: {app.database}; namespace: default;")
    assert "queues: default, mail:5; concurrency: 7; kinds: fetch, send" in banner


def test_the_banner_has_no_password(app: Onetray, log: pytest.LogCaptureFixture) -> None:
    @app.task
    def send() -> None: ...

    app.engine  # noqa: B018
    app.database = "postgresql://ann:hunter2@db.example.org/jobs?password=hunter2"
    with app.worker():
        pass
    assert "Database: postgresql://ann:***@db.example.org/jobs?password=***;" in log.messages[0]
    assert "hunter2" not in log.text


def test_a_task_is_logged_when_it_is_received_and_when_it_has_succeeded(
    either_app: Onetray, log: pytest.LogCaptureFixture
) -> None:
    @either_app.task(queue="mail")
    def send() -> None: ...

    job = send.submit()
    with either_app.worker(queues="mail"):
        job.result(WAIT_S)
    received, succeeded = line(log, "received"), line(log, "succeeded")
    assert received.getMessage() == f"received send {job.id} (attempt 1) from queue mail"
    assert succeeded.getMessage().startswith(f"send {job.id} (attempt 1) succeeded after 0.")
    (known,) = facts(log, "succeeded")
    assert (known["task"], known["kind"], known["attempt"]) == (job.id, "send", 1)
    assert known["duration_s"] >= 0
    assert received.levelno == succeeded.levelno == logging.INFO


def test_a_failure_is_logged_with_its_traceback_and_the_time_of_its_retry(
    either_app: Onetray, log: pytest.LogCaptureFixture
) -> None:
    @either_app.task(retries=1, backoff_base_s=0.2)
    def shaky() -> str:
        if ctx.attempt == 1:
            raise ValueError("shop\nis closed")
        return "done"

    job = shaky.submit()
    with either_app.worker():
        assert job.result(WAIT_S) == "done"
    record = line(log, "failed")
    assert record.levelno == logging.INFO
    assert f"shaky {job.id} (attempt 1) failed after 0." in record.getMessage()
    assert ": ValueError: shop\nis closed; it is retried" in record.getMessage()
    (known,) = facts(log, "failed")
    assert (known["state"], known["error"]) == ("queued", "ValueError: shop\nis closed")
    text = TextLines().format(record)
    first, *trace = text.splitlines()
    assert "ValueError: shop\\nis closed" in first
    assert trace[0] == "    Traceback (most recent call last):"
    assert '        raise ValueError("shop\\nis closed")' in trace
    entry = json.loads(JsonLines().format(record))
    assert entry["traceback"].startswith("Traceback (most recent call last):\n")


def test_a_retry_is_logged_with_its_time(either_app: Onetray, log: pytest.LogCaptureFixture) -> None:
    @either_app.task(retries=1)
    def later() -> None:
        raise TaskError("busy", retry_after_s=3600)

    job = later.submit()
    with either_app.worker() as worker:
        wait_until(lambda: (task := job.view()).attempts == 1 and task.state == "queued")
        worker.stop()
    message = line(log, "failed").getMessage()
    assert "; it is retried in 3600.0 s, at 20" in message


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"retries": 0}, "it is in the dead letters (exhausted_retries)"),
        ({"retries": 0, "on_exhaustion": "fail"}, "it has failed and is not retried"),
        ({"retries": 5, "no_retry_on": ("KeyError",)}, "it has failed and is not retried"),
    ],
)
def test_a_last_failure_is_logged_with_where_the_task_went(
    either_app: Onetray, log: pytest.LogCaptureFixture, rules: dict[str, Any], words: str
) -> None:
    @either_app.task(**rules)
    def broken() -> None:
        raise KeyError("x")

    job = broken.submit()
    with either_app.worker() as worker:
        assert job.wait(WAIT_S) in ("failed", "dead_lettered")
        worker.stop()
    record = line(log, "failed")
    assert record.getMessage().endswith(f"KeyError: 'x'; {words}")
    assert record.levelno == logging.ERROR


def test_the_log_of_a_failure_hides_secrets(either_app: Onetray, log: pytest.LogCaptureFixture) -> None:
    @either_app.task(retries=0, redact=("card",))
    def pay(card: str) -> None:
        raise ValueError(f"declined: {card}")

    @either_app.task(retries=0, redact=("card",))
    def check(card: int) -> None: ...

    job, other = pay.submit(card="4111111111111111"), either_app.engine.submit("check", {"card": "topsecret"})
    with either_app.worker() as worker:
        job.wait(WAIT_S)
        either_app.job(str(other.id)).wait(WAIT_S)
        worker.stop()
    assert len(facts(log, "failed")) == 2
    for record in log.records:
        for text in (TextLines().format(record), JsonLines().format(record)):
            assert "4111111111111111" not in text
            assert "topsecret" not in text
    assert "ValueError: declined: ***" in log.text
    assert "the message is hidden" in log.text


def test_a_released_task_is_logged_with_the_reason(app: Onetray, log: pytest.LogCaptureFixture) -> None:
    import asyncio

    @app.task
    async def slow() -> None:
        await asyncio.sleep(1000)

    job = slow.submit()
    with app.worker(drain_s=0):
        next(state for state in job.states(timeout_s=WAIT_S) if state == "running")
    assert "was released: " in line(log, "released").getMessage()


def test_lines_pass_up_to_a_rate_and_the_rest_is_counted() -> None:
    budget = LineBudget()
    assert budget.take(30, 0.0) == (30, None)
    assert budget.take(LINES_PER_S, 0.5) == (0, None), "a batch passes as a whole or not at all"
    assert budget.take(LINES_PER_S - 30, 0.6) == (LINES_PER_S - 30, None)
    assert budget.close(0.9) is None
    assert budget.take(5_000, 1.0) == (0, (LINES_PER_S, 1.0)), "while the rate is too high, no line is written"
    assert budget.take(5_000, 2.0) == (0, (5_000, 1.0))
    assert budget.close(3.0) == (5_000, 1.0)
    assert budget.close(60.0) is None
    assert budget.take(5, 62.5) == (5, None), "and again as soon as it has fallen"


def test_many_short_tasks_are_logged_by_their_number(app: Onetray, log: pytest.LogCaptureFixture) -> None:
    count = 20 * LINES_PER_S

    @app.task
    async def nothing() -> None: ...

    jobs = nothing.submit_many([{}] * count)
    with app.worker(concurrency=100):
        for job in jobs:
            job.result(WAIT_S)
    for outcome in ("received", "succeeded"):
        lines = facts(log, outcome)
        single = [each for each in lines if "task" in each]
        sums = [each for each in lines if "count" in each]
        assert len(single) + sum(each["count"] for each in sums) == count
        assert sums
    assert f"above {LINES_PER_S} a second only their number is logged" in log.text


def test_nothing_is_formatted_that_is_not_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="onetray.worker")
    calls: list[int] = []
    monkeypatch.setattr("onetray.worker.task_log._log", lambda *_, **__: calls.append(1))
    untouched: Any = [object()] * 10
    TaskLog(None).received(untouched)  # type: ignore[arg-type]
    TaskLog(None).succeeded(untouched)  # type: ignore[arg-type]
    assert calls == []


def test_failures_above_the_rate_lose_only_their_tracebacks(app: Onetray, log: pytest.LogCaptureFixture) -> None:
    count = 5 * LINES_PER_S

    @app.task(retries=0)
    async def broken() -> None:
        raise ValueError("closed")

    jobs = broken.submit_many([{}] * count)
    with app.worker(concurrency=100):
        for job in jobs:
            job.wait(WAIT_S)
    lines = facts(log, "failed")
    assert {each["task"] for each in lines} == {job.id for job in jobs}
    assert any("traceback" in each for each in lines)
    without = [record.getMessage() for record in log.records if "are left out" in record.getMessage()]
    assert len(without) == sum("traceback" not in each for each in lines) > 0


def test_lines_of_text_and_of_json_have_the_same_time_in_utc() -> None:
    record = logging.makeLogRecord({"msg": "starts", "levelname": "INFO", "name": "n", "created": 1_800_000_000.25})
    when = "2027-01-15T08:00:00.250+00:00"
    assert TextLines().format(record) == f"{when} INFO    n: starts"
    assert json.loads(JsonLines().format(record))["time"] == when
