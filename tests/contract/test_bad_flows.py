"""Bad input about flows: what they are made from, and what is asked about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from onetray.config import Limits
from onetray.domain import commands as c
from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.flow import Approval, More, StageSpec, TaskSpec
from onetray.domain.flow_commands import AddStage, AddTasks, SubmitFlow, WaitStage
from onetray.engine import Engine
from tests.contract.bad_flows import SPECS
from tests.contract.bad_values import MB2, NUL, TEXT, label
from tests.support.cases import each_case
from tests.support.tasks import UNKNOWN_ID, in_state, written


def test_every_field_of_what_a_flow_is_made_from_is_in_the_table() -> None:
    for kind, fields in SPECS.items():
        assert {f.name for f in dataclasses.fields(kind)} == set(fields), kind


CARRIERS: dict[type, list[tuple[str, Callable[[Any], c.Command]]]] = {
    StageSpec: [
        ("stage", lambda spec: SubmitFlow(name="f", stages=[spec])),
        ("stage", lambda spec: AddStage(UNKNOWN_ID, stage=spec)),
    ],
    TaskSpec: [
        ("stage.tasks", lambda spec: SubmitFlow(name="f", stages=[StageSpec("a", [spec])])),
        ("tasks", lambda spec: AddTasks(UNKNOWN_ID, tasks=[spec])),
        ("spawn", lambda spec: c.Succeed(UNKNOWN_ID, more=More(spawn={"a": [spec]}))),
        ("stage.when", lambda spec: AddStage(UNKNOWN_ID, stage=StageSpec("a", when=spec))),
        ("stage.compensate", lambda spec: AddStage(UNKNOWN_ID, stage=StageSpec("a", compensate=spec))),
    ],
    Approval: [
        ("approval", lambda spec: WaitStage(UNKNOWN_ID, approval=spec)),
        ("approval", lambda spec: SubmitFlow(name="f", stages=[StageSpec("a", approval=spec)])),
    ],
    More: [("", lambda spec: c.Succeed(UNKNOWN_ID, more=spec))],
}
PARTS = [(kind, field) for kind, fields in SPECS.items() for field in fields]
FILLED: dict[type, dict[str, Any]] = {StageSpec: {"name": "a"}, TaskSpec: {"kind": "x"}, Approval: {}, More: {}}


@each_case(("kind", "field"), PARTS, ids=[f"{k.__name__}-{f}" for k, f in PARTS])
def test_a_part_of_a_flow_is_refused_by_the_name_of_its_field(kind: type, field: str) -> None:
    for value in SPECS[kind][field]:
        for where, carry in CARRIERS[kind]:
            command = carry(kind(**{**FILLED[kind], field: value}))
            with pytest.raises(InvalidInput) as refused:
                command.check(Limits())
            at = "approval" if field == "approval" else f"{where}.{field}".strip(".")
            assert refused.value.field.startswith(at), label(value)
            assert field in str(refused.value)


def test_bad_parts_of_a_flow_write_nothing(engine: Engine) -> None:
    in_state(engine, "running")
    before = written(engine)
    bad = [
        carry(kind(**{**FILLED[kind], field: value}))
        for kind, field in PARTS
        for value in SPECS[kind][field]
        for _, carry in CARRIERS[kind]
        if value is not MB2
    ]
    verdicts = engine.run([*bad[:3], c.Cancel(UNKNOWN_ID), *bad[3:]])
    assert isinstance(verdicts.pop(3).error, NotFound)
    assert [label(b) for b, v in zip(bad, verdicts, strict=True) if not isinstance(v.error, InvalidInput)] == []
    assert written(engine) == before


READS: dict[str, tuple[str, Callable[[Engine, str, dict[str, Any]], object]]] = {
    "flow": ("flow", lambda e, id_, f: e.flow(id_, **f)),
    "stages": ("flow", lambda e, id_, f: e.stages(id_, **f)),
    "progress": ("flow", lambda e, id_, f: e.progress(id_, **f)),
    "flow_events": ("flow", lambda e, id_, f: e.flow_events(id_, **f)),
    "contexts": ("flow", lambda e, id_, f: e.contexts(id_, **f)),
    "context": ("flow", lambda e, id_, f: e.context(id_, **f)),
    "stage": ("stage", lambda e, id_, f: e.stage(id_, **f)),
    "stage_tasks": ("stage", lambda e, id_, f: e.stage_tasks(id_, **f)),
    "stage_results": ("stage", lambda e, id_, f: e.stage_results(id_, **f)),
    "inputs": ("task", lambda e, id_, f: e.inputs(id_, **f)),
}
PAGED = ("flow_events", "contexts", "stage_tasks", "stage_results")


@each_case("read", READS)
def test_a_read_about_a_flow_refuses_by_the_name_of_the_field(engine: Engine, read: str) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], context=1)
    what, ask = READS[read]
    good = {"flow": flow.id, "stage": flow.stages[0], "task": flow.tasks[0]}[what]
    for id_ in ("abc", "", NUL, 5, None):
        with pytest.raises(InvalidInput) as refused:
            ask(engine, id_, {})  # type: ignore[arg-type]
        assert refused.value.field == what
    fields: dict[str, tuple[Any, ...]] = {"namespace": TEXT}
    if read in PAGED:
        fields |= {"limit": (-1, "5", 2**70, None, 10_001), "after": (-1, "5", 2**70, None)}
    for field, values in fields.items():
        for value in values:
            with pytest.raises(InvalidInput) as refused:
                ask(engine, good, {field: value})
            assert refused.value.field == field
    for id_, where in ((UNKNOWN_ID, {}), (good, {"namespace": "other"})):
        with pytest.raises(NotFound):
            ask(engine, id_, where)
    assert ask(engine, good.upper(), {}) == ask(engine, good, {})


def test_the_list_of_flows_refuses_by_the_name_of_the_field(engine: Engine) -> None:
    bad: dict[str, tuple[Any, ...]] = {"namespace": TEXT, "limit": (-1, None, 10_001), "before": (-1, "5", 2**70)}
    for field, values in bad.items():
        for value in values:
            with pytest.raises(InvalidInput) as refused:
                engine.flows(**{field: value})
            assert refused.value.field == field


@each_case("read", ["flow", "stage"])
def test_a_read_for_an_actor_that_there_is_not_is_refused(engine: Engine, read: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        READS[read][1](engine, UNKNOWN_ID, {"actor": "boss"})
    assert refused.value.field == "actor"
