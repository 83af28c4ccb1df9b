"""Metadata that a worker reports with the outcome of its task."""

from __future__ import annotations

from typing import Any

import pytest

from onetray import Engine, StageSpec, TaskSpec
from onetray.domain import commands as c
from onetray.domain.errors import IllegalTransition, LeaseLost, TooLarge
from onetray.domain.lifecycle import CANCELLED, DEAD_LETTERED, FAILED, QUEUED, SUCCEEDED
from onetray.domain.policy import Policy
from onetray.domain.task import RawJson
from tests.support.cases import each_case
from tests.support.tasks import state, submit, take, types

OLD, NEW = {"by": "submitter"}, {"by": "worker", "n": [1]}


@each_case("started", [False, True])
def test_metadata_of_a_success_replaces_the_tasks(engine: Engine, started: bool) -> None:
    id_ = submit(engine, metadata=OLD)
    held = take(engine, start=started)
    engine.succeed(held, {"sent": 1}, metadata=NEW)
    task = engine.task(id_)
    assert (task.state, task.result, task.metadata) == (SUCCEEDED, {"sent": 1}, NEW)
    assert types(engine, id_) == ["submitted", "claimed", "started", "succeeded"]


def test_an_outcome_without_metadata_leaves_it(engine: Engine) -> None:
    for report in (engine.succeed, lambda held, **more: engine.fail(held, "no", **more)):
        id_ = submit(engine, metadata=OLD, policy=Policy(max_attempts=1))
        report(take(engine), metadata=None)
        assert engine.task(id_).metadata == OLD


@each_case("how", ["retried", "failed", "dead-lettered", "dead-lettered at once", "cancelled"])
def test_metadata_of_a_failure_replaces_the_tasks(engine: Engine, how: str) -> None:
    id_ = submit(engine, metadata=OLD, policy=Policy(max_attempts=2 if how == "retried" else 1))
    held = take(engine)
    fields: dict[str, Any] = {}
    match how:
        case "failed":
            fields["retryable"] = False
        case "dead-lettered at once":
            fields["reason_code"] = "parse_error"
        case "cancelled":
            engine.cancel(id_)
    engine.fail(held, "no", metadata=NEW, **fields)
    ends = {"retried": QUEUED, "failed": FAILED, "cancelled": CANCELLED}
    assert (state(engine, id_), engine.task(id_).metadata) == (ends.get(how, DEAD_LETTERED), NEW)


def test_a_report_that_is_refused_or_repeated_changes_no_metadata(engine: Engine) -> None:
    id_ = submit(engine, metadata=OLD)
    held = take(engine)
    with pytest.raises(LeaseLost):
        engine.succeed(held, metadata=NEW, worker="somebody")
    with pytest.raises(TooLarge):
        engine.succeed(held, metadata="x" * 1_000_001)
    assert engine.task(id_).metadata == OLD
    engine.succeed(held, metadata=NEW)
    assert engine.succeed(held, metadata={"n": 3}).repeated
    with pytest.raises(IllegalTransition):
        engine.fail(held, "no", metadata={"n": 3})
    assert engine.task(id_).metadata == NEW


def test_metadata_of_many_outcomes_in_one_batch(engine: Engine) -> None:
    ids = [submit(engine, metadata=OLD) for _ in range(6)]
    held = engine.claim(worker="w", limit=6)
    reports: list[c.Command] = [
        c.Succeed(**c.ticket(held[0]), metadata={"n": 0}), c.Succeed(**c.ticket(held[1])),
        c.Succeed(**c.ticket(held[2]), metadata=RawJson(b'{"n": 2}')), c.Fail(**c.ticket(held[3]), message="no"),
        c.Fail(**c.ticket(held[4]), message="no", metadata={"n": 4}), c.Succeed(**c.ticket(held[5]), metadata=[]),
    ]  # fmt: skip
    assert all(verdict.ok for verdict in engine.run(reports))
    assert [engine.task(id_).metadata for id_ in ids] == [{"n": 0}, OLD, {"n": 2}, OLD, {"n": 4}, []]


def test_a_member_of_a_flow_reports_metadata_with_everything_else(engine: Engine) -> None:
    flow = engine.submit_flow("plan", [StageSpec("all", [TaskSpec("mail", metadata=OLD)])])
    held = take(engine)
    engine.succeed(held, 1, metadata=NEW, context={"n": 1}, metrics={"n": 2})
    context = engine.context(flow.id)
    assert (engine.task(held.id).metadata, context and context.payload) == (NEW, {"n": 1})
    assert engine.stage(flow.stages[0]).metrics == {"n": 2}


def test_reported_metadata_is_redacted(engine: Engine) -> None:
    id_ = submit(engine, payload={"secret": "hunter2"}, policy=Policy(redact=("secret",)))
    engine.succeed(take(engine), metadata={"said": "hunter2"})
    assert "hunter2" not in repr(engine.redacted.task(id_))
