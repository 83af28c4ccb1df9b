"""The idempotency key of a flow, and the limits on what one command may bring."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from onetray.config import EngineConfig, Limits
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import AlreadyOpen, KeyReused, TooLarge
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.task import RawJson
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.flows import how, run_all
from tests.support.tasks import counts, written


def body(**fields: Any) -> dict[str, Any]:
    return {
        "name": "f",
        "stages": [StageSpec("a", [TaskSpec("x", {"p": 1, "q": 2}, name="n")], data=1)],
        "data": {"a": 1, "b": 2},
        "idempotency_key": "k",
        **fields,
    }


def test_the_same_key_and_body_is_the_same_flow(engine: Engine) -> None:
    first = engine.submit_flow(**body())
    before = written(engine)
    again = engine.submit_flow(**body(data={"b": 2, "a": 1}))
    assert (again.id, again.state, again.version, again.repeated) == (first.id, first.state, first.version, True)
    assert written(engine) == before
    run_all(engine)
    assert engine.submit_flow(**body()).state == "succeeded"


@each_case(
    "other",
    [
        {"data": {"a": 2}},
        {"roll_up": "mixed"},
        {"stages": []},
        {"stages": [StageSpec("b", [TaskSpec("x", {"p": 1, "q": 2}, name="n")], data=1)]},
        {"stages": [StageSpec("a", [TaskSpec("x", {"p": 1, "q": 3}, name="n")], data=1)]},
        {"stages": [StageSpec("a", [TaskSpec("f", {"p": 1, "q": 2}, name="n")], data=1)]},
        {"stages": [StageSpec("a", [TaskSpec("x", {"p": 1, "q": 2}, name="m")], data=1)]},
        {"stages": [StageSpec("a", [TaskSpec("x", {"p": 1, "q": 2}, name="n")], data=2)]},
        {"stages": [StageSpec("a", [TaskSpec("x", {"p": 1, "q": 2}, name="n")], data=1, on_failure="ignore")]},
    ],
)
def test_the_same_key_with_another_body_is_refused(engine: Engine, other: dict[str, Any]) -> None:
    first = engine.submit_flow(**body())
    before = written(engine)
    with pytest.raises(KeyReused) as refused:
        engine.submit_flow(**body(**other))
    assert (refused.value.idempotency_key, refused.value.task) == ("k", first.id)
    assert written(engine) == before


def test_the_key_belongs_to_the_name_of_the_flow_and_its_namespace(engine: Engine) -> None:
    ids = {
        engine.submit_flow(**body()).id,
        engine.submit_flow(**body(name="g")).id,
        engine.submit_flow(**body(namespace="other")).id,
        engine.submit_flow(**body(idempotency_key="l")).id,
    }
    assert len(ids) == 4


def test_two_submits_of_one_key_in_a_batch_make_one_flow(engine: Engine) -> None:
    gate = [StageSpec("a", [TaskSpec("x")], approval=Approval())]
    first, second, third = (
        v.value
        for v in engine.run([
            SubmitFlow(**body(stages=gate)), SubmitFlow(**body(stages=gate)), SubmitFlow(**body(idempotency_key=None)),
        ])
    )  # fmt: skip
    assert (second.id, second.repeated) == (first.id, True)
    assert (second.state, second.version) == (first.state, first.version) == ("waiting", 3)
    assert third.id != first.id
    assert len(engine.flows()) == 2


def test_a_key_whose_time_is_over_makes_a_new_flow(engine: Engine, clock: VirtualClock) -> None:
    first = engine.submit_flow(**body())
    clock.advance(100 * 86_400)
    second = engine.submit_flow(**body(data=3))
    assert second.id != first.id
    assert not second.repeated


def test_text_that_is_already_json_is_kept_in_every_place_that_takes_json(engine: Engine) -> None:
    raw = RawJson(b'{"b": 1,  "a": [1.50]}')
    kept = {"b": 1, "a": [1.5]}
    stage = StageSpec(
        "a", [TaskSpec("x", raw)], data=raw, metadata=raw, when=TaskSpec("c", raw), compensate=TaskSpec("u", raw)
    )
    fields = {"data": raw, "metadata": raw, "context": raw, "idempotency_key": "k"}
    flow = engine.submit_flow("f", [stage], **fields)
    assert engine.submit_flow("f", [stage], **{**fields, "data": kept}).id == flow.id
    seen, first, context = engine.flow(flow.id), engine.stage(flow.stages[0]), engine.context(flow.id)
    assert context is not None
    assert [seen.data, seen.metadata, first.data, first.metadata, context.payload] == [kept] * 5
    (control,) = engine.claim(worker="w")
    assert control.payload == {"stage": "a", "config": kept, "results": {}, "payload": kept}
    engine.succeed(control, True)
    (held,) = engine.claim(worker="w")
    assert held.payload == kept
    added = engine.append_context(flow.id, raw)
    assert [c.payload for c in engine.contexts(flow.id) if c.id == added] == [kept]
    engine.succeed(held, raw, context=raw, errors=raw)
    last = engine.context(flow.id)
    assert last is not None
    assert last.payload == kept
    assert how(engine, flow)[0] == "succeeded"


def test_a_flow_past_a_limit_is_told_it_and_nothing_is_written(database_url: str) -> None:
    config = EngineConfig(limits=Limits(batch=5, stages=3, flow_bytes=100, payload_bytes=60))
    with engine_on(database_url, VirtualClock(), config=config) as engine:
        flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 3), StageSpec("b", [TaskSpec("x")] * 2)])
        before = counts(engine)
        with pytest.raises(TooLarge, match="at most 5 tasks, not 6") as refused:
            engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 3), StageSpec("b", [TaskSpec("x")] * 3)])
        assert (refused.value.field, refused.value.limit) == ("stages", 5)
        with pytest.raises(TooLarge, match="one command takes 100") as refused:
            engine.add_tasks(flow.stages[1], [TaskSpec("x", "y" * 40)] * 3)
        assert refused.value.limit == 100
        with pytest.raises(TooLarge) as refused:
            engine.add_tasks(flow.stages[1], [TaskSpec("x", "y" * 60)])
        assert refused.value.field == "tasks.payload"
        assert counts(engine) == before
        engine.add_tasks(flow.stages[1], [TaskSpec("x")] * 5)
        assert len(run_all(engine)) == 10


def test_the_payloads_of_all_stages_count_together(database_url: str) -> None:
    with engine_on(database_url, VirtualClock(), config=EngineConfig(limits=Limits(flow_bytes=100))) as engine:
        with pytest.raises(TooLarge) as refused:
            engine.submit_flow("f", [StageSpec(name, [TaskSpec("x", "y" * 60)]) for name in "ab"])
        assert refused.value.limit == 100
        assert engine.flows() == []


def test_a_second_singleton_is_rejected_with_the_id_of_the_open_one_and_leaves_no_key(engine: Engine) -> None:
    first = engine.submit_flow(**body(singleton=True))
    assert engine.submit_flow(**body(singleton=True)).id == first.id, "the same idempotency key is the same submit"
    before = written(engine)
    second = body(singleton=True, idempotency_key="other")
    verdicts = engine.run([SubmitFlow(**second), SubmitFlow(**second), SubmitFlow(**body(idempotency_key=None))])
    for verdict in verdicts[:2]:
        assert isinstance(verdict.error, AlreadyOpen)
        assert (verdict.error.job, verdict.error.state) == (first.id, "pending")
    assert verdicts[2].ok, "a flow of the same name that is not a singleton is no matter of it"
    assert written(engine)["idempotency"] == before["idempotency"]
    assert not engine.submit_flow(**body(singleton=True, unique_key="eu", idempotency_key=None)).repeated
    run_all(engine)
    ended, late = engine.run([SubmitFlow(**second), SubmitFlow(**body(singleton=True, idempotency_key="third"))])
    assert ended.value.id != first.id
    assert late.error.job == ended.value.id
    for verb, of in (("retry_flow", {"flow": first.id}), ("redrive", {"task": first.tasks[0]})):
        with pytest.raises(AlreadyOpen) as refused:
            engine.do(verb, **of)
        assert refused.value.job == ended.value.id
    run_all(engine)
    again = engine.retry_flow(first.id)
    with pytest.raises(AlreadyOpen) as refused:
        engine.submit_flow(**body(singleton=True, idempotency_key="fourth"))
    assert refused.value.job == again.id


def test_of_singletons_that_are_submitted_at_once_one_is_open(engine: Engine) -> None:
    def submit(number: int) -> str:
        try:
            return engine.submit_flow(**body(singleton=True, idempotency_key=f"k{number}")).id
        except AlreadyOpen as e:
            return str(e.job)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(submit, range(40)))) == 1
    assert len(engine.flows()) == 1
