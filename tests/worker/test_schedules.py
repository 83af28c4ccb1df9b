"""Workers register the schedules of their app, and their janitors fire them."""

from __future__ import annotations

import logging
import threading
from datetime import datetime

import pytest

from onetray import Onetray, ctx
from onetray.domain.clock import SECOND
from onetray.domain.schedule import ScheduleSpec


def test_a_worker_registers_its_schedules_and_fires_them(either_app: Onetray) -> None:
    app, times, ran = either_app, list[datetime | None](), threading.Event()

    @app.task(every_s=1)
    def tick() -> None:
        times.append(ctx.scheduled_at)
        if len(times) == 2:
            ran.set()

    with app.worker():
        (shown,) = app.engine.schedules()
        assert (shown.name, shown.source, shown.app) == ("tick", "code", "default")
        assert ran.wait(30)
        app.engine.pause_schedule("tick")
    fires = [fire for fire in app.engine.schedule_fires("tick", limit=100) if fire.outcome == "submitted"]
    assert {fire.fire_at for fire in fires} >= {int(at.timestamp() * SECOND) for at in times[:2] if at is not None}
    assert len(set(times)) == len(times) >= 2


def test_a_worker_says_which_schedules_it_cannot_register(app: Onetray, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(every_s=3_600)
    def work() -> None: ...

    app.engine.put_schedule("work", kind="work", every_s=60)
    with caplog.at_level(logging.WARNING), app.worker():
        pass
    assert "the schedule work is not registered: somebody has added one of this name" in caplog.text


def test_a_running_worker_renews_its_schedules(app: Onetray, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    def work() -> None: ...

    monkeypatch.setattr("onetray.worker.RENEW_SCHEDULES_S", 0.0)
    declared: list[bool] = []
    with app.worker() as worker:
        app.schedule("late", task=work, every_s=3_600)
        real = app.engine.declare_schedules

        def declare(schedules: list[ScheduleSpec], **fields: object) -> list[str]:
            declared.append(bool(fields["renew"]))
            return real(schedules, **fields)  # type: ignore[arg-type]

        monkeypatch.setattr(app.engine, "declare_schedules", declare, raising=False)
        worker._register()
    assert set(declared) == {True}
    assert [line.name for line in app.engine.schedules()] == ["late"]
