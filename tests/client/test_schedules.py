"""Schedules in code: how they are declared, what their jobs get, and how a test runs them."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from onetray import InvalidInput, Onetray, PermanentError, ctx
from onetray.app.schedules import specs_of
from onetray.domain.clock import SECOND
from onetray.testing import Harness


def test_a_task_with_cron_runs_at_its_times_and_knows_them(app: Onetray, anywhere: Harness) -> None:
    ran: list[Any] = []

    @app.task(cron="0 7 * * *", timezone="Europe/Berlin", queue="q", retries=1, backoff_base_s=1, jitter=False)
    def report() -> None:
        ran.append((ctx.scheduled_at, ctx.attempt))
        if ctx.attempt == 1:
            raise OSError

    @app.task
    def plain() -> None:
        ran.append(ctx.scheduled_at)

    # The virtual clock begins at 2023-11-14 22:13:20 UTC.
    anywhere.advance(8 * 3_600)
    assert anywhere.drain() == 1
    anywhere.advance(2)
    anywhere.drain()
    at = datetime(2023, 11, 15, 6, 0, tzinfo=UTC)
    assert ran == [(at, 1), (at, 2)]
    (job,) = anywhere.engine.jobs().jobs
    assert (job.kind, job.queue, job.state) == ("report", "q", "succeeded")
    plain.submit()
    anywhere.drain()
    assert ran[-1] is None


def test_children_redrives_and_flows_keep_the_fire_time(app: Onetray, harness: Harness) -> None:
    seen: list[Any] = []

    @app.task
    def child() -> None:
        seen.append(ctx.scheduled_at)

    @app.task(every_s=3_600)
    def parent() -> None:
        child.submit()
        seen.append(ctx.scheduled_at)
        raise PermanentError

    flow = app.flow("news", config=dict[str, int])
    flow.stage(name="a")(lambda config: seen.append((ctx.scheduled_at, config)))
    app.schedule("hourly", task=flow, payload={"days": 7}, every_s=3_600)
    harness.advance(3_600)
    harness.drain()
    at = datetime(2023, 11, 14, 23, 0, tzinfo=UTC)
    assert sorted(map(str, seen)) == sorted(map(str, [at, at, (at, {"days": 7})]))
    (failed,) = harness.engine.jobs(kind="parent").jobs
    harness.engine.redrive(failed.id)
    seen.clear()
    harness.drain()
    assert set(seen) == {at}


def test_a_schedule_has_the_arguments_and_rules_of_its_declaration(app: Onetray) -> None:
    @app.task(queue="mail")
    def send(to: str, at: datetime | None = None) -> None: ...

    start = datetime(2026, 1, 1, tzinfo=UTC)
    app.schedule(
        "nightly", task=send, payload={"to": "ann", "at": start}, cron="0  1 * * *", overlap="skip", starts_at=start,
        catch_up="all", catch_up_s=60, jitter_s=5, pause_after_failures=3, priority=2, labels={"team": "a"},
    )  # fmt: skip
    app.schedule("by name", task="send", payload={"to": "bob"}, every_s=60, queue="other")
    nightly, by_name = specs_of(app)
    assert (nightly.kind, nightly.queue, nightly.payload) == (
        "send",
        "mail",
        {"to": "ann", "at": "2026-01-01T00:00:00Z"},
    )
    assert (nightly.overlap, nightly.starts_at, nightly.pause_after_failures) == (
        "skip", int(start.timestamp()) * SECOND, 3,
    )  # fmt: skip
    assert (by_name.kind, by_name.queue, by_name.every_s) == ("send", "other", 60)


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"cron": "no"}, "cron 'no' is not an expression"),
        ({"cron": "* * * * *", "every_s": 5}, "set either cron or every_s"),
        ({}, "set either cron or every_s"),
        ({"every_s": 60, "timezone": "Nowhere"}, "there is no time zone 'Nowhere'"),
        ({"every_s": 60, "starts_at": datetime(2026, 1, 1)}, "starts_at has no time zone"),
        ({"every_s": 60, "overlaps": "skip"}, r"unknown setting 'overlaps': did you mean 'overlap'\?"),
        ({"every_s": 60, "overlap": "never"}, "overlap must be one of"),
    ],
)  # fmt: skip
def test_a_bad_schedule_is_refused_where_it_is_declared(app: Onetray, rules: dict[str, Any], told: str) -> None:
    @app.task
    def work() -> None: ...

    with pytest.raises(InvalidInput, match=told):
        app.schedule("s", task=work, **rules)
    assert app.schedules == {}


def test_a_schedule_is_declared_once_and_for_a_task_or_a_flow(app: Onetray) -> None:
    @app.task(every_s=60)
    def work() -> None: ...

    with pytest.raises(InvalidInput, match="the schedule 'work' is declared twice"):
        app.schedule("work", task=work, every_s=60)
    with pytest.raises(InvalidInput, match="task must be a task, a flow or the name of one, not int"):
        app.schedule("other", task=5, every_s=60)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="is not an expression"):
        app.task(cron="x", kind="other")(lambda: None)
    with pytest.raises(InvalidInput, match="name must have 1 to 200 characters"):
        Onetray("sqlite://:memory:", name="")


def test_a_schedule_whose_arguments_do_not_fit_is_left_out_and_logged(
    app: Onetray, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(every_s=60)
    def needs(to: str) -> None: ...

    @app.task(every_s=60)
    def fits() -> None: ...

    app.schedule("unknown", task="nobody", every_s=60)
    app.schedule("list", task=fits, payload=[1], every_s=60)
    with caplog.at_level(logging.ERROR, "onetray.app"):
        assert [spec.name for spec in specs_of(app)] == ["fits"]
    assert "the schedule needs is not registered" in caplog.text
    assert "the schedule unknown is not registered: unknown task 'nobody'" in caplog.text
    assert "payload must be a dict of arguments, not list" in caplog.text
