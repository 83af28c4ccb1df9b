"""Jobs as MCP tasks: a client that declares the extension gets a task and comes back for the result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import mcp_types as types
import pytest
from mcp import MCPError
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim

from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.token import READ, SUBMIT
from onetray.engine import Engine
from tests.http.callers import token
from tests.mcp.agents import Agent, agent, agent_at, process
from tests.mcp.conftest import Place, at
from tests.support.engines import engine_on

TASKS = "io.modelcontextprotocol/tasks"
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class TaskHandle(types.Result):
    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    poll_interval_ms: int


class TaskParams(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(types.Request[TaskParams, str]):
    params: TaskParams


class TaskState(types.Result):
    task_id: str = ""
    status: str = ""
    status_message: str | None = None
    result: dict[str, Any] | None = None
    input_requests: dict[str, Any] | None = None


class Tasks(ClientExtension):
    """Declares the extension, and keeps the handle that a call was answered with."""

    identifier = TASKS

    def __init__(self) -> None:
        self.handle: TaskHandle | None = None

    def claims(self) -> list[ResultClaim[TaskHandle]]:
        async def keep(handle: TaskHandle, _: ClaimContext) -> types.CallToolResult:
            self.handle = handle
            return types.CallToolResult(content=[], structured_content={"id": handle.task_id, "state": "queued"})

        return [ResultClaim(result_type="task", model=TaskHandle, resolve=keep)]


class Caller:
    """An agent with tasks."""

    def __init__(self, connected: Agent, tasks: Tasks) -> None:
        self.agent, self._tasks = connected, tasks

    def begin(self, queue: str, **arguments: Any) -> TaskHandle:
        self._tasks.handle = None
        self.agent.result("run_job", kind="slow", queue=queue, **arguments)
        assert self._tasks.handle is not None
        return self._tasks.handle

    def send(self, method: str, task: str, **params: Any) -> TaskState:
        request = TaskRequest(method=f"tasks/{method}", params=TaskParams(task_id=task, **params))
        session = self.agent.client.session
        return self.agent.portal.call(lambda: session.send_request(request, TaskState))  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["http", "stdio"])
def caller(request: pytest.FixtureRequest, place: Place) -> Iterator[Caller]:
    tasks = Tasks()
    if request.param == "http":
        with agent_at(place.url, extensions=[tasks]) as connected:
            yield Caller(connected, tasks)
        return
    with agent(process("--database", place.database), extensions=[tasks]) as connected:
        yield Caller(connected, tasks)


def test_a_call_becomes_a_task_whose_result_is_fetched_later(caller: Caller, web: Agent, queue: str) -> None:
    handle = caller.begin(queue, payload=[1])
    assert (handle.status, handle.ttl_ms) == ("working", None)
    assert caller.send("get", handle.task_id).status == "working"
    held = web.claim(queue)
    assert held["id"] == handle.task_id
    web.call("report_progress", **held, done=1, total=2, message="half")
    assert caller.send("get", handle.task_id).status_message == "1 of 2: half"
    web.call("finish_work", **held, outcome="succeeded", result={"sum": 3})
    found = caller.send("get", handle.task_id)
    assert found.status == "completed"
    assert found.result is not None
    assert found.result["isError"] is False
    assert found.result["structuredContent"]["untrusted"] == {"result": {"sum": 3}}


def test_a_job_that_fails_is_a_completed_task_with_an_error(caller: Caller, web: Agent, queue: str) -> None:
    task = caller.begin(queue).task_id
    web.call("finish_work", **web.claim(queue), outcome="failed", error="no luck", retry=False)
    found = caller.send("get", task)
    assert found.status == "completed"
    assert found.result is not None
    assert found.result["isError"] is True
    assert found.result["structuredContent"]["error"] == {"untrusted": "no luck"}


def test_a_task_is_cancelled(caller: Caller, queue: str) -> None:
    task = caller.begin(queue).task_id
    caller.send("cancel", task)
    assert caller.send("get", task).status == "cancelled"
    caller.send("cancel", task)
    assert caller.send("get", task).result is None


def test_a_task_that_asks_is_answered(caller: Caller, web: Agent, queue: str) -> None:
    task = caller.begin(queue).task_id
    web.call("ask_human", **web.claim(queue), question="Your name?", form=FORM)
    found = caller.send("get", task)
    assert found.status == "input_required"
    assert found.input_requests is not None
    asked = found.input_requests["answer"]
    assert asked["method"] == "elicitation/create"
    assert asked["params"] == {"mode": "form", "message": "Your name?", "requestedSchema": FORM}
    caller.send("update", task, input_responses={"unknown": {"action": "accept"}})
    assert caller.send("get", task).status == "input_required"
    with pytest.raises(MCPError, match="'name' is a required property"):
        caller.send("update", task, input_responses={"answer": {"action": "accept", "content": {}}})
    with pytest.raises(MCPError, match="stays open"):
        caller.send("update", task, input_responses={"answer": {"action": "decline"}})
    caller.send("update", task, input_responses={"answer": {"action": "accept", "content": {"name": "ann"}}})
    (claimed,) = web.call("claim_work", worker="ann", queue=queue)["tasks"]
    assert claimed["untrusted"]["answer"] == {"name": "ann"}


def test_a_question_without_a_form_takes_any_text(caller: Caller, web: Agent, queue: str) -> None:
    task = caller.begin(queue).task_id
    web.call("ask_human", **web.claim(queue), question="Why?")
    found = caller.send("get", task)
    assert found.input_requests is not None
    schema = found.input_requests["answer"]["params"]["requestedSchema"]
    assert schema["properties"] == {"answer": {"type": "string"}}
    caller.send("update", task, input_responses={"answer": {"action": "accept", "content": {"answer": "because"}}})
    (claimed,) = web.call("claim_work", worker="ann", queue=queue)["tasks"]
    assert claimed["untrusted"]["answer"] == "because"


def test_a_flow_is_a_task_too(caller: Caller, place: Place, web: Agent, queue: str) -> None:
    flow = place.engine.submit_flow("paper", [StageSpec("one", [TaskSpec("review", queue=queue)])])
    assert caller.send("get", flow.id).status == "working"
    web.call("finish_work", **web.claim(queue), outcome="succeeded", result=7)
    found = caller.send("get", flow.id)
    assert found.result is not None
    assert "one" in found.result["structuredContent"]["untrusted"]["results"]


def test_an_unknown_task_is_an_error(caller: Caller) -> None:
    for method in ("get", "update", "cancel"):
        for id_ in ("00000000-0000-7000-8000-000000000000", "seven"):
            with pytest.raises(MCPError) as refused:
                caller.send(method, id_)
            assert refused.value.error.code == -32602


def test_tasks_are_for_clients_that_declare_them(web: Agent, queue: str) -> None:
    told = web.call("run_job", kind="slow", queue=queue, wait_s=0)
    with pytest.raises(MCPError, match="declare the extension") as refused:
        Caller(web, Tasks()).send("get", told["id"])
    assert refused.value.error.code == -32021


def test_tasks_need_the_scopes_of_what_they_do(queue: str) -> None:
    with engine_on("sqlite://:memory:") as engine, at(engine) as server:
        need_their_scopes(engine, server.url, queue)


def need_their_scopes(engine: Engine, url: str, queue: str) -> None:
    headers = token(engine, SUBMIT, READ, namespace="of-tasks")
    tasks = Tasks()
    with agent_at(url, headers=headers, extensions=[tasks]) as connected:
        caller = Caller(connected, tasks)
        task = caller.begin(queue).task_id
        assert caller.send("get", task).status == "working"
        for method in ("cancel", "update"):
            with pytest.raises(MCPError, match="needs the scope operate"):
                caller.send(method, task)
    others = token(engine, namespace="others")
    tasks = Tasks()
    with agent_at(url, headers=others, extensions=[tasks]) as connected:
        for method in ("get", "cancel", "update"):
            with pytest.raises(MCPError, match="there is no job"):
                Caller(connected, tasks).send(method, task)
