"""Tasks that are debounced or throttled by their rules."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onetray import Onetray
from onetray.domain.errors import InvalidInput
from onetray.testing import Harness, run_inline
from tests.support.cases import each_case


def test_a_debounced_task_runs_once_with_the_last_arguments(app: Onetray, anywhere: Harness) -> None:
    ran: list[tuple[str, int]] = []

    @app.task(debounce_s=5, debounce_key="doc", debounce_max_s=20)
    def index(doc: str, version: int) -> None:
        ran.append((doc, version))

    jobs = [index.submit(doc=doc, version=n) for n in range(3) for doc in ("a", "b")]
    assert len({job.id for job in jobs}) == 2
    assert [job.window for job in jobs] == [None, None, *["debounced"] * 4]
    assert anywhere.drain() == 0
    anywhere.advance(5)
    assert anywhere.drain() == 2
    assert ran == [("a", 2), ("b", 2)]


def test_a_throttled_task_is_submitted_once_in_its_window(app: Onetray, anywhere: Harness) -> None:
    @app.task(throttle_s=60, throttle_key="user.id")
    def greet(user: dict[str, Any]) -> int:
        return int(user["id"])

    first, other = greet.submit(user={"id": 1}), greet.submit(user={"id": 2})
    again = greet.submit(user={"id": 1, "name": "ann"})
    assert (again.id, again.window, again.repeated) == (first.id, "throttled", True)
    assert other.id != first.id
    anywhere.drain()
    assert greet.submit(user={"id": 1}).result(0) == 1
    anywhere.advance(60)
    assert greet.submit(user={"id": 1}).id != first.id


def test_options_of_a_submit_take_precedence(app: Onetray, anywhere: Harness) -> None:
    @app.task(debounce_s=5, debounce_key="doc")
    def index(doc: str) -> None: ...

    first = index.submit(doc="a")
    assert index.options(debounce_key="a", debounce_s=50).submit(doc="b").id == first.id
    plain = index.options(debounce_s=None).submit(doc="a")
    assert (plain.id != first.id, plain.window) == (True, None)
    assert index.options(debounce_s=None, throttle_s=5).submit(doc="a").window is None
    with pytest.raises(InvalidInput, match="not both"):
        index.options(throttle_s=5).submit(doc="a")


def test_many_and_async_submits_share_the_window(app: Onetray, anywhere: Harness) -> None:
    @app.task(throttle_s=5, throttle_key="n")
    def count(n: int) -> None: ...

    jobs = count.submit_many([{"n": n % 2} for n in range(6)])
    assert len({job.id for job in jobs}) == 2
    again = asyncio.run(count.aio.submit(n=0))
    assert again.id == jobs[0].id


def test_a_task_that_submits_a_debounced_one_does_so_once_for_all_its_attempts(app: Onetray, anywhere: Harness) -> None:
    @app.task(debounce_s=5)
    def index(n: int) -> None: ...

    @app.task(retries=1, backoff_base_s=1, jitter=False)
    def parent() -> None:
        ids.append(index.submit(n=1).id)
        if len(ids) == 1:
            raise ValueError("again")

    ids: list[str] = []
    parent.submit()
    anywhere.drain()
    anywhere.advance(1)
    anywhere.drain()
    assert len(ids) == 2
    assert [event.type for event in app.job(ids[0]).events()] == ["task.submitted"]


def test_inline_every_submit_runs_at_once(app: Onetray) -> None:
    ran: list[int] = []

    @app.task(debounce_s=5)
    def index(n: int) -> None:
        ran.append(n)

    with run_inline(app):
        index.submit(n=1)
        index.submit(n=2)
    assert ran == [1, 2]


@each_case(("rules", "message"), [
    ({"debounce_s": 0}, "debounce_s"),
    ({"debounce_s": 5, "throttle_s": 5}, "set debounce_s or throttle_s, not both"),
    ({"debounce_key": "doc"}, "debounce_key needs debounce_s"),
    ({"throttle_key": "doc"}, "throttle_key needs throttle_s"),
    ({"debounce_s": 5, "debounce_max_s": 1}, "at least debounce_s"),
    ({"debounce_s": 5, "debounce_key": "dok"}, "'dok' is no argument; it takes: doc"),
    ({"debounce_s": 5, "debounce_key": 5}, "debounce_key"),
    ({"debounce": 5}, "did you mean 'debounce_s'"),
])  # fmt: skip
def test_wrong_rules_are_refused_when_they_are_declared(app: Onetray, rules: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):

        @app.task(kind="index", **rules)
        def index(doc: Any) -> None: ...


@each_case(("doc", "message"), [
    ({}, "the payload has no 'doc.id', which is its debounce_key"),
    ("text", "the payload has no 'doc.id'"),
    ({"id": ""}, "it must have 1 to 500 characters"),
    ({"id": "x" * 501}, "it must have 1 to 500 characters"),
])  # fmt: skip
def test_a_payload_without_a_key_is_refused(app: Onetray, harness: Harness, doc: Any, message: str) -> None:
    app.tasks.clear()

    @app.task(debounce_s=5, debounce_key="doc.id")
    def index(doc: Any) -> None: ...

    with pytest.raises(InvalidInput, match=message):
        index.submit(doc=doc)
    assert harness.engine.tasks() == []


def test_a_stage_cannot_be_debounced(app: Onetray) -> None:
    flow = app.flow("news")
    with pytest.raises(InvalidInput, match="unknown"):
        flow.stage(debounce_s=5)  # type: ignore[call-overload]


def test_a_payload_that_is_no_dict_is_refused(app: Onetray, harness: Harness) -> None:
    app.task(kind="index")(lambda: None)
    with pytest.raises(InvalidInput, match=r"must be a dict of arguments, not \[1\]"):
        app.submit("index", [1])  # type: ignore[call-overload]
