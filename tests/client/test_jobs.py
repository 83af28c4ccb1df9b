"""A job as its submitter sees it: waiting, results, events, logs, cancel and retry."""

import threading

import pytest

from onetray import Engine, InvalidInput, JobFailed, NotFound, NotYet, Onetray, PermanentError, ctx
from onetray.testing import Harness


@pytest.fixture
def double(app: Onetray):
    @app.task
    def double(n: int) -> int:
        ctx.log(f"twice {n}", n=n)
        return 2 * n

    return double


def test_waiting_ends_when_a_worker_has_done_the_work(app: Onetray, engine: Engine, double) -> None:
    app.use(engine)
    with app.worker(concurrency=2):
        jobs = double.submit_many([{"n": 1}, {"n": 2}])
        assert [job.result(20) for job in jobs] == [2, 4]
        assert jobs[0].wait(0) == "succeeded"


def test_time_may_run_out_before_a_job_has_ended(double, anywhere: Harness) -> None:
    job = double.submit(n=1)
    with pytest.raises(
        NotYet, match=f"job {job.id} is still queued after 0 s: no worker is alive: start one"
    ) as raised:
        job.wait(0)
    assert (raised.value.job, raised.value.timeout_s) == (job.id, 0)
    with pytest.raises(NotYet):
        job.result(0.01)


def test_a_failure_is_told_with_its_facts(app: Onetray, anywhere: Harness) -> None:
    @app.task
    def broken() -> None:
        raise PermanentError("no such mailbox")

    job = broken.submit()
    anywhere.drain()
    with pytest.raises(JobFailed, match=f"job {job.id} is failed: PermanentError: no such mailbox") as raised:
        job.result(0)
    assert (raised.value.job, raised.value.state) == (job.id, "failed")
    assert "no such mailbox" in raised.value.error["detail"]["traceback"]
    assert (raised.value.task, raised.value.stage) == (job.id, None)
    assert (raised.value.error_class, raised.value.error_message) == ("PermanentError", "no such mailbox")


def test_a_cancelled_job_has_no_result(double, harness: Harness) -> None:
    job = double.submit(n=1)
    assert job.cancel(by="ann") == "cancelled"
    assert harness.drain() == 0
    with pytest.raises(JobFailed, match="is cancelled") as raised:
        job.result(0)
    assert raised.value.state == "cancelled"
    assert list(job.events())[-1].actor == "user:ann"


def test_a_running_job_is_asked_to_stop(app: Onetray, engine: Engine) -> None:
    app.use(engine)
    began = threading.Event()

    @app.task
    def long() -> None:
        began.set()
        for _ in range(2_000):
            ctx.check_cancelled()
            threading.Event().wait(0.01)

    with app.worker():
        job = long.submit()
        assert began.wait(20)
        job.cancel()
        assert job.wait(20) == "cancelled"


def test_events_and_logs_come_in_their_order(double, anywhere: Harness) -> None:
    job = double.submit(n=3)
    anywhere.drain()
    assert [event.type.removeprefix("task.") for event in job.events()] == [
        "submitted", "claimed", "started", "succeeded",
    ]  # fmt: skip
    assert [(line.level, line.line, line.data) for line in job.logs()] == [("info", "twice 3", {"n": 3})]


def test_events_and_logs_can_be_followed_to_the_end(app: Onetray, engine: Engine) -> None:
    app.use(engine)
    said, go_on = threading.Event(), threading.Event()

    @app.task
    def chatty() -> None:
        ctx.log("first")
        said.set()
        assert go_on.wait(20)
        ctx.log("second")

    job = chatty.submit()
    assert [event.type for event in job.events()] == ["task.submitted"]
    assert list(job.logs()) == []
    with app.worker():
        lines = job.logs(follow=True)
        assert next(lines).line == "first"
        assert said.wait(20)
        go_on.set()
        assert [line.line for line in lines] == ["second"]
        assert [event.type for event in job.events(follow=True)][-1] == "task.succeeded"


def test_more_log_lines_than_a_page_are_all_read(double, harness: Harness) -> None:
    job = double.submit(n=1)
    [held] = harness.engine.claim(worker="w1")
    for page in range(3):
        harness.engine.log(held, *(f"{page}/{n}" for n in range(500)))
    assert [line.line for line in job.logs()] == [f"{page}/{n}" for page in range(3) for n in range(500)]


def test_the_log_of_a_flow_is_that_of_all_its_tasks(app: Onetray, anywhere: Harness) -> None:
    flow = app.flow("talk")

    @flow.stage(each=range(3))
    def say(item: int) -> None:
        ctx.progress(item, 3)
        ctx.log(f"line {item}", n=item)

    job = flow.submit()
    assert list(job.logs()) == []
    anywhere.drain()
    assert [(line.level, line.line, line.data) for line in job.logs()] == [
        ("info", f"line {n}", {"n": n}) for n in range(3)
    ]
    assert list(job.logs(follow=True)) == list(job.logs())


def test_progress_between_the_lines_of_a_flow_ends_no_page(app: Onetray, harness: Harness) -> None:
    flow = app.flow("long")
    flow.stage(name="many", each=range(1_001))(lambda item: None)
    job = flow.submit()
    *silent, last = harness.engine.claim(worker="w", limit=1_001)
    for held in (*silent, last):
        harness.engine.say_progress(held, 1)
    harness.engine.log(last, "at last")
    assert [line.line for line in job.logs()] == ["at last"]


def test_what_a_flow_takes_a_task_does_not(app: Onetray, double, anywhere: Harness) -> None:
    flow = app.flow("one")
    flow.stage(name="only")(lambda: 1)
    with pytest.raises(InvalidInput, match=r"a task has no stages: use result\(\)"):
        double.submit(n=1).results()
    with pytest.raises(InvalidInput, match=r"a flow takes no input: answer its waiting task with answer\(\)"):
        flow.submit().resume(3)


def test_a_job_that_has_failed_can_be_retried_as_a_new_one(app: Onetray, anywhere: Harness) -> None:
    broken = [True]

    @app.task
    def flaky(n: int) -> int:
        if broken:
            raise PermanentError(broken.pop())
        return n

    job = flaky.submit(n=5)
    anywhere.drain()
    again = job.retry(by="ann")
    assert again.id != job.id
    anywhere.drain()
    assert (again.result(0), job.state) == (5, "failed")
    assert again.view().retry_of == job.id


def test_a_job_is_found_by_its_id(app: Onetray, double, anywhere: Harness) -> None:
    flow = app.flow("one")
    flow.stage(name="only")(lambda: 1)
    job, root = double.submit(n=1), flow.submit()
    anywhere.drain()
    assert app.job(job.id).result(0) == 2
    assert app.job(root.id).result(0) == {"only": 1}


def test_there_is_no_job_of_an_unknown_id(app: Onetray, harness: Harness) -> None:
    with pytest.raises(NotFound):
        app.job("01890a5d-ac96-774b-bcce-b302099a8057")
    with pytest.raises(InvalidInput):
        app.job("nonsense")


def test_a_job_of_another_namespace_is_not_found(double, harness: Harness) -> None:
    job = double.submit(n=1)
    other = Onetray("sqlite:////nowhere/at/all.db", namespace="other")
    other.use(harness.engine)
    with pytest.raises(NotFound):
        other.job(job.id)


def test_tasks_of_a_namespace_stay_in_it(database_url: str) -> None:
    app = Onetray("sqlite:////nowhere/at/all.db", namespace="shop")

    @app.task
    def sell() -> str:
        ctx.checkpoint(1)
        return str(ctx.last_checkpoint)

    with Harness(app, database=database_url) as harness:
        job = sell.submit()
        assert harness.drain() == 1
        assert (job.result(0), [e.type for e in job.events()][-1]) == ("1", "task.succeeded")
        assert job.explain() is not None
        assert harness.engine.tasks() == []


def test_a_task_is_retried_later_and_with_its_attempts(app: Onetray, anywhere: Harness) -> None:
    @app.task(retries=2)
    def fragile() -> None:
        raise PermanentError("no")

    job = fragile.options(alias="order/17").submit()
    anywhere.drain()
    again = job.retry(keep_attempts=True, delay_s=3600)
    task = app.engine.task(again.id)
    assert (task.attempts, task.max_attempts, task.alias) == (1, 3, "order/17")
    assert task.run_at - task.created_at == 3600 * 1_000_000
    flow = app.flow("one")
    flow.stage(name="only")(lambda: 1)
    with pytest.raises(InvalidInput, match="a flow has no delay"):
        flow.submit(alias="run").retry(delay_s=1)
    assert app.engine.by_alias("run").entity == "flow"
