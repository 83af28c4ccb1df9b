"""A trace goes with the work: from the request to the event, to the worker, to what the worker submits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import APIRouter, Request
from fastapi.testclient import TestClient
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from onetray import Onetray, ctx
from onetray import otel as ours
from onetray.domain.commands import Submit
from onetray.engine import Engine
from onetray.http import app as app_module
from onetray.http.app import build
from onetray.http.auth.scopes import Principal, Submitter
from onetray.http.json_answers import Json, to_json
from onetray.http.services import services_of

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
router = APIRouter()


@router.post("/submit/{kind}")
async def submit(request: Request, kind: str, many: int = 0, principal: Principal = Submitter) -> Json:
    services = services_of(request)
    if many:
        return Json([to_json(v.unwrap()) for v in await services.run([Submit(kind=kind) for _ in range(many)])])
    return Json(to_json(await services.call(Submit(kind=kind, payload={}))))


@pytest.fixture
def small(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(app_module, "ROUTERS", (router,))
    with TestClient(build(engine), base_url="http://127.0.0.1:8321") as client:
        yield client


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """OpenTelemetry as a program has set it up, for this test alone."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(ours, "_disabled_until", 0.0)
    return exporter


def test_the_trace_of_a_request_is_in_the_event_and_with_the_worker(small: TestClient, engine: Engine) -> None:
    headers = {"traceparent": PARENT, "x-request-id": "order-7"}
    id_ = small.post("/submit/mail", headers=headers).json()["id"]
    (event,) = engine.events(id_)
    assert (event.trace, event.correlation_id) == (PARENT, "order-7")
    (job,) = engine.claim(worker="w")
    assert (job.trace, job.correlation_id) == (PARENT, "order-7")
    engine.succeed(job)
    assert {e.trace for e in engine.events(id_)} == {PARENT}


def test_all_commands_of_a_request_get_it(small: TestClient, engine: Engine) -> None:
    made = small.post("/submit/mail?many=3", headers={"traceparent": PARENT}).json()
    assert {engine.task(receipt["id"]).trace for receipt in made} == {PARENT}


@pytest.mark.parametrize(
    "bad", ["", "nonsense", PARENT.upper(), f"ff{PARENT[2:]}", f"00-{'0' * 32}-b7ad6b7169203331-01"]
)
def test_what_is_no_trace_is_as_if_it_were_not_there(small: TestClient, engine: Engine, bad: str) -> None:
    answer = small.post("/submit/mail", headers={"traceparent": bad})
    assert answer.status_code == 200
    assert engine.task(answer.json()["id"]).trace is None


def test_spans_lead_from_the_request_to_the_handler_and_to_its_child(
    small: TestClient, engine: Engine, spans: InMemorySpanExporter
) -> None:
    app = Onetray()
    app.use(engine)

    @app.task
    def child() -> str:
        return str(ctx.trace)

    @app.task
    async def parent() -> str:
        return child.submit().id

    @app.task(retries=0)
    def broken() -> None:
        raise ValueError("private words")

    with app.worker(concurrency=1, janitor=False):
        job = app.job(small.post("/submit/parent", headers={"traceparent": PARENT}).json()["id"])
        inner = app.job(job.result(60))
        said = inner.result(60)
        app.job(broken.submit().id).wait(60)
    assert len(spans.get_finished_spans()) == 5
    found = {span.name: span for span in spans.get_finished_spans()}
    request, submitted, ran, child_ran = (
        found[name] for name in ("POST /submit/{kind}", "submit", "run parent", "run child")
    )
    assert [span.context.trace_id for span in (request, submitted, ran, child_ran)] == [int(TRACE_ID, 16)] * 4
    assert [_above(span) for span in (request, submitted, ran, child_ran)] == [
        int(PARENT.split("-")[2], 16), *(span.context.span_id for span in (request, submitted, ran))
    ]  # fmt: skip
    assert said == f"00-{TRACE_ID}-{ran.context.span_id:016x}-01"
    assert {e.type: e.trace for e in job.events()}["task.succeeded"] == said
    assert (request.attributes or {})["http.response.status_code"] == 200
    assert found["run broken"].status.description == "ValueError"
    assert "private words" not in str([span.to_json() for span in found.values()])


def _above(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def test_without_a_program_that_wants_them_there_are_no_spans() -> None:
    assert ours.tracer() is None
    assert ours.begin("x", "SERVER") is None
    assert ours.here() is None
