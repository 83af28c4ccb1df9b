"""A worker with a retention deletes old jobs while it works."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from onetray import Onetray
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import InvalidInput
from tests.support.engines import engine_on
from tests.support.fleet import wait_until

WAIT_S = 60.0
DAY = 86_400


def old_job(url: str, namespace: str) -> str:
    """A job that ended in 2023."""
    with engine_on(url, VirtualClock()) as past:
        id_ = past.submit("send", namespace=namespace).id
        for task in past.claim(worker="w", namespace=namespace):
            past.succeed(task)
    assert id_ is not None
    return id_


def declare_task(app: Onetray) -> Any:
    @app.task(kind="send")
    def send() -> int:
        return 1

    return send


def job_ids(app: Onetray, namespace: str = "default") -> set[str]:
    return {task.id for task in app.engine.tasks(namespace=namespace)}


def test_a_worker_deletes_old_jobs_of_its_namespace_while_it_works(either_app: Onetray) -> None:
    old, other_old = old_job(either_app.database, "default"), old_job(either_app.database, "other")
    job = declare_task(either_app).submit()
    with either_app.worker(retention_s=DAY):
        assert job.result(WAIT_S) == 1
        wait_until(lambda: old not in job_ids(either_app))
    assert job_ids(either_app) == {job.id}
    assert job_ids(either_app, "other") == {other_old}


def test_a_worker_without_a_retention_deletes_nothing(app: Onetray) -> None:
    old = old_job(app.database, "default")
    job = declare_task(app).submit()
    with app.worker():
        assert job.result(WAIT_S) == 1
        names = [thread.name for thread in threading.enumerate()]
        assert (names.count("onetray-janitor"), names.count("onetray-retention")) == (1, 0)
    assert job_ids(app) == {old, job.id}


@pytest.mark.parametrize("settings", [{"retention_s": 0}, {"retention_s": "30d"}, {"retention_s": 9, "janitor": False}])
def test_a_worker_rejects_an_invalid_retention(app: Onetray, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        app.worker(**settings)
    assert refused.value.field == "retention_s"
