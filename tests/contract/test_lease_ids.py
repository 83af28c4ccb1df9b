"""Why a report is refused, and reports that name their lease."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import IllegalTransition, LeaseLost
from onetray.domain.lifecycle import ASSIGNED, QUEUED, RUNNING, SUCCEEDED
from onetray.domain.verbs import VERBS
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.tasks import settle, state, submit, take

REPORTS: dict[str, dict[str, Any]] = {
    "start": {}, "beat": {}, "succeed": {}, "fail": {"message": "no"}, "release": {}, "log": {"lines": ["x"]},
    "pause": {"owner": "ann", "reason": "asks"}, "progress": {"done": 1}, "checkpoint": {"body": 1},
}  # fmt: skip


def report(engine: Engine, verb: str, task: str, **ticket: Any) -> Any:
    return engine.call(VERBS[verb](task=task, **REPORTS[verb], **ticket))


def cause(engine: Engine, verb: str, task: str, **ticket: Any) -> str:
    with pytest.raises(LeaseLost) as lost:
        report(engine, verb, task, **ticket)
    return str(lost.value.cause)


@each_case("verb", REPORTS)
def test_a_lease_that_ran_out_is_told_from_one_that_another_has(engine: Engine, clock: VirtualClock, verb: str) -> None:
    id_ = submit(engine)
    old = take(engine, worker="a")
    clock.advance(61)
    assert cause(engine, verb, id_, fence=old.fence, worker="a") == "expired"
    assert cause(engine, verb, id_, worker="a", lease_id=old.lease_id) == "expired"
    settle(engine)
    assert cause(engine, verb, id_, fence=old.fence, worker="a") == "expired"
    new = take(engine, worker="b")
    assert cause(engine, verb, id_, worker="a", lease_id=old.lease_id) == "expired"
    assert cause(engine, verb, id_, fence=new.fence, worker="a") == "other_worker"
    assert cause(engine, verb, id_, fence=new.fence + 1, worker="a") == "no_such_attempt"
    assert state(engine, id_) == ASSIGNED


def test_an_attempt_that_ended_otherwise_has_not_expired(engine: Engine) -> None:
    id_ = submit(engine)
    old = take(engine, worker="a")
    engine.release(old)
    assert cause(engine, "beat", id_, fence=old.fence, worker="a") == "ended"
    take(engine, worker="b")
    assert cause(engine, "succeed", id_, fence=old.fence, worker="a") == "ended"


@each_case("verb", REPORTS)
def test_a_wrong_lease_id_is_refused_though_fence_and_worker_are_right(engine: Engine, verb: str) -> None:
    id_, other = submit(engine), submit(engine)
    held, of_other = take(engine), take(engine)
    assert (held.id, of_other.id) == (id_, other)
    right = {"fence": held.fence, "worker": "w"}
    digest = held.lease_id.partition("-")[2]
    for wrong in (
        of_other.lease_id, "nonsense", "1", "1-", f"{held.lease_id} ", f"0{held.lease_id}", f"2-{digest}", "-1-x",
        f"²-{digest}", f"{'9' * 400}-{digest}", f"0-{digest}",
    ):  # fmt: skip
        assert cause(engine, verb, id_, **right, lease_id=wrong) == "other_lease"
        assert cause(engine, verb, id_, worker="w", lease_id=wrong) == "other_lease"
    assert (state(engine, id_), engine.task(id_).version) == (ASSIGNED, 2)
    report(engine, verb, id_, **right, lease_id=held.lease_id)


def test_a_lease_id_and_a_fence_must_name_the_same_attempt(engine: Engine) -> None:
    id_ = submit(engine)
    old = take(engine)
    engine.release(old)
    new = take(engine)
    assert cause(engine, "start", id_, fence=new.fence, worker="w", lease_id=old.lease_id) == "other_lease"
    assert cause(engine, "start", id_, fence=old.fence, worker="w", lease_id=new.lease_id) == "other_lease"
    report(engine, "start", id_, fence=new.fence, worker="w", lease_id=new.lease_id)
    assert state(engine, id_) == RUNNING


def test_a_repeated_report_is_recognized_by_its_lease_id(engine: Engine) -> None:
    id_ = submit(engine)
    held = take(engine)
    assert not report(engine, "succeed", id_, worker="w", lease_id=held.lease_id).repeated
    assert report(engine, "succeed", id_, worker="w", lease_id=held.lease_id).repeated
    assert cause(engine, "succeed", id_, worker="w", lease_id="nonsense") == "other_lease"
    with pytest.raises(IllegalTransition):
        report(engine, "fail", id_, worker="w", lease_id=held.lease_id)
    assert state(engine, id_) == SUCCEEDED


def test_the_fast_path_compares_the_lease_id_too(engine: Engine) -> None:
    submit(engine)
    held = take(engine)
    with pytest.raises(LeaseLost) as lost:
        engine.succeed(held, lease_id="nonsense")
    assert (lost.value.cause, lost.value.state) == ("other_lease", ASSIGNED)
    assert engine.succeed(held, lease_id=held.lease_id).state == SUCCEEDED


def test_a_task_names_its_lease_while_it_is_held(engine: Engine) -> None:
    id_ = submit(engine)
    assert engine.task(id_).lease_id is None
    held = take(engine)
    assert engine.task(id_).lease_id == held.lease_id
    engine.release(held)
    assert (state(engine, id_), engine.task(id_).lease_id) == (QUEUED, None)
    assert take(engine).lease_id != held.lease_id
