"""Bulk operations: an action on all jobs that match, in steps that any process carries out."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from onetray.domain.bulk import BulkOperation
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import IllegalTransition, InvalidInput, NotFound, OnetrayError
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.lifecycle import ABOUT_BULK
from onetray.domain.policy import Policy
from onetray.domain.task import Event
from onetray.engine import Engine, bulk_steps
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.tasks import UNKNOWN_ID, in_state, submit, take
from tests.support.waits import wait_until


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a handful of jobs takes several steps."""
    monkeypatch.setattr(bulk_steps, "BATCH", 3)


def carry_out(engine: Engine, operation: BulkOperation, *, namespace: str = "default") -> BulkOperation:
    """Run steps until the operation runs no more."""
    steps = engine.bulk_steps()
    for _ in range(1_000):
        if engine.bulk(operation.id, namespace=namespace).state != "running":
            return engine.bulk(operation.id, namespace=namespace)
        steps.step()
    raise AssertionError("it does not end")


def letters(engine: Engine, count: int, kind: str = "mail", message: str = "mailbox full") -> list[str]:
    """Dead letters of a kind, oldest first."""
    engine.configure(kind, Policy(max_attempts=1))
    ids = [submit(engine, kind, queue=kind) for _ in range(count)]
    for claimed in engine.claim(kind, worker="w", limit=count):
        engine.fail(claimed, message, error_class="SmtpError")
    return ids


def states(engine: Engine, ids: list[str]) -> list[str]:
    return [engine.task(id_).state for id_ in ids]


def about(engine: Engine) -> list[Event]:
    return [e for e in engine.feed.read(0, 10_000).events if e.type in ABOUT_BULK]


def test_a_cancel_reaches_all_open_jobs_that_match_and_no_others(engine: Engine) -> None:
    mail = [submit(engine, "mail") for _ in range(7)]
    ended, other = in_state(engine, "succeeded", queue="q").id, submit(engine, "sync")
    flow = engine.submit_flow("mail", [StageSpec("a", [TaskSpec("x")])]).id
    started = engine.start_bulk("cancel", {"kind": "mail"}, reason="the shop closes", by="ann")
    assert (started.state, started.done, started.created_by) == ("running", 0, "ann")
    done = carry_out(engine, started)
    assert (done.state, done.done, done.refused, done.repeated) == ("done", 8, 0, 0)
    assert done.finished_at is not None
    assert set(states(engine, mail)) == {"cancelled"}
    assert engine.flow(flow).state == "cancelled"
    assert states(engine, [ended, other]) == ["succeeded", "queued"]
    last = engine.events(mail[0])[-1]
    assert (last.type, last.cause, last.actor) == ("task.cancelled", "the shop closes", "user:ann")


def test_jobs_that_are_submitted_after_the_start_are_not_meant(engine: Engine, clock: VirtualClock) -> None:
    old = [submit(engine) for _ in range(4)]
    started = engine.start_bulk("cancel")
    clock.advance(1)
    new = submit(engine)
    assert carry_out(engine, started).done == 4
    assert set(states(engine, old)) == {"cancelled"}
    assert states(engine, [new]) == ["queued"]


def test_a_retry_leaves_out_what_was_retried_before(engine: Engine) -> None:
    failed = [in_state(engine, "failed").id for _ in range(5)]
    engine.redrive(failed[0])
    again = carry_out(engine, engine.start_bulk("retry", {"kind": "mail"}))
    assert (again.done, again.repeated) == (4, 1)
    assert len(engine.jobs(states=["queued"]).jobs) == 5
    assert (carry_out(engine, engine.start_bulk("retry")).done, len(engine.jobs(states=["queued"]).jobs)) == (0, 5)


def test_a_priority_is_set_on_all_that_match(engine: Engine) -> None:
    ids = [submit(engine, priority=0 if n else 9) for n in range(5)]
    done = carry_out(engine, engine.start_bulk("priority", {"queue": "default"}, priority=9))
    assert (done.done, done.repeated, done.options.priority) == (4, 1, 9)
    assert {engine.task(id_).priority for id_ in ids} == {9}


def test_a_redrive_takes_the_letters_of_one_group(engine: Engine) -> None:
    full = letters(engine, 4, message="mailbox 17 of 0af9e1b2-ac96-774b-bcce-b302099a8057 is full")
    letters(engine, 2, message="no such user")
    letters(engine, 1, "sync", message="mailbox 17 is full")
    (group, *_) = engine.dead_groups(kind="mail")
    assert (group.message, group.count, group.example_id) == ("mailbox # of # is full", 4, full[0])
    preview = engine.preview_bulk("redrive", {"alike": full[2]})
    assert (preview.count, preview.more, [x.id for x in preview.letters]) == (4, False, full)
    done = carry_out(engine, engine.start_bulk("redrive", {"alike": full[2]}, delay_s=60))
    assert (done.done, done.options.delay_s) == (4, 60)
    assert sum(g.count for g in engine.dead_groups()) == 3
    assert len(engine.jobs(states=["queued"]).jobs) == 4


def test_a_canary_pauses_shows_how_it_does_and_goes_on(engine: Engine, clock: VirtualClock) -> None:
    letters(engine, 8)
    started = engine.start_bulk("redrive", {"kind": "mail"}, canary=2)
    clock.advance(1)
    paused = carry_out(engine, started)
    assert (paused.state, paused.done, paused.finished_at) == ("paused", 2, None)
    assert paused.canary_states == {"queued": 2}
    first, second = engine.claim("mail", worker="w", limit=9)
    engine.succeed(first)
    engine.fail(second, "again")
    watched = engine.bulk(started.id)
    assert watched.canary_states == {"succeeded": 1, "dead_lettered": 1}
    assert set(watched.canary_ids) == {first.id, second.id}
    assert engine.bulk_steps().step() == 0
    done = carry_out(engine, engine.resume_bulk(started.id, by="ann"))
    # The canary that failed again is a new dead letter: it was set aside after the start.
    assert (done.state, done.done) == ("done", 8)
    assert [line.id for line in engine.dead_lines()] == [second.id]


def test_a_canary_can_be_stopped(engine: Engine) -> None:
    letters(engine, 5)
    started = engine.start_bulk("redrive", canary=1)
    assert carry_out(engine, started).state == "paused"
    stopped = engine.stop_bulk(started.id, reason="it fails again", by="ann")
    assert (stopped.state, stopped.done) == ("stopped", 1)
    assert engine.bulk_steps().step() == 0
    assert len(engine.dead_lines()) == 4
    with pytest.raises(IllegalTransition, match="that is stopped cannot resume"):
        engine.resume_bulk(started.id)
    # The same once more is no error.
    assert engine.stop_bulk(started.id).state == "stopped"


def test_letters_of_ended_flows_are_left_out(engine: Engine) -> None:
    engine.configure("mail", Policy(max_attempts=1))
    engine.submit_flow("f", [StageSpec("a", [TaskSpec("mail")])])
    engine.fail(take(engine), "no")
    done = carry_out(engine, engine.start_bulk("redrive"))
    assert (done.done, done.skipped, done.refused) == (0, 1, 0)


def test_no_more_than_the_limit_are_changed(engine: Engine) -> None:
    ids = [submit(engine) for _ in range(9)]
    done = carry_out(engine, engine.start_bulk("cancel", limit=4))
    assert (done.state, done.done) == ("done", 4)
    # The newest first, as they are listed.
    assert states(engine, ids) == ["queued"] * 5 + ["cancelled"] * 4


def test_what_is_refused_is_counted_and_named(engine: Engine) -> None:
    ids = [in_state(engine, "succeeded").id for _ in range(4)]
    done = carry_out(engine, engine.start_bulk("cancel", {"states": ["succeeded"]}))
    assert (done.done, done.refused) == (0, 4)
    assert {refusal.id for refusal in done.refusals} == set(ids)
    assert "cancel" in done.refusals[0].error


def test_start_and_end_are_recorded(engine: Engine) -> None:
    submit(engine)
    started = engine.start_bulk("cancel", {"kind": "mail"}, reason="a test", by="ann")
    carry_out(engine, started)
    second = engine.start_bulk("cancel", by="bob")
    engine.stop_bulk(second.id, reason="no", by="eve")
    begun, ended, _, stopped = about(engine)
    assert (begun.type, begun.actor, begun.cause) == ("bulk.started", "user:ann", "a test")
    assert (begun.payload["bulk"], begun.payload["filters"]) == (started.id, {"kind": "mail"})
    assert (ended.type, ended.payload["bulk"], ended.payload["done"]) == ("bulk.finished", started.id, 1)
    assert (stopped.type, stopped.actor, stopped.cause) == ("bulk.stopped", "user:eve", "no")


def test_a_namespace_sees_and_changes_only_its_own(engine: Engine) -> None:
    mine, theirs = submit(engine), submit(engine, namespace="other")
    started = engine.start_bulk("cancel", namespace="other")
    assert engine.bulks() == []
    assert [b.id for b in engine.bulks(namespace="other")] == [started.id]
    for call in (engine.bulk, engine.stop_bulk, engine.resume_bulk):
        with pytest.raises(NotFound, match="no bulk operation"):
            call(started.id)
    assert carry_out(engine, started, namespace="other").done == 1
    assert engine.task(mine).state == "queued"
    assert engine.task(theirs, namespace="other").state == "cancelled"
    letters(engine, 1)
    with pytest.raises(NotFound, match="no dead letter"):
        engine.start_bulk("redrive", {"alike": engine.dead_lines()[0].id}, namespace="other")


def test_two_janitors_share_the_work_and_do_nothing_twice(database_url: str) -> None:
    with engine_on(database_url) as engine, engine_on(database_url) as other:
        letters(engine, 60)
        started = engine.start_bulk("redrive")
        each: list[int] = [0, 0]

        def work(n: int, on: Engine) -> None:
            steps = on.bulk_steps()
            while engine.bulk(started.id).state == "running":
                each[n] += steps.step()

        threads = [threading.Thread(target=work, args=item) for item in enumerate((engine, other))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done = engine.bulk(started.id)
        assert (done.done, done.repeated, done.refused, sum(each)) == (60, 0, 0, 60)
        assert len(engine.jobs(states=["queued"], limit=100).jobs) == 60


def test_a_janitor_carries_it_out_at_once(database_url: str) -> None:
    with engine_on(database_url) as engine:
        ids = [submit(engine) for _ in range(5)]
        engine.janitor().start()
        started = engine.start_bulk("cancel")
        wait_until(lambda: engine.bulk(started.id).state == "done")
        assert set(states(engine, ids)) == {"cancelled"}


def test_a_job_that_breaks_a_step_does_not_stop_the_others(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [submit(engine) for _ in range(6)]
    bad = ids[2]
    real = bulk_steps.run_beside

    def run(store: Any, commands: Any, *rest: Any) -> Any:
        if any(command.task == bad for command in commands):
            raise RuntimeError("broken")
        return real(store, commands, *rest)

    monkeypatch.setattr(bulk_steps, "run_beside", run)
    done = carry_out(engine, engine.start_bulk("cancel"))
    assert (done.state, done.done, done.refused) == ("done", 5, 1)
    assert [refusal.id for refusal in done.refusals] == [bad]
    assert engine.task(bad).state == "queued"


def test_filters_that_name_something_that_is_gone_stop_it(engine: Engine) -> None:
    letters(engine, 2)
    example = engine.dead_lines()[0].id
    started = engine.start_bulk("redrive", {"alike": example})
    engine.delete_job(example)
    stopped = carry_out(engine, started)
    assert (stopped.state, stopped.done) == ("stopped", 0)
    assert "no dead letter" in stopped.refusals[0].error


BAD: dict[str, tuple[str, Any, dict[str, Any], str]] = {
    "action": ("destroy", {}, {}, "action must be one of cancel, retry, redrive, priority"),
    "unknown filter": ("cancel", {"knd": "x"}, {}, "do you mean 'kind'"),
    "filter of letters": ("cancel", {"error": "x"}, {}, "no filter of cancel"),
    "filter of jobs": ("redrive", {"labels": {"a": "b"}}, {}, "no filter of redrive"),
    "no mapping": ("cancel", ["kind"], {}, "filters must be a mapping"),
    "state": ("cancel", {"states": ["lost"]}, {}, "states"),
    "states is text": ("cancel", {"states": "queued"}, {}, "states"),
    "labels": ("cancel", {"labels": "team=a"}, {}, "labels must be a mapping"),
    "kind": ("cancel", {"kind": 7}, {}, "kind must be text"),
    "text": ("cancel", {"text": "a\0"}, {}, "NUL"),
    "blank text": ("cancel", {"text": "  "}, {}, "blank"),
    "since": ("cancel", {"since": "yesterday"}, {}, "since"),
    "ids": ("cancel", {"ids": ["x' OR 1=1"]}, {}, "ids"),
    "alike": ("redrive", {"alike": UNKNOWN_ID}, {}, "no dead letter"),
    "reason": ("redrive", {"reason": "bad luck"}, {}, "reason"),
    "no priority": ("priority", {}, {}, "pass the priority"),
    "priority": ("cancel", {}, {"priority": 1}, "takes no priority"),
    "limit": ("cancel", {}, {"limit": 0}, "limit"),
    "canary": ("redrive", {}, {"canary": 0}, "canary"),
    "canary of a cancel": ("cancel", {}, {"canary": 1}, "only a redrive"),
    "hard": ("cancel", {}, {"hard": "yes"}, "hard"),
    "delay": ("redrive", {}, {"delay_s": -1}, "delay_s"),
    "by": ("cancel", {}, {"by": ""}, "by"),
}


@each_case(("action", "filters", "options", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_before_anything_is_written(
    shared_engine: Engine, action: str, filters: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OnetrayError, match=message) as refused:
        shared_engine.start_bulk(action, filters, **options)
    assert isinstance(refused.value, InvalidInput | NotFound)
    assert shared_engine.bulks() == []


def test_operations_are_listed_newest_first(engine: Engine, clock: VirtualClock) -> None:
    first = engine.start_bulk("cancel")
    carry_out(engine, first)
    clock.advance(1)
    second = engine.start_bulk("retry", {"labels": {"team": "a"}})
    assert [b.id for b in engine.bulks()] == [second.id, first.id]
    assert [b.id for b in engine.bulks(unfinished=True)] == [second.id]
    assert engine.bulks()[0].filters == {"labels": {"team": "a"}}
    assert engine.bulks()[0].created_at - engine.bulks()[1].created_at == SECOND


def test_a_preview_hides_what_a_kind_redacts(engine: Engine) -> None:
    engine.configure("mail", Policy(max_attempts=1, redact=("password",)))
    submit(engine, "mail", {"password": "hunter2"})
    engine.fail(take(engine), "hunter2 is wrong")
    assert "hunter2" in str(engine.preview_bulk("redrive").letters)
    assert "hunter2" not in str(engine.redacted.preview_bulk("redrive").letters)
