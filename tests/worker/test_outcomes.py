"""Handlers that end in unusual ways: each task gets a clear outcome, and the worker goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from onetray import InvalidInput, Onetray, PermanentError, TaskCancelled, ctx
from onetray.app.job import Job

ONCE = {"retries": 0}


class Unprintable(Exception):
    """Its __str__ raises."""

    def __str__(self) -> str:
        raise Unprintable


def raising(error: BaseException) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


def returning(value: Any) -> Callable[[], Any]:
    def handler() -> Any:
        return value

    return handler


RAISED: dict[str, tuple[BaseException, str]] = {
    "BaseException": (BaseException("no"), "BaseException"),
    "SystemExit": (SystemExit(3), "SystemExit"),
    "KeyboardInterrupt": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "StopIteration": (StopIteration(1), "RuntimeError"),
    "StopAsyncIteration": (StopAsyncIteration(), "StopAsyncIteration"),
    "GeneratorExit": (GeneratorExit(), "GeneratorExit"),
    "CancelledError": (asyncio.CancelledError(), "CancelledError"),
    "TaskCancelled": (TaskCancelled("by myself"), "TaskCancelled"),
    "NUL": (ValueError("a\0b"), "ValueError"),
    "surrogate": (ValueError("a\ud800b"), "ValueError"),
    "long": (ValueError("x" * 10_000_000), "ValueError"),
    "unprintable": (Unprintable(), "Unprintable"),
    "long name": (type("E" * 5_000, (Exception,), {})("x"), "E" * 200),
    "group": (BaseExceptionGroup("many", [SystemExit(1), ValueError("x")]), "BaseExceptionGroup"),
}


@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_whatever_a_handler_raises_ends_its_task_and_not_the_worker(app: Onetray, isolation: str) -> None:
    well = app.task(kind="well")(returning(7))
    jobs: dict[str, Job[Any]] = {}
    for number, (name, (error, _)) in enumerate(RAISED.items()):
        function = raising(error)

        async def on_loop(function: Callable[[], None] = function) -> None:
            function()

        handler = function if isolation == "thread" else on_loop
        jobs[name] = app.task(kind=f"odd{number}", **ONCE)(handler).submit()
    with app.worker(concurrency=3):
        states = {name: job.wait(60) for name, job in jobs.items()}
        assert well.submit().result(60) == 7
    assert set(states.values()) == {"dead_lettered"}
    actual = {name: job.view().error["class"] for name, job in jobs.items()}
    assert actual == {name: error_class for name, (_, error_class) in RAISED.items()}


UNSTORABLE: dict[str, Any] = {
    "too large": "x" * 1_000_001,
    "not JSON": object(),
    "NaN": float("nan"),
    "huge number": 10**30,
    "NUL": "a\0b",
    "surrogate": "a\ud800b",
    "bytes": b"\xff\xfe",
}


def test_a_result_that_cannot_be_stored_fails_the_task_without_a_retry(app: Onetray) -> None:
    odd = [app.task(kind=f"odd{n}", retries=5)(returning(value)) for n, value in enumerate(UNSTORABLE.values())]
    jobs = dict(zip(UNSTORABLE, [task.submit() for task in odd], strict=True))
    with app.worker(concurrency=3):
        assert {name: job.wait(60) for name, job in jobs.items()} == dict.fromkeys(UNSTORABLE, "failed")
    assert {job.view().attempts for job in jobs.values()} == {1}
    assert {job.view().error["stage"] for job in jobs.values()} == {"output"}


def test_a_result_that_does_not_match_the_return_type_fails_the_task(app: Onetray) -> None:
    @app.task(retries=5)
    def count() -> int:
        return "many"  # type: ignore[return-value]

    job = count.submit()
    with app.worker():
        assert job.wait(60) == "failed"
    error = job.view().error
    assert (error["class"], error["stage"]) == ("ValidationError", "output")
    assert "count returned a value that does not match its return type" in error["message"]


def test_a_payload_that_does_not_match_the_parameters_is_not_retried(app: Onetray) -> None:
    @app.task(retries=5)
    def send(to: str) -> None: ...

    app.engine.submit("send", {"whom": 1})
    (task,) = app.engine.tasks()
    with app.worker():
        assert app.job(task.id).wait(60) == "dead_lettered"
    assert app.job(task.id).view().error["stage"] == "input"


def test_ten_thousand_log_lines_are_all_stored_in_order(app: Onetray) -> None:
    @app.task
    def chatter() -> None:
        for n in range(10_000):
            ctx.log(str(n))

    logging.getLogger("onetray.task").setLevel(logging.WARNING)
    job = chatter.submit()
    with app.worker():
        assert job.wait(60) == "succeeded"
        assert [line.line for line in job.logs()] == [str(n) for n in range(10_000)]


def test_a_log_line_that_cannot_be_stored_unchanged_affects_no_other_line(app: Onetray) -> None:
    @app.task
    def talk() -> None:
        ctx.log("before")
        ctx.log("object", thing=object(), deep={"a": {1, 2}}, number=10**40)
        ctx.log("NUL \0 and \ud800", data="\0\ud800")
        ctx.log("x" * 100_000)
        ctx.log("large", data="y" * 2_000_000)
        ctx.log(7)  # type: ignore[arg-type]
        ctx.log("after")

    job = talk.submit()
    with app.worker():
        assert job.wait(60) == "succeeded"
        lines = [line.line for line in job.logs()]
    assert [line[:6] for line in lines] == ["before", "object", "NUL \\0", "x" * 6, "large", "7", "after"]


@pytest.mark.parametrize("nonsense", [("many",), (float("nan"),), (-1,), (1, 0, "x" * 100_000), (1, 2, "\0"), (None,)])
def test_invalid_progress_does_not_fail_the_task(app: Onetray, nonsense: tuple[Any, ...]) -> None:
    @app.task
    def work() -> int:
        ctx.progress(*nonsense)
        ctx.log("went on")
        return 1

    job = work.submit()
    with app.worker():
        assert job.result(60) == 1
        assert [line.line for line in job.logs()] == ["went on"]


def test_a_retried_handler_that_submits_children_in_a_loop_submits_each_child_once(app: Onetray) -> None:
    @app.task
    def child(n: int) -> int:
        return n

    @app.task(retries=1, backoff_base_s=0.0)
    def parent() -> None:
        for n in range(50):
            child.submit(n)
        if ctx.attempt == 1:
            raise RuntimeError("again")

    job = parent.submit()
    with app.worker():
        assert job.wait(60) == "succeeded"
    children = [t for t in app.engine.tasks(limit=1000) if t.kind == "child"]
    assert sorted(t.payload["n"] for t in children) == list(range(50))


def test_a_handler_that_raises_task_cancelled_without_a_cancel_uses_up_its_attempts(app: Onetray) -> None:
    @app.task(retries=1, backoff_base_s=0.0)
    def stop_myself() -> None:
        raise TaskCancelled("I had enough")

    job = stop_myself.submit()
    with app.worker():
        assert job.wait(60) == "dead_lettered"
    assert job.view().attempts == 2


def test_system_exit_in_a_stray_asyncio_task_does_not_end_the_loop(
    app: Onetray, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def careless() -> str:
        async def leave() -> None:
            raise SystemExit(1)

        stray = asyncio.create_task(leave())
        await asyncio.wait([stray], timeout=5)
        assert isinstance(stray.exception(), SystemExit)
        return "still here"

    job = careless.submit()
    with app.worker():
        assert job.result(60) == "still here"
    assert "the event loop goes on" in caplog.text


def test_a_failing_hook_after_a_success_changes_nothing_and_one_before_fails_the_attempt(app: Onetray) -> None:
    @app.task(**ONCE)
    def work() -> int:
        return 1

    @app.after
    def after(_: Any, result: Any) -> None:
        raise ValueError("after")

    job = work.submit()
    with app.worker():
        assert job.result(60) == 1

    @app.before
    async def before(_: Any) -> None:
        raise PermanentError("not today")

    job = work.submit()
    with app.worker():
        assert job.wait(60) == "failed"
    assert job.view().error["message"] == "not today"


def test_an_argument_that_is_not_valid_json_is_rejected_by_the_submit(app: Onetray) -> None:
    @app.task
    def measure(value: float) -> float:
        return value

    with pytest.raises(InvalidInput, match="NaN"):
        measure.submit(float("nan"))
    assert app.engine.tasks() == []
