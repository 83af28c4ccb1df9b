"""`onetray flows`: what workers have declared, submitted by name."""

from __future__ import annotations

from onetray.domain.declared_flow import FlowDeclaration, StageDeclaration
from onetray.domain.flow import TaskSpec
from tests.cli.conftest import Place
from tests.cli.run import called, one_line, told

SCHEMA = {"type": "object", "properties": {"width": {"type": "integer", "default": 640}}}


def test_declared_flows_are_listed_shown_submitted_and_forgotten(place: Place) -> None:
    stages = [
        StageDeclaration(name="fetch", kind="thumbs.fetch", fan_out="list", payloads=[1, 2]),
        StageDeclaration(name="resize", kind="thumbs.resize", fan_out="stage", source="fetch"),
        StageDeclaration(name="store", kind="thumbs.store", when=TaskSpec("thumbs.store.when")),
    ]
    flow = FlowDeclaration(name="thumbs", stages=stages, singleton=True, deadline_s=7200, config_schema=SCHEMA)
    place.engine.declare_flow(flow, worker="w1")
    assert called("flows", "list", *place.at).stdout.splitlines()[1].split()[:2] == ["thumbs", "3"]
    (line,) = told("flows", "list", *place.at)["flows"]
    shown = called("flows", "show", "thumbs", *place.at).stdout
    for word in (line["version"], "by w1", "2 h", "by fetch", "thumbs.store.when", '"default": 640'):
        assert word in shown
    assert told("flows", "show", "thumbs", *place.at)["config_schema"] == SCHEMA
    done = called("flows", "submit", "thumbs", "--config", '{"width": "x"}', *place.at)
    assert (done.exit_code, one_line(done.stderr)) == (2, True)
    assert "config/width" in done.stderr
    options = ("--label", "tenant=a", "--idempotency-key", "k", "--deadline", "90s", "--priority", "3")
    job = told("flows", "submit", "thumbs", *options, *place.at, LOGNAME="ann")
    made = place.engine.flow(job["id"])
    assert (made.data, made.labels, made.priority) == ({"width": 640}, {"tenant": "a"}, 3)
    assert made.deadline_at == made.created_at + 90_000_000
    assert place.engine.flow_events(job["id"])[0].actor == "user:ann"
    assert "(already submitted)" in called("flows", "submit", "thumbs", *options, *place.at).stdout
    done = called("flows", "submit", "thumbs", *place.at)
    assert (done.exit_code, one_line(done.stderr)) == (5, True)
    assert job["id"] in done.stderr
    assert called("flows", "forget", "thumbs", *place.at).stdout == "flow thumbs is forgotten\n"
    for words in (("show", "thumbs"), ("submit", "thumbs"), ("forget", "thumbs")):
        done = called("flows", *words, *place.at)
        assert (done.exit_code, one_line(done.stderr)) == (4, True)
        assert "start a worker of its app" in done.stderr
