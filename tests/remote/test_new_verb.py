"""A new verb is a class and a handler. All else follows from its declaration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from fastapi.testclient import TestClient

from onetray.domain.commands import Control
from onetray.domain.declare import command
from onetray.domain.errors import Forbidden, InvalidInput, NotFound, UnknownVerb
from onetray.domain.fields import Whole
from onetray.domain.task import Receipt
from onetray.domain.token import OPERATE, SUBMIT
from onetray.domain.verbs import VERBS
from onetray.engine import batch
from onetray.engine.batch_context import BatchContext
from onetray.engine.control_verbs import accept_control
from onetray.engine.pending_writes import PendingWrites
from onetray.http.app import build
from onetray.remote.engine import RemoteEngine
from onetray.store.rows import TaskRow
from tests.remote.conftest import at_work
from tests.support.engines import engine_on
from tests.support.tasks import UNKNOWN_ID, submit


@pytest.fixture
def nudge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A verb that the source does not know, declared and handled as those that it knows."""

    @command("nudge", scope=OPERATE, summary="Raise a task's priority a little", example={"by": 2})
    class Nudge(Control):
        """Raise the priority of a task that waits."""

        by: Annotated[int, Whole(1, 9)] = 1
        """How much."""

    def carry_out(ctx: BatchContext, work: list[tuple[int, Nudge, TaskRow]]) -> None:
        writes = PendingWrites(ctx)
        for i, asked_for, row in work:
            raised = row._replace(priority=row.priority + asked_for.by)
            writes.put("set_priority", key=row.key, priority=raised.priority)
            ctx.answer(i, accept_control(asked_for, ctx.update_row(raised)))
        writes.flush()

    monkeypatch.setitem(batch.HANDLERS, "nudge", carry_out)
    yield Nudge
    del VERBS["nudge"]


def test_a_new_verb_needs_a_class_and_a_handler_and_nothing_else(nudge: Any, database_url: str) -> None:
    with at_work(database_url) as (engine, server):
        id_ = submit(engine, priority=3, delay_s=60.0)
        operator = engine.tokens.create("operator", [OPERATE]).text
        with RemoteEngine(server.url, token=operator) as remote:
            answer = remote.call(nudge(task=id_, by=2))
            assert isinstance(answer, Receipt)
            assert (answer.id, answer.state, engine.task(id_).priority) == (id_, "queued", 5)
            remote.do("nudge", task=id_, cause="hurry")
            assert engine.task(id_).priority == 6
            with pytest.raises(InvalidInput) as refused:
                remote.do("nudge", task=id_, by=10)
            assert refused.value.field == "by"
            with pytest.raises(NotFound):
                remote.do("nudge", task=UNKNOWN_ID)
        submitter = engine.tokens.create("submitter", [SUBMIT]).text
        with RemoteEngine(server.url, token=submitter) as remote, pytest.raises(Forbidden):
            remote.do("nudge", task=id_)
        assert engine.task(id_).priority == 6


def test_it_is_sent_over_http_as_its_description_says(nudge: Any) -> None:
    with engine_on("sqlite://:memory:") as engine, TestClient(build(engine), base_url="http://127.0.0.1") as client:
        spec = client.get("/api/v1/openapi.json").json()
        described = spec["components"]["schemas"]["NudgeCommand"]
        assert described["description"] == "Raise the priority of a task that waits."
        assert described["properties"]["by"] == {
            "default": 1, "description": "How much.", "maximum": 9, "minimum": 1, "title": "By", "type": "integer",
        }  # fmt: skip
        assert {"verb", "task", "by", "reason"} <= described["properties"].keys()
        commands = spec["components"]["schemas"]["CommandsBody"]["properties"]["commands"]["items"]
        assert commands["discriminator"]["mapping"]["nudge"] == "#/components/schemas/NudgeCommand"
        id_ = submit(engine, delay_s=60.0)
        sent = [{"verb": "nudge", "task": id_, "by": 4}, {"verb": "nudge", "task": id_, "stray": 1}]
        done, refused = client.post("/api/v1/commands", json={"commands": sent}).json()["verdicts"]
        assert (done["value"]["id"], engine.task(id_).priority) == (id_, 4)
        assert (refused["error"]["code"], refused["error"]["field"]) == ("invalid_input", "stray")


def test_commands_of_a_request_are_under_its_trace_unless_they_have_one() -> None:
    theirs, own = (f"00-{digit * 32}-b7ad6b7169203331-01" for digit in "ab")
    with engine_on("sqlite://:memory:") as engine, TestClient(build(engine), base_url="http://127.0.0.1") as client:
        sent = {"commands": [{"verb": "submit", "kind": "k"}, {"verb": "submit", "kind": "k", "trace": own}]}
        answer = client.post("/api/v1/commands", json=sent, headers={"traceparent": theirs})
        assert [engine.task(v["value"]["id"]).trace for v in answer.json()["verdicts"]] == [theirs, own]


def test_what_is_not_declared_cannot_be_sent() -> None:
    with engine_on("sqlite://:memory:") as engine, TestClient(build(engine), base_url="http://127.0.0.1") as client:
        sent = {"commands": [{"verb": "nudge", "task": submit(engine)}]}
        (verdict,) = client.post("/api/v1/commands", json=sent).json()["verdicts"]
        assert verdict["error"]["code"] == UnknownVerb.code


def test_a_declaration_that_leaves_something_open_is_refused() -> None:
    with pytest.raises(TypeError, match="needs one rule"):

        @command("vague", scope=OPERATE, summary="x")
        class Vague(Control):
            how: str = ""

    with pytest.raises(TypeError, match="scope"):

        @command("unowned", scope="anybody", summary="x")
        class Unowned(Control):
            """x"""

    with pytest.raises(TypeError, match="twice"):

        @command("cancel", scope=OPERATE, summary="x")
        class Second(Control):
            """x"""

    assert not {"vague", "unowned"} & VERBS.keys()
