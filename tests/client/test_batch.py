"""Handlers that get a list of tasks: their signatures, and the outcome of each task."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from onetray import BatchItem, Onetray, PermanentError, ctx
from onetray.domain.errors import InvalidInput
from onetray.testing import Harness, run_inline
from tests.support.cases import each_case


@dataclass
class Doc:
    id: int
    text: str = ""


class Row(TypedDict):
    id: int


class Model(BaseModel):
    id: int


def states(jobs: list[Any]) -> list[str]:
    return [job.state for job in jobs]


def test_a_call_gets_up_to_the_number_of_tasks_and_each_has_its_result(app: Onetray, anywhere: Harness) -> None:
    calls: list[list[int]] = []

    @app.task(batch=3)
    def double(docs: list[Doc]) -> list[int]:
        calls.append([doc.id for doc in docs])
        return [2 * doc.id for doc in docs]

    jobs = [double.submit(Doc(1, "one")), double.submit(id=2), *double.submit_many([{"id": 3}, {"id": 4}])]
    assert anywhere.drain() == 4
    assert calls == [[1, 2, 3], [4]]
    assert [job.result(0) for job in jobs] == [2, 4, 6, 8]
    assert jobs[0].view().payload == {"id": 1, "text": "one"}
    assert {event.type for event in jobs[1].events()} == {
        "task.submitted", "task.claimed", "task.started", "task.succeeded",
    }  # fmt: skip


@each_case("item", [Doc, Row, Model, dict, dict[str, int], Any])
def test_an_item_may_be_any_object(app: Onetray, harness: Harness, item: Any) -> None:
    seen: list[Any] = []
    app.tasks.clear()

    async def take(items: Any) -> None:
        seen.extend(items)

    take.__annotations__["items"] = list[item]
    index = app.task(batch=2)(take)
    job = app.submit(index, {"id": 7})
    harness.drain()
    assert job.state == "succeeded"
    assert (seen[0]["id"] if isinstance(seen[0], dict) else seen[0].id) == 7


def test_an_error_fails_each_task_by_its_own_retry_rule(app: Onetray, anywhere: Harness) -> None:
    @app.task(batch=10, max_attempts=2, backoff_base_s=10, jitter=False)
    def index(items: list[Row]) -> None:
        raise ValueError("the index is away")

    jobs = [index.submit(id=1), index.options(max_attempts=1).submit(id=2)]
    anywhere.drain()
    assert states(jobs) == ["queued", "dead_lettered"]
    assert jobs[0].view().error["message"] == "the index is away"


def test_single_tasks_fail_by_an_error_among_the_results(app: Onetray, anywhere: Harness) -> None:
    @app.task(batch=10, no_retry_on=[KeyError], on_exhaustion="fail")
    def index(items: list[Row]) -> list[str | Exception]:
        return ["fine", ValueError("again"), KeyError("never"), PermanentError("never")]

    jobs = [index.submit(id=n) for n in range(4)]
    anywhere.drain()
    assert states(jobs) == ["succeeded", "queued", "failed", "failed"]
    assert jobs[0].result(0) == "fine"


def test_single_tasks_fail_by_their_item_and_log_for_themselves(app: Onetray, anywhere: Harness) -> None:
    @app.task(batch=10)
    def index(items: list[BatchItem[Doc]]) -> None:
        for item in items:
            item.ctx.log("looked at", id=item.payload.id)
            if item.payload.id == 2:
                item.fail("this one is broken")

    jobs = [index.submit(id=n) for n in (1, 2, 3)]
    anywhere.drain()
    assert states(jobs) == ["succeeded", "queued", "succeeded"]
    assert jobs[1].view().error["message"] == "this one is broken"
    assert [[line.data for line in job.logs()] for job in jobs] == [[{"id": 1}], [{"id": 2}], [{"id": 3}]]


@each_case(("returned", "message"), [
    ([], "returned 0 results for 2 items"),
    ([1, 2, 3], "returned 3 results for 2 items"),
    ("ab", "returned a str for 2 items"),
    ({1: 2, 3: 4}, "returned a dict for 2 items"),
])  # fmt: skip
def test_a_wrong_number_of_results_fails_each_task(app: Onetray, harness: Harness, returned: Any, message: str) -> None:
    app.tasks.clear()

    @app.task(batch=10, kind="index")
    def index(items: list[Row]) -> list[Any]:
        return returned  # type: ignore[no-any-return]

    jobs = [index.submit(id=n) for n in (1, 2)]
    harness.drain()
    for job in jobs:
        assert job.state in ("failed", "dead_lettered")
        assert message in job.view().error["message"]


def test_a_result_of_a_wrong_type_fails_only_its_task(app: Onetray, anywhere: Harness) -> None:
    @app.task(batch=10)
    def index(items: list[Row]) -> list[int]:
        return [1, "two", 3]  # type: ignore[list-item]

    jobs = [index.submit(id=n) for n in (1, 2, 3)]
    anywhere.drain()
    assert [job.state == "succeeded" for job in jobs] == [True, False, True]


def test_a_payload_of_a_wrong_type_fails_only_its_task(app: Onetray, anywhere: Harness) -> None:
    seen: list[int] = []

    @app.task(batch=10)
    def index(items: list[Row]) -> None:
        seen.extend(item["id"] for item in items)

    good = index.submit(id=1)
    bad = app.engine.submit("index", {"id": "x"})
    anywhere.drain()
    assert (good.state, app.engine.task(str(bad.id)).state, seen) == ("succeeded", "dead_lettered", [1])
    with pytest.raises(InvalidInput, match="id"):
        index.submit(id="x")


def test_a_cancelled_task_does_not_touch_the_others(app: Onetray, anywhere: Harness) -> None:
    @app.task(batch=10)
    def index(items: list[BatchItem[Row]]) -> list[bool]:
        anywhere.engine.cancel(jobs[0].id)
        return [item.ctx.cancelled for item in items]

    @app.task(batch=10)
    def stops(items: list[BatchItem[Row]]) -> None:
        if len(items) > 1:
            anywhere.engine.cancel(items[0].ctx.id)
        items[0].ctx.check_cancelled()

    jobs = [index.submit(id=n) for n in (1, 2)]
    anywhere.drain()
    assert [job.result(0) for job in jobs] == [True, False]
    jobs = [stops.submit(id=n) for n in (1, 2)]
    anywhere.drain()
    # The handler stopped for the first: the second was returned, and ran again.
    assert states(jobs) == ["cancelled", "succeeded"]
    assert jobs[1].view().attempts == 1


def test_hooks_are_called_for_each_task(app: Onetray, harness: Harness) -> None:
    seen: list[tuple[str, str]] = []
    app.before(lambda c: seen.append(("before", ctx.id)))
    app.after(lambda c, result: seen.append((str(result), c.id)))
    app.on_error(lambda c, error: seen.append((str(error), c.id)))

    @app.task(batch=10)
    def index(items: list[Row]) -> list[Any]:
        return [1, ValueError("no")]

    one, two = index.submit(id=1).id, index.submit(id=2).id
    harness.drain()
    assert seen == [("before", one), ("before", two), ("1", one), ("no", two)]


def test_a_hook_that_raises_leaves_its_task_out(app: Onetray, harness: Harness) -> None:
    calls: list[int] = []

    @app.before
    def check(c: Any) -> None:
        if c.payload["id"] == 1:
            raise ValueError("not this one")

    @app.task(batch=10)
    def index(items: list[Row]) -> None:
        calls.extend(item["id"] for item in items)

    jobs = [index.submit(id=n) for n in (1, 2)]
    harness.drain()
    assert (states(jobs), calls) == (["queued", "succeeded"], [2])


def test_a_batch_cannot_wait_for_input(app: Onetray, harness: Harness) -> None:
    @app.task(batch=10)
    def index(items: list[BatchItem[Row]]) -> None:
        items[0].ctx.wait_for_input("ann")

    job = index.submit(id=1)
    harness.drain()
    assert "cannot wait for input" in job.view().error["message"]


def test_an_error_that_tasks_share_shows_none_the_secrets_of_another(app: Onetray, harness: Harness) -> None:
    @app.task(batch=10, redact=["password"], retries=0)
    def login(items: list[dict[str, str]]) -> None:
        raise ValueError(f"refused: {items[0]['password']}")

    jobs = [login.submit(user=name, password=f"secret-of-{name}") for name in ("ann", "bob")]
    harness.drain()
    for job in jobs:
        error = harness.engine.task(job.id).error
        assert (error["class"], "secret-of-ann" in str(error)) == ("ValueError", False)


def test_inline_a_submit_is_a_batch_of_one(app: Onetray) -> None:
    calls: list[int] = []

    @app.task(batch=10)
    def index(items: list[Row]) -> list[int]:
        calls.append(len(items))
        return [item["id"] for item in items]

    with run_inline(app):
        assert index.submit(id=5).result(0) == 5
        assert [job.result(0) for job in index.submit_many([{"id": 1}, {"id": 2}])] == [1, 2]
        asyncio.run(index.aio.submit(id=3))
    assert calls == [1, 2, 1]


def test_a_batch_can_be_debounced_by_a_field_of_its_item(app: Onetray, harness: Harness) -> None:
    @app.task(batch=10, debounce_s=5, debounce_key="id")
    def index(items: list[Row]) -> list[int]:
        return [item["id"] for item in items]

    assert index.submit(id=1).id == index.submit(id=1).id != index.submit(id=2).id
    harness.advance(5)
    assert harness.drain() == 2


def handler_of_two(a: Any, b: Any) -> None: ...
def handler_of_none() -> None: ...
def handler_of_one(doc: Doc) -> None: ...
def handler_of_texts(items: list[str]) -> None: ...
def handler_of_lists(items: list[list[int]]) -> None: ...
def handler_with_a_single_result(items: list[Doc]) -> int:
    return 0


@each_case(("handler", "message"), [
    (handler_of_two, "takes one argument, a list"), (handler_of_none, "takes one argument, a list"),
    (handler_of_one, "takes one argument, a list"), (handler_of_texts, "where Item is a dataclass"),
    (handler_of_lists, "where Item is a dataclass"), (handler_with_a_single_result, "returns a list"),
])  # fmt: skip
def test_a_handler_of_another_shape_is_refused(app: Onetray, handler: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        app.task(batch=10)(handler)


@each_case(("rules", "message"), [
    ({"batch": 0}, "batch"), ({"batch": 1001}, "batch"), ({"batch": "ten"}, "batch"),
    ({"batch_s": 1}, "batch_s needs batch"),
    ({"batch": 5, "batch_s": -1}, "batch_s"), ({"batch": 5, "batch_size": 1}, "unknown setting"),
])  # fmt: skip
def test_wrong_numbers_are_refused(app: Onetray, rules: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        app.task(**rules)(handler_of_one)


@each_case(("args", "kwargs", "message"), [
    (({"id": 1}, {"id": 2}), {}, "pass one item"), (({"id": 1},), {"id": 2}, "pass one item"),
    (([1],), {}, "index"), ((), {}, "id: Field required. It takes an item of items"),
])  # fmt: skip
def test_a_submit_of_something_else_is_refused(
    app: Onetray, harness: Harness, args: Any, kwargs: Any, message: str
) -> None:
    app.tasks.clear()

    @app.task(batch=10)
    def index(items: list[Row]) -> None: ...

    with pytest.raises(InvalidInput, match=message):
        index.submit(*args, **kwargs)
