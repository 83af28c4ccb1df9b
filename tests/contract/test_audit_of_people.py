"""The audit: what people have done, newest first; nothing of workers, the system, or plain submits."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain.commands import Cancel, Redrive
from onetray.domain.errors import InvalidInput
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.engine import Engine, audit_api
from onetray.engine.audit_api import ACTIONS
from onetray.store.sql_template import sections_of
from tests.support.flows import run_all
from tests.support.tasks import in_state, running, submit


def done(engine: Engine, **filters: Any) -> list[tuple[str, str, int]]:
    """All actions, newest first, page by page: the type, the person, to how many it applied."""
    found, before = [], None
    while True:
        page = engine.audit(before=before, **filters)
        found += [(e.type, e.actor, n) for e, n in zip(page.events, page.counts, strict=True)]
        if page.before is None:
            return found
        before = page.before


def act(engine: Engine) -> None:
    """One of each."""
    who = {"actor_name": "ann"}
    engine.pause_queue("default", by="ann", reason="maintenance")
    engine.resume_queue("default", by="bob")
    engine.open_breaker("mail", for_s=1, by="ann")
    engine.close_breaker("mail", by="ann")
    engine.tokens.revoke(engine.tokens.create("t", ["read"], by="ann").token.id, by="ann")
    engine.resume(in_state(engine, "waiting_input", queue="a").id, input=1, **who)
    engine.redrive(in_state(engine, "dead_lettered", queue="b").id, **who)
    engine.cancel(in_state(engine, "running", queue="c").id, **who)
    later = submit(engine, queue="d", delay_s=60)
    engine.set_priority(later, 5, **who)
    engine.reschedule(later, delay_s=5, **who)
    engine.delete_job(in_state(engine, "succeeded", queue="e").id, by="ann")


ONE_OF_EACH = [
    "job.deleted", "task.rescheduled", "task.priority_set", "task.cancel_requested", "task.redriven", "task.resumed",
    "token.revoked", "token.created", "breaker.closed", "breaker.opened", "queue.resumed", "queue.paused",
]  # fmt: skip


def test_each_action_of_a_person_is_listed_newest_first(engine: Engine) -> None:
    act(engine)
    assert [type_ for type_, _, _ in done(engine, tokens=True)] == ONE_OF_EACH


def test_an_action_says_who_what_when_and_why(engine: Engine) -> None:
    id_ = submit(engine)
    engine.cancel(id_, cause="a mistake", actor_name="ann")
    (event,) = engine.audit().events
    assert (event.type, event.actor, event.cause, event.entity_id) == ("task.cancelled", "user:ann", "a mistake", id_)
    assert event == engine.events(id_)[-1]


def test_flows_stages_approvals_and_retries(engine: Engine) -> None:
    stage = StageSpec("sign", [TaskSpec("ship"), TaskSpec("ship")], approval=Approval(owner="ann"))
    signed, rejected, skipped, cancelled = (
        engine.submit_flow("release", [stage], actor_name="program") for _ in range(4)
    )
    who = {"actor_name": "ann"}
    engine.approve_stage(signed.stages[0], **who)
    engine.reject_stage(rejected.stages[0], **who)
    engine.skip_stage(skipped.stages[0], **who)
    engine.cancel_flow(cancelled.id, **who)
    engine.set_flow_priority(signed.id, 3, **who)
    engine.pause_flow(signed.id, **who)
    engine.resume_flow(signed.id, **who)
    run_all(engine)
    engine.retry_flow(rejected.id, **who)
    listed = done(engine)
    types = [type_ for type_, by, _ in listed if by == "user:ann"]
    assert [t for t in types if ".cancel" not in t] == [
        "flow.retried", "flow.resumed", "flow.paused", "flow.priority_set", "stage.skipped", "stage.rejected",
        "stage.approved",
    ]  # fmt: skip
    assert ("flow.cancelled", "user:ann", 1) in listed
    assert {by for _, by, _ in listed} == {"user:ann"}


def test_a_redriven_task_of_a_flow(engine: Engine) -> None:
    engine.configure("ship", Policy(max_attempts=1))
    flow = engine.submit_flow("release", [StageSpec("a", [TaskSpec("ship"), TaskSpec("ship")])], roll_up="drain")
    first, second = (running(engine) for _ in range(2))
    engine.fail(first, "no", reason_code="parse_error")
    engine.redrive(flow.tasks[0], actor_name="ann")
    assert done(engine) == [("task.redriven", "user:ann", 1)]
    engine.succeed(second)


def test_plain_submits_workers_and_the_system_are_left_out(engine: Engine) -> None:
    engine.submit("mail", actor_name="ann")
    engine.submit("mail", actor_name="ann", cause="an order")
    for state in ("succeeded", "failed", "dead_lettered", "blocked"):
        in_state(engine, state, queue=state)
    engine.submit_flow("release", [StageSpec("a", [TaskSpec("ship")])], actor_name="ann", cause="an order")
    assert done(engine) == []


def test_many_at_once_are_one_action_of_each_person(engine: Engine) -> None:
    ids = [submit(engine) for _ in range(6)]
    by = ["ann", "ann", "bob", "ann", "ann", "bob"]
    engine.run([Cancel(task=id_, actor_name=who, cause="all") for id_, who in zip(ids, by, strict=True)])
    assert sorted(done(engine)) == [("task.cancelled", "user:ann", 4), ("task.cancelled", "user:bob", 2)]
    assert sorted(done(engine, limit=1)) == sorted(done(engine))
    assert done(engine, person="bob") == [("task.cancelled", "user:bob", 2)]


def test_redrives_with_different_reasons_in_one_transaction(engine: Engine) -> None:
    dead = [in_state(engine, "dead_lettered", queue=str(i)).id for i in range(3)]
    engine.run([Redrive(task=id_, actor_name="ann", cause=f"why {i}") for i, id_ in enumerate(dead)])
    assert done(engine) == [("task.redriven", "user:ann", 1)] * 3


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_pages_are_the_whole_list_without_a_gap(engine: Engine, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_api, "ROWS_PER_READ", 2)
    act(engine)
    whole = done(engine, tokens=True)
    assert len(whole) == len(ONE_OF_EACH)
    assert done(engine, tokens=True, limit=limit) == whole


def test_filters(engine: Engine) -> None:
    act(engine)
    assert done(engine, person="bob") == [("queue.resumed", "user:bob", 1)]
    assert done(engine, person="worker") == []
    assert [t for t, _, _ in done(engine, types=["queue.paused", "task.redriven"])] == ["task.redriven", "queue.paused"]
    assert done(engine, namespace="other") == []


def test_tokens_are_listed_only_for_whom_asks_for_them(engine: Engine) -> None:
    engine.tokens.create("t", ["read"], by="ann")
    assert done(engine) == done(engine, types=["token.created"]) == []
    assert done(engine, tokens=True) == [("token.created", "user:ann", 1)]


def test_a_namespace_sees_its_own_only(engine: Engine) -> None:
    engine.pause_queue("mail", namespace="a", by="ann")
    for namespace in ("a", "b"):
        submit(engine, namespace=namespace)
    tasks = [engine.claim(worker="w", namespace=n)[0] for n in ("a", "b")]
    engine.run([Cancel(task=t.id, namespace=n, actor_name="ann", hard=True) for t, n in zip(tasks, "ab", strict=True)])
    assert done(engine, namespace="b") == [("task.cancelled", "user:ann", 1)]
    assert [t for t, _, _ in done(engine, namespace="a")] == ["task.cancelled", "queue.paused"]


@pytest.mark.parametrize(("arguments", "field"), [
    ({"limit": 0}, "limit"), ({"limit": 1_001}, "limit"), ({"before": -1}, "before"), ({"before": "x"}, "before"),
    ({"types": ["task.succeeded"]}, "types"), ({"types": "queue.paused"}, "types"), ({"person": ""}, "person"),
    ({"namespace": ""}, "namespace"),
])  # fmt: skip
def test_bad_arguments_are_named(engine: Engine, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        engine.audit(**arguments)
    assert refused.value.facts["field"] == field


def test_the_answer_is_redacted(engine: Engine) -> None:
    engine.configure("mail", Policy(redact=("secret",)))
    id_ = submit(engine, payload={"secret": "s3cr3t-value"})
    engine.cancel(id_, cause="it was s3cr3t-value", actor_name="ann")
    assert "s3cr3t-value" in str(engine.audit())
    assert "s3cr3t-value" not in str(engine.redacted.audit())


def test_the_index_has_the_types_that_can_be_asked_for(engine: Engine) -> None:
    text = sections_of("word")["audited"].text
    known = {name.replace("submitted", "redriven") if name.startswith("task") else name.replace("submitted", "retried")
             for name in [part.split("'")[1] for part in text.split("WHEN ")[1:]]}  # fmt: skip
    assert known == set(ACTIONS)


def test_the_audit_is_read_by_its_index(engine: Engine) -> None:
    """Among many events of plain jobs."""
    store = engine.store
    sql = store.statements.by_name["audited_batches"].sql
    if store.dialect == "sqlite":
        plan = store.read_sql(f"EXPLAIN QUERY PLAN {sql}", before=5, limit=5)
    else:
        text = sql.replace("%(before)s", "5").replace("%(limit)s", "5")
        plan = store.write(lambda tx: tx.fetch(f"EXPLAIN {text}", {}))
    assert "event_batch_audit" in str(plan)
