"""What is written down of a request, and that nobody can write anything else into it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient
from starlette.background import BackgroundTask
from starlette.responses import Response

from onetray.engine import Engine
from onetray.http import app as app_module
from onetray.http.app import build
from onetray.http.auth.scopes import Reader
from onetray.log_format import JsonHandler, JsonLines, TextLines, log_facts

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FORGED = 'x\n{"level": "error"}\r2026-01-01 ERROR forged \x1b[31m \u2028 \x00'


@pytest.fixture
def database_url() -> str:
    """One is enough here: nothing of this depends on the database."""
    return "sqlite://:memory:"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """The lines of requests as a reader of JSON gets them."""
    caplog.set_level(logging.DEBUG, "onetray.http")

    def found() -> list[dict[str, Any]]:
        told = [JsonLines().format(r) for r in caplog.records if r.name == "onetray.http"]
        assert not any("\n" in line for line in told)
        return [json.loads(line) for line in told]

    return found


def test_a_request_is_one_line_with_its_route_and_without_its_query(api: TestClient, lines: Any) -> None:
    answer = api.get("/api/v1/jobs/nonsense?password=hunter2", headers={"traceparent": TRACE, "x-request-id": "mine-1"})
    (line,) = lines()
    assert line["request_id"] == answer.headers["x-request-id"] != "mine-1"
    assert (line["method"], line["route"], line["status"]) == ("GET", "/api/v1/jobs/{id}", 400)
    assert (line["principal"], line["correlation_id"]) == ("local", "mine-1")
    assert line["trace_id"] == TRACE.split("-")[1]
    assert line["ms"] >= 0
    assert "hunter2" not in json.dumps(line)
    assert "nonsense" not in json.dumps(line)


def test_every_answer_has_an_id_of_its_own(api: TestClient) -> None:
    paths = ("/healthz", "/nowhere", "/api/v1/jobs/nonsense", "/metrics")
    assert len({api.get(path).headers["x-request-id"] for path in paths}) == len(paths)


@pytest.mark.parametrize("claimed", ["a b", "x" * 129, "é", '"', "", "a\tb"])
def test_an_id_that_is_not_sane_is_not_kept(api: TestClient, lines: Any, claimed: str) -> None:
    api.get("/nowhere", headers={"x-request-id": claimed.encode(), "traceparent": "00-nonsense"})
    (line,) = lines()
    assert "correlation_id" not in line
    assert "trace_id" not in line


def test_what_machines_ask_all_the_time_is_written_only_for_those_who_look_for_it(api: TestClient, lines: Any) -> None:
    api.get("/healthz")
    assert [line["level"] for line in lines()] == ["debug"]


def test_a_route_that_breaks_is_written_down_with_its_answer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, lines: Any
) -> None:
    router = APIRouter(dependencies=[Reader])

    @router.get("/breaks")
    async def breaks() -> None:
        raise RuntimeError(FORGED)

    monkeypatch.setattr(app_module, "ROUTERS", (router,))
    with TestClient(build(engine), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        answer = client.get("/breaks")
    cause, line = lines()
    assert (answer.status_code, line["status"], line["level"]) == (500, 500, "error")
    assert answer.headers["x-request-id"] == line["request_id"]
    assert answer.json()["reference"] in cause["message"]
    assert "RuntimeError" in cause["error"]


def test_what_breaks_after_the_answer_is_written_down_too(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, lines: Any
) -> None:
    router = APIRouter(dependencies=[Reader])

    def later() -> None:
        raise RuntimeError("too late")

    @router.get("/breaks")
    async def breaks() -> Response:
        return Response(background=BackgroundTask(later))

    monkeypatch.setattr(app_module, "ROUTERS", (router,))
    with TestClient(build(engine), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        assert client.get("/breaks").status_code == 200
    assert "too late" in lines()[0]["error"]


def test_a_request_that_a_stop_cuts_off_is_told_that_its_outcome_is_not_known(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, lines: Any
) -> None:
    router = APIRouter(dependencies=[Reader])

    @router.get("/slow")
    async def slow() -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(app_module, "ROUTERS", (router,))
    with TestClient(build(engine), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        answer = client.get("/slow")
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert lines()[-1]["request_id"] == answer.headers["x-request-id"]


def _record(message: str, error: Exception | None = None) -> logging.LogRecord:
    info = None
    if error is not None:
        try:
            raise error
        except Exception:
            info = sys.exc_info()
    record = logging.LogRecord("x", logging.INFO, "", 1, "%s", (message,), info)
    record.facts = {"route": message}
    return record


def test_json_lines_cannot_be_broken() -> None:
    line = JsonLines().format(_record(FORGED, ValueError(FORGED)))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["message"] == json.loads(line)["route"] == FORGED


def test_lines_of_text_cannot_be_broken_and_tracebacks_are_set_in() -> None:
    first, *rest = TextLines().format(_record(FORGED, ValueError(FORGED))).split("\n")
    assert first.isprintable()
    assert r"x\n{" in first
    assert rest
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


@pytest.fixture
def shop_log() -> Any:
    """A logger of its own, whose lines go to a text: the logger and the text."""
    stream = io.StringIO()
    logger = logging.Logger("shop", logging.INFO)
    logger.addHandler(JsonHandler(stream))
    return logger, stream


@pytest.mark.parametrize("name", ["ann", "Zoë \u2028", FORGED], ids=["plain", "not ASCII", "forged"])
def test_a_line_of_facts_is_the_same_with_and_without_a_record(shop_log: Any, name: str) -> None:
    logger, stream = shop_log
    facts = {"principal": name, "ms": 1.25, "status": 200}
    log_facts(logger, logging.INFO, f"hello {name}", facts)
    logger.addFilter(lambda record: True)
    log_facts(logger, logging.INFO, f"hello {name}", facts)
    assert stream.getvalue().isascii()
    short, long = (json.loads(line) for line in stream.getvalue().splitlines())
    assert len(short.pop("time")) == len(long.pop("time"))
    assert list(short) == list(long) == ["level", "logger", "message", "principal", "ms", "status"]
    assert short == long


def test_facts_that_are_not_wanted_are_not_written(shop_log: Any) -> None:
    logger, stream = shop_log
    log_facts(logger, logging.DEBUG, "hello", {})
    logger.handlers[0].setLevel(logging.ERROR)
    log_facts(logger, logging.INFO, "hello", {})
    assert not stream.getvalue()


def test_whoever_else_listens_gets_a_record(shop_log: Any) -> None:
    logger, stream = shop_log
    seen: list[logging.LogRecord] = []
    listener = logging.Handler()
    listener.emit = seen.append  # type: ignore[method-assign]
    logger.addHandler(listener)
    log_facts(logger, logging.INFO, "hello", {"status": 200})
    assert json.loads(stream.getvalue())["status"] == 200
    assert [(record.getMessage(), record.facts) for record in seen] == [("hello", {"status": 200})]  # type: ignore[attr-defined]


def test_a_program_that_makes_its_own_records_gets_them(shop_log: Any) -> None:
    logger, _ = shop_log
    made: list[logging.LogRecord] = []

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        made.append(logging.LogRecord(*args, **kwargs))
        return made[-1]

    logging.setLogRecordFactory(factory)
    try:
        log_facts(logger, logging.INFO, "hello", {})
    finally:
        logging.setLogRecordFactory(logging.LogRecord)
    assert len(made) == 1


def test_a_closed_stream_fails_no_request(shop_log: Any, capsys: pytest.CaptureFixture[str]) -> None:
    logger, stream = shop_log
    stream.close()
    log_facts(logger, logging.INFO, "hello", {})
    assert "--- Logging error ---" in capsys.readouterr().err
