"""Aliases: ids that callers choose, unique in a namespace among tasks, flows and contexts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from onetray.domain import commands as c
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import AliasTaken, InvalidInput, KeyReused, NotFound, TooLarge
from onetray.domain.flow import Placed, StageSpec, TaskSpec
from onetray.domain.flow_commands import AddTasks, SubmitFlow
from onetray.domain.listing import Alias
from onetray.domain.verbs import SubmitMany
from onetray.engine import Engine
from onetray.engine import deletion as deleting
from tests.support.cases import each_case
from tests.support.flows import run_all
from tests.support.tasks import counts, submit, take, written

ODD = ["order/17?x=1&y#2", "..", "%2F", " ", "ü🦊", "a" * 200, "null", "-1", "019a8c3e"]


def rows(engine: Engine) -> dict[str, list[Any]]:
    """All rows but the names that a refused submit has made known."""
    return {table: found for table, found in written(engine).items() if table not in ("kind", "queue", "namespace")}


def open_flow(engine: Engine, **fields: Any) -> Placed:
    """A flow with one stage that takes tasks, and one task in it."""
    return engine.submit_flow("f", [StageSpec("s", [TaskSpec("x", alias="first")], sealed=False)], **fields)


def test_a_task_and_a_flow_with_its_tasks_are_found_by_their_aliases(engine: Engine) -> None:
    task = submit(engine, alias="t")
    flow = open_flow(engine, alias="f")
    assert engine.by_alias("t") == Alias("t", "task", task, task)
    assert engine.by_alias("f") == Alias("f", "flow", flow.id, flow.id)
    assert engine.by_alias("first") == Alias("first", "task", flow.tasks[0], flow.id)
    assert [a.id for a in engine.find_aliases(["f", "none", "t", "f"])] == [flow.id, task]
    assert (engine.task(task).alias, engine.flow(flow.id).alias) == ("t", "f")
    assert engine.task(flow.tasks[0]).alias == "first"
    assert [job.alias for job in engine.jobs().jobs] == ["f", "t"]
    assert engine.task(submit(engine)).alias is None
    with pytest.raises(NotFound, match="nothing has the alias 'T'"):
        engine.by_alias("T")


@each_case("alias", ODD)
def test_an_alias_may_be_any_text(engine: Engine, alias: str) -> None:
    id_ = submit(engine, alias=alias)
    assert engine.by_alias(alias).id == id_
    assert engine.task(id_).alias == alias


@each_case("alias", ["", "a" * 201, "a\0b", "a\nb", "\x7f", "\x85", "\ud800", 5, b"a", ["a"]])
def test_an_alias_that_is_no_good_is_refused_before_anything_is_written(engine: Engine, alias: Any) -> None:
    before = written(engine)
    for call in (
        lambda: engine.submit("mail", alias=alias),
        lambda: engine.submit_flow("f", alias=alias),
        lambda: engine.submit_flow("f", [StageSpec("s", [TaskSpec("x", alias=alias)])]),
        lambda: engine.by_alias(alias),
    ):
        with pytest.raises((InvalidInput, TooLarge), match="alias"):
            call()
    assert written(engine) == before


def test_a_second_submit_with_an_alias_is_refused_and_told_what_has_it(engine: Engine) -> None:
    first = submit(engine, alias="a")
    before = rows(engine)
    for call in (
        lambda: engine.submit("other", alias="a"),
        lambda: engine.submit_flow("f", alias="a"),
        lambda: engine.submit_flow("f", [StageSpec("s", [TaskSpec("x", alias="free"), TaskSpec("x", alias="a")])]),
    ):
        with pytest.raises(AliasTaken, match=first) as e:
            call()
        assert (e.value.alias, e.value.entity, e.value.id, e.value.status) == ("a", "task", first, 409)
    assert rows(engine) == before
    submit(engine, alias="free")


def test_an_alias_is_taken_for_as_long_as_its_job_exists(engine: Engine) -> None:
    first = submit(engine, alias="a")
    engine.succeed(take(engine))
    with pytest.raises(AliasTaken):
        submit(engine, alias="a")
    engine.delete_job(first)
    assert submit(engine, alias="a") != first


def test_aliases_of_namespaces_are_apart(engine: Engine) -> None:
    here, there = submit(engine, alias="a"), submit(engine, alias="a", namespace="other")
    assert engine.by_alias("a").id == here
    assert engine.by_alias("a", namespace="other").id == there
    with pytest.raises(NotFound):
        engine.by_alias("a", namespace="third")
    with pytest.raises(AliasTaken) as e:
        submit(engine, alias="a", namespace="other")
    assert e.value.id == there


def test_in_one_batch_the_first_one_gets_the_alias(engine: Engine) -> None:
    verdicts = engine.run([
        c.Submit(kind="mail", alias="a"),
        c.Submit(kind="mail", alias="b"),
        c.Submit(kind="mail", alias="a"),
        c.Submit(kind="mail"),
        SubmitFlow(name="f", stages=[StageSpec("s", [TaskSpec("x", alias="b"), TaskSpec("x", alias="c")])]),
        SubmitFlow(name="f", alias="c"),
        SubmitFlow(name="f", alias="c"),
    ])  # fmt: skip
    assert [v.ok for v in verdicts] == [True, True, False, True, False, True, False]
    assert verdicts[2].error.id == verdicts[0].value.id  # type: ignore[union-attr]
    assert engine.by_alias("c").id == verdicts[5].value.id
    assert counts(engine)["alias"] == 3


def test_one_command_cannot_give_an_alias_twice(engine: Engine) -> None:
    twice = [StageSpec("s", [TaskSpec("x", alias="a")]), StageSpec("t", [TaskSpec("x", alias="a")])]
    for call in (
        lambda: engine.submit_flow("f", twice),
        lambda: engine.submit_flow("f", twice[:1], alias="a"),
        lambda: engine.submit_flow("f", [StageSpec("s", when=TaskSpec("x", alias="a"))]),
        lambda: engine.run([SubmitMany(like=c.Submit(kind="mail", alias="a"), payloads=[1, 2])])[0].unwrap(),
    ):
        with pytest.raises(InvalidInput, match="alias"):
            call()


def test_a_repeated_submit_with_its_idempotency_key_is_no_conflict(engine: Engine) -> None:
    fields: dict[str, Any] = {"alias": "a", "idempotency_key": "k"}
    first = engine.submit("mail", 1, **fields)
    again = engine.submit("mail", 1, **fields)
    assert (again.id, again.repeated) == (first.id, True)
    with pytest.raises(KeyReused):
        engine.submit("mail", 1, alias="b", idempotency_key="k")
    flows = [engine.submit_flow("f", [StageSpec("s", [TaskSpec("x", alias="m")])], alias="g", idempotency_key="k")]
    flows += [engine.submit_flow("f", [StageSpec("s", [TaskSpec("x", alias="m")])], alias="g", idempotency_key="k")]
    assert flows[0].id == flows[1].id
    with pytest.raises(KeyReused):
        engine.submit_flow("f", [StageSpec("s", [TaskSpec("x", alias="n")])], alias="g", idempotency_key="k")


def test_a_refused_submit_leaves_no_key(engine: Engine) -> None:
    submit(engine, alias="a")
    for fields in ({"idempotency_key": "k"}, {"unique_key": "u"}):
        with pytest.raises(AliasTaken):
            engine.submit("mail", alias="a", **fields)
        free = engine.submit("mail", **fields)
        assert not free.repeated
    refused = engine.run([c.Submit(kind="sms", alias="a", idempotency_key="k") for _ in range(2)])
    assert [type(v.error) for v in refused] == [AliasTaken] * 2


def test_a_unique_key_answers_with_the_open_job_whatever_the_alias(engine: Engine) -> None:
    first = engine.submit("mail", unique_key="u", alias="a")
    assert engine.submit("mail", unique_key="u", alias="a").id == first.id
    assert engine.submit("mail", unique_key="u", alias="b").id == first.id
    assert counts(engine)["alias"] == 1


def test_a_submit_is_not_answered_with_a_job_that_was_refused(engine: Engine) -> None:
    """The second one of the batch wants the unique key of the first, which is not written."""
    submit(engine, alias="a")
    one, two = engine.run([c.Submit(kind="mail", alias="a", unique_key="u"), c.Submit(kind="mail", unique_key="u")])
    assert isinstance(one.error, AliasTaken)
    assert engine.task(two.value.id).state == "queued"
    assert not two.value.repeated


def test_tasks_that_are_added_or_spawned_may_have_aliases(engine: Engine) -> None:
    flow = open_flow(engine)
    added = engine.add_tasks(flow.stages[0], [TaskSpec("y", alias="b"), TaskSpec("y")])
    assert engine.by_alias("b").id == added.tasks[0]
    before = rows(engine)
    with pytest.raises(AliasTaken):
        engine.add_tasks(flow.stages[0], [TaskSpec("y", alias="new"), TaskSpec("y", alias="b")])
    with pytest.raises(AliasTaken):
        engine.add_stage(flow.id, StageSpec("more", [TaskSpec("y", alias="b")]))
    assert rows(engine) == before
    engine.add_stage(flow.id, StageSpec("more", [TaskSpec("y", alias="new")]))
    held = take(engine)
    before = rows(engine)
    with pytest.raises(AliasTaken):
        engine.succeed(held, spawn={"s": [TaskSpec("z", alias="free"), TaskSpec("z", alias="b")]})
    assert rows(engine) == before
    engine.succeed(held, spawn={"s": [TaskSpec("z", alias="spawned")]})
    assert engine.by_alias("spawned").job_id == flow.id


def test_two_commands_for_one_stage_in_one_batch(engine: Engine) -> None:
    flow = open_flow(engine)
    one, two = engine.run([AddTasks(flow.stages[0], tasks=[TaskSpec("y", alias="b")]) for _ in range(2)])
    assert one.ok
    assert isinstance(two.error, AliasTaken)
    assert two.error.id == one.value.tasks[0]


def test_a_context_may_have_an_alias(engine: Engine) -> None:
    flow = open_flow(engine)
    id_ = engine.append_context(flow.id, {"n": 1}, alias="ctx")
    assert engine.by_alias("ctx") == Alias("ctx", "context", id_, flow.id)
    assert [context.alias for context in engine.contexts(flow.id)] == ["ctx"]
    with pytest.raises(AliasTaken, match="the context"):
        engine.append_context(flow.id, {"n": 2}, alias="ctx")
    assert len(engine.contexts(flow.id)) == 1


def test_of_many_that_submit_one_alias_at_once_one_wins(engine: Engine) -> None:
    start = Barrier(8)

    def one(n: int) -> Any:
        start.wait(30)
        if n % 2:
            return engine.run([c.Submit(kind="mail", payload=n, alias=f"a{i}") for i in range(10)])
        stages = [StageSpec("s", [TaskSpec("x", alias=f"a{i}")]) for i in range(1)]
        return engine.run([SubmitFlow(name="f", stages=stages), SubmitFlow(name="f", alias="a9")])

    with ThreadPoolExecutor(8) as pool:
        verdicts = [v for group in pool.map(one, range(8)) for v in group]
    assert {type(v.error) for v in verdicts} == {type(None), AliasTaken}
    assert sum(v.ok for v in verdicts) == 10
    found = engine.find_aliases([f"a{i}" for i in range(10)])
    assert len({a.id for a in found}) == 10
    for v in verdicts:
        if not v.ok:
            assert v.error.id in {a.id for a in found}  # type: ignore[union-attr]


def test_deleting_and_pruning_free_the_aliases(engine: Engine, clock: VirtualClock) -> None:
    for how in ("delete", "prune"):
        flow = open_flow(engine, alias="f")
        engine.append_context(flow.id, 1, alias="ctx")
        single = submit(engine, alias="t")
        engine.seal_flow(flow.id)
        run_all(engine)
        assert counts(engine)["alias"] == 4
        submit(engine, "newer", queue="later")
        clock.advance(10)
        if how == "delete":
            engine.delete_job(flow.id)
            engine.delete_job(single)
        else:
            engine.prune(1)
        assert counts(engine)["alias"] == 0


def test_a_flow_that_is_deleted_in_steps_is_not_found_by_any_alias(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleting, "STEP", 1)
    flow = open_flow(engine, alias="f")
    engine.append_context(flow.id, 1, alias="ctx")
    engine.cancel_flow(flow.id)

    class Stop(Exception):
        pass

    def stop(_: float) -> None:
        raise Stop

    monkeypatch.setattr(deleting.time, "sleep", stop)
    with pytest.raises(Stop):
        engine.delete_job(flow.id)
    assert engine.find_aliases(["f", "first", "ctx"]) == []
    monkeypatch.undo()
    engine.delete_job(flow.id)
    assert counts(engine)["alias"] == 0


def test_an_alias_follows_a_redrive(engine: Engine) -> None:
    first = submit(engine, alias="a")
    engine.fail(take(engine), "no", reason_code="validation_failed")
    second = engine.redrive(first).id
    assert engine.by_alias("a").id == second
    assert engine.redrive(first).id == second
    assert (engine.task(str(second)).alias, engine.task(first).alias) == ("a", None)
    engine.fail(take(engine), "no", reason_code="validation_failed")
    third = engine.redrive(str(second)).id
    assert engine.by_alias("a").id == third
    with pytest.raises(AliasTaken, match=str(third)):
        submit(engine, alias="a")


def test_an_alias_follows_a_redrive_in_an_open_flow(engine: Engine) -> None:
    flow = open_flow(engine, roll_up="drain")
    engine.fail(take(engine), "no", retryable=False)
    new = engine.redrive(flow.tasks[0]).id
    assert engine.by_alias("first") == Alias("first", "task", str(new), flow.id)


def test_aliases_follow_the_retry_of_a_flow(engine: Engine) -> None:
    stages = [
        StageSpec("a", [TaskSpec("x", alias="done")]),
        StageSpec("b", [TaskSpec("bad", alias="again")]),
        StageSpec("c"),
    ]
    flow = engine.submit_flow("f", stages, alias="f")
    run_all(engine, bad={"bad"})
    again = engine.retry_flow(flow.id)
    assert engine.by_alias("f").id == again.id
    assert engine.by_alias("again").id == again.tasks[0]
    assert engine.by_alias("done").id == flow.tasks[0]  # It is carried over with its stage: it did not run again.
    assert engine.flow(flow.id).alias is None


def test_a_retried_task_can_spawn_the_same_aliases_again(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b", sealed=False)])
    engine.succeed(take(engine), spawn={"b": [TaskSpec("y", alias="spawned")]})
    engine.cancel_flow(flow.id)
    again = engine.retry_flow(flow.id, from_stage="a")
    assert engine.find_aliases(["spawned"]) == []
    engine.succeed(take(engine), spawn={"b": [TaskSpec("y", alias="spawned")]})
    assert engine.by_alias("spawned").job_id == again.id
