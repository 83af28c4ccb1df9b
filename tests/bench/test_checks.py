"""A round counts only when its database is sound: what the checks of the benchmarks refuse."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

from benchmarks.checks import must_be_done, must_be_queued, must_be_sound, must_have_ended
from benchmarks.core import drain, open_engine
from benchmarks.fleet import WorkerFailed, until_ended
from onetray.engine import Engine


@pytest.fixture
def one_job(tmp_path: Path) -> Iterator[Engine]:
    with open_engine(f"sqlite:///{tmp_path / 'jobs.db'}") as engine:
        engine.submit("noop")
        yield engine


def test_a_job_is_queued_until_it_is_drained_and_done_then(one_job: Engine) -> None:
    must_be_queued(one_job, 1)
    for check in (must_be_done, must_have_ended):
        with pytest.raises(AssertionError):
            check(one_job, 1)
    drain(one_job, 10)
    must_be_done(one_job, 1)
    must_have_ended(one_job, 1)
    with pytest.raises(AssertionError):
        must_be_queued(one_job, 1)


def test_a_job_too_few_is_noticed(one_job: Engine) -> None:
    drain(one_job, 10)
    with pytest.raises(AssertionError):
        must_be_done(one_job, 2)


def test_a_job_that_was_given_back_has_ended_and_was_not_done_at_once(one_job: Engine) -> None:
    (job,) = one_job.claim(worker="w")
    one_job.release(job)
    drain(one_job, 10)
    must_have_ended(one_job, 1)
    with pytest.raises(AssertionError):
        must_be_done(one_job, 1)


def test_a_transition_without_its_event_is_noticed(one_job: Engine, tmp_path: Path) -> None:
    apsw.Connection(str(tmp_path / "jobs.db")).execute("UPDATE task SET version = version + 1")
    with pytest.raises(AssertionError, match="2 transitions have 1 events"):
        must_be_sound(one_job)


def test_nobody_waits_for_a_worker_that_has_gone(one_job: Engine) -> None:
    gone: Any = SimpleNamespace(poll=lambda: 1)
    with pytest.raises(WorkerFailed, match="1 tasks were not finished"):
        until_ended(one_job, [gone])
