"""A worker removes old jobs beside its work, when it is told to."""

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


def long_ago(url: str, namespace: str) -> str:
    """A job that ended in 2023."""
    with engine_on(url, VirtualClock()) as past:
        id_ = past.submit("send", namespace=namespace).id
        for task in past.claim(worker="w", namespace=namespace):
            past.succeed(task)
    assert id_ is not None
    return id_


def declare(app: Onetray) -> Any:
    @app.task(kind="send")
    def send() -> int:
        return 1

    return send


def there(app: Onetray, namespace: str = "default") -> set[str]:
    return {task.id for task in app.engine.tasks(namespace=namespace)}


def test_a_worker_removes_old_jobs_of_its_namespace_while_it_works(either_app: Onetray) -> None:
    old, others = long_ago(either_app.database, "default"), long_ago(either_app.database, "other")
    job = declare(either_app).submit()
    with either_app.worker(retention_s=DAY):
        assert job.result(WAIT_S) == 1
        wait_until(lambda: old not in there(either_app))
    assert there(either_app) == {job.id}
    assert there(either_app, "other") == {others}


def test_a_worker_removes_nothing_by_itself(app: Onetray) -> None:
    old = long_ago(app.database, "default")
    job = declare(app).submit()
    with app.worker():
        assert job.result(WAIT_S) == 1
        assert len([t for t in threading.enumerate() if t.name == "onetray-janitor"]) == 1
    assert there(app) == {old, job.id}


@pytest.mark.parametrize("settings", [{"retention_s": 0}, {"retention_s": "30d"}, {"retention_s": 9, "janitor": False}])
def test_a_worker_refuses_a_retention_that_cannot_be(app: Onetray, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        app.worker(**settings)
    assert refused.value.field == "retention_s"
