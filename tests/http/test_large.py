"""Large answers: what was stored goes out as it is, and nobody else waits while it is written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.domain.task import RawJson
from onetray.engine import Engine
from onetray.http import json_answers
from tests.http.callers import served
from tests.http.walking import ways
from tests.support.tasks import take

STORED = '{"price": 1.50,  "big": 12345678901234567890}'
"""What nobody writes so who has read it."""
RAW = RawJson(STORED.encode())


def a_flow(engine: Engine) -> tuple[str, str]:
    """A flow whose one task has succeeded, and that task."""
    flow = engine.submit_flow("shop", [StageSpec("pay", [TaskSpec("pay", RAW)], data=RAW, collect="one")], data=RAW).id
    job = take(engine, kinds=("pay",))
    engine.log(job, ("info", "paid", {"n": 1}))
    engine.succeed(job, RAW)
    return flow, job.id


def test_stored_json_goes_out_to_the_letter(engine: Engine) -> None:
    flow, task = a_flow(engine)
    with served(engine) as client:
        (stage,) = engine.stages(flow)
        for path, times in (
            (f"jobs/{flow}", 1), (f"jobs/{flow}/result", 1), (f"jobs/{task}", 2), (f"tasks/{task}", 2),
            (f"jobs/{task}/result", 1), (f"stages/{stage.id}", 2), (f"stages/{stage.id}/results", 1),
        ):  # fmt: skip
            answer = client.get(f"/api/v1/{path}")
            assert answer.status_code == 200, answer.text
            assert answer.text.count(STORED) == times, (path, answer.text)
        assert client.get(f"/api/v1/jobs/{task}").json()["payload"] == {"price": 1.5, "big": int(STORED[-21:-1])}


def test_a_stream_tells_a_result_in_one_line_however_it_was_sent(engine: Engine) -> None:
    ids = [str(engine.submit("pay").id) for _ in range(2)]
    for job in engine.claim(worker="w", limit=2):
        engine.succeed(job, RAW if job.id == ids[0] else RawJson(b'{"a":\r\n1.50,\r"b":\n\n2}'))
    with served(engine) as client:
        first, second = (client.get(f"/api/v1/jobs/{id_}/stream").text for id_ in ids)
    assert STORED in first
    assert '"result":{"a":1.5,"b":2}' in second


def test_what_is_redacted_is_not_passed_on(engine: Engine) -> None:
    engine.configure("pay", Policy(redact=("price",)))
    flow, task = a_flow(engine)
    with served(engine) as client:
        assert client.get(f"/api/v1/jobs/{task}").json()["payload"]["price"] == "***"
        assert client.get(f"/api/v1/jobs/{flow}/result").json()["result"]["pay"]["price"] == "***"


def test_a_job_that_failed_says_why_when_its_result_is_asked_for(engine: Engine) -> None:
    id_ = str(engine.submit("pay", policy=Policy(max_attempts=1)).id)
    engine.fail(take(engine, kinds=("pay",)), "refused", error_class="Refused")
    with served(engine) as client:
        answer = client.get(f"/api/v1/jobs/{id_}/result")
    assert (answer.status_code, answer.json()["error"]["message"]) == (409, "refused")


def test_whatever_may_be_large_is_written_off_the_loop(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A route that is added later is asked, too."""
    flow, task = a_flow(engine)
    on_loop: list[bool] = []
    write = json_answers.Json.render

    def render(self: json_answers.Json, content: Any) -> bytes:
        on_loop.append(asyncio._get_running_loop() is not None)
        return write(self, content)

    monkeypatch.setattr(json_answers.Json, "render", render)
    with served(engine) as client:
        lists = {"/api/v1/jobs", "/api/v1/feed", "/api/v1/dead-letters", "/api/v1/dead-letters/groups"}
        for way in ways(client.app):  # type: ignore[arg-type]
            own = way.path.startswith("/api/v1/") and ("{id}" in way.path or way.path in lists)
            if way.method != "GET" or way.endless or not own or way.path.endswith("/actions"):
                continue
            for id_ in (flow, task, engine.stages(flow)[0].id):
                on_loop.clear()
                if client.get(way.at(id_)).status_code == 200:
                    assert on_loop == [False], str(way)
