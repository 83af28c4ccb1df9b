"""What a person answers to a job: approve, reject, answer; and what becomes of it: retry, progress, children."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onetray import AsyncJob, Conflict, IllegalTransition, InvalidInput, Job, NotFound, Onetray, PermanentError, ctx
from onetray.testing import Harness

Act = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def act(request: pytest.FixtureRequest) -> Act:
    """Call a method of a job by its name, of the Job or of the AsyncJob."""

    def call(job: Job[Any], name: str, *args: Any, **kwargs: Any) -> Any:
        if request.param == "sync":
            return getattr(job, name)(*args, **kwargs)

        async def main() -> Any:
            method: Callable[..., Awaitable[Any]] = getattr(await job.app.aio.job(job.id), name)
            return await method(*args, **kwargs)

        answer = asyncio.run(main())
        return answer.job if isinstance(answer, AsyncJob) else answer

    return call


@pytest.fixture
def pay(app: Onetray):
    flow = app.flow("pay")
    flow.stage(name="check")(lambda: "checked")
    flow.stage(name="send", approve="ann")(lambda approval: [approval["by"], approval["input"], approval["note"]])
    flow.stage(name="file", approve="bob")(lambda: None)
    return flow


@pytest.fixture
def ask(app: Onetray):
    @app.task
    def ask(question: str = "size?") -> str:
        return f"{question} {ctx.wait_for_input('ann', question)}"

    return ask


def test_a_waiting_stage_is_approved(act: Act, pay, anywhere: Harness) -> None:
    job = pay.submit()
    anywhere.drain()
    assert job.state == "waiting"
    assert act(job, "approve", input={"limit": 5}, note="go", by="ann") == "pending"
    anywhere.drain()
    assert act(job, "approve", by="bob") == "pending"
    anywhere.drain()
    assert job.result(0)["send"] == ["user:ann", {"limit": 5}, "go"]


def test_a_waiting_stage_is_rejected_by_name(act: Act, pay, anywhere: Harness) -> None:
    job = pay.submit()
    anywhere.drain()
    assert act(job, "reject", "send", note="not this week", by="ann") == "failed"
    assert (job.state, job.errors()[0].message) == ("failed", "rejected by user:ann: not this week")


def test_only_a_stage_that_waits_can_be_approved(act: Act, pay, ask, anywhere: Harness) -> None:
    job = pay.submit()
    with pytest.raises(Conflict, match=f"no stage of flow {job.id} waits for approval: the flow is pending"):
        act(job, "approve")
    with pytest.raises(NotFound, match=f"flow {job.id} has no stage 'sned'; it has: check, send, file"):
        act(job, "approve", "sned")
    with pytest.raises(IllegalTransition):
        act(job, "reject", "check")
    with pytest.raises(InvalidInput, match=r"a task has no stages to approve or reject: .* answer\(\)"):
        act(ask.submit(), "approve")


def test_a_waiting_task_is_answered(act: Act, ask, anywhere: Harness) -> None:
    job = ask.submit()
    with pytest.raises(IllegalTransition):
        act(job, "answer", "M")
    anywhere.drain()
    assert (job.state, act(job, "answer", "M", by="ann")) == ("waiting_input", "queued")
    anywhere.drain()
    assert (job.result(0), [e.actor for e in job.events() if e.type == "task.resumed"]) == ("size? M", ["user:ann"])


def test_nothing_is_no_answer(act: Act, ask, anywhere: Harness) -> None:
    job = ask.submit()
    anywhere.drain()
    with pytest.raises(InvalidInput, match="None is no answer, and the task would wait again"):
        act(job, "answer", None)
    assert (act(job, "answer", False), job.state) == ("queued", "queued")


def test_the_one_task_of_a_flow_that_waits_is_answered(app: Onetray, act: Act, anywhere: Harness) -> None:
    flow = app.flow("order")
    flow.stage(name="size", each=["a", "b"])(lambda item: [item, ctx.wait_for_input("ann", item)])
    job = flow.submit()
    with pytest.raises(Conflict, match=f"no task of flow {job.id} waits for input: the flow is pending"):
        act(job, "answer", 1)
    anywhere.drain()
    first, second = job.children().tasks
    with pytest.raises(
        InvalidInput, match=f"several tasks of flow {job.id} wait for input: .* {first.id}, {second.id}"
    ):
        act(job, "answer", 1)
    assert act(job, "answer", 1, task=first.id) == "queued"
    with pytest.raises(NotFound, match=f"no task {first.id!r} of flow {job.id} waits for input; these do: {second.id}"):
        act(job, "answer", 3, task=first.id)
    assert act(job, "answer", 2) == "queued"
    anywhere.drain()
    assert job.result(0) == {"size": [["a", 1], ["b", 2]]}


def test_a_single_task_is_its_own_task(act: Act, ask, anywhere: Harness) -> None:
    with pytest.raises(InvalidInput, match="this job is a single task: omit it"):
        act(ask.submit(), "answer", 1, task="x")


def test_a_flow_is_retried_from_a_stage(app: Onetray, act: Act, anywhere: Harness) -> None:
    broken, ran = [True], []
    flow = app.flow("steps")

    @flow.stage
    def one() -> None:
        ran.append(1)

    @flow.stage
    def two() -> None:
        ran.append(2)
        if broken:
            raise PermanentError(broken.pop())

    job = flow.submit()
    anywhere.drain()
    again = act(job, "retry", from_stage="one")
    anywhere.drain()
    assert (again.state, again.view().retry_of, ran) == ("succeeded", job.id, [1, 2, 1, 2])
    with pytest.raises(NotFound, match="three"):
        act(job, "retry", from_stage="three")


def test_a_task_is_not_retried_from_a_stage(act: Act, ask, anywhere: Harness) -> None:
    with pytest.raises(InvalidInput, match="a task has no stages: omit from_stage") as raised:
        act(ask.submit(), "retry", from_stage="one")
    assert raised.value.field == "from_stage"


def test_the_progress_of_a_task_is_what_its_handler_said(app: Onetray, act: Act, anywhere: Harness) -> None:
    @app.task(retries=0)
    def walk(far: int) -> None:
        ctx.progress(far, 4, f"step {far}")
        if far < 4:
            raise PermanentError("tired")

    jobs = [walk.submit(far) for far in (3, 4)]
    assert act(jobs[0], "progress").percentage == 0
    anywhere.drain()
    tired, done = (act(job, "progress") for job in jobs)
    assert (tired.state, tired.percentage, tired.reported.message) == ("failed", 75, "step 3")
    assert (done.state, done.percentage, done.stages, done.counts.succeeded) == ("succeeded", 100, (), 1)


def test_the_children_of_a_flow_are_its_stages_tasks_and_jobs(app: Onetray, act: Act, anywhere: Harness) -> None:
    @app.task
    def child(n: int) -> None:
        if n:
            child.submit(n - 1)

    flow, other = app.flow("parents"), app.flow("others")
    flow.stage(name="make", each=[0, 1])(lambda item: child.submit(item).id)
    flow.stage(name="more")(lambda: other.submit().id)
    other.stage(name="only")(lambda: 1)
    job = flow.submit()
    anywhere.drain()
    found = act(job, "children")
    results = job.result(0)
    assert [stage.name for stage in found.stages] == ["make", "more"]
    assert [(task.stage, task.state) for task in found.tasks] == [("make", "succeeded")] * 2 + [("more", "succeeded")]
    assert [(j.id, j.entity, j.state) for j in found.jobs] == [
        *((id_, "task", "succeeded") for id_ in results["make"]), (results["more"], "flow", "succeeded"),
    ]  # fmt: skip
    few = act(job, "children", limit=1)
    assert (len(few.stages), [t.id for t in few.tasks], few.jobs) == (2, [found.tasks[0].id], [found.jobs[0]])
    with pytest.raises(InvalidInput, match="limit"):
        act(job, "children", limit=-1)


def test_the_children_of_a_task_are_the_jobs_that_it_submitted_itself(
    app: Onetray, act: Act, anywhere: Harness
) -> None:
    @app.task
    def leaf() -> None: ...

    @app.task
    def inner() -> None:
        leaf.submit()

    @app.task
    def outer() -> None:
        inner.submit()
        inner.submit()

    job, sibling = (outer.options(correlation_id="order").submit() for _ in range(2))
    anywhere.drain()
    found = act(job, "children")
    assert (found.stages, found.tasks, [j.kind for j in found.jobs]) == ([], [], ["inner", "inner"])
    first = app.job(found.jobs[0].id)
    assert [j.kind for j in act(first, "children").jobs] == ["leaf"]
    assert not {j.id for j in found.jobs} & {j.id for j in act(sibling, "children").jobs}
    assert act(app.job(act(first, "children").jobs[0].id), "children").jobs == []


def test_children_are_read_in_pages(app: Onetray, anywhere: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onetray.app.job_parts.PAGE", 2)

    @app.task
    def child() -> None: ...

    flow = app.flow("parents")
    flow.stage(name="make", each=range(5))(lambda item: child.submit().id)
    job = flow.submit()
    anywhere.drain()
    found = job.children()
    assert (len(found.tasks), [j.id for j in found.jobs]) == (5, job.result(0)["make"])
    assert len(job.children(limit=3).tasks) == 3


def test_a_job_of_an_unknown_id_is_not_found(app: Onetray, anywhere: Harness) -> None:
    unknown = "01890a5d-ac96-774b-bcce-b302099a8057"
    for find in (app.job, lambda id_: asyncio.run(app.aio.job(id_))):
        with pytest.raises(NotFound, match=f"^there is no job {unknown}$"):
            find(unknown)


def test_an_async_job_has_every_public_member_of_a_job_with_the_same_parameters(app: Onetray) -> None:
    found = {name: member for name, member in vars(Job).items() if not name.startswith("_")}
    assert {"over", "states", "outcome", "entity", "repeated"} <= found.keys()
    assert found.keys() - {*vars(AsyncJob), *vars(AsyncJob(Job(app, "1")))} == set()
    for name, member in found.items():
        if inspect.isfunction(member):
            assert inspect.signature(member).parameters == inspect.signature(vars(AsyncJob)[name]).parameters, name


def test_states_and_the_end_of_a_job_are_awaited(app: Onetray, anywhere: Harness) -> None:
    @app.task
    def work() -> int:
        ctx.log("works")
        return 7

    async def follow() -> list[Any]:
        job = await work.aio.submit()
        before = (await job.over(), [state async for state in job.states(0)])
        await asyncio.to_thread(anywhere.drain)
        events, lines = await job.events_after(0), await job.logs_after(0)
        return [*before, await job.over(), await job.outcome(), events[-1].type, lines[0].line, job.entity, job.app]

    assert asyncio.run(follow()) == [False, ["queued"], True, 7, "task.succeeded", "works", "task", app]
