"""Labels: what a job can be found by. They are the job's, and stay with it."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain import commands as c
from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Submit
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.flow_commands import SubmitFlow
from onetray.engine import Engine
from onetray.store.base import Tx
from tests.support.cases import each_case
from tests.support.tasks import counts, in_state, submit, take

LABELS = {"team": "mail", "größe": "XL \"quoted\" \\ 'single'", "a b": "{json}"}


def test_a_task_shows_the_labels_it_was_submitted_with(engine: Engine) -> None:
    labelled, bare = submit(engine, labels=LABELS), submit(engine)
    assert engine.task(labelled).labels == LABELS
    assert engine.task(bare).labels == {}
    assert {t.id: t.labels for t in engine.tasks()} == {labelled: LABELS, bare: {}}


def test_as_many_labels_as_may_be_are_kept(engine: Engine) -> None:
    most = {f"{n:0200}": "v" * 200 for n in range(20)}
    assert engine.task(submit(engine, labels=most)).labels == most


def test_no_labels_and_an_empty_dict_are_the_same(engine: Engine) -> None:
    assert engine.task(submit(engine, labels={})).labels == {}
    assert counts(engine)["label"] == 0


def test_each_of_a_batch_keeps_its_own_labels(engine: Engine) -> None:
    given: list[dict[str, str] | None] = [{"n": str(n)} if n % 2 else None for n in range(60)]
    ids = [v.unwrap().id for v in engine.run([c.Submit(kind="mail", labels=labels) for labels in given])]
    assert [engine.task(id_).labels for id_ in ids] == [labels or {} for labels in given]


def test_labels_that_the_caller_changes_later_are_not_changed(engine: Engine) -> None:
    command = c.Submit(kind="mail", labels={"team": "a"})
    given = command.labels
    assert given is not None
    command.check(engine.config.limits)
    given["team"] = "\0"
    assert command.labels == {"team": "a"}


def test_a_flow_and_its_members_show_the_flows_labels(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x"), TaskSpec("y")])], labels=LABELS)
    bare = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    assert engine.flow(flow.id).labels == LABELS
    assert [t.labels for t in engine.stage_tasks(flow.stages[0])] == [LABELS, LABELS]
    assert engine.task(flow.tasks[0]).labels == LABELS
    assert engine.flow(bare.id).labels == engine.task(bare.tasks[0]).labels == {}
    assert {f.id: f.labels for f in engine.flows()} == {flow.id: LABELS, bare.id: {}}


def test_a_submit_without_labels_says_nothing_about_them(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def listening(tx: type[Tx]) -> None:
        batch = tx.batch

        def heard(self: Tx, name: str, *args: Any, **params: Any) -> Any:
            said.append(name)
            return batch(self, name, *args, **params)

        monkeypatch.setattr(tx, "batch", heard)

    with engine.store.transaction() as tx:
        listening(type(tx))
    # Plain ones are written by other statements.
    engine.run([Submit(kind="mail", tells_written=True), Submit(kind="mail", tells_written=True)])
    assert set(said) == {"insert_task", "insert_ready"}
    engine.submit("mail", labels=LABELS, unique_key="u")
    assert {"insert_label", "lock_unique"} < set(said)


def test_labels_are_no_part_of_the_body_of_an_idempotent_submit(engine: Engine) -> None:
    first = submit(engine, idempotency_key="k", labels={"team": "a"})
    again = engine.submit("mail", idempotency_key="k", labels={"team": "b"})
    assert (again.id, again.repeated) == (first, True)
    assert engine.task(first).labels == {"team": "a"}


@each_case("end", ["failed", "dead_lettered", "succeeded"])
def test_a_redriven_task_keeps_its_labels(engine: Engine, end: str) -> None:
    old = in_state(engine, end, labels=LABELS)
    new = engine.redrive(old.id).id
    assert new is not None
    assert engine.task(new).labels == engine.task(old.id).labels == LABELS


def test_a_retried_flow_keeps_its_labels(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], labels=LABELS)
    engine.fail(take(engine), "no", retryable=False)
    again = engine.retry_flow(flow.id)
    assert engine.flow(again.id).labels == LABELS
    engine.fail(take(engine), "no", retryable=False)
    redriven = engine.redrive(again.tasks[0]).id
    assert redriven is not None
    assert engine.task(redriven).labels == LABELS


def test_a_flow_that_compensates_has_the_labels_of_the_one_it_undoes(engine: Engine) -> None:
    stages = [StageSpec("a", [TaskSpec("x")], compensate=TaskSpec("undo")), StageSpec("b", [TaskSpec("y")])]
    flow = engine.submit_flow("f", stages, labels=LABELS)
    engine.succeed(take(engine))
    engine.fail(take(engine), "no", retryable=False)
    undoing = engine.flow(flow.id).compensation
    assert undoing is not None
    assert engine.flow(undoing).labels == LABELS


def test_labels_are_pruned_with_their_job(engine: Engine, clock: VirtualClock) -> None:
    submit(engine, labels=LABELS)
    engine.succeed(take(engine))
    engine.run([SubmitFlow(name="f", labels=LABELS, sealed=True)])
    kept = submit(engine, labels=LABELS)
    clock.advance(10)
    assert len(engine.prune(1)) == 2
    assert counts(engine)["label"] == len(LABELS)
    assert engine.task(kept).labels == LABELS
