"""Flows that are submitted by name, from what a worker has declared of them."""

from collections.abc import Callable
from typing import Annotated, Any
from uuid import uuid4

import pytest
from pydantic import BaseModel, Field

from onetray import AlreadyOpen, Engine, InvalidInput, NotFound, Onetray
from onetray.app.flow_declaration import declaration_of_flow
from onetray.domain.declared_flow import FlowDeclaration, StageDeclaration
from onetray.domain.errors import KeyReused, Unavailable
from onetray.domain.flow_commands import SubmitDeclared
from onetray.engine.declared_flow_api import RENEW_S
from onetray.testing import Harness
from tests.support.tasks import written


class Size(BaseModel):
    width: int = 640
    height: int


class Config(BaseModel, extra="forbid"):
    names: list[str] = Field(default_factory=lambda: ["ann", "bob"], min_length=1)
    publish: bool = True
    size: Size | None = None
    sizes: list[Size] = []


def declare(app: Onetray, harness: Harness, **options: Any) -> None:
    """What a worker does when it starts."""
    harness.engine.declare(app.policies)
    for flow in app.flows.values():
        harness.engine.declare_flow(declaration_of_flow(flow), **options)


def test_a_flow_runs_alike_whether_it_is_submitted_by_its_code_or_by_its_name(app: Onetray, anywhere: Harness) -> None:
    undone: list[Any] = []
    flow = app.flow("cards", config=Config, roll_up="drain", deadline_s=600, redact=["sizes"], isolation="thread")
    flow.stage(
        name="greet",
        each=lambda config: config.names,
        compensate=lambda result, config: undone.append((result, config.size)),
    )(lambda item: f"hello {item}")
    flow.stage(name="maybe", each=lambda config: config.names * 2, when=lambda config, greet: config.publish)(
        lambda item, greet: len(greet)
    )
    flow.stage(name="never", each=lambda config: [])(lambda item: item)
    flow.stage(name="again", each="maybe")(lambda item: item + 1)
    flow.stage(name="constant", each=[1, 2])(lambda item: item * 10)
    flow.stage(name="agreed", approve="ann")(lambda config, approval: [approval["input"], config.size])
    flow.stage(name="last", on_failure="continue", retries=0)(lambda config: 1 // 0)
    declare(app, anywhere)
    config = {"size": {"height": 5}, "sizes": [{"height": 6, "width": 1}, {"height": 7}]}
    by_code = flow.submit(config)
    placed = anywhere.engine.submit_declared("cards", config, labels={"by": "name"}, actor_name="ann")
    by_name = app.job(placed.id)
    for job in (by_code, by_name):
        anywhere.drain()
        anywhere.approve(job, "agreed", input=1)
    anywhere.drain()
    assert undone == [(["hello ann", "hello bob"], Size(height=5))] * 2
    first, second = by_code.view(), by_name.view()
    assert first.data == second.data
    assert second.data["size"] == {"height": 5, "width": 640}
    assert (second.state, second.roll_up, second.labels) == (first.state, first.roll_up, {"by": "name"})
    assert second.deadline_at - second.created_at == 600_000_000
    stages = [anywhere.engine.stages(job.id) for job in (by_code, by_name)]
    assert [(s.name, s.state, s.result, s.counts.total) for s in stages[0]] == [
        (s.name, s.state, s.result, s.counts.total) for s in stages[1]
    ]
    assert [s.state for s in stages[1]] == [*["succeeded"] * 2, "skipped", *["succeeded"] * 3, "failed"]
    assert anywhere.engine.redacted.flow(placed.id).data["sizes"] == "***"
    again = anywhere.engine.retry_flow(placed.id, from_stage="maybe")
    anywhere.drain()
    assert [s.counts.total for s in anywhere.engine.stages(again.id)][1] == 4, "retried tasks are not created twice"


def test_a_condition_that_is_not_met_creates_no_tasks(app: Onetray, anywhere: Harness) -> None:
    flow = app.flow("cards", config=Config)
    flow.stage(name="a", each=lambda config: config.names, when=lambda config: config.publish)(lambda item: 1)
    declare(app, anywhere)
    job = anywhere.engine.submit_declared("cards", {"publish": False})
    broken = anywhere.engine.submit_declared("cards", {"names": ["x"]})
    anywhere.drain()
    assert [(s.state, s.counts.total) for s in anywhere.engine.stages(job.id)] == [("skipped", 0)]
    assert [(s.state, s.counts.total) for s in anywhere.engine.stages(broken.id)] == [("succeeded", 1)]


class Odd(BaseModel):
    id: str = Field(default_factory=lambda: str(uuid4()))
    token: str = "hunter22"
    note: str = ""


def test_a_config_that_does_not_fit_is_refused_and_says_where(app: Onetray, harness: Harness) -> None:
    app.flow("cards", config=Config).stage(name="a")(lambda: 1)
    app.flow("odd", config=Odd, redact=["config.token", "note"]).stage(name="a")(lambda: 1)
    declare(app, harness)
    engine, before = harness.engine, written(harness.engine)
    for name, config, why in (
        ("cards", {"names": []}, "config/names"),
        ("cards", {"names": ["a"], "size": {"height": "tall"}}, "config/size"),
        ("cards", {"nmaes": ["a"]}, "nmaes"),
        ("cards", [], "config"),
        ("odd", {"token": "t"}, "'id' is a required property"),
        ("odd", {"id": "a"}, "'token' is a required property"),
    ):
        with pytest.raises(InvalidInput, match=why) as refused:
            engine.submit_declared(name, config)
        assert refused.value.field == "config"
    with pytest.raises(NotFound, match="no worker has declared a flow 'crads'"):
        engine.submit_declared("crads")
    assert written(engine) == before
    assert "hunter22" not in str(engine.declared_flow("odd"))
    bad, good = engine.run([SubmitDeclared(name="cards", config={"names": 1}), SubmitDeclared(name="cards")])
    assert isinstance(bad.error, InvalidInput)
    assert engine.flow(good.value.id).data == {"names": ["ann", "bob"], "publish": True, "size": None, "sizes": []}


def test_a_repeated_submit_is_the_same_job_though_the_flow_was_declared_anew(app: Onetray, anywhere: Harness) -> None:
    flow = app.flow("cards", config=Config, singleton=True)
    flow.stage(name="a")(lambda: 1)
    declare(app, anywhere)
    engine = anywhere.engine
    first = engine.submit_declared("cards", {"publish": False}, idempotency_key="k")
    flow.stage(name="b")(lambda: 1)
    declare(app, anywhere)
    again = engine.submit_declared("cards", {"publish": False, "names": ["ann", "bob"]}, idempotency_key="k")
    assert (again.id, again.repeated) == (first.id, True)
    with pytest.raises(KeyReused):
        engine.submit_declared("cards", idempotency_key="k")
    with pytest.raises(AlreadyOpen) as refused:
        engine.submit_declared("cards")
    assert refused.value.job == first.id


def test_fields_keep_the_order_in_which_they_are_declared(app: Onetray, anywhere: Harness) -> None:
    def ordered(*names: str) -> FlowDeclaration:
        schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
        return FlowDeclaration(name="cards", stages=[StageDeclaration(name="a", kind="k")], config_schema=schema)

    engine = anywhere.engine
    engine.declare_flow(ordered("width", "format", "alpha"), worker="w1")
    first = engine.declared_flow("cards")
    assert first.config_schema is not None
    assert [*first.config_schema["properties"]] == ["width", "format", "alpha"]
    engine.declare_flow(ordered("format", "alpha", "width"), worker="w2")
    again = engine.declared_flow("cards")
    assert again.config_schema is not None
    assert [*again.config_schema["properties"]] == ["format", "alpha", "width"]
    assert (again.version, again.other_version) == (first.version, None)


def test_the_last_declaration_wins_and_the_other_version_stays_visible(app: Onetray, anywhere: Harness) -> None:
    def version(kind: str) -> FlowDeclaration:
        return FlowDeclaration(name="cards", stages=[StageDeclaration(name="a", kind=kind)])

    engine = anywhere.engine
    engine.declare_flow(version("old"), worker="w1")
    old = engine.declared_flow("cards")
    before = written(engine), engine.declared_flows()
    engine.declare_flow(version("old"), worker="w2")
    engine.declare_flow(version("old"), worker="w2", renew=True)
    assert (written(engine), engine.declared_flows()) == before, "a declaration that is known writes nothing"
    anywhere.advance(RENEW_S + 1)
    engine.declare_flow(version("new"), worker="w3")
    new = engine.declared_flow("cards")
    assert (new.stages[0].kind, new.declared_by, new.other_version) == ("new", "w3", old.version)
    assert new.other_seen_at == old.seen_at
    engine.declare_flow(version("old"), worker="w1", renew=True)
    engine.declare_flow(version("new"), worker="w3", renew=True)
    anywhere.advance(1)
    engine.declare_flow(version("old"), worker="w1", renew=True)
    beside = engine.declared_flow("cards")
    assert (beside.version, beside.seen_at, beside.other_version) == (new.version, new.seen_at, old.version)
    assert beside.other_seen_at == new.declared_at
    anywhere.advance(RENEW_S)
    engine.declare_flow(version("new"), worker="w4", renew=True)
    assert engine.declared_flow("cards").seen_at > new.seen_at
    assert [f.name for f in engine.declared_flows()] == ["cards"]
    assert engine.declared_flows(namespace="elsewhere") == []
    engine.forget_flow("cards")
    with pytest.raises(NotFound, match="no worker has declared"):
        engine.forget_flow("cards")
    engine.declare_flow(version("new"), worker="w3", renew=True)
    assert engine.declared_flow("cards").version == new.version


def test_a_worker_declares_its_flows_and_declares_again_what_was_forgotten(
    app: Onetray, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    app.use(engine)
    app.flow("cards", config=Config).stage(name="a")(lambda: 1)
    app.flow("free", config=Callable[[], int]).stage(name="a")(lambda: 1)
    app.flow("odd", config=Annotated[str, Field(pattern=r"^\p{L}$")]).stage(name="a")(lambda: 1)
    app.flow("empty")
    with app.worker(janitor=False) as worker:
        assert [(f.name, f.declared_by) for f in engine.declared_flows()] == [
            ("cards", worker.name), ("free", worker.name)
        ]  # fmt: skip
        assert "the flow odd cannot be submitted by name: config_schema is not a JSON Schema" in caplog.text
        assert engine.declared_flow("free").config_schema is None
        engine.forget_flow("cards")
        worker._renew_flows_at = 0
        worker._register()
        assert len(engine.declared_flows()) == 2


@pytest.mark.parametrize("call", ["declare", "declare_flow"])
def test_a_worker_that_starts_while_the_database_goes_away_goes_on_when_it_is_back(
    app: Onetray, engine: Engine, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    app.use(engine)
    app.flow("cards").stage(name="a")(lambda: 1)
    real, tries = getattr(engine, call), []

    def away_at_first(*args: Any, **options: Any) -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise Unavailable("the database does not answer")
        return real(*args, **options)

    monkeypatch.setattr(engine, call, away_at_first)
    with app.worker(janitor=False):
        assert [flow.name for flow in engine.declared_flows()] == ["cards"]
    assert len(tries) == 3
